/* SPDX-License-Identifier: Apache-2.0 */
/* Calls, devices, memory, copies and pointers of the stand-in. */
#include <signal.h>
#include <string.h>
#include <sys/wait.h>

#include "test_standin.h"

static void calls(void)
{
    const char *text;
    void *function;
    int count;
    CUdriverProcAddressQueryResult status;
    open_driver();
    CU_IS(CUDA_ERROR_NOT_INITIALIZED, cu.cuDeviceGetCount(&count));
    CU(cu.cuInit(0));
    CUdeviceptr address;
    CU_IS(CUDA_ERROR_INVALID_CONTEXT, cu.cuMemAlloc_v2(&address, BYTES));
#define FIND(base, symbol, since)                                                                  \
    CU(cu.cuGetProcAddress_v2(#base, &function, 12040, 0, &status));                               \
    CHECK(function &&status == CU_GET_PROC_ADDRESS_SUCCESS, "no %s", #base);
    CUDA_FUNCTIONS(FIND)
    CU(cu.cuGetProcAddress_v2("cuMemAlloc", &function, 12000, 0, NULL));
    CHECK(function == *(void **)&cu.cuMemAlloc_v2, "another cuMemAlloc");
    CU(cu.cuGetProcAddress_v2("cuDeviceGetUuid", &function, 10000, 0, NULL));
    CHECK(function == *(void **)&cu.cuDeviceGetUuid, "another cuDeviceGetUuid");
    CU(cu.cuGetProcAddress_v2("cuMemMap", &function, 9000, 0, &status));
    CHECK(!function && status == CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT, "%d", status);
    CU(cu.cuGetProcAddress_v2("cuNothing", &function, 12000, 0, &status));
    CHECK(!function && status == CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND, "%d", status);
    CU(cu.cuGetErrorName(CUDA_ERROR_NOT_READY, &text));
    CHECK(!strcmp(text, "CUDA_ERROR_NOT_READY"), "%s", text);
    CU(cu.cuGetErrorString(CUDA_ERROR_NOT_READY, &text));
    CHECK(strstr(text, "stand-in"), "%s", text);
    CU_IS(CUDA_ERROR_INVALID_VALUE, cu.cuGetErrorName((CUresult)12345, &text));
}

static void devices(void)
{
    int count, value;
    CUdevice device;
    CUuuid uuids[2];
    CUcontext contexts[2], current;
    CUdeviceptr on_second;
    start_driver();
    CU(cu.cuDeviceGetCount(&count));
    CHECK(count == 2, "%d devices", count);
    CU_IS(CUDA_ERROR_INVALID_DEVICE, cu.cuDeviceGet(&device, 2));
    for (int i = 0; i < 2; i++) {
        CU(cu.cuDeviceGetUuid_v2(&uuids[i], i));
        CU(cu.cuDevicePrimaryCtxRetain(&contexts[i], i));
    }
    CHECK(memcmp(&uuids[0], &uuids[1], sizeof *uuids), "the same UUID");
    CU(cu.cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 1));
    CHECK(value == 1, "%d", value);
    CU(cu.cuCtxPushCurrent_v2(contexts[1]));
    CU(cu.cuCtxGetDevice(&device));
    CHECK(device == 1, "%d", device);
    on_second = device_words();
    CU(cu.cuCtxPopCurrent_v2(&current));
    CHECK(current == contexts[1], "another context");
    CU(cu.cuCtxGetCurrent(&current));
    CHECK(current == contexts[0], "another context");
    CU(cu.cuPointerGetAttribute(&value, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, on_second));
    CHECK(value == 1, "%d", value);
    CU_IS(CUDA_ERROR_INVALID_VALUE, cu.cuMemsetD32Async(on_second, 1, WORDS, NULL));
    CU(cu.cuMemFree_v2(on_second));
    CU(cu.cuDevicePrimaryCtxRelease_v2(1));
    CU_IS(CUDA_ERROR_INVALID_CONTEXT, cu.cuDevicePrimaryCtxRelease_v2(1));
    CU_IS(CUDA_ERROR_CONTEXT_IS_DESTROYED, cu.cuCtxSetCurrent(contexts[1]));
}

static void copies(void)
{
    start_driver();
    CUdeviceptr a = device_words(), b = device_words();
    CUstream stream = new_stream(CU_STREAM_NON_BLOCKING);
    uint32_t *pinned = pinned_words(7), pageable[WORDS];
    CU(cu.cuMemcpyHtoDAsync_v2(a, pinned, BYTES, stream));
    CU(cu.cuMemcpyDtoDAsync_v2(b, a, BYTES, stream));
    CU(cu.cuMemcpyDtoHAsync_v2(pageable, b, BYTES, stream));
    CU(cu.cuStreamSynchronize(stream));
    check_words(pageable, 7, "through two buffers");
    /* Pageable memory is read before the call returns. */
    for (int i = 0; i < WORDS; i++)
        pageable[i] = 8;
    CU(cu.cuMemcpyHtoDAsync_v2(a, pageable, BYTES, stream));
    memset(pageable, 0, BYTES);
    CU(cu.cuMemcpyAsync(address_of(pinned), a, BYTES, stream));
    CU(cu.cuStreamSynchronize(stream));
    check_words(pinned, 8, "from pageable memory");
    CU(cu.cuMemsetD32Async(a, 9, WORDS, stream));
    CU(cu.cuMemsetD8Async(a, 1, 4, stream));
    CU(cu.cuStreamSynchronize(stream));
    CU(cu.cuMemcpyDtoH_v2(pageable, a, 8));
    CHECK(pageable[0] == 0x01010101 && pageable[1] == 9, "%x %x", pageable[0], pageable[1]);
    CU(cu.cuMemcpyHtoD_v2(a + 4, pinned, 4));
    CU(cu.cuMemcpy((uintptr_t)pageable, a, 8));
    CHECK(pageable[1] == 8, "%x", pageable[1]);
    CU(cu.cuMemcpyDtoHAsync_v2(pageable, a, 0, stream));
    /* Outside of memory. */
    CU_IS(CUDA_ERROR_INVALID_VALUE, cu.cuMemcpyHtoDAsync_v2(a + 4, pinned, BYTES, stream));
    CU_IS(CUDA_ERROR_INVALID_VALUE, cu.cuMemcpyHtoDAsync_v2(a, pinned + 1, BYTES, stream));
    CU_IS(CUDA_ERROR_INVALID_VALUE, cu.cuMemcpyDtoHAsync_v2(pinned, a + BYTES, 4, stream));
    CU_IS(CUDA_ERROR_INVALID_VALUE, cu.cuMemcpyDtoDAsync_v2(a, (uintptr_t)pageable, BYTES, stream));
    CU_IS(CUDA_ERROR_INVALID_VALUE, cu.cuMemsetD32Async(a, 0, WORDS + 1, stream));
    CU_IS(CUDA_ERROR_INVALID_VALUE, cu.cuMemcpyDtoH_v2(pageable, a, SIZE_MAX));
    CU_IS(CUDA_ERROR_INVALID_VALUE, cu.cuMemFree_v2(a + 4));
    CU(cu.cuMemFree_v2(a));
    CU_IS(CUDA_ERROR_INVALID_VALUE, cu.cuMemFree_v2(a));
    CU(cu.cuMemFree_v2(b));
    CU(cu.cuMemFreeHost(pinned));
    CU(cu.cuStreamDestroy_v2(stream));
    CU_IS(CUDA_ERROR_INVALID_HANDLE, cu.cuStreamSynchronize(stream));
}

/* Copies of more than is staged at once, and not a multiple of a page. */
static void large_copies(void)
{
    enum { LARGE = (3 << 20) + 5 };
    CUdeviceptr a;
    start_driver();
    CUstream stream = new_stream(0);
    unsigned char *from = malloc(LARGE), *to = malloc(LARGE);
    CHECK(from && to, "no memory");
    CU(cu.cuMemAlloc_v2(&a, LARGE));
    for (int i = 0; i < LARGE; i++)
        from[i] = (unsigned char)(i * 7);
    CU(cu.cuMemcpyHtoDAsync_v2(a, from, LARGE, stream));
    CU(cu.cuMemcpyDtoHAsync_v2(to, a, LARGE, stream));
    CU(cu.cuStreamSynchronize(stream));
    CHECK(!memcmp(from, to, LARGE), "the copies differ");
    CU(cu.cuMemFree_v2(a));
    free(from);
    free(to);
}

static void registration(void)
{
    CUdeviceptr address;
    start_driver();
    CUdeviceptr a = device_words();
    uint32_t *words = malloc(BYTES);
    CHECK(words, "no memory");
    CU_IS(CUDA_ERROR_INVALID_VALUE, cu.cuMemHostGetDevicePointer_v2(&address, words, 0));
    CU_IS(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, cu.cuMemHostUnregister(words));
    CU(cu.cuMemHostRegister_v2(words, BYTES, CU_MEMHOSTREGISTER_PORTABLE));
    CU_IS(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, cu.cuMemHostRegister_v2(words + 1, 4, 0));
    CU_IS(CUDA_ERROR_INVALID_VALUE, cu.cuMemHostRegister_v2((void *)(uintptr_t)a, 4, 0));
    fill_words(address_of(words), 3, NULL);
    CU(cu.cuStreamSynchronize(NULL));
    check_words(words, 3, "registered memory");
    CU(cu.cuMemHostUnregister(words));
    CU_IS(CUDA_ERROR_INVALID_VALUE, cu.cuMemcpyAsync(a, (uintptr_t)words, BYTES + 4, NULL));
    free(words);
}

static void attributes(void)
{
    unsigned type, mapped;
    int ordinal, local = 0;
    void *host;
    CUdeviceptr start;
    CUcontext context, current;
    size_t bytes;
    start_driver();
    CUdeviceptr a = device_words();
    uint32_t *pinned = pinned_words(0);
    CU(cu.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, a + 8));
    CHECK(type == CU_MEMORYTYPE_DEVICE, "%u", type);
    CU(cu.cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, a));
    CHECK(ordinal == 0, "%d", ordinal);
    CU(cu.cuPointerGetAttribute(&context, CU_POINTER_ATTRIBUTE_CONTEXT, a));
    CU(cu.cuCtxGetCurrent(&current));
    CHECK(context == current, "another context");
    CU_IS(CUDA_ERROR_INVALID_VALUE,
          cu.cuPointerGetAttribute(&host, CU_POINTER_ATTRIBUTE_HOST_POINTER, a));
    CUdeviceptr within = (uintptr_t)(pinned + 2);
    CUpointer_attribute wanted[] = {
        CU_POINTER_ATTRIBUTE_MEMORY_TYPE,      CU_POINTER_ATTRIBUTE_HOST_POINTER,
        CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, CU_POINTER_ATTRIBUTE_RANGE_SIZE,
        CU_POINTER_ATTRIBUTE_MAPPED,           CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
    void *data[] = {&type, &host, &start, &bytes, &mapped, &ordinal};
    CU(cu.cuPointerGetAttributes(6, wanted, data, within));
    CHECK(type == CU_MEMORYTYPE_HOST && host == pinned + 2 && start == (uintptr_t)pinned &&
              bytes == BYTES && mapped && ordinal == 0,
          "type %u, start %llx, %zu bytes, device %d", type, start, bytes, ordinal);
    /* Memory that CUDA does not know. */
    CU_IS(CUDA_ERROR_INVALID_VALUE,
          cu.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (uintptr_t)&local));
    CU(cu.cuPointerGetAttributes(6, wanted, data, (uintptr_t)&local));
    CHECK(type == 0 && !host && !start && !bytes && !mapped && ordinal == -2, "type %u, device %d",
          type, ordinal);
    CU(cu.cuMemFree_v2(a));
    CU_IS(CUDA_ERROR_INVALID_VALUE,
          cu.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, a));
}

