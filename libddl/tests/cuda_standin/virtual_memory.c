/* SPDX-License-Identifier: Apache-2.0 */
/* The virtual memory functions, in which addresses and memory are separate. A mapping is a range of
 * the kind MAPPED. Reserved addresses without a mapping belong to no range. */
#include <stdlib.h>

#include "standin.h"

typedef struct reservation {
    struct reservation *next;
    uintptr_t start;
    size_t bytes;
} reservation;

static reservation *reservations;

bool standin_is_reserved(uintptr_t address, size_t bytes)
{
    const reservation *r = reservations;
    while (r && (address >= r->start + r->bytes || r->start >= address + bytes))
        r = r->next;
    return r;
}

/* --------------------------------------------------------------------------------------- memory */

static CUresult check_prop(const CUmemAllocationProp *prop)
{
    if (!prop || prop->type != CU_MEM_ALLOCATION_TYPE_PINNED)
        return CUDA_ERROR_INVALID_VALUE;
    if (prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        return CUDA_ERROR_NOT_SUPPORTED; /* the real driver may have memory of the host */
    if (prop->location.id < 0 || prop->location.id >= standin_settings()->devices)
        return CUDA_ERROR_INVALID_DEVICE;
    return prop->requestedHandleTypes ? CUDA_ERROR_NOT_SUPPORTED : CUDA_SUCCESS;
}

/* A handle is the address of the memory, and one of its references. */
CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes,
                     const CUmemAllocationProp *prop, unsigned long long flags)
{
    STANDIN_ENTER();
    CUresult result = check_prop(prop);
    if (result != CUDA_SUCCESS)
        return standin_leave(result);
    if (!handle || flags || !bytes || bytes % STANDIN_GRANULARITY)
        return standin_leave(CUDA_ERROR_INVALID_VALUE);
    memory *m = standin_memory_create(prop->location.id, bytes);
    if (!m)
        return standin_leave(CUDA_ERROR_OUT_OF_MEMORY);
    m->has_handle = true;
    *handle = (uintptr_t)m;
    return standin_leave(CUDA_SUCCESS);
}

/* ------------------------------------------------------------------------------------ addresses */

static bool is_granular(uintptr_t address, size_t bytes)
{
    return bytes && !(bytes % STANDIN_GRANULARITY) && !(address % STANDIN_GRANULARITY);
}

CUresult cuMemAddressReserve(CUdeviceptr *address, size_t bytes, size_t alignment, CUdeviceptr hint,
                             unsigned long long flags)
{
    STANDIN_ENTER();
    if (!address || flags || !is_granular(0, bytes) || alignment || hint)
        return standin_leave(CUDA_ERROR_INVALID_VALUE);
    reservation *r = malloc(sizeof *r);
    uintptr_t start = r ? standin_reserve(bytes, STANDIN_GRANULARITY) : 0;
    if (!start) {
        free(r);
        return standin_leave(CUDA_ERROR_OUT_OF_MEMORY);
    }
    *r = (reservation){reservations, start, bytes};
    reservations = r;
    *address = start;
    return standin_leave(CUDA_SUCCESS);
}

CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset,
                  CUmemGenericAllocationHandle handle, unsigned long long flags)
{
    STANDIN_ENTER();
    uintptr_t start = (uintptr_t)address;
    memory *m = standin_memory_of_handle(handle);
    const reservation *r = reservations;
    while (r && (start < r->start || start - r->start > r->bytes))
        r = r->next;
    if (flags || offset || !m || !r || !is_granular(start, bytes) || bytes > m->bytes ||
        bytes > r->bytes - (start - r->start) || standin_range_within(start, bytes))
        return standin_leave(CUDA_ERROR_INVALID_VALUE);
    standin_memory_retain(m);
    if (!standin_range_add(MAPPED, start, bytes, m, NULL))
        return standin_leave(CUDA_ERROR_OUT_OF_MEMORY);
    return standin_leave(CUDA_SUCCESS);
}

/* Return true if whole mappings fill these addresses. */
static bool are_mapped(uintptr_t start, size_t bytes)
{
    if (!is_granular(start, bytes) || bytes > UINTPTR_MAX - start)
        return false;
    for (uintptr_t at = start, end = start + bytes; at < end;) {
        const range *r = standin_range_at(at);
        if (!r || r->kind != MAPPED || r->start != at || r->bytes > end - at)
            return false;
        at += r->bytes;
    }
    return true;
}

static bool is_access(const CUmemAccessDesc *access)
{
    return access->location.type == CU_MEM_LOCATION_TYPE_DEVICE && access->location.id >= 0 &&
           access->location.id < standin_settings()->devices &&
           (access->flags == CU_MEM_ACCESS_FLAGS_PROT_NONE ||
            access->flags == CU_MEM_ACCESS_FLAGS_PROT_READ ||
            access->flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
}

CUresult cuMemSetAccess(CUdeviceptr address, size_t bytes, const CUmemAccessDesc *access,
                        size_t count)
{
    STANDIN_ENTER();
    uintptr_t start = (uintptr_t)address;
    if (!access || !count || !are_mapped(start, bytes))
        return standin_leave(CUDA_ERROR_INVALID_VALUE);
    for (size_t i = 0; i < count; i++)
        if (!is_access(&access[i]))
            return standin_leave(CUDA_ERROR_INVALID_VALUE);
    for (size_t i = 0; i < count; i++)
        for (uintptr_t at = start; at < start + bytes;) {
            range *r = standin_range_at(at);
            r->access[access[i].location.id] = (unsigned char)access[i].flags;
            at += r->bytes;
        }
    return standin_leave(CUDA_SUCCESS);
}
