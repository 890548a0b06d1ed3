/* SPDX-License-Identifier: Apache-2.0 */
/* Operations with counts per rank, and ordered sums, on buffers of a GPU, which is the stand-in:
 * they have the bits of the same operations on host memory. Ranks are processes. */
#include "device_calls.h"
#include "device_runs.h"

enum { SIZE = RANKS };

/* Uneven blocks with gaps between them, which must not change. Some blocks are empty. */
static void uneven(ddl_comm *comm)
{
    enum { GAP = 3, ROOM = 40000, KINDS_V = 5 };
    device_start_of(comm);
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
}

/* Blocks that are longer than a slot use separate memory, which is reused. */
static void uneven_large(ddl_comm *comm)
{
    enum { MOST = 6 << 20 };
    int rank = ddl_comm_rank(comm), size = ddl_comm_size(comm);
    device_start_of(comm);
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
}

/* The last rank has nothing to send or receive. */
static void uneven_nothing(ddl_comm *comm)
{
    enum { WORDS = 40 };
    int rank = ddl_comm_rank(comm), last = SIZE - 1;
    int64_t counts[SIZE] = {WORDS / 4, WORDS / 4, 0};
    int32_t sent[WORDS], seen[WORDS] = {0};
    if (rank == last)
        counts[0] = counts[1] = 0;
    device_start_of(comm);
    for (int i = 0; i < WORDS; i++)
        sent[i] = 100 * rank + i;
    void *send = device_copy(sent, sizeof sent), *recv = device_copy(seen, sizeof seen);
    OK(ddl_allreduce(comm, NULL, recv, WORDS, DDL_I32, DDL_SUM, &on_device, NULL));
    for (int i = 0; i < 3; i++)
        OK(ddl_alltoallv(comm, rank == last ? NULL : send, counts, NULL, rank == last ? NULL : recv,
                         counts, NULL, DDL_I32, &on_device, NULL));
    device_read(seen, recv, sizeof seen);
    for (int i = 0; i < WORDS / 2; i++) {
        int from = i / (WORDS / 4), at = i % (WORDS / 4);
        int expected = rank == last ? 0 : 100 * from + rank * (WORDS / 4) + at;
        CHECK(seen[i] == expected, "%d is %d, not %d", i, seen[i], expected);
    }
    ddl_comm_destroy(comm);
}

static void compare_ordered(ddl_comm *comm, const int *owners, int workers, ddl_dtype dtype,
                            ddl_op op, int64_t count)
{
    enum { MOST = 32 };
    ddl_dtype of_parts = dtype == DDL_BF16 ? DDL_F32 : dtype;
    size_t bytes = (size_t)count * ddl_dtype_size(of_parts);
    size_t result_bytes = (size_t)count * ddl_dtype_size(dtype);
    void *parts[MOST], *device_parts[MOST];
    ddl_order *order;
    int n;
    OK(ddl_order_create(owners, workers, SIZE, &order));
    OK(ddl_order_parts(order, ddl_comm_rank(comm), NULL, NULL, 0, &n));
    for (int k = 0; k < n; k++) {
        parts[k] = malloc(bytes + 1);
        fill(parts[k], bytes, of_parts, ddl_comm_rank(comm) * workers + k);
        device_parts[k] = device_copy(parts[k], bytes);
    }
    void *recv = malloc(result_bytes + 1), *seen = malloc(result_bytes + 1);
    void *device_recv = device_alloc(result_bytes);
    OK(ddl_allreduce_ordered(comm, order, (const void *const *)parts, recv, count, dtype, op, NULL,
                             NULL));
    OK(ddl_allreduce_ordered(comm, order, (const void *const *)device_parts, device_recv, count,
                             dtype, op, &on_device, NULL));
    device_read(seen, device_recv, result_bytes);
    CHECK(!memcmp(seen, recv, result_bytes), "%d workers, dtype %d, %lld elements", workers, dtype,
          (long long)count);
    for (int k = 0; k < n; k++) {
        free(parts[k]);
        device_free(device_parts[k]);
    }
    device_free(device_recv);
    free(recv);
    free(seen);
    ddl_order_destroy(order);
}

/* Sums over workers that are not neighbours, over one rank's workers, and over many parts, up to
 * more than the kernel takes. */
static void ordered(ddl_comm *comm)
{
    enum { FEW = 5, MANY = 60, TOO_MANY = 66, COUNT = 700000 };
    static const int few[FEW] = {0, 1, 1, 2, 0}, of_one[] = {2, 2, 2};
    int many[TOO_MANY];
    device_start_of(comm);
    for (int v = 0; v < TOO_MANY; v++)
        many[v] = v % SIZE;
    for (int64_t count = 0; count <= COUNT; count = count ? count * 100 : 70) {
        compare_ordered(comm, few, FEW, DDL_F32, DDL_SUM, count);
        compare_ordered(comm, few, FEW, DDL_BF16, DDL_AVERAGE, count);
        compare_ordered(comm, few, FEW, DDL_I64, DDL_AVERAGE, count / 10);
    }
    compare_ordered(comm, few, FEW, DDL_C64, DDL_SUM, 70);
    compare_ordered(comm, few, FEW, DDL_U8, DDL_SUM, 71);
    compare_ordered(comm, of_one, 3, DDL_F32, DDL_AVERAGE, 70);
    compare_ordered(comm, many, MANY, DDL_F32, DDL_AVERAGE, 70);
    compare_ordered(comm, many, TOO_MANY, DDL_F32, DDL_SUM, 70);
    ddl_comm_destroy(comm);
}

/* The blocks start as far into the receive buffer as the memories of the two sides are apart. */
static void displaced(ddl_comm *comm)
{
    enum { COUNT = 16, ROOM = 80 };
    device_start_of(comm);
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
}

int main(int argc, char **argv)
{
    static const device_test tests[] = {{"uneven", uneven, .one_queue = true},
                                        {"ordered", ordered, .one_queue = true},
                                        {"displaced", displaced, false, false},
                                        {"nothing", uneven_nothing, false, false},
                                        {"large", uneven_large, false, false}};
    run_device_tests(tests, sizeof tests / sizeof *tests, argc, argv);
}
