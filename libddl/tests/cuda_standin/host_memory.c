/* SPDX-License-Identifier: Apache-2.0 */
/* Pinned host memory. It comes from the program's allocator, so AddressSanitizer detects accesses
 * behind its end, including those of copies. */
#include <stdlib.h>

#include "standin.h"

CUresult cuMemHostAlloc(void **pointer, size_t bytes, unsigned flags)
{
    const unsigned known =
        CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED;
    context *current;
    STANDIN_ENTER_CONTEXT(&current);
    if (!pointer || !bytes || flags & ~known)
        return standin_leave(CUDA_ERROR_INVALID_VALUE);
    void *host = NULL;
    if (bytes > PTRDIFF_MAX - STANDIN_PAGE || posix_memalign(&host, STANDIN_PAGE, bytes))
        return standin_leave(CUDA_ERROR_OUT_OF_MEMORY);
    memory *m = standin_memory_host(host, bytes, current->device, host);
    if (!m) {
        free(host);
        return standin_leave(CUDA_ERROR_OUT_OF_MEMORY);
    }
    if (!standin_range_add(HOST_ALLOCATED, (uintptr_t)host, bytes, m, current))
        return standin_leave(CUDA_ERROR_OUT_OF_MEMORY);
    *pointer = host;
    return standin_leave(CUDA_SUCCESS);
}

CUresult cuMemFreeHost(void *pointer)
{
    context *current;
    STANDIN_ENTER_CONTEXT(&current);
    return standin_leave(
        standin_range_free((uintptr_t)pointer, HOST_ALLOCATED, CUDA_ERROR_INVALID_VALUE));
}

CUresult cuMemHostRegister_v2(void *pointer, size_t bytes, unsigned flags)
{
    const unsigned known = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP |
                           CU_MEMHOSTREGISTER_IOMEMORY | CU_MEMHOSTREGISTER_READ_ONLY;
    context *current;
    STANDIN_ENTER_CONTEXT(&current);
    uintptr_t start = (uintptr_t)pointer;
    if (!pointer || !bytes || bytes > UINTPTR_MAX - start || flags & ~known ||
        standin_is_reserved(start, bytes))
        return standin_leave(CUDA_ERROR_INVALID_VALUE);
    const range *other = standin_range_within(start, bytes);
    if (other && (other->kind == HOST_ALLOCATED || other->kind == HOST_REGISTERED))
        return standin_leave(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    if (other)
        return standin_leave(CUDA_ERROR_INVALID_VALUE);
    memory *m = standin_memory_host(pointer, bytes, current->device, NULL);
    range *r = m ? standin_range_add(HOST_REGISTERED, start, bytes, m, current) : NULL;
    return standin_leave(r ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY);
}

CUresult cuMemHostUnregister(void *pointer)
{
    context *current;
    STANDIN_ENTER_CONTEXT(&current);
    return standin_leave(standin_range_free((uintptr_t)pointer, HOST_REGISTERED,
                                            CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED));
}

CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *address, void *pointer, unsigned flags)
{
    context *current;
    STANDIN_ENTER_CONTEXT(&current);
    const range *r = standin_range_at((uintptr_t)pointer);
    if (!address || flags || !r || (r->kind != HOST_ALLOCATED && r->kind != HOST_REGISTERED))
        return standin_leave(CUDA_ERROR_INVALID_VALUE);
    *address = (uintptr_t)pointer;
    return standin_leave(CUDA_SUCCESS);
}
