/* SPDX-License-Identifier: Apache-2.0 */
/* Calls, devices, memory, copies and pointers of the stand-in. */
#include <signal.h>
#include <string.h>
#include <sys/wait.h>

#include "test_standin.h"

static void calls(void)
{
    const char *text;
    int count;
    CUdeviceptr address;
    CU_IS(CUDA_ERROR_NOT_INITIALIZED, cuDeviceGetCount(&count));
    CU(cuInit(0));
    CU_IS(CUDA_ERROR_INVALID_CONTEXT, cuMemAlloc_v2(&address, BYTES));
    CU(cuGetErrorName(CUDA_ERROR_NOT_READY, &text));
    CHECK(!strcmp(text, "CUDA_ERROR_NOT_READY"), "%s", text);
    CU(cuGetErrorString(CUDA_ERROR_NOT_READY, &text));
    CHECK(strstr(text, "stand-in"), "%s", text);
    CU_IS(CUDA_ERROR_INVALID_VALUE, cuGetErrorName((CUresult)12345, &text));
}

static void devices(void)
{
    int count, value;
    CUdevice device;
    CUuuid uuids[2];
    CUcontext contexts[2], current;
    CUdeviceptr on_second;
    start_driver();
    CU(cuDeviceGetCount(&count));
    CHECK(count == 2, "%d devices", count);
    CU_IS(CUDA_ERROR_INVALID_DEVICE, cuDeviceGet(&device, 2));
    for (int i = 0; i < 2; i++) {
        CU(cuDeviceGetUuid_v2(&uuids[i], i));
        CU(cuDevicePrimaryCtxRetain(&contexts[i], i));
    }
    CHECK(memcmp(&uuids[0], &uuids[1], sizeof *uuids), "the same UUID");
    CU(cuCtxPushCurrent_v2(contexts[1]));
    CU(cuCtxGetDevice(&device));
    CHECK(device == 1, "%d", device);
    on_second = device_words();
    CU(cuCtxPopCurrent_v2(&current));
    CHECK(current == contexts[1], "another context");
    CU(cuCtxGetCurrent(&current));
    CHECK(current == contexts[0], "another context");
    CU(cuPointerGetAttribute(&value, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, on_second));
    CHECK(value == 1, "%d", value);
    CU_IS(CUDA_ERROR_INVALID_VALUE, cuMemsetD32Async(on_second, 1, WORDS, NULL));
    CU(cuMemFree_v2(on_second));
    CU(cuDevicePrimaryCtxRelease_v2(1));
    CU_IS(CUDA_ERROR_INVALID_CONTEXT, cuDevicePrimaryCtxRelease_v2(1));
    CU_IS(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuCtxSetCurrent(contexts[1]));
}

