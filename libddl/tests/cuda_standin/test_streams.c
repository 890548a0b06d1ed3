/* SPDX-License-Identifier: Apache-2.0 */
/* The order of items in the stand-in's streams. */
#include <pthread.h>
#include <stdatomic.h>

#include "test_standin.h"

enum { ROUNDS = 100, BUSY_US = 30000 };

/* Hold the stream until the word is released. */
static void hold(CUstream stream, const uint32_t *word)
{
    CU(cuStreamWaitValue32_v2(stream, address_of(word), 1, CU_STREAM_WAIT_VALUE_GEQ));
}

static void release(uint32_t *word)
{
    __atomic_store_n(word, 1, __ATOMIC_RELEASE);
}

/* Stream `a` fills, `b` copies, and `a` fills again: each after the other by events. */
static void events(void)
{
    start_driver();
    CUstream a = new_stream(CU_STREAM_NON_BLOCKING), b = new_stream(CU_STREAM_NON_BLOCKING);
    CUevent filled = new_event(), copied = new_event();
    CUdeviceptr words = device_words();
    uint32_t *result = pinned_words(0);
    CU(cuEventQuery(filled)); /* never recorded */
    for (uint32_t i = 1; i <= ROUNDS; i++) {
        CU(cuStreamWaitEvent(a, copied, 0));
        fill_words(words, i, a);
        CU(cuEventRecord(filled, a));
        CU(cuStreamWaitEvent(b, filled, 0));
        CU(cuMemcpyDtoHAsync_v2(result, words, BYTES, b));
        CU(cuEventRecord(copied, b));
        if (i % 2)
            continue;
        if (i % 4)
            CU(cuEventSynchronize(copied));
        else
            while (cuEventQuery(copied) != CUDA_SUCCESS)
                ;
        check_words(result, i, "ordered by events");
    }
    CU(cuEventDestroy_v2(filled));
    CU_IS(CUDA_ERROR_INVALID_HANDLE, cuEventQuery(filled));
    CU(cuStreamSynchronize(b));
}

/* A wait is for the record before it, not for a later one. */
static void recorded_again(void)
{
    start_driver();
    CUstream a = new_stream(CU_STREAM_NON_BLOCKING), b = new_stream(CU_STREAM_NON_BLOCKING),
             c = new_stream(CU_STREAM_NON_BLOCKING);
    CUevent event = new_event();
    uint32_t *word = pinned_words(0);
    CU(cuEventRecord(event, a));
    CU(cuStreamWaitEvent(b, event, 0));
    hold(c, word);
    CU(cuEventRecord(event, c));
    CU(cuStreamSynchronize(b));
    CU_IS(CUDA_ERROR_NOT_READY, cuEventQuery(event));
    release(word);
    CU(cuEventSynchronize(event));
}

static _Atomic unsigned last;

static void store_first(void *data)
{
    (void)data;
    last = 1;
}

static void store_second(void *data)
{
    (void)data;
    last = 2;
}

/* Without events, either stream may be the last. */
static void unordered(void)
{
    int seen[3] = {0};
    start_driver();
    CUstream a = new_stream(CU_STREAM_NON_BLOCKING), b = new_stream(CU_STREAM_NON_BLOCKING);
    for (int i = 0; i < 1000 && (!seen[1] || !seen[2]); i++) {
        CU(cuLaunchHostFunc(a, store_first, NULL));
        CU(cuLaunchHostFunc(b, store_second, NULL));
        CU(cuStreamSynchronize(a));
        CU(cuStreamSynchronize(b));
        seen[last]++;
    }
    CHECK(seen[1] && seen[2], "always the same order");
}

static void queries(void)
{
    start_driver();
    CUstream stream = new_stream(0);
    CUevent event = new_event();
    CUstreamCaptureStatus status;
    CUcontext context, current;
    uint32_t *gate = pinned_words(0);
    CU(cuStreamQuery(stream));
    hold(stream, gate);
    CU(cuEventRecord(event, stream));
    CU_IS(CUDA_ERROR_NOT_READY, cuStreamQuery(stream));
    CU_IS(CUDA_ERROR_NOT_READY, cuEventQuery(event));
    release(gate);
    CU(cuEventSynchronize(event));
    CU(cuEventQuery(event));
    CU(cuStreamSynchronize(stream));
    CU(cuStreamQuery(stream));
    CU(cuStreamIsCapturing(stream, &status));
    CHECK(status == CU_STREAM_CAPTURE_STATUS_NONE, "%d", status);
    CU(cuStreamGetCtx(stream, &context));
    CU(cuCtxGetCurrent(&current));
    CHECK(context == current, "another context");
    CU_IS(CUDA_ERROR_INVALID_HANDLE, cuStreamQuery((CUstream)0x1234));
}

