/* SPDX-License-Identifier: Apache-2.0 */
/* Operations on buffers of a GPU, on the stand-in for libcuda.so.1: they have the bits of the same
 * operations on host memory, and run between the caller's previous and later work in the stream.
 * Ranks are processes. */
#include "base/dtype.h"
#include "device_calls.h"
#include "device_runs.h"

enum {
    SIZE = 3,
#ifdef __SANITIZE_THREAD__
    RACES = 1, /* leave out tests with the same threads as other tests */
#else
    RACES = 0,
#endif
    LONG = SANITIZED ? (4 << 20) + 68 : (9 << 20) + 68, /* more than all slots */
    BLOCK_LONG = LONG / SIZE
};

/* Each run takes some combinations, and the next run others. `test_device operations 1` takes
 * all. */
static unsigned sample = SANITIZED ? 19 : 7;

/* Every operation of every dtype, in and out of place. */
static void operations(ddl_comm *comm)
{
    static const int64_t counts[] = {0, 1, 1000, SANITIZED ? 7001 : 70001};
    device_start_of(comm);
    unsigned combination = n_runs;
    for (int kind = 0; kind < KINDS; kind++)
        for (unsigned dtype = DDL_BOOL; dtype <= DDL_C128; dtype++)
            for (unsigned n = 0; n < sizeof counts / sizeof *counts; n++)
                for (int in_place = 0; in_place < 2; in_place++)
                    if (combination++ % sample == 0 &&
                        (!calls[kind].reduces || ddl__reduces(dtype, DDL_SUM)))
                        compare(comm, kind, dtype, counts[n], in_place);
    ddl_comm_destroy(comm);
}

/* A call of the test below, with its position in one array for each side. */
typedef struct small_call {
    ddl_dtype dtype;
    ddl_op op;
    int words, at;
    bool in_place;
    double before, after; /* scales */
} small_call;

static void submit_small(ddl_comm *comm, const small_call *made, int n, uint32_t *send,
                         uint32_t *recv, const ddl_options *as)
{
    ddl_group *group;
    ddl_options options = *as;
    OK(ddl_group_create(comm, &group));
    options.group = group;
    for (int i = 0; i < n; i++) {
        options.prescale = made[i].before;
        options.postscale = made[i].after;
        OK(ddl_allreduce(comm, made[i].in_place ? NULL : send + made[i].at, recv + made[i].at,
                         made[i].words, made[i].dtype, made[i].op, &options, NULL));
    }
    OK(ddl_group_submit(group, as, NULL));
    ddl_group_destroy(group);
}

/* A group of small all-reduces of two kinds, with scales that differ by rank, and of one that is
 * not packed: the GPU starts the engine twice for those of 3 MiB, and once for those of 1.5 MiB. */
static void packed(ddl_comm *comm)
{
    enum { N = 180, ROOM = 1300000 };
    static const int lengths[] = {30000, 0, 7, 3333, 1};
    static uint32_t send[ROOM], recv[ROOM], seen[ROOM];
    small_call made[N];
    int at = 1, rank = ddl_comm_rank(comm);
    device_start_of(comm);
    for (int i = 0; i < N; i++) {
        made[i] =
            (small_call){i % 3 ? DDL_U32 : DDL_F32, DDL_SUM, lengths[i % 5], at, i % 4 == 1, 0, 0};
        if (i % 3 == 0) {
            made[i].before = i / 3 % SIZE == rank ? 2 : i % 2;
            made[i].after = i / 3 % 4 == rank ? 0.5 : 0;
        }
        if (i == N / 2)
            made[i].words = 50000;
        at += made[i].words + 1;
    }
    for (int i = 0; i < ROOM; i++)
        send[i] = recv[i] = (uint32_t)(i * 7 + rank);
    for (int i = 0; i < N; i += 3)
        for (int k = made[i].at; k < made[i].at + made[i].words; k++) {
            float value = (float)(k % 1000 + rank);
            memcpy(&send[k], &value, sizeof value);
            recv[k] = send[k];
        }
    uint32_t *device_send = device_copy(send, sizeof send);
    uint32_t *device_recv = device_copy(recv, sizeof recv);
    submit_small(comm, made, N, send, recv, &(ddl_options){.struct_size = sizeof(ddl_options)});
    OK(ddl_barrier(comm, &on_device, NULL)); /* creates the device */
    unsigned long long before = device_host_functions() ? device_host_functions()() : 0;
    submit_small(comm, made, N, device_send, device_recv, &on_device);
    if (device_host_functions())
        CHECK(device_host_functions()() - before == 2 + 1 + 1 + 1, "%llu host functions",
              device_host_functions()() - before);
    device_read(seen, device_recv, sizeof seen);
    for (int i = 0; i < ROOM; i++)
        CHECK(seen[i] == recv[i], "word %d is %u, not %u", i, seen[i], recv[i]);
    ddl_comm_destroy(comm);
}

