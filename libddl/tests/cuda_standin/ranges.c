/* SPDX-License-Identifier: Apache-2.0 */
/* The addresses that the program has got from the stand-in, or has registered. A device address
 * belongs to pages that cannot be accessed. The stand-in accesses the memory at other addresses,
 * which the program does not get. */
#include <stdlib.h>
#include <sys/mman.h>

#include "standin.h"

static range *ranges;
static unsigned long long last_id;

static size_t round_up(size_t bytes)
{
    return (bytes + STANDIN_PAGE - 1) / STANDIN_PAGE * STANDIN_PAGE;
}

static void *map_nothing(size_t bytes)
{
    return mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
}

uintptr_t standin_reserve(size_t bytes, size_t alignment)
{
    bytes = round_up(bytes);
    /* More than is needed, to give back what is before and behind the aligned part. */
    char *all = bytes + alignment < bytes ? MAP_FAILED : map_nothing(bytes + alignment);
    if (all == MAP_FAILED)
        return 0;
    size_t before = (alignment - (uintptr_t)all % alignment) % alignment;
    if (before)
        munmap(all, before);
    munmap(all + before + bytes, alignment - before);
    return (uintptr_t)all + before;
}

range *standin_range_add(range_kind kind, uintptr_t start, size_t bytes, memory *m, context *owner)
{
    range *r = calloc(1, sizeof *r);
    if (!r) {
        standin_memory_release(m);
        return NULL;
    }
    *r = (range){.next = ranges,
                 .kind = kind,
                 .start = start,
                 .bytes = bytes,
                 .memory = m,
                 .context = owner,
                 .device = m->device,
                 .id = ++last_id};
    return ranges = r;
}

void standin_range_remove(range *r)
{
    range **link = &ranges;
    while (*link != r)
        link = &(*link)->next;
    *link = r->next;
    if (r->kind == DEVICE_ALLOCATED)
        munmap((void *)r->start, round_up(r->bytes));
    standin_memory_release(r->memory);
    free(r);
}

range *standin_range_at(uintptr_t address)
{
    range *r = ranges;
    while (r && (address < r->start || address - r->start >= r->bytes))
        r = r->next;
    return r;
}

range *standin_range_of(uintptr_t start, range_kind kind)
{
    range *r = standin_range_at(start);
    return r && r->kind == kind && r->start == start ? r : NULL;
}

CUresult standin_range_free(uintptr_t start, range_kind kind, CUresult otherwise)
{
    range *r = standin_range_of(start, kind);
    if (!r)
        return otherwise;
    if (!standin_drain(r->context))
        return CUDA_ERROR_OUT_OF_MEMORY;
    r = standin_range_of(start, kind); /* another thread may have freed it meanwhile */
    if (!r)
        return otherwise;
    standin_range_remove(r);
    return CUDA_SUCCESS;
}

range *standin_range_within(uintptr_t address, size_t bytes)
{
    range *first = NULL;
    for (range *r = ranges; r; r = r->next)
        if (r->start < address + bytes && address < r->start + r->bytes &&
            (!first || r->start < first->start))
            first = r;
    return first;
}

/* Return true if the device may access the range. A mapping is accessible to the devices that
 * cuMemSetAccess has named, other memory of a device only to that device. */
static bool is_accessible(const range *r, int device, CUmemAccess_flags wanted)
{
    switch (r->kind) {
    case MAPPED: return (r->access[device] & wanted) == wanted;
    case DEVICE_ALLOCATED: return r->device == device;
    case HOST_ALLOCATED:
    case HOST_REGISTERED: break;
    }
    return true;
}

place standin_place(uintptr_t address, size_t bytes, int device, CUmemAccess_flags wanted)
{
    if (bytes > UINTPTR_MAX - address)
        return PLACE_INVALID;
    const range *r = standin_range_at(address);
    if (!r)
        return standin_range_within(address, bytes) || standin_is_reserved(address, bytes)
                   ? PLACE_INVALID
                   : PLACE_PAGEABLE;
    bool host = r->kind == HOST_ALLOCATED || r->kind == HOST_REGISTERED;
    for (uintptr_t end = address + bytes;;) {
        if (!is_accessible(r, device, wanted))
            return PLACE_INVALID;
        uintptr_t behind = r->start + r->bytes;
        if (end <= behind)
            return host ? PLACE_PINNED : PLACE_DEVICE;
        /* Only mappings may continue in another one. */
        const range *next = standin_range_at(behind);
        if (r->kind != MAPPED || !next || next->kind != MAPPED)
            return PLACE_INVALID;
        r = next;
    }
}

span standin_span_take(uintptr_t address, size_t bytes, int device, CUmemAccess_flags wanted,
                       const char *user)
{
    standin_lock();
    const range *r = standin_range_at(address);
    if (!r || !is_accessible(r, device, wanted))
        standin_die("%s on device %d uses %#lx, which is %s; a real device reports an illegal "
                    "address",
                    user, device, (unsigned long)address,
                    r ? "not accessible to it" : "no memory that it knows, or was freed");
    size_t offset = address - r->start, left = r->bytes - offset;
    span s = {r->memory->base + offset, left < bytes ? left : bytes, r->memory};
    standin_memory_retain(r->memory);
    standin_unlock();
    return s;
}

void standin_span_drop(span *s)
{
    standin_lock();
    standin_memory_release(s->memory);
    standin_unlock();
}