/* An asynchronous copy is not done when the call returns. */
static void missing_wait(void)
{
    start_driver();
    CUstream stream = new_stream(0);
    CUdeviceptr words = device_words();
    uint32_t *result = pinned_words(1), *gate = pinned_words(0);
    fill_words(words, 2, stream);
    hold(stream, gate);
    CU(cuMemcpyDtoHAsync_v2(result, words, BYTES, stream));
    check_words(result, 1, "before the wait");
    release(gate);
    CU(cuStreamSynchronize(stream));
    check_words(result, 2, "after the wait");
}

/* ------------------------------------------------------------------------------ default streams */

/* The legacy stream waits for blocking streams, and they wait for it; others do not. */
static void legacy(void)
{
    start_driver();
    CUstream blocking = new_stream(0), other = new_stream(CU_STREAM_NON_BLOCKING);
    uint32_t *gates = pinned_words(0), *held = gates, *held_other = gates + 1,
             *held_legacy = gates + 2;
    CUdeviceptr words = device_words();
    hold(other, held_other);
    fill_words(words, 1, CU_STREAM_LEGACY);
    CU(cuStreamSynchronize(NULL)); /* though `other` waits */
    hold(blocking, held);
    CU_IS(CUDA_ERROR_NOT_READY, cuStreamQuery(NULL));
    fill_words(words, 2, blocking);
    fill_words(words, 3, NULL);
    check_pending(NULL, "the legacy stream");
    release(held);
    CU(cuStreamSynchronize(NULL));
    check_device_words(words, 3, "the legacy stream's");
    hold(NULL, held_legacy);
    fill_words(words, 4, blocking);
    check_pending(blocking, "the blocking stream");
    release(held_legacy);
    CU(cuStreamSynchronize(blocking));
    check_device_words(words, 4, "the blocking stream's");
    CU_IS(CUDA_ERROR_NOT_READY, cuStreamQuery(other));
    release(held_other);
    CU(cuStreamSynchronize(other));
}

static uint32_t *thread_gate;
static CUcontext thread_context;

static void *use_per_thread(void *unused)
{
    (void)unused;
    CU(cuCtxSetCurrent(thread_context));
    hold(CU_STREAM_PER_THREAD, thread_gate);
    CU_IS(CUDA_ERROR_NOT_READY, cuStreamQuery(CU_STREAM_PER_THREAD));
    return NULL;
}

/* Each thread has its own default stream, and the legacy stream waits for them, even after the
 * thread's end. */
static void per_thread(void)
{
    pthread_t thread;
    start_driver();
    CU(cuCtxGetCurrent(&thread_context));
    thread_gate = pinned_words(0);
    CUdeviceptr words = device_words();
    CHECK(!pthread_create(&thread, NULL, use_per_thread, NULL), "pthread_create");
    CHECK(!pthread_join(thread, NULL), "pthread_join");
    fill_words(words, 5, CU_STREAM_PER_THREAD);
    CU(cuStreamSynchronize(CU_STREAM_PER_THREAD));
    check_pending(NULL, "the legacy stream");
    fill_words(words, 6, NULL);
    release(thread_gate);
    check_device_words(words, 6, "the legacy stream's");
}

static void be_busy(void *unused)
{
    (void)unused;
    usleep(BUSY_US);
}

/* Memory is freed after the items that use it, and a destroyed stream still runs queued items. */
static void ends(void)
{
    start_driver();
    CUstream a = new_stream(CU_STREAM_NON_BLOCKING), b = new_stream(CU_STREAM_NON_BLOCKING);
    CUdeviceptr words = device_words();
    uint32_t *gate = pinned_words(0);
    CU(cuLaunchHostFunc(a, be_busy, NULL));
    CU(cuMemsetD32Async(words, 1, WORDS, a));
    CU(cuLaunchHostFunc(a, store_first, NULL));
    CU(cuMemFree_v2(words));
    CHECK(last == 1, "cuMemFree has not waited");
    hold(b, gate);
    CU(cuLaunchHostFunc(b, store_second, NULL));
    CU(cuStreamDestroy_v2(b));
    CHECK(last == 1, "the destroyed stream has not waited");
    release(gate);
    while (last != 2) /* a stream that has stopped would hang */
        usleep(1000);
}

const test_case stream_cases[] = {
    {"events", events, {0}, false},
    {"events_seed", events, {"DDL_STANDIN_SEED=7", "DDL_STANDIN_DELAY_US=200"}, false},
    {"events_at_once", events, {"DDL_STANDIN_DELAY_US=0"}, false},
    {"recorded_again", recorded_again, {0}, false},
    {"unordered", unordered, {0}, false},
    {"queries", queries, {0}, false},
    {"missing_wait", missing_wait, {0}, false},
    {"legacy", legacy, {0}, false},
    {"per_thread", per_thread, {0}, false},
    {"ends", ends, {0}, false},
    {NULL, NULL, {0}, false},
};