/* Operations with several times as many chunks as slots. */
static void many_chunks(ddl_comm *comm)
{
    device_start_of(comm);
    for (int kind = 0; kind < KINDS; kind += RACES ? KINDS : SANITIZED ? 3 : 1)
        compare(comm, kind, DDL_F32,
                calls[kind].sent < 0 || calls[kind].received < 0 ? BLOCK_LONG : LONG, kind % 2);
    ddl_comm_destroy(comm);
}

/* A training step: the stream computes, reduces, and continues, while the host is ahead of it. */
static void stream_order(ddl_comm *comm)
{
    enum { STEPS = 20, WORDS = 300000 };
    device_start_of(comm);
    int rank = ddl_comm_rank(comm), size = ddl_comm_size(comm);
    CUstream streams[2] = {device_stream(), device_stream()};
    uint32_t *send = device_alloc(sizeof *send * WORDS), *recv = device_alloc(sizeof *recv * WORDS);
    uint32_t *seen = device_alloc(sizeof *seen * STEPS);
    CUevent handed_over;
    CU(cuEventCreate(&handed_over, CU_EVENT_DISABLE_TIMING));
    ddl_work *works[STEPS];
    for (int step = 0; step < STEPS; step++) {
        CUstream stream = streams[step % 2];
        ddl_options options = on_device;
        options.stream = stream;
        CU(cuStreamWaitEvent(stream, handed_over, 0));
        CU(cuMemsetD32Async(device_address(send), (unsigned)(rank + step), WORDS, stream));
        OK(ddl_allreduce(comm, send, recv, WORDS, DDL_U32, DDL_SUM, &options, &works[step]));
        CU(cuMemsetD32Async(device_address(send), 12345, WORDS, stream)); /* it was already read */
        CU(cuMemcpyDtoDAsync_v2(device_address(seen + step), device_address(recv + WORDS - 1),
                                sizeof *seen, stream));
        CU(cuEventRecord(handed_over, stream));
        if (step % 3 == 0) { /* on host memory, in the same order */
            int32_t one = 1;
            OK(ddl_allreduce(comm, NULL, &one, 1, DDL_I32, DDL_SUM, NULL, NULL));
            CHECK(one == size, "host: %d", one);
        }
    }
    uint32_t host[STEPS];
    CU(cuStreamSynchronize(streams[(STEPS - 1) % 2]));
    device_read(host, seen, sizeof host);
    for (int step = 0; step < STEPS; step++) {
        uint32_t expected = (uint32_t)(size * step + size * (size - 1) / 2);
        CHECK(host[step] == expected, "step %d: %u, not %u", step, host[step], expected);
        OK(ddl_work_wait(works[step], 10000));
        ddl_work_destroy(works[step]);
    }
    ddl_comm_destroy(comm);
}

/* A group of operations of all shapes, submitted repeatedly: more than the slots, with two
 * operations that have separate memory, at one position of the stream. */
