/* SPDX-License-Identifier: Apache-2.0 */
/* Operations on buffers of a GPU, on the stand-in for libcuda.so.1: they have the bits of the same
 * operations on host memory, and run between what the caller's stream does before and after. Ranks
 * are processes. */
#include <pthread.h>

#include "base/dtype.h"
#include "device_calls.h"

enum {
    SIZE = 3,
#ifdef __SANITIZE_THREAD__
    RACES = 1, /* what has the same threads as other tests is left out */
#else
    RACES = 0,
#endif
    LONG = SANITIZED ? (4 << 20) + 68 : (9 << 20) + 68, /* more than all slots */
    BLOCK_LONG = LONG / SIZE
};

/* Each run takes some combinations, and the next run others. `test_device operations 1`: each
 * takes all. */
static unsigned sample = SANITIZED ? 7 : 3, n_runs;

/* Every operation, in and out of place. */
static int operations(ddl_comm *comm)
{
    static const ddl_dtype dtypes[] = {DDL_F32, DDL_BF16, DDL_I64, DDL_U8, DDL_F64};
    static const int64_t counts[] = {0, 1, 1000, SANITIZED ? 7001 : 70001};
    device_start();
    unsigned combination = n_runs;
    for (int kind = 0; kind < KINDS; kind++)
        for (unsigned d = 0; d < sizeof dtypes / sizeof *dtypes; d++)
            for (unsigned n = 0; n < sizeof counts / sizeof *counts; n++)
                for (int in_place = 0; in_place < 2; in_place++)
                    if (combination++ % sample == 0)
                        compare(comm, kind, dtypes[d], counts[n], in_place);
    ddl_comm_destroy(comm);
    return 0;
}

/* Several times as many chunks as there are slots. */
static int many_chunks(ddl_comm *comm)
{
    device_start();
    for (int kind = 0; kind < KINDS; kind += RACES ? KINDS : SANITIZED ? 3 : 1)
        compare(comm, kind, DDL_F32,
                calls[kind].sent < 0 || calls[kind].received < 0 ? BLOCK_LONG : LONG, kind % 2);
    ddl_comm_destroy(comm);
    return 0;
}

/* Uneven blocks with gaps between them, which stay as they were. Some are empty. */
static int uneven(ddl_comm *comm)
{
    enum { GAP = 3, ROOM = 40000, KINDS_V = 5 };
    device_start();
    int rank = ddl_comm_rank(comm), size = ddl_comm_size(comm);
    for (int kind = 0; kind < KINDS_V; kind++)
        for (int large = 0; large < 2; large++)
            for (int in_place = 0; in_place < 2; in_place++) {
                int64_t counts[SIZE], displs[SIZE], same[SIZE], at = 1;
                for (int r = 0; r < size; r++) {
                    counts[r] = (r + kind) % 3 * (large ? 4000 : 1);
                    displs[r] = at;
                    at += counts[r] + GAP;
                    same[r] = 7 + (large ? 3000 : 0);
                }
                bool one = in_place && (kind == 0 || kind == 1 || kind == 4);
                int32_t *send = malloc(sizeof *send * ROOM), *recv = malloc(sizeof *recv * ROOM);
                int32_t *seen = malloc(sizeof *seen * ROOM);
                for (int i = 0; i < ROOM; i++) {
                    send[i] = i * 31 + rank;
                    recv[i] = one ? send[i] : -1;
                }
                void *device_send = device_copy(send, sizeof *send * ROOM);
                void *device_recv = device_copy(recv, sizeof *recv * ROOM);
                for (int device = 0; device < 2; device++) {
                    void *s = device ? device_send : send, *r = device ? device_recv : recv;
                    const ddl_options *options = device ? &on_device : NULL;
                    void *own = one ? NULL : s;
                    bool root = rank == 1;
                    if (kind == 0)
                        OK(ddl_allgatherv(comm, own, r, counts, displs, DDL_I32, options, NULL));
                    else if (kind == 1)
                        OK(ddl_reduce_scatterv(comm, own, r, counts, DDL_I32, DDL_SUM, options,
                                               NULL));
                    else if (kind == 2)
                        OK(ddl_gatherv(comm, s, counts[rank], r, counts, displs, DDL_I32, 1,
                                       options, NULL));
                    else if (kind == 3)
                        OK(ddl_scatterv(comm, root ? s : NULL, counts, displs, r, counts[rank],
                                        DDL_I32, 1, options, NULL));
                    else if (one)
                        OK(ddl_alltoallv(comm, NULL, same, NULL, r, same, NULL, DDL_I32, options,
                                         NULL));
                    else
                        OK(ddl_alltoallv(comm, s, same, displs, r, same, NULL, DDL_I32, options,
                                         NULL));
                }
                device_read(seen, device_recv, sizeof *seen * ROOM);
                for (int i = 0; i < ROOM; i++)
                    CHECK(seen[i] == recv[i],
                          "kind %d, large %d, in place %d: %d is %d on the device, %d on the host",
                          kind, large, in_place, i, seen[i], recv[i]);
                device_free(device_send);
                device_free(device_recv);
                free(send);
                free(recv);
                free(seen);
            }
    ddl_comm_destroy(comm);
    return 0;
}

