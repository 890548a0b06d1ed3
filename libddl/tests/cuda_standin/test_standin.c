/* SPDX-License-Identifier: Apache-2.0 */
/* Tests the stand-in for libcuda.so.1, which it opens as libddl does. Without arguments: all cases;
 * else the named ones. */
#include <dlfcn.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>

#include "test_standin.h"

driver cu;

void open_driver(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    CHECK(library, "%s; is LD_LIBRARY_PATH set?", dlerror());
#define FIND(base, symbol, since)                                                                  \
    *(void **)&cu.symbol = dlsym(library, #symbol);                                                \
    CHECK(cu.symbol, "%s", dlerror());
    CUDA_FUNCTIONS(FIND)
}

void start_driver(void)
{
    CUcontext context;
    char name[64];
    open_driver();
    CU(cu.cuInit(0));
    CU(cu.cuDeviceGetName(name, sizeof name, 0));
    CHECK(strstr(name, "stand-in"), "libcuda.so.1 is no stand-in, but has a %s", name);
    CU(cu.cuDevicePrimaryCtxRetain(&context, 0));
    CU(cu.cuCtxSetCurrent(context));
}

CUdeviceptr device_words(void)
{
    CUdeviceptr address;
    CU(cu.cuMemAlloc_v2(&address, BYTES));
    return address;
}

uint32_t *pinned_words(uint32_t value)
{
    void *pinned;
    CU(cu.cuMemHostAlloc(&pinned, BYTES, CU_MEMHOSTALLOC_DEVICEMAP));
    for (int i = 0; i < WORDS; i++)
        ((uint32_t *)pinned)[i] = value;
    return pinned;
}

CUstream new_stream(unsigned flags)
{
    CUstream stream;
    CU(cu.cuStreamCreate(&stream, flags));
    return stream;
}

CUevent new_event(void)
{
    CUevent event;
    CU(cu.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    return event;
}

CUdeviceptr address_of(const void *pinned)
{
    CUdeviceptr address;
    CU(cu.cuMemHostGetDevicePointer_v2(&address, (void *)(uintptr_t)pinned, 0));
    return address;
}

void fill_words(CUdeviceptr to, uint32_t value, CUstream stream)
{
    CU(cu.cuMemsetD32Async(to, value, WORDS, stream));
}

void check_words(const uint32_t *words, uint32_t value, const char *what)
{
    for (int i = 0; i < WORDS; i++)
        CHECK(words[i] == value, "%s: word %d is %u, not %u", what, i, words[i], value);
}

void check_device_words(CUdeviceptr from, uint32_t value, const char *what)
{
    uint32_t words[WORDS];
    CU(cu.cuMemcpyDtoH_v2(words, from, BYTES));
    check_words(words, value, what);
}

void check_pending(CUstream stream, const char *what)
{
    const struct timespec pause = {0, 5000000};
    nanosleep(&pause, NULL);
    CHECK(cu.cuStreamQuery(stream) == CUDA_ERROR_NOT_READY, "%s does not wait", what);
}

/* ---------------------------------------------------------------------------------------- cases */

static bool must_be_reported(const test_case *test)
{
#ifdef STANDIN_TSAN
    return test->races;
#else
    (void)test;
    return false;
#endif
}

static void run_child(const test_case *test)
{
    for (int i = 0; i < 4 && test->settings[i]; i++)
        putenv((char *)(uintptr_t)test->settings[i]);
    if (must_be_reported(test) && !freopen("/dev/null", "w", stderr))
        exit(1);
    test->run();
    exit(0);
}

static bool passes(const test_case *test)
{
    enum { REPORTED = 66 }; /* ThreadSanitizer's exit code */
    int status, expected = must_be_reported(test) ? REPORTED : 0;
    fflush(NULL);
    pid_t child = fork();
    CHECK(child >= 0, "fork: %m");
    if (!child)
        run_child(test);
    CHECK(waitpid(child, &status, 0) == child, "waitpid: %m");
    bool passed = WIFEXITED(status) && WEXITSTATUS(status) == expected;
    if (!passed)
        fprintf(stderr, "case %s failed: status %#x%s\n", test->name, status,
                expected ? ", no report of the race" : "");
    return passed;
}

int main(int argc, char **argv)
{
    const test_case *groups[] = {memory_cases, mapping_cases, stream_cases, item_cases, race_cases};
    const struct rlimit none = {0, 0};
    int run = 0, failed = 0;
    setrlimit(RLIMIT_CORE, &none);
    for (size_t g = 0; g < sizeof groups / sizeof *groups; g++)
        for (const test_case *test = groups[g]; test->name; test++) {
            bool wanted = argc == 1;
            for (int i = 1; i < argc; i++)
                wanted |= !strcmp(argv[i], test->name);
            if (!wanted)
                continue;
            run++;
            failed += !passes(test);
        }
    printf("%d cases, %d failed\n", run, failed);
    return failed || !run;
}
