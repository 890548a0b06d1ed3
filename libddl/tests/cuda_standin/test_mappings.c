/* SPDX-License-Identifier: Apache-2.0 */
/* The virtual memory functions of the stand-in. */
#include <signal.h>
#include <string.h>
#include <sys/wait.h>

#include "test_standin.h"

enum { UNIT = 2 << 20 };

static CUmemAllocationProp prop_of(int device)
{
    return (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .location = {CU_MEM_LOCATION_TYPE_DEVICE, device}};
}

static void set_access(CUdeviceptr address, size_t bytes, int device, CUmemAccess_flags flags)
{
    CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, device}, flags};
    CU(cu.cuMemSetAccess(address, bytes, &access, 1));
}

static void mappings(void)
{
    size_t granularity;
    CUdeviceptr base;
    CUmemGenericAllocationHandle first, second;
    CUmemAllocationProp prop = prop_of(0);
    start_driver();
    uint32_t *pinned = pinned_words(5), *result = pinned_words(0);
    CU(cu.cuMemGetAllocationGranularity(&granularity, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    CHECK(granularity == UNIT, "%zu", granularity);
    CU_IS(CUDA_ERROR_INVALID_VALUE, cu.cuMemCreate(&first, BYTES, &prop, 0));
    CU(cu.cuMemCreate(&first, UNIT, &prop, 0));
    CU(cu.cuMemCreate(&second, UNIT, &prop, 0));
    CU(cu.cuMemAddressReserve(&base, 3 * UNIT, 0, 0, 0));
    CHECK(!(base % UNIT), "%llx", base);
    CU_IS(CUDA_ERROR_INVALID_VALUE, cu.cuMemcpyHtoD_v2(base, pinned, BYTES));
    CU(cu.cuMemMap(base, UNIT, 0, first, 0));
    CU(cu.cuMemMap(base + UNIT, UNIT, 0, second, 0));
    CU_IS(CUDA_ERROR_INVALID_VALUE, cu.cuMemMap(base, UNIT, 0, second, 0));
    CU_IS(CUDA_ERROR_INVALID_VALUE, cu.cuMemMap(base + 2 * UNIT, 2 * UNIT, 0, second, 0));
    /* No device may access it yet. */
    CU_IS(CUDA_ERROR_INVALID_VALUE, cu.cuMemcpyHtoD_v2(base, pinned, BYTES));
    set_access(base, 2 * UNIT, 0, CU_MEM_ACCESS_FLAGS_PROT_READ);
    CU_IS(CUDA_ERROR_INVALID_VALUE, cu.cuMemcpyHtoD_v2(base, pinned, BYTES));
    set_access(base, 2 * UNIT, 0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    /* Across the mappings, but not behind them. */
    CUdeviceptr across = base + UNIT - BYTES / 2;
    CU(cu.cuMemcpyHtoD_v2(across, pinned, BYTES));
    CU(cu.cuMemcpyDtoH_v2(result, across, BYTES));
    check_words(result, 5, "across two mappings");
    fill_words(across, 6, NULL);
    check_device_words(across, 6, "across two mappings");
    CU(cu.cuMemsetD8Async(base + UNIT / 2, 1, UNIT, NULL));
    CU_IS(CUDA_ERROR_INVALID_VALUE, cu.cuMemsetD8Async(base + UNIT + UNIT / 2, 1, UNIT, NULL));
    CU_IS(CUDA_ERROR_INVALID_VALUE, cu.cuMemFree_v2(base));
    /* The memory stays until its last mapping and its handle are released. */
    CU(cu.cuMemRelease(first));
    CU_IS(CUDA_ERROR_INVALID_VALUE, cu.cuMemRelease(first));
    CU_IS(CUDA_ERROR_INVALID_VALUE, cu.cuMemAddressFree(base, 3 * UNIT));
    CU_IS(CUDA_ERROR_INVALID_VALUE, cu.cuMemUnmap(base, UNIT / 2));
    CU(cu.cuMemcpyDtoH_v2(result, across, BYTES));
    CU(cu.cuMemUnmap(base, 2 * UNIT));
    CU_IS(CUDA_ERROR_INVALID_VALUE, cu.cuMemcpyHtoD_v2(base, pinned, BYTES));
    CU(cu.cuMemRelease(second));
    CU(cu.cuMemAddressFree(base, 3 * UNIT));
}

static void access_of_devices(void)
{
    CUdeviceptr base;
    CUcontext second;
    int ordinal;
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp prop = prop_of(1);
    start_driver();
    uint32_t *pinned = pinned_words(5);
    CU(cu.cuDevicePrimaryCtxRetain(&second, 1));
    CU(cu.cuMemCreate(&handle, UNIT, &prop, 0));
    CU(cu.cuMemAddressReserve(&base, UNIT, 0, 0, 0));
    CU(cu.cuMemMap(base, UNIT, 0, handle, 0));
    set_access(base, UNIT, 1, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    CU(cu.cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, base));
    CHECK(ordinal == 1, "%d", ordinal);
    CU_IS(CUDA_ERROR_INVALID_VALUE, cu.cuMemcpyHtoD_v2(base, pinned, BYTES));
    CU(cu.cuCtxSetCurrent(second));
    CU(cu.cuMemcpyHtoD_v2(base, pinned, BYTES));
    check_device_words(base, 5, "the second device's memory");
}

/* Use memory that is freed when the item runs; the message goes to the descriptor. */
static void use_freed(int messages)
{
    CHECK(dup2(messages, STDERR_FILENO) >= 0, "dup2: %m");
    start_driver();
    CUdeviceptr base;
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp prop = prop_of(0);
    uint32_t *gate = pinned_words(0);
    CU(cu.cuMemCreate(&handle, UNIT, &prop, 0));
    CU(cu.cuMemAddressReserve(&base, UNIT, 0, 0, 0));
    CU(cu.cuMemMap(base, UNIT, 0, handle, 0));
    set_access(base, UNIT, 0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    CU(cu.cuStreamWaitValue32_v2(NULL, address_of(gate), 1, CU_STREAM_WAIT_VALUE_EQ));
    fill_words(base, 1, NULL);
    CU(cu.cuMemUnmap(base, UNIT)); /* waits for no stream */
    __atomic_store_n(gate, 1, __ATOMIC_RELEASE);
    cu.cuCtxSynchronize();
    _exit(0);
}

static void freed(void)
{
    int pipes[2], status;
    char text[512] = "";
    CHECK(!pipe(pipes), "pipe: %m");
    pid_t child = fork();
    CHECK(child >= 0, "fork: %m");
    if (!child)
        use_freed(pipes[1]);
    close(pipes[1]);
    CHECK(waitpid(child, &status, 0) == child, "waitpid: %m");
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT, "status %#x", status);
    CHECK(read(pipes[0], text, sizeof text - 1) > 0, "read: %m");
    CHECK(strstr(text, "stand-in") && strstr(text, "memset"), "%s", text);
}

const test_case mapping_cases[] = {
    {"mappings", mappings, {0}, false},
    {"access_of_devices", access_of_devices, {"DDL_STANDIN_DEVICES=2"}, false},
    {"freed", freed, {0}, false},
    {NULL, NULL, {0}, false},
};