/* Memory that other processes cannot open is copied to memory of the library's, which grows. */
static int uneven_large(ddl_comm *comm)
{
    enum { MOST = 6 << 20 };
    int rank = ddl_comm_rank(comm), size = ddl_comm_size(comm);
    device_start();
    device_buffers_are = NOT_TO_BE_SHARED;
    for (int k = 0; k < 4; k++) {
        int64_t counts[SIZE], total = 0;
        for (int r = 0; r < size; r++)
            total += counts[r] = (k / 2 ? MOST : 1000) / (1 + r) + r;
        size_t bytes = (size_t)total * sizeof(int32_t);
        int32_t *words = malloc(bytes);
        for (int64_t i = 0; i < total; i++)
            words[i] = (int32_t)(i % 1000) + rank;
        void *send = device_copy(words, bytes), *recv = device_alloc(bytes);
        OK(ddl_allgatherv(comm, send, recv, counts, NULL, DDL_I32, &on_device, NULL));
        device_read(words, recv, bytes);
        for (int64_t r = 0, at = 0; r < size; at += counts[r++])
            for (int64_t i = 0; i < counts[r]; i += 997)
                CHECK(words[at + i] == i % 1000 + r, "%d, %lld of rank %lld: %d", k, (long long)i,
                      (long long)r, words[at + i]);
        device_free(send);
        device_free(recv);
        free(words);
    }
    ddl_comm_destroy(comm);
    return 0;
}

/* Two ranks do not agree on what one sends to the other. */
static int uneven_mismatch(ddl_comm *comm)
{
    int rank = ddl_comm_rank(comm);
    int64_t sent[SIZE] = {2, 2, 2}, received[SIZE] = {2, rank == 1 ? 3 : 2, rank == 1 ? 3 : 2};
    device_start();
    void *buffer = device_alloc(64), *recv = device_alloc(64);
    received[rank] = 2;
    OK(ddl_allreduce(comm, NULL, buffer, 4, DDL_I32, DDL_SUM, &on_device, NULL));
    ddl_status status =
        ddl_alltoallv(comm, buffer, sent, NULL, recv, received, NULL, DDL_I32, &on_device, NULL);
    CHECK(status == DDL_EMISMATCH, "%d %s", status, ddl_last_error());
    CHECK(strstr(ddl_last_error(), "rank 2 on ") && strstr(ddl_last_error(), " sends 2 elements"),
          "%s", ddl_last_error());
    CHECK(strstr(ddl_last_error(), "which receives 3 from it, on a GPU"), "%s", ddl_last_error());
    ddl_comm_destroy(comm);
    return 0;
}

/* Ordered sums over 5 workers, of which each rank has a few that are not neighbours. */
static int ordered(ddl_comm *comm)
{
    enum { WORKERS = 5, COUNT = 700000 };
    static const int owners[WORKERS] = {0, 1, 1, 2, 0};
    static const ddl_dtype dtypes[] = {DDL_F32, DDL_BF16, DDL_I64};
    device_start();
    ddl_order *order;
    OK(ddl_order_create(owners, WORKERS, SIZE, &order));
    for (unsigned d = 0; d < sizeof dtypes / sizeof *dtypes; d++)
        for (int64_t count = 0; count <= COUNT; count = count ? count * 100 : 70) {
            ddl_dtype of_parts = dtypes[d] == DDL_BF16 ? DDL_F32 : dtypes[d];
            size_t bytes = (size_t)count * ddl_dtype_size(of_parts);
            size_t result_bytes = (size_t)count * ddl_dtype_size(dtypes[d]);
            void *parts[WORKERS], *device_parts[WORKERS];
            int n;
            OK(ddl_order_parts(order, ddl_comm_rank(comm), NULL, NULL, 0, &n));
            for (int k = 0; k < n; k++) {
                parts[k] = malloc(bytes + 1);
                fill(parts[k], bytes, of_parts, ddl_comm_rank(comm) * WORKERS + k);
                device_parts[k] = device_copy(parts[k], bytes);
            }
            void *recv = malloc(result_bytes + 1), *seen = malloc(result_bytes + 1);
            void *device_recv = device_alloc(result_bytes);
            OK(ddl_allreduce_ordered(comm, order, (const void *const *)parts, recv, count,
                                     dtypes[d], DDL_SUM, NULL, NULL));
            OK(ddl_allreduce_ordered(comm, order, (const void *const *)device_parts, device_recv,
                                     count, dtypes[d], DDL_SUM, &on_device, NULL));
            device_read(seen, device_recv, result_bytes);
            CHECK(!memcmp(seen, recv, result_bytes), "dtype %d, %lld elements", dtypes[d],
                  (long long)count);
            for (int k = 0; k < n; k++) {
                free(parts[k]);
                device_free(device_parts[k]);
            }
            device_free(device_recv);
            free(recv);
            free(seen);
        }
    ddl_order_destroy(order);
    ddl_comm_destroy(comm);
    return 0;
}

