/* SPDX-License-Identifier: Apache-2.0 */
/* device_buffers.h - buffers on a GPU: the stand-in for libcuda.so.1 (cuda_standin), or for
 * tests/real_gpu.py a GPU of this machine. */
#ifndef DDL_TESTS_DEVICE_BUFFERS_H
#define DDL_TESTS_DEVICE_BUFFERS_H

#include <dlfcn.h>

#include "check.h"
#include "cuda_functions.h"
#include "ddl/ddl.h"

#define CU(call)                                                                                   \
    do {                                                                                           \
        CUresult result_ = (call);                                                                 \
        CHECK(result_ == CUDA_SUCCESS, "%s gives %d", #call, (int)result_);                        \
    } while (0)

typedef unsigned long long device_count_fn(void);

/* Return a counter of the stand-in: launched host functions, or calls that it made fail. NULL with
 * the real driver. */
static inline device_count_fn *device_counter(const char *name)
{
    device_count_fn *found;
    *(void **)&found = dlsym(RTLD_DEFAULT, name);
    return found;
}

static inline device_count_fn *device_host_functions(void)
{
    return device_counter("standin_host_functions");
}

static inline device_count_fn *device_failures(void)
{
    return device_counter("standin_failures");
}

/* Make this GPU the calling thread's current one. */
static inline void device_start_on(int number)
{
    CUdevice device;
    CUcontext context;
    CU(cuInit(0));
    CU(cuDeviceGet(&device, number));
    CU(cuDevicePrimaryCtxRetain(&context, device));
    CU(cuCtxSetCurrent(context));
}

static inline void device_start(void)
{
    device_start_on(0);
}

static inline int device_count(void)
{
    int count;
    CU(cuDeviceGetCount(&count));
    return count;
}

/* The number of GPUs that the ranks use in turn, if there are as many. */
static int device_gpus = 1;

static inline void device_start_of(const ddl_comm *comm)
{
    device_start();
    int count = device_count(), gpus = device_gpus < count ? device_gpus : count;
    device_start_on(ddl_comm_rank(comm) % gpus);
}

static inline CUstream device_stream(void)
{
    CUstream stream;
    CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    return stream;
}

/* Map buffers by the virtual memory functions, as PyTorch can do; else each is an allocation. */
static bool device_maps;
enum { DEVICE_MAPPED = 2 << 20 };

/* Map memory, which stays until the end of the process. */
static inline CUdeviceptr device_map(size_t bytes)
{
    CUdevice device;
    CU(cuCtxGetDevice(&device));
    CUmemAllocationProp as = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                              .location = {CU_MEM_LOCATION_TYPE_DEVICE, device}};
    CUmemAccessDesc access = {as.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemGenericAllocationHandle handle;
    CUdeviceptr address;
    size_t whole = (bytes + DEVICE_MAPPED - 1) / DEVICE_MAPPED * DEVICE_MAPPED;
    CU(cuMemCreate(&handle, whole, &as, 0));
    CU(cuMemAddressReserve(&address, whole, 0, 0, 0));
    CU(cuMemMap(address, whole, 0, handle, 0));
    CU(cuMemSetAccess(address, whole, &access, 1));
    return address;
}

/* Return NULL for 0 bytes. */
static inline void *device_alloc(size_t bytes)
{
    CUdeviceptr address = 0;
    if (bytes && device_maps)
        address = device_map(bytes);
    else if (bytes)
        CU(cuMemAlloc_v2(&address, bytes));
    return (void *)(uintptr_t)address;
}

static inline void device_free(void *memory)
{
    if (memory && !device_maps)
        CU(cuMemFree_v2((CUdeviceptr)(uintptr_t)memory));
}

static inline CUdeviceptr device_address(const void *memory)
{
    return (CUdeviceptr)(uintptr_t)memory;
}

/* Return a copy of host memory on the device. */
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
