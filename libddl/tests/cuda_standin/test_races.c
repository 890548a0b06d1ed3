/* SPDX-License-Identifier: Apache-2.0 */
/* ThreadSanitizer's reports on programs that use the stand-in. Each program runs with its wait,
 * without a report; and without the wait, when there must be a report, even if the copy is long
 * done when the result is read. */
#include <stdatomic.h>
#include <time.h>

#include "test_standin.h"

static CUstream a, b;
static CUevent event;
static CUdeviceptr words;
static uint32_t *pinned, *gate;
static uint32_t sum;
static _Atomic bool is_called;

static void start(void)
{
    start_driver();
    a = new_stream(CU_STREAM_NON_BLOCKING);
    b = new_stream(CU_STREAM_NON_BLOCKING);
    event = new_event();
    words = device_words();
    pinned = pinned_words(1);
    gate = pinned_words(0);
}

/* Wait until everything is done, with many calls that lock what the streams lock, too. */
static void let_it_be_done(void)
{
    const struct timespec pause = {0, 10000000};
    nanosleep(&pause, NULL);
    CUevent other = new_event();
    CU(cuEventDestroy_v2(other));
    CU(cuMemFree_v2(device_words()));
    CU(cuStreamDestroy_v2(new_stream(0)));
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

/* Two streams share memory by two mappings. */
static void mappings_share(bool waits)
{
    enum { UNIT = 2 << 20 };
    CUdeviceptr base;
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    start();
    CU(cuMemCreate(&handle, UNIT, &prop, 0));
    CU(cuMemAddressReserve(&base, 2 * UNIT, 0, 0, 0));
    CU(cuMemMap(base, UNIT, 0, handle, 0));
    CU(cuMemMap(base + UNIT, UNIT, 0, handle, 0));
    CU(cuMemSetAccess(base, 2 * UNIT, &access, 1));
    fill_words(base, 2, a);
    CU(cuEventRecord(event, a));
    if (waits)
        CU(cuStreamWaitEvent(b, event, 0));
    let_it_be_done();
    fill_words(base + UNIT, 3, b);
    CU(cuStreamSynchronize(b));
}

static void call(void *data)
{
    (void)data;
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
    CU(cuStreamWaitValue32_v2(a, address_of(gate), 1, CU_STREAM_WAIT_VALUE_GEQ));
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

/* The legacy stream comes after blocking streams only. */
static void legacy_after(bool waits)
{
    start();
    CUstream stream = new_stream(waits ? 0 : CU_STREAM_NON_BLOCKING);
    fill_words(words, 2, stream);
    let_it_be_done();
    CU(cuMemcpyDtoH_v2(pinned, words, BYTES));
}

/* What a destroyed blocking stream has done is seen after the legacy stream. */
static void destroyed_legacy(bool waits)
{
    start();
    CUstream stream = new_stream(waits ? 0 : CU_STREAM_NON_BLOCKING);
    fill_words(words, 2, stream);
    CU(cuStreamDestroy_v2(stream));
    let_it_be_done();
    CU(cuMemcpyDtoH_v2(pinned, words, BYTES));
}

#define BOTH(program)                                                                              \
    static void program##_clean(void)                                                              \
    {                                                                                              \
        program(true);                                                                             \
    }                                                                                              \
    static void program##_racy(void)                                                               \
    {                                                                                              \
        program(false);                                                                            \
    }
#define PROGRAMS(X)                                                                                \
    X(host_reads)                                                                                  \
    X(host_polls)                                                                                  \
    X(host_waits_for_event)                                                                        \
    X(streams_share)                                                                               \
    X(mappings_share)                                                                              \
    X(host_function)                                                                               \
    X(wait_value)                                                                                  \
    X(host_writes)                                                                                 \
    X(pageable_reads)                                                                              \
    X(legacy_after)                                                                                \
    X(destroyed_legacy)
PROGRAMS(BOTH)

#define CASES(program)                                                                             \
    {#program, program##_clean, {0}, false}, {#program "_racy", program##_racy, {0}, true},
const test_case race_cases[] = {PROGRAMS(CASES){NULL, NULL, {0}, false}};