static void group(ddl_comm *comm)
{
    enum { SMALL = 20, WORDS = 1000, LARGE = 700000, TIMES = 3 };
    device_start_of(comm);
    int rank = ddl_comm_rank(comm);
    int64_t counts[SIZE] = {LARGE, 5, 0}, displs[SIZE] = {0, LARGE, LARGE + 5};
    uint32_t *small[SMALL], *large = device_alloc(sizeof *large * LARGE);
    uint32_t *uneven[2] = {device_alloc(sizeof **uneven * LARGE),
                           device_alloc(sizeof **uneven * (LARGE + 5))};
    ddl_group *operations, *empty;
    ddl_options options = on_device;
    OK(ddl_group_create(comm, &operations));
    options.group = operations;
    for (int i = 0; i < SMALL; i++) {
        small[i] = device_alloc(sizeof **small * WORDS);
        OK(ddl_allreduce(comm, NULL, small[i], WORDS, DDL_U32, DDL_SUM, &options, NULL));
    }
    OK(ddl_broadcast(comm, large, LARGE, DDL_U32, 1, &options, NULL));
    for (int i = 0; i < 2; i++)
        OK(ddl_allgatherv(comm, uneven[0], uneven[1], counts, displs, DDL_U32, &options, NULL));
    OK(ddl_barrier(comm, &options, NULL));
    options = on_device;
    options.stream = device_stream();
    for (unsigned t = 0; t < TIMES; t++) {
        ddl_work *work;
        uint32_t seen[2];
        for (unsigned i = 0; i < SMALL; i++)
            CU(cuMemsetD32Async(device_address(small[i]), i + t, WORDS, options.stream));
        CU(cuMemsetD32Async(device_address(large), (unsigned)rank + t, LARGE, options.stream));
        CU(cuMemsetD32Async(device_address(uneven[0]), (unsigned)rank + t, LARGE, options.stream));
        OK(ddl_group_submit(operations, &options, t ? &work : NULL));
        CU(cuMemsetD32Async(device_address(uneven[0]), 12345, LARGE, options.stream));
        CU(cuMemcpyDtoHAsync_v2(seen, device_address(uneven[1] + LARGE - 1), sizeof seen,
                                options.stream));
        CU(cuStreamSynchronize(options.stream));
        CHECK(seen[0] == t && seen[1] == 1 + t, "%u: %u %u", t, seen[0], seen[1]);
        device_read(seen, large + LARGE - 1, sizeof *seen);
        CHECK(seen[0] == 1 + t, "%u: %u", t, seen[0]);
        for (unsigned i = 0; i < SMALL; i++) {
            device_read(seen, small[i] + WORDS - 1, sizeof *seen);
            CHECK(seen[0] == SIZE * (i + t), "%u, %u: %u", t, i, seen[0]);
        }
        if (t)
            OK(ddl_work_wait(work, 20000));
        if (t)
            ddl_work_destroy(work);
    }
    ddl_group_destroy(operations);
    OK(ddl_group_create(comm, &empty));
    OK(ddl_group_submit(empty, &on_device, NULL));
    ddl_group_destroy(empty);
    ddl_comm_destroy(comm);
}