/* The blocks begin as far into the receive buffer as the memory for the two sides is apart. */
static int displaced(ddl_comm *comm)
{
    enum { COUNT = 16, ROOM = 80 };
    device_start();
    int64_t counts[SIZE] = {COUNT, COUNT, COUNT}, displs[SIZE] = {COUNT, 2 * COUNT, 3 * COUNT};
    float send[COUNT], recv[ROOM] = {0}, seen[ROOM];
    for (int i = 0; i < COUNT; i++)
        send[i] = (float)(i + 100 * ddl_comm_rank(comm));
    void *device_send = device_copy(send, sizeof send),
         *device_recv = device_copy(recv, sizeof recv);
    OK(ddl_allgatherv(comm, send, recv, counts, displs, DDL_F32, NULL, NULL));
    OK(ddl_allgatherv(comm, device_send, device_recv, counts, displs, DDL_F32, &on_device, NULL));
    device_read(seen, device_recv, sizeof seen);
    CHECK(!memcmp(seen, recv, sizeof seen), "other bits");
    ddl_comm_destroy(comm);
    return 0;
}

/* A training step: the stream computes, reduces, and goes on, while the host is ahead of it. */
static int stream_order(ddl_comm *comm)
{
    enum { STEPS = 20, WORDS = 300000 };
    device_start();
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
        CU(cuMemsetD32Async(device_address(send), 12345, WORDS, stream)); /* it was read */
        CU(cuMemcpyDtoDAsync_v2(device_address(seen + step), device_address(recv + WORDS - 1),
                                sizeof *seen, stream));
        CU(cuEventRecord(handed_over, stream));
        if (step % 3 == 0) { /* on the host, in the same order */
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
    return 0;
}

/* Operations of all shapes as one, submitted again and again: more than there are slots, with two
 * that have memory of their own, in one place of the stream. */
static int group(ddl_comm *comm)
{
    enum { SMALL = 20, WORDS = 1000, LARGE = 700000, TIMES = 3 };
    device_start();
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
    return 0;
}

/* The ways in which a call may be waited for. */
static int completion(ddl_comm *comm)
{
    device_start();
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
    ddl_work_destroy(work); /* given up */
    OK(ddl_barrier(comm, &on_device, NULL));
    ddl_comm_destroy(comm);
    return 0;
}

#define REFUSED(call, want, words)                                                                 \
    do {                                                                                           \
        ddl_status status_ = (call);                                                               \
        CHECK(status_ == (want) && strstr(ddl_last_error(), words), "%d %s", status_,              \
              ddl_last_error());                                                                   \
    } while (0)

static int refusals(ddl_comm *comm)
{
    device_start();
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
            "give the stream to ddl_group_submit");
    options.stream = NULL;
    OK(ddl_allreduce(comm, NULL, device, 4, DDL_F32, DDL_SUM, &options, NULL));
    options.memory = DDL_MEMORY_HOST;
    REFUSED(ddl_allreduce(comm, NULL, host, 4, DDL_F32, DDL_SUM, &options, NULL), DDL_EINVAL,
            "options.memory is DDL_MEMORY_HOST, but the group's operations have DDL_MEMORY_CUDA");
    REFUSED(ddl_group_submit(group, NULL, NULL), DDL_EINVAL, "give the same to ddl_group_submit");
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
    return 0;
}

/* Calls of a thread that has no context. */
static void *without_context(void *argument)
{
    ddl_comm *comm = ((void **)argument)[0];
    uint32_t *buffer = ((void **)argument)[1];
    OK(ddl_allreduce(comm, NULL, buffer, 4, DDL_U32, DDL_SUM, &on_device, NULL));
    OK(ddl_allreduce(comm, NULL, buffer, 4, DDL_U32, DDL_SUM, &on_device, NULL));
    return NULL;
}

