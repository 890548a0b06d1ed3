/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of devices, pinned memory of the host, and virtual memory. A device address belongs to
 * pages that cannot be accessed. The stand-in accesses the memory at other addresses, which the
 * program does not get. Pinned memory comes from the program's allocator, so AddressSanitizer
 * detects accesses behind its end, including those of copies. */
#include <stdlib.h>
#include <sys/mman.h>

#include "standin.h"

enum { GRANULARITY = 2 << 20 /* of virtual memory */ };

/* CREATED is memory without addresses, RESERVED addresses without memory. */
typedef enum range_kind {
    DEVICE_ALLOCATED,
    HOST_ALLOCATED,
    HOST_REGISTERED,
    MAPPED,
    RESERVED,
    CREATED
} range_kind;

struct range {
    range *next;
    range_kind kind;
    uintptr_t start;
    size_t bytes;
    unsigned char *base; /* where the stand-in accesses it */
    void *owned;         /* memory to free */
    context *context;
    int device;
    unsigned references; /* one of the program, and one of each access by a stream */
    unsigned char access[STANDIN_DEVICES_MAX]; /* CUmemAccess_flags, if MAPPED */
};

static range *ranges;

static bool is_host(const range *r)
{
    return r->kind == HOST_ALLOCATED || r->kind == HOST_REGISTERED;
}

static size_t round_up(size_t bytes)
{
    return (bytes + STANDIN_PAGE - 1) / STANDIN_PAGE * STANDIN_PAGE;
}

/* Return addresses whose pages nobody can touch; 0 if there are none. */
static uintptr_t reserve(size_t bytes, size_t alignment)
{
    bytes = round_up(bytes);
    /* More than is needed, to give back what is before and behind the aligned part. */
    char *all = mmap(NULL, bytes + alignment, PROT_NONE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (all == MAP_FAILED)
        return 0;
    size_t before = (alignment - (uintptr_t)all % alignment) % alignment;
    if (before)
        munmap(all, before);
    munmap(all + before + bytes, alignment - before);
    return (uintptr_t)all + before;
}

static range *range_add(range r)
{
    range *added = standin_new(sizeof *added);
    *added = r;
    added->next = ranges;
    added->references = 1;
    return ranges = added;
}

static void range_release(range *r)
{
    if (--r->references)
        return;
    free(r->owned);
    free(r);
}

/* Return the newest range with any of these addresses, or NULL. */
static range *range_within(uintptr_t address, size_t bytes)
{
    range *r = ranges;
    while (r &&
           (r->kind == CREATED || r->start >= address + bytes || address >= r->start + r->bytes))
        r = r->next;
    return r;
}

static range *range_of(uintptr_t start, range_kind kind)
{
    range *r = range_within(start, 1);
    return r && r->kind == kind && r->start == start ? r : NULL;
}

/* Wait for the streams of the range's context, as the real driver does when memory is freed, and
 * remove the range. Return `otherwise` if there is none. Programs must not rely on this wait, so it
 * is not an edge. */
static CUresult range_free(uintptr_t start, range_kind kind, CUresult otherwise)
{
    range *r = range_of(start, kind);
    if (r)
        standin_drain(r->context);
    r = range_of(start, kind); /* another thread may have freed it meanwhile */
    if (!r)
        return otherwise;
    range **link = &ranges;
    while (*link != r)
        link = &(*link)->next;
    *link = r->next;
    if (kind == DEVICE_ALLOCATED)
        munmap((void *)r->start, round_up(r->bytes));
    range_release(r);
    return CUDA_SUCCESS;
}

/* Return true if the device may access the range. A mapping is accessible to the devices that
 * cuMemSetAccess has named, other memory of a device only to that device. */
static bool is_accessible(const range *r, int device, bool writes)
{
    CUmemAccess_flags wanted =
        writes ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_READ;
    if (r->kind == MAPPED)
        return (r->access[device] & wanted) == wanted;
    return is_host(r) || (r->kind == DEVICE_ALLOCATED && r->device == device);
}

static bool has_bytes(const range *r, uintptr_t address, size_t bytes)
{
    return address >= r->start && bytes <= r->bytes - (address - r->start);
}

place standin_place(uintptr_t address, size_t bytes, int device, bool writes)
{
    if (bytes > UINTPTR_MAX - address)
        return PLACE_INVALID;
    const range *r = range_within(address, bytes);
    if (!r)
        return PLACE_PAGEABLE;
    if (!has_bytes(r, address, bytes) || !is_accessible(r, device, writes))
        return PLACE_INVALID;
    return is_host(r) ? PLACE_PINNED : PLACE_DEVICE;
}

range *standin_use(uintptr_t address, size_t bytes, int device, bool writes, const char *user,
                   unsigned char **at)
{
    standin_lock();
    range *r = range_within(address, 1);
    if (!r || !has_bytes(r, address, bytes) || !is_accessible(r, device, writes))
        standin_die("%s on device %d uses %#lx, which is %s; a real device reports an illegal "
                    "address",
                    user, device, (unsigned long)address,
                    r ? "not accessible to it" : "no memory that it knows, or was freed");
    *at = r->base + (address - r->start);
    r->references++;
    standin_unlock();
    return r;
}

void standin_unuse(range *r)
{
    standin_lock();
    range_release(r);
    standin_unlock();
}

/* -------------------------------------------------------------------------------- device memory */

CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t bytes)
{
    context *current;
    STANDIN_ENTER_CONTEXT(&current);
    if (!address || !bytes)
        return standin_leave(CUDA_ERROR_INVALID_VALUE);
    unsigned char *base = bytes > PTRDIFF_MAX - STANDIN_PAGE ? NULL : calloc(1, bytes);
    if (!base)
        return standin_leave(CUDA_ERROR_OUT_OF_MEMORY);
    *address = reserve(bytes, STANDIN_PAGE);
    range_add((range){.kind = DEVICE_ALLOCATED,
                      .start = (uintptr_t)*address,
                      .bytes = bytes,
                      .base = base,
                      .owned = base,
                      .context = current,
                      .device = current->device});
    return standin_leave(*address ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY);
}