/* The ways to wait for a call. */
static void completion(ddl_comm *comm)
{
    device_start_of(comm);
    enum { N = 5, WORDS = 1 << 20 };
    uint32_t *buffer = device_alloc(sizeof *buffer * WORDS);
    ddl_options options = on_device;
    ddl_work *work, *taken;
    void *user;
    int n;
    options.queued = 1;
    for (uintptr_t i = 1; i <= N; i++) {
        options.user = (void *)i;
        OK(ddl_allreduce(comm, NULL, buffer, WORDS, DDL_U32, DDL_SUM, &options, &work));
    }
    for (uintptr_t i = 1; i <= N; i++) {
        OK(ddl_comm_completed(comm, &taken, &user, 1, 20000, &n));
        CHECK(n == 1 && (uintptr_t)user == i, "%d: %p", n, user);
        ddl_work_destroy(taken);
    }
    options.queued = 0;
    options.wait_ms = 20000;
    OK(ddl_allreduce(comm, NULL, buffer, 1, DDL_U32, DDL_SUM, &options, &work));
    CHECK(!work, "it has a work");
    options.wait_ms = 1;
    OK(ddl_allreduce(comm, NULL, buffer, WORDS, DDL_U32, DDL_SUM, &options, &work));
    if (work)
        OK(ddl_work_wait(work, 20000));
    ddl_work_destroy(work);
    options.wait_ms = 0;
    OK(ddl_allreduce(comm, NULL, buffer, WORDS, DDL_U32, DDL_SUM, &options, &work));
    ddl_work_destroy(work); /* abandoned */
    OK(ddl_barrier(comm, &on_device, NULL));
    ddl_comm_destroy(comm);
}

static void refusals(ddl_comm *comm)
{
    device_start_of(comm);
    float host[4] = {0}, *device = device_alloc(sizeof host);
    ddl_options options = on_device;
    ddl_group *group;
    REFUSED(ddl_allreduce(comm, host, device, 4, DDL_F32, DDL_SUM, &options, NULL), DDL_EINVAL,
            "is not in the memory of a GPU");
    REFUSED(ddl_allreduce(comm, device, host, 4, DDL_F32, DDL_SUM, &options, NULL), DDL_EINVAL,
            "is not in the memory of a GPU");
    REFUSED(ddl_send(comm, device, 4, DDL_F32, 0, 0, &options, NULL), DDL_EUNSUPPORTED, "messages");
    options.name = "gradient";
    REFUSED(ddl_allreduce(comm, NULL, device, 4, DDL_F32, DDL_SUM, &options, NULL),
            DDL_EUNSUPPORTED, "named operations");
    options.name = NULL;
    OK(ddl_group_create(comm, &group));
    options.group = group;
    REFUSED(ddl_allreduce(comm, NULL, host, 4, DDL_F32, DDL_SUM, &options, NULL), DDL_EINVAL,
            "is not in the memory of a GPU");
    REFUSED(ddl_send(comm, device, 4, DDL_F32, 0, 0, &options, NULL), DDL_EUNSUPPORTED, "messages");
    options.stream = device;
    REFUSED(ddl_allreduce(comm, NULL, device, 4, DDL_F32, DDL_SUM, &options, NULL), DDL_EINVAL,
            "pass the stream to ddl_group_submit");
    options.stream = NULL;
    OK(ddl_allreduce(comm, NULL, device, 4, DDL_F32, DDL_SUM, &options, NULL));
    options.memory = DDL_MEMORY_HOST;
    REFUSED(ddl_allreduce(comm, NULL, host, 4, DDL_F32, DDL_SUM, &options, NULL), DDL_EINVAL,
            "options.memory is DDL_MEMORY_HOST, but the group's operations have DDL_MEMORY_CUDA");
    REFUSED(ddl_group_submit(group, NULL, NULL), DDL_EINVAL,
            "pass the same value to ddl_group_submit");
    options = on_device;
    options.name = "gradients";
    REFUSED(ddl_group_submit(group, &options, NULL), DDL_EUNSUPPORTED, "named operations");
    ddl_group_destroy(group);
    options = (ddl_options){.struct_size = sizeof options, .stream = host};
    REFUSED(ddl_barrier(comm, &options, NULL), DDL_EINVAL, "options.stream is set");
    options = (ddl_options){.struct_size = sizeof options, .memory = 2};
    REFUSED(ddl_barrier(comm, &options, NULL), DDL_EINVAL, "options.memory is 2");
    OK(ddl_allreduce(comm, NULL, device, 4, DDL_F32, DDL_SUM, &on_device, NULL));
    ddl_comm_destroy(comm);
}

