/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of devices and of the host, and its lifetime. */
#include <stdlib.h>

#include "standin.h"

static memory *memories;

memory *standin_memory_create(int device, size_t bytes)
{
    void *base = calloc(1, bytes);
    memory *m = base ? standin_memory_host(base, bytes, device, base) : NULL;
    if (!m)
        free(base);
    return m;
}

memory *standin_memory_host(void *base, size_t bytes, int device, void *owned)
{
    memory *m = calloc(1, sizeof *m);
    if (!m)
        return NULL;
    *m = (memory){.next = memories,
                  .base = base,
                  .bytes = bytes,
                  .device = device,
                  .references = 1,
                  .owned = owned};
    return memories = m;
}

memory *standin_memory_of_handle(CUmemGenericAllocationHandle handle)
{
    memory *m = memories;
    while (m && (!m->has_handle || (uintptr_t)m != handle))
        m = m->next;
    return m;
}

void standin_memory_retain(memory *m)
{
    m->references++;
}

void standin_memory_release(memory *m)
{
    if (--m->references)
        return;
    memory **link = &memories;
    while (*link != m)
        link = &(*link)->next;
    *link = m->next;
    free(m->owned);
    free(m);
}

CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t bytes)
{
    context *current;
    STANDIN_ENTER_CONTEXT(&current);
    if (!address || !bytes)
        return standin_leave(CUDA_ERROR_INVALID_VALUE);
    if (bytes > PTRDIFF_MAX - STANDIN_PAGE)
        return standin_leave(CUDA_ERROR_OUT_OF_MEMORY);
    memory *m = standin_memory_create(current->device, bytes);
    uintptr_t start = m ? standin_reserve(bytes, STANDIN_PAGE) : 0;
    if (m && !start)
        standin_memory_release(m);
    if (!start || !standin_range_add(DEVICE_ALLOCATED, start, bytes, m, current))
        return standin_leave(CUDA_ERROR_OUT_OF_MEMORY);
    *address = start;
    return standin_leave(CUDA_SUCCESS);
}

CUresult cuMemFree_v2(CUdeviceptr address)
{
    context *current;
    STANDIN_ENTER_CONTEXT(&current);
    return standin_leave(
        standin_range_free((uintptr_t)address, DEVICE_ALLOCATED, CUDA_ERROR_INVALID_VALUE));
}