/* Threads without a context, and streams and buffers of another GPU. */
static int contexts(ddl_comm *comm)
{
    setenv("DDL_STANDIN_DEVICES", "2", 1);
    device_start();
    if (device_count() < 2)
        return 0;
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
    REFUSED(ddl_barrier(comm, &options, NULL), DDL_EINVAL, "of another CUDA context");
    options.stream = device_stream();
    other = device_alloc(sizeof words);
    CU(cuCtxSetCurrent(first));
    REFUSED(ddl_allreduce(comm, NULL, buffer, 4, DDL_U32, DDL_SUM, &options, NULL), DDL_EINVAL,
            "of another CUDA context");
    REFUSED(ddl_allreduce(comm, NULL, other, 4, DDL_U32, DDL_SUM, &on_device, NULL), DDL_EINVAL,
            "is on GPU 1, but this comm's are on GPU 0");
    OK(ddl_allreduce(comm, NULL, buffer, 4, DDL_U32, DDL_SUM, &on_device, NULL));
    ddl_comm_destroy(comm);
    return 0;
}

/* A barrier comes first, which has no buffer: its stream tells the GPU, not the thread's context.
 */
static int first_barrier(ddl_comm *comm)
{
    setenv("DDL_STANDIN_DEVICES", "2", 1);
    device_start();
    if (device_count() < 2)
        return 0;
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
    device_read(words, buffer, sizeof words);
    CHECK(words[3] == SIZE, "%u", words[3]);
    ddl_comm_destroy(comm);
    return 0;
}

static void run_once(const char *name, process_fn *fn, uint32_t links)
{
    process_test test = {name, fn, 0, false};
    run_process_test(&test, SIZE, links);
    n_runs++;
}

static void run_both(const char *name, process_fn *fn)
{
    setenv("DDL_GPU_DIRECT_BYTES", "0", 1);
    run_once(name, fn, DDL_LINK_SHM);
    if (!SANITIZED || fn == stream_order) /* what runs between the copies is the same */
        run_once(name, fn, DDL_LINK_TCP);
}

/* From buffer to buffer, since all ranks are on one GPU. Over TCP the host's results of small
 * floats are rounded more often. */
static void run_shared(const char *name, process_fn *fn)
{
    static const char *const names[] = {"own", "pool", "no IPC"};
    char text[64];
    setenv("DDL_GPU_DIRECT_BYTES", "1", 1);
    for (int source = OF_THEIR_OWN; source <= NOT_TO_BE_SHARED; source++) {
        /* The first starts as the second, and goes on as the third. */
        if (SANITIZED && (source == OF_THEIR_OWN || (source != OF_ONE_POOL && fn != operations)))
            continue;
        snprintf(text, sizeof text, "%s, %s", name, names[source]);
        device_buffers_are = (device_source)source;
        run_once(text, fn, DDL_LINK_SHM);
    }
    device_buffers_are = OF_THEIR_OWN;
}

/* Streams of a GPU may share a queue, where nothing runs before what was queued earlier. */
static void run_in_one_queue(const char *name, process_fn *fn)
{
    char text[64];
    setenv("DDL_STANDIN_ONE_QUEUE", "1", 1); /* the real driver has another variable */
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1", 1);
    for (int shared = 0; shared < 2; shared++) {
        snprintf(text, sizeof text, "%s, one queue, %s", name, shared ? "shared" : "host");
        setenv("DDL_GPU_DIRECT_BYTES", shared ? "1" : "0", 1);
        device_buffers_are = OF_ONE_POOL;
        run_once(text, fn, DDL_LINK_SHM);
    }
    device_buffers_are = OF_THEIR_OWN;
    unsetenv("DDL_STANDIN_ONE_QUEUE");
    unsetenv("CUDA_DEVICE_MAX_CONNECTIONS");
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        process_fn *fn;
        bool shared, left_out;
    } tests[] = {{"operations", operations, true, false},
                 {"many chunks", many_chunks, false, false},
                 {"uneven", uneven, true, RACES},
                 {"ordered", ordered, true, RACES},
                 {"displaced", displaced, false, RACES},
                 {"contexts", contexts, false, false},
                 {"first barrier", first_barrier, false, false},
                 {"stream order", stream_order, true, false},
                 {"group", group, true, false},
                 {"completion", completion, true, false},
                 {"refusals", refusals, false, false}};
    if (argc > 2)
        sample = (unsigned)atoi(argv[2]);
    for (unsigned i = 0; i < sizeof tests / sizeof *tests; i++) {
        if (argc > 1 ? strcmp(argv[1], tests[i].name) != 0 : tests[i].left_out)
            continue;
        run_both(tests[i].name, tests[i].fn);
        if (tests[i].shared)
            run_shared(tests[i].name, tests[i].fn);
        if (tests[i].shared && !SANITIZED)
            run_in_one_queue(tests[i].name, tests[i].fn);
    }
    if (argc == 1 || !strcmp(argv[1], "uneven")) {
        setenv("DDL_GPU_DIRECT_BYTES", "1", 1);
        run_once("uneven, mismatch", uneven_mismatch, DDL_LINK_SHM);
        if (!SANITIZED)
            run_once("uneven, large", uneven_large, DDL_LINK_SHM);
    }
    return 0;
}