/* Make calls in a thread without a context. */
static void *without_context(void *argument)
{
    ddl_comm *comm = ((void **)argument)[0];
    uint32_t *buffer = ((void **)argument)[1];
    OK(ddl_allreduce(comm, NULL, buffer, 4, DDL_U32, DDL_SUM, &on_device, NULL));
    OK(ddl_allreduce(comm, NULL, buffer, 4, DDL_U32, DDL_SUM, &on_device, NULL));
    return NULL;
}

/* Threads without a context, and streams and buffers of another GPU. */
static void contexts(ddl_comm *comm)
{
    setenv("DDL_STANDIN_DEVICES", "2", 1);
    device_start();
    if (device_count() < 2)
        return;
    uint32_t words[4] = {1, 1, 1, 1}, *buffer = device_copy(words, sizeof words), *other;
    void *argument[] = {comm, buffer};
    pthread_t thread;
    CHECK(!pthread_create(&thread, NULL, without_context, argument), "thread");
    pthread_join(thread, NULL);
    device_read(words, buffer, sizeof words);
    CHECK(words[3] == SIZE * SIZE, "%u", words[3]);

    CUcontext first, second;
    CU(cuCtxGetCurrent(&first));
    CU(cuDevicePrimaryCtxRetain(&second, 1));
    CU(cuCtxSetCurrent(second));
    ddl_options options = on_device;
    REFUSED(ddl_barrier(comm, &options, NULL), DDL_EINVAL, "another CUDA context");
    options.stream = device_stream();
    other = device_alloc(sizeof words);
    CU(cuCtxSetCurrent(first));
    REFUSED(ddl_allreduce(comm, NULL, buffer, 4, DDL_U32, DDL_SUM, &options, NULL), DDL_EINVAL,
            "another CUDA context");
    REFUSED(ddl_allreduce(comm, NULL, other, 4, DDL_U32, DDL_SUM, &on_device, NULL), DDL_EINVAL,
            "is on GPU 1, but this comm uses GPU 0");
    OK(ddl_allreduce(comm, NULL, buffer, 4, DDL_U32, DDL_SUM, &on_device, NULL));
    ddl_comm_destroy(comm);
}

/* The first call is a barrier, which has no buffer: its stream determines the GPU, not the thread's
 * context. */
static void first_barrier(ddl_comm *comm)
{
    setenv("DDL_STANDIN_DEVICES", "2", 1);
    device_start();
    if (device_count() < 2)
        return;
    uint32_t words[4], *buffer;
    CUcontext first, second;
    CU(cuCtxGetCurrent(&first));
    CU(cuDevicePrimaryCtxRetain(&second, 1));
    CU(cuCtxSetCurrent(second));
    ddl_options options = on_device;
    options.stream = device_stream();
    buffer = device_alloc(sizeof words);
    CU(cuMemsetD32Async(device_address(buffer), 1, 4, options.stream));
    CU(cuCtxSetCurrent(ddl_comm_rank(comm) ? first : NULL));
    OK(ddl_barrier(comm, &options, NULL));
    CU(cuCtxSetCurrent(first));
    OK(ddl_allreduce(comm, NULL, buffer, 4, DDL_U32, DDL_SUM, &options, NULL));
    CU(cuCtxSetCurrent(second));
    device_read(words, buffer, sizeof words);
    CHECK(words[3] == SIZE, "%u", words[3]);
    ddl_comm_destroy(comm);
}

int main(int argc, char **argv)
{
    static const device_test tests[] = {
        {"operations", operations, .one_queue = true},
        {"many chunks", many_chunks, false, false},
        {"packed", packed, false, false},
        {"contexts", contexts, false, false},
        {"first barrier", first_barrier, false, false},
        {"stream order", stream_order, .one_queue = true, .in_any_case = true},
        {"group", group, .one_queue = true},
        {"completion", completion, .one_queue = true},
        {"refusals", refusals, false, false}};
    if (argc > 2)
        sample = (unsigned)atoi(argv[2]);
    run_device_tests(tests, sizeof tests / sizeof *tests, argc, argv);
}
