/* SPDX-License-Identifier: Apache-2.0 */
/* Device memory of cuMemAlloc. */
#include "standin.h"

CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t bytes)
{
    context *current;
    CUresult result = standin_enter_context(__func__, &current);
    if (result != CUDA_SUCCESS)
        return result;
    if (!address || !bytes)
        return standin_leave(CUDA_ERROR_INVALID_VALUE);
    if (bytes > PTRDIFF_MAX - STANDIN_PAGE)
        return standin_leave(CUDA_ERROR_OUT_OF_MEMORY);
    memory *m = standin_memory_create(current->device, bytes);
    uintptr_t start = m ? standin_reserve(bytes, STANDIN_PAGE, 0) : 0;
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
    CUresult result = standin_enter_context(__func__, &current);
    if (result != CUDA_SUCCESS)
        return result;
    return standin_leave(
        standin_range_free((uintptr_t)address, DEVICE_ALLOCATED, CUDA_ERROR_INVALID_VALUE));
}