CUresult cuMemFree_v2(CUdeviceptr address)
{
    context *current;
    STANDIN_ENTER_CONTEXT(&current);
    return standin_leave(
        range_free((uintptr_t)address, DEVICE_ALLOCATED, CUDA_ERROR_INVALID_VALUE));
}

/* Memory that CUDA does not know has no attributes. */
CUresult cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr pointer)
{
    STANDIN_ENTER();
    const range *r = range_within((uintptr_t)pointer, 1);
    if (!data || !r || r->kind == RESERVED)
        return standin_leave(CUDA_ERROR_INVALID_VALUE);
    if (attribute == CU_POINTER_ATTRIBUTE_MEMORY_TYPE)
        *(unsigned *)data = is_host(r) ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
    else if (attribute == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)
        *(int *)data = r->device;
    else
        return standin_leave(CUDA_ERROR_INVALID_VALUE);
    return standin_leave(CUDA_SUCCESS);
}

/* -------------------------------------------------------------------------------- pinned memory */

static CUresult add_host(range_kind kind, void *host, size_t bytes, context *current)
{
    range_add((range){.kind = kind,
                      .start = (uintptr_t)host,
                      .bytes = bytes,
                      .base = host,
                      .owned = kind == HOST_ALLOCATED ? host : NULL,
                      .context = current,
                      .device = current->device});
    return standin_leave(CUDA_SUCCESS);
}

CUresult cuMemHostAlloc(void **pointer, size_t bytes, unsigned flags)
{
    const unsigned known =
        CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED;
    context *current;
    STANDIN_ENTER_CONTEXT(&current);
    if (!pointer || !bytes || flags & ~known)
        return standin_leave(CUDA_ERROR_INVALID_VALUE);
    if (bytes > PTRDIFF_MAX - STANDIN_PAGE || posix_memalign(pointer, STANDIN_PAGE, bytes))
        return standin_leave(CUDA_ERROR_OUT_OF_MEMORY);
    return add_host(HOST_ALLOCATED, *pointer, bytes, current);
}

CUresult cuMemFreeHost(void *pointer)
{
    context *current;
    STANDIN_ENTER_CONTEXT(&current);
    return standin_leave(range_free((uintptr_t)pointer, HOST_ALLOCATED, CUDA_ERROR_INVALID_VALUE));
}