/* Touch the address in a forked child. Return the signal that killed it. */
static int touch(CUdeviceptr address, bool store)
{
    int status;
    pid_t child = fork();
    CHECK(child >= 0, "fork: %m");
    if (!child) {
        signal(SIGSEGV, SIG_DFL); /* a sanitizer has its own handler */
        volatile uint32_t *word = (volatile uint32_t *)(uintptr_t)address;
        if (store)
            *word = 1;
        else
            (void)*word;
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child, "waitpid: %m");
    return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

static void untouchable(void)
{
    start_driver();
    CUdeviceptr a = device_words();
    uint32_t *pinned = pinned_words(0);
    fill_words(a, 1, NULL);
    check_device_words(a, 1, "device memory");
    CHECK(touch(a, false) == SIGSEGV, "the host can load from device memory");
    CHECK(touch(a + BYTES - 4, true) == SIGSEGV, "the host can store to device memory");
    CHECK(touch(address_of(pinned), true) == 0, "the host cannot store to pinned memory");
}

/* Forks after cuInit: the child and its parent. */
static void forks(void)
{
    int status, count;
    start_driver();
    CUdeviceptr a = device_words();
    fill_words(a, 1, NULL);
    CU(cu.cuCtxSynchronize());
    pid_t child = fork();
    CHECK(child >= 0, "fork: %m");
    if (!child)
        _exit(cu.cuDeviceGetCount(&count) == CUDA_ERROR_NOT_INITIALIZED &&
                      cu.cuInit(0) == CUDA_ERROR_NOT_INITIALIZED
                  ? 0
                  : 1);
    CHECK(waitpid(child, &status, 0) == child && !status, "status %d", status);
    fill_words(a, 2, NULL);
    check_device_words(a, 2, "the parent's memory");
}

static void failures(void)
{
    void *host[3];
    CUdeviceptr a;
    start_driver();
    CU(cu.cuMemHostAlloc(&host[0], BYTES, 0));
    CU(cu.cuMemHostAlloc(&host[1], BYTES, 0));
    CU_IS(CUDA_ERROR_OUT_OF_MEMORY, cu.cuMemHostAlloc(&host[2], BYTES, 0));
    CU(cu.cuMemHostAlloc(&host[2], BYTES, 0));
    CU_IS(CUDA_ERROR_OUT_OF_MEMORY, cu.cuMemAlloc_v2(&a, BYTES));
    CU(cu.cuMemAlloc_v2(&a, BYTES));
}

static void bad_settings(void)
{
    open_driver();
    CHECK(freopen("/dev/null", "w", stderr), "freopen: %m");
    if (cu.cuInit(0) != CUDA_ERROR_INVALID_VALUE)
        exit(1);
}

static void no_device(void)
{
    open_driver();
    CU_IS(CUDA_ERROR_NO_DEVICE, cu.cuInit(0));
}

const test_case memory_cases[] = {
    {"calls", calls, {0}, false},
    {"devices", devices, {"DDL_STANDIN_DEVICES=2"}, false},
    {"copies", copies, {0}, false},
    {"copies_at_once", copies, {"DDL_STANDIN_DELAY_US=0"}, false},
    {"large_copies", large_copies, {0}, false},
    {"registration", registration, {0}, false},
    {"attributes", attributes, {0}, false},
    {"untouchable", untouchable, {0}, false},
    {"forks", forks, {0}, false},
    {"failures", failures, {"DDL_STANDIN_FAIL=cuMemHostAlloc:3,cuMemAlloc:1"}, false},
    {"bad_number", bad_settings, {"DDL_STANDIN_DELAY_US=1x"}, false},
    {"bad_list", bad_settings, {"DDL_STANDIN_FAIL=cuMemAlloc"}, false},
    {"no_device", no_device, {"DDL_STANDIN_DEVICES=0"}, false},
    {NULL, NULL, {0}, false},
};
