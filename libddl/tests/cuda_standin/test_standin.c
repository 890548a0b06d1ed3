/* SPDX-License-Identifier: Apache-2.0 */
/* Tests that the stand-in for libcuda.so.1 detects the faults of a program, which the real driver
 * may let pass. (That correct programs work on it is shown by the tests in device/.) Each program
 * runs in a process of its own: with its wait; and if ThreadSanitizer must report the missing wait,
 * also without it, even if the copy is long done when the result is read. Without arguments: all
 * programs; else those whose names are given. */
#include "check.h"
#include "cuda_functions.h"
#include "edges.h" /* STANDIN_TSAN */

#define CU(call)                                                                                   \
    do {                                                                                           \
        CUresult result_ = (call);                                                                 \
        CHECK(result_ == CUDA_SUCCESS, "%s gives %d", #call, (int)result_);                        \
    } while (0)

enum { WORDS = 1024, BYTES = WORDS * 4 };

static CUdeviceptr device_words(void)
{
    CUdeviceptr address;
    CU(cuMemAlloc_v2(&address, BYTES));
    return address;
}

static uint32_t *pinned_words(uint32_t value)
{
    void *pinned;
    CU(cuMemHostAlloc(&pinned, BYTES, CU_MEMHOSTALLOC_DEVICEMAP));
    for (int i = 0; i < WORDS; i++)
        ((uint32_t *)pinned)[i] = value;
    return pinned;
}

static CUstream new_stream(void)
{
    CUstream stream;
    CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    return stream;
}

static CUevent new_event(void)
{
    CUevent event;
    CU(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    return event;
}

/* Return the device address of pinned memory. */
static CUdeviceptr address_of(const void *pinned)
{
    CUdeviceptr address;
    CU(cuMemHostGetDevicePointer_v2(&address, (void *)(uintptr_t)pinned, 0));
    return address;
}

static void fill_words(CUdeviceptr to, uint32_t value, CUstream stream)
{
    CU(cuMemsetD32Async(to, value, WORDS, stream));
}

static void hold(CUstream stream, const uint32_t *word)
{
    CU(cuStreamWaitValue32_v2(stream, address_of(word), 1, CU_STREAM_WAIT_VALUE_GEQ));
}

static CUstream a, b;
static CUevent event;
static CUdeviceptr words;
static uint32_t *pinned, *gate;
static uint32_t sum;
static _Atomic bool is_called;

static void start(void)
{
    CUcontext context;
    CU(cuInit(0));
    CU(cuDevicePrimaryCtxRetain(&context, 0));
    CU(cuCtxSetCurrent(context));
    a = new_stream();
    b = new_stream();
    event = new_event();
    words = device_words();
    pinned = pinned_words(1);
    gate = pinned_words(0);
}

/* Wait until everything is done, with many calls that lock what the streams lock, too. */
static void let_it_be_done(void)
{
    usleep(10000);
    CUevent other = new_event();
    CU(cuEventDestroy_v2(other));
    CU(cuMemFree_v2(device_words()));
    CU(cuStreamDestroy_v2(new_stream()));
}

static void read_pinned(void)
{
    for (int i = 0; i < WORDS; i++)
        sum += pinned[i];
}

/* The host reads what a stream copies. */
static void host_reads(bool waits)
{
    start();
    CU(cuMemcpyDtoHAsync_v2(pinned, words, BYTES, a));
    if (waits)
        CU(cuStreamSynchronize(a));
    let_it_be_done();
    read_pinned();
}

static void host_polls(bool waits)
{
    start();
    CU(cuMemcpyDtoHAsync_v2(pinned, words, BYTES, a));
    CU(cuEventRecord(event, a));
    while (waits && cuEventQuery(event) != CUDA_SUCCESS)
        ;
    let_it_be_done();
    read_pinned();
}

/* The host waits for an event, or for one that was recorded before the copy, which is no wait. */
static void host_waits_for_event(bool waits)
{
    start();
    if (!waits)
        CU(cuEventRecord(event, a));
    CU(cuMemcpyDtoHAsync_v2(pinned, words, BYTES, a));
    if (waits)
        CU(cuEventRecord(event, a));
    CU(cuEventSynchronize(event));
    let_it_be_done();
    read_pinned();
}

/* One stream reads what another writes. */
static void streams_share(bool waits)
{
    start();
    fill_words(words, 2, a);
    CU(cuEventRecord(event, a));
    if (waits)
        CU(cuStreamWaitEvent(b, event, 0));
    let_it_be_done();
    CU(cuMemcpyDtoHAsync_v2(pinned, words, BYTES, b));
    CU(cuStreamSynchronize(b));
}

static void call(void *data)
{
    atomic_store_explicit(&is_called, true, memory_order_release);
}

/* A host function signals the host. */
static void host_function(bool waits)
{
    start();
    CU(cuMemcpyDtoHAsync_v2(pinned, words, BYTES, a));
    CU(cuLaunchHostFunc(a, call, NULL));
    while (!atomic_load_explicit(&is_called, waits ? memory_order_acquire : memory_order_relaxed))
        ;
    read_pinned();
}

/* The host writes data that a stream reads after it has waited for a word. */
static void wait_value(bool waits)
{
    start();
    hold(a, gate);
    CU(cuMemcpyHtoDAsync_v2(words, pinned, BYTES, a));
    for (int i = 0; i < WORDS; i++)
        pinned[i] = 3;
    __atomic_store_n(gate, 1, waits ? __ATOMIC_RELEASE : __ATOMIC_RELAXED);
    CU(cuStreamSynchronize(a));
}

/* The host writes to the source of a copy; pageable memory was read before. */
static void host_writes(bool waits)
{
    start();
    uint32_t pageable[WORDS] = {0};
    CU(cuMemcpyHtoDAsync_v2(words, pinned, BYTES, a));
    CU(cuMemcpyHtoDAsync_v2(words, pageable, BYTES, a));
    pageable[0] = 1;
    if (waits)
        CU(cuStreamSynchronize(a));
    let_it_be_done();
    pinned[0] = 2;
}

/* The real driver may return before a copy to pageable memory is made. */
static void pageable_reads(bool waits)
{
    start();
    uint32_t pageable[WORDS];
    CU(cuMemcpyDtoHAsync_v2(pageable, words, BYTES, a));
    if (waits)
        CU(cuStreamSynchronize(a));
    sum = pageable[0];
}

/* --------------------------------------------------------------- faults that all builds detect */

/* Return the signal that ends a forked child in which the function runs. Its messages are dropped.
 */
static int signal_of(void (*run)(void))
{
    int status;
    fflush(NULL);
    pid_t child = fork();
    CHECK(child >= 0, "fork: %m");
    if (!child) {
        signal(SIGSEGV, SIG_DFL); /* a sanitizer has its own handler */
        signal(SIGABRT, SIG_DFL);
        if (freopen("/dev/null", "w", stderr))
            run();
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child, "waitpid: %m");
    return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

static void load_word(void)
{
    (void)*(volatile uint32_t *)(uintptr_t)words;
}

static void store_word(void)
{
    *(volatile uint32_t *)(uintptr_t)(words + BYTES - 4) = 1;
}

static void store_pinned(void)
{
    *(volatile uint32_t *)pinned = 1;
}

static void untouchable(bool waits)
{
    start();
    CHECK(signal_of(load_word) == SIGSEGV, "the host can load from device memory");
    CHECK(signal_of(store_word) == SIGSEGV, "the host can store to device memory");
    CHECK(signal_of(store_pinned) == 0, "the host cannot store to pinned memory");
}

/* An item uses memory that its device may not access when it runs. */
static void use_forbidden(void)
{
    enum { UNIT = 2 << 20 };
    start();
    CUdeviceptr base;
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    CUmemAccessDesc access = {prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CU(cuMemCreate(&handle, UNIT, &prop, 0));
    CU(cuMemAddressReserve(&base, UNIT, 0, 0, 0));
    CU(cuMemMap(base, UNIT, 0, handle, 0));
    CU(cuMemSetAccess(base, UNIT, &access, 1));
    hold(NULL, gate);
    fill_words(base, 1, NULL);
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
    CU(cuMemSetAccess(base, UNIT, &access, 1)); /* waits for no stream */
    __atomic_store_n(gate, 1, __ATOMIC_RELEASE);
    cuStreamSynchronize(NULL);
}

static void forbidden(bool waits)
{
    CHECK(signal_of(use_forbidden) == SIGABRT, "forbidden memory can be used");
}

/* An asynchronous copy is not done when the call returns. */
static void unfinished(bool waits)
{
    start();
    fill_words(words, 2, a);
    hold(a, gate);
    CU(cuMemcpyDtoHAsync_v2(pinned, words, BYTES, a));
    CHECK(pinned[0] == 1, "before the wait: %u", pinned[0]);
    __atomic_store_n(gate, 1, __ATOMIC_RELEASE);
    CU(cuStreamSynchronize(a));
    CHECK(pinned[0] == 2, "after the wait: %u", pinned[0]);
}

static _Atomic unsigned last;

static void store_last(void *data)
{
    last = (unsigned)(uintptr_t)data;
}

/* Without events, either stream may be the last. */
static void unordered(bool waits)
{
    int seen[3] = {0};
    start();
    for (int i = 0; i < 1000 && (!seen[1] || !seen[2]); i++) {
        CU(cuLaunchHostFunc(a, store_last, (void *)1));
        CU(cuLaunchHostFunc(b, store_last, (void *)2));
        CU(cuStreamSynchronize(a));
        CU(cuStreamSynchronize(b));
        seen[last]++;
    }
    CHECK(seen[1] && seen[2], "always the same order");
}

typedef struct program {
    const char *name;
    void (*run)(bool waits);
    bool races; /* ThreadSanitizer must report it if it does not wait */
} program;

static const program programs[] = {{"host_reads", host_reads, true},
                                   {"host_polls", host_polls, true},
                                   {"host_waits_for_event", host_waits_for_event, true},
                                   {"streams_share", streams_share, true},
                                   {"host_function", host_function, true},
                                   {"wait_value", wait_value, true},
                                   {"host_writes", host_writes, true},
                                   {"pageable_reads", pageable_reads, true},
                                   {"untouchable", untouchable, false},
                                   {"forbidden", forbidden, false},
                                   {"unfinished", unfinished, false},
                                   {"unordered", unordered, false}};

/* Return true if the program ends as it must. */
static bool passes(const program *p, bool waits)
{
#ifdef STANDIN_TSAN
    enum { REPORTED = 66 }; /* ThreadSanitizer's exit code */
#else
    enum { REPORTED = 0 };
#endif
    int status, expected = waits ? 0 : REPORTED;
    fflush(NULL);
    pid_t child = fork();
    CHECK(child >= 0, "fork: %m");
    if (!child) {
        if (expected && !freopen("/dev/null", "w", stderr))
            exit(1);
        p->run(waits);
        exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child, "waitpid: %m");
    bool passed = WIFEXITED(status) && WEXITSTATUS(status) == expected;
    if (!passed)
        fprintf(stderr, "%s, waits %d: status %#x\n", p->name, waits, (unsigned)status);
    return passed;
}

int main(int argc, char **argv)
{
    int failed = 0;
    setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
    for (const program *p = programs; p < programs + sizeof programs / sizeof *programs; p++) {
        bool wanted = argc == 1;
        for (int i = 1; i < argc; i++)
            wanted |= !strcmp(argv[i], p->name);
        failed += wanted && !passes(p, true);
        failed += wanted && p->races && !passes(p, false);
    }
    return failed != 0;
}