CUresult cuMemHostRegister_v2(void *pointer, size_t bytes, unsigned flags)
{
    const unsigned known = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP |
                           CU_MEMHOSTREGISTER_IOMEMORY | CU_MEMHOSTREGISTER_READ_ONLY;
    context *current;
    STANDIN_ENTER_CONTEXT(&current);
    if (!pointer || !bytes || bytes > UINTPTR_MAX - (uintptr_t)pointer || flags & ~known)
        return standin_leave(CUDA_ERROR_INVALID_VALUE);
    const range *other = range_within((uintptr_t)pointer, bytes);
    if (other)
        return standin_leave(is_host(other) ? CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED
                                            : CUDA_ERROR_INVALID_VALUE);
    return add_host(HOST_REGISTERED, pointer, bytes, current);
}

CUresult cuMemHostUnregister(void *pointer)
{
    context *current;
    STANDIN_ENTER_CONTEXT(&current);
    return standin_leave(
        range_free((uintptr_t)pointer, HOST_REGISTERED, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED));
}

CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *address, void *pointer, unsigned flags)
{
    context *current;
    STANDIN_ENTER_CONTEXT(&current);
    const range *r = range_within((uintptr_t)pointer, 1);
    if (!address || flags || !r || !is_host(r))
        return standin_leave(CUDA_ERROR_INVALID_VALUE);
    *address = (uintptr_t)pointer;
    return standin_leave(CUDA_SUCCESS);
}

/* ------------------------------------------- virtual memory, in which addresses and memory differ
 */

/* Memory is mapped once, as a whole, and stays mapped. A handle is the address of its range. */
CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes,
                     const CUmemAllocationProp *prop, unsigned long long flags)
{
    STANDIN_ENTER();
    if (!handle || !prop || flags || !bytes || bytes % GRANULARITY ||
        prop->type != CU_MEM_ALLOCATION_TYPE_PINNED || prop->requestedHandleTypes ||
        prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE || prop->location.id < 0 ||
        prop->location.id >= standin_settings()->devices)
        return standin_leave(CUDA_ERROR_INVALID_VALUE);
    range created = {.kind = CREATED, .bytes = bytes, .device = prop->location.id};
    created.owned = created.base = standin_new(bytes);
    *handle = (uintptr_t)range_add(created);
    return standin_leave(CUDA_SUCCESS);
}

CUresult cuMemAddressReserve(CUdeviceptr *address, size_t bytes, size_t alignment, CUdeviceptr hint,
                             unsigned long long flags)
{
    STANDIN_ENTER();
    if (!address || flags || !bytes || bytes % GRANULARITY || alignment || hint)
        return standin_leave(CUDA_ERROR_INVALID_VALUE);
    *address = reserve(bytes, GRANULARITY);
    if (!*address)
        return standin_leave(CUDA_ERROR_OUT_OF_MEMORY);
    range_add((range){.kind = RESERVED, .start = (uintptr_t)*address, .bytes = bytes});
    return standin_leave(CUDA_SUCCESS);
}

CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset,
                  CUmemGenericAllocationHandle handle, unsigned long long flags)
{
    STANDIN_ENTER();
    range *r = range_of((uintptr_t)address, RESERVED), *created = ranges;
    while (created && (created->kind != CREATED || (uintptr_t)created != handle))
        created = created->next;
    if (flags || offset || !r || !created || bytes != r->bytes || bytes != created->bytes)
        return standin_leave(CUDA_ERROR_INVALID_VALUE);
    r->kind = MAPPED;
    r->base = created->base;
    r->device = created->device;
    return standin_leave(CUDA_SUCCESS);
}

CUresult cuMemSetAccess(CUdeviceptr address, size_t bytes, const CUmemAccessDesc *access,
                        size_t count)
{
    STANDIN_ENTER();
    range *r = range_of((uintptr_t)address, MAPPED);
    if (!access || !count || !r || bytes != r->bytes)
        return standin_leave(CUDA_ERROR_INVALID_VALUE);
    for (size_t i = 0; i < count; i++) {
        if (access[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE || access[i].location.id < 0 ||
            access[i].location.id >= standin_settings()->devices)
            return standin_leave(CUDA_ERROR_INVALID_VALUE);
        r->access[access[i].location.id] = (unsigned char)access[i].flags;
    }
    return standin_leave(CUDA_SUCCESS);
}
