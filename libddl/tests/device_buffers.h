/* SPDX-License-Identifier: Apache-2.0 */
/* device_buffers.h - buffers on a GPU: that of the stand-in for libcuda.so.1 (tests/cuda_standin),
 * or for tests/real_gpu.py of this machine. */
#ifndef DDL_TESTS_DEVICE_BUFFERS_H
#define DDL_TESTS_DEVICE_BUFFERS_H

#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "cuda_functions.h"

#define CU(call)                                                                                   \
    do {                                                                                           \
        CUresult result_ = (call);                                                                 \
        CHECK(result_ == CUDA_SUCCESS, "%s gives %d", #call, (int)result_);                        \
    } while (0)

/* Make GPU 0 the calling thread's. */
static inline void device_start(void)
{
    CUdevice device;
    CUcontext context;
    CU(cuInit(0));
    CU(cuDeviceGet(&device, 0));
    CU(cuDevicePrimaryCtxRetain(&context, device));
    CU(cuCtxSetCurrent(context));
}

static inline int device_count(void)
{
    int count;
    CU(cuDeviceGetCount(&count));
    return count;
}

static inline CUstream device_stream(void)
{
    CUstream stream;
    CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    return stream;
}

/* NULL for 0 bytes. */
static inline void *device_alloc(size_t bytes)
{
    CUdeviceptr address = 0;
    if (bytes)
        CU(cuMemAlloc_v2(&address, bytes));
    return (void *)(uintptr_t)address;
}

static inline void device_free(void *memory)
{
    if (memory)
        CU(cuMemFree_v2((CUdeviceptr)(uintptr_t)memory));
}

static inline CUdeviceptr device_address(const void *memory)
{
    return (CUdeviceptr)(uintptr_t)memory;
}

/* A copy of host memory on the device. */
static inline void *device_copy(const void *host, size_t bytes)
{
    void *memory = device_alloc(bytes);
    if (bytes)
        CU(cuMemcpyHtoD_v2(device_address(memory), host, bytes));
    return memory;
}

static inline void device_read(void *host, const void *memory, size_t bytes)
{
    if (bytes)
        CU(cuMemcpyDtoH_v2(host, device_address(memory), bytes));
}

#endif