static void copies(void)
{
    start_driver();
    CUdeviceptr a = device_words(), b = device_words();
    CUstream stream = new_stream(CU_STREAM_NON_BLOCKING);
    uint32_t *pinned = pinned_words(7), pageable[WORDS];
    CU(cuMemcpyHtoDAsync_v2(a, pinned, BYTES, stream));
    CU(cuMemcpyDtoDAsync_v2(b, a, BYTES, stream));
    CU(cuMemcpyDtoHAsync_v2(pageable, b, BYTES, stream));
    CU(cuStreamSynchronize(stream));
    check_words(pageable, 7, "through two buffers");
    /* Pageable memory is read before the call returns. */
    for (int i = 0; i < WORDS; i++)
        pageable[i] = 8;
    CU(cuMemcpyHtoDAsync_v2(a, pageable, BYTES, stream));
    memset(pageable, 0, BYTES);
    CU(cuMemcpyDtoHAsync_v2(pinned, a, BYTES, stream));
    CU(cuStreamSynchronize(stream));
    check_words(pinned, 8, "from pageable memory");
    CU(cuMemsetD32Async(a, 9, WORDS, stream));
    CU(cuMemsetD32Async(a, 0x01010101, 1, stream));
    CU(cuStreamSynchronize(stream));
    CU(cuMemcpyDtoH_v2(pageable, a, 8));
    CHECK(pageable[0] == 0x01010101 && pageable[1] == 9, "%x %x", pageable[0], pageable[1]);
    CU(cuMemcpyHtoD_v2(a + 4, pinned, 4));
    CU(cuMemcpyDtoH_v2(pageable, a, 8));
    CHECK(pageable[1] == 8, "%x", pageable[1]);
    CU(cuMemcpyDtoHAsync_v2(pageable, a, 0, stream));
    /* Outside of memory. */
    CU_IS(CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoDAsync_v2(a + 4, pinned, BYTES, stream));
    CU_IS(CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoDAsync_v2(a, pinned + 1, BYTES, stream));
    CU_IS(CUDA_ERROR_INVALID_VALUE, cuMemcpyDtoHAsync_v2(pinned, a + BYTES, 4, stream));
    CU_IS(CUDA_ERROR_INVALID_VALUE, cuMemcpyDtoDAsync_v2(a, (uintptr_t)pageable, BYTES, stream));
    CU_IS(CUDA_ERROR_INVALID_VALUE, cuMemsetD32Async(a, 0, WORDS + 1, stream));
    CU_IS(CUDA_ERROR_INVALID_VALUE, cuMemcpyDtoH_v2(pageable, a, SIZE_MAX));
    CU_IS(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(a + 4));
    CU(cuMemFree_v2(a));
    CU_IS(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(a));
    CU(cuMemFree_v2(b));
    CU(cuMemFreeHost(pinned));
    CU(cuStreamDestroy_v2(stream));
    CU_IS(CUDA_ERROR_INVALID_HANDLE, cuStreamSynchronize(stream));
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
    CU(cuMemAlloc_v2(&a, LARGE));
    for (int i = 0; i < LARGE; i++)
        from[i] = (unsigned char)(i * 7);
    CU(cuMemcpyHtoDAsync_v2(a, from, LARGE, stream));
    CU(cuMemcpyDtoHAsync_v2(to, a, LARGE, stream));
    CU(cuStreamSynchronize(stream));
    CHECK(!memcmp(from, to, LARGE), "the copies differ");
    CU(cuMemFree_v2(a));
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
    CU_IS(CUDA_ERROR_INVALID_VALUE, cuMemHostGetDevicePointer_v2(&address, words, 0));
    CU_IS(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, cuMemHostUnregister(words));
    CU(cuMemHostRegister_v2(words, BYTES, CU_MEMHOSTREGISTER_PORTABLE));
    CU_IS(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, cuMemHostRegister_v2(words + 1, 4, 0));
    CU_IS(CUDA_ERROR_INVALID_VALUE, cuMemHostRegister_v2((void *)(uintptr_t)a, 4, 0));
    fill_words(address_of(words), 3, NULL);
    CU(cuStreamSynchronize(NULL));
    check_words(words, 3, "registered memory");
    CU(cuMemHostUnregister(words));
    CU_IS(CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoD_v2(a, words, BYTES + 4));
    free(words);
}

static void attributes(void)
{
    unsigned type;
    int ordinal, local = 0;
    start_driver();
    CUdeviceptr a = device_words(), pinned = address_of(pinned_words(0));
    const struct {
        CUdeviceptr at;
        unsigned type;
    } known[] = {{a + 8, CU_MEMORYTYPE_DEVICE}, {pinned + 8, CU_MEMORYTYPE_HOST}};
    for (int i = 0; i < 2; i++) {
        CU(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, known[i].at));
        CU(cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, known[i].at));
        CHECK(type == known[i].type && !ordinal, "type %u, device %d", type, ordinal);
    }
    CU_IS(CUDA_ERROR_INVALID_VALUE,
          cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (uintptr_t)&local));
    CU(cuMemFree_v2(a));
    CU_IS(CUDA_ERROR_INVALID_VALUE,
          cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, a));
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
    CU(cuStreamSynchronize(NULL));
    pid_t child = fork();
    CHECK(child >= 0, "fork: %m");
    if (!child)
        _exit(cuDeviceGetCount(&count) == CUDA_ERROR_NOT_INITIALIZED &&
                      cuInit(0) == CUDA_ERROR_NOT_INITIALIZED
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
    CU(cuMemHostAlloc(&host[0], BYTES, 0));
    CU(cuMemHostAlloc(&host[1], BYTES, 0));
    CU_IS(CUDA_ERROR_OUT_OF_MEMORY, cuMemHostAlloc(&host[2], BYTES, 0));
    CU(cuMemHostAlloc(&host[2], BYTES, 0));
    CU_IS(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc_v2(&a, BYTES));
    CU(cuMemAlloc_v2(&a, BYTES));
}

static void bad_settings(void)
{
    CHECK(freopen("/dev/null", "w", stderr), "freopen: %m");
    if (cuInit(0) != CUDA_ERROR_INVALID_VALUE)
        exit(1);
}

static void no_device(void)
{
    CU_IS(CUDA_ERROR_NO_DEVICE, cuInit(0));
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
