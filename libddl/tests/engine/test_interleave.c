/* SPDX-License-Identifier: Apache-2.0 */
/* Operations of two ranks with interleaved steps are right in every element, in buffers of any
 * alignment and length. */
#include "comm/comm.h"
#include "engine/state.h"
#include "net/shm/stores.h"
#include "ranks.h"

enum { MEBI = 1 << 20, ROUNDS = 2 };

static uint32_t value(int rank, int64_t i)
{
    return (uint32_t)(i * 7 + rank * 13) % 1021;
}

/* Allocate room for `count` elements, `off` bytes behind the start of a cache line. */
static void *room(int64_t count, size_t size, size_t off, void **base)
{
    *base = aligned_alloc(64, ((size_t)count * size + off + 64 + 63) / 64 * 64);
    CHECK(*base, "no memory");
    return (char *)*base + off;
}

#define FILL(type, p, rank, from, n)                                                               \
    for (int64_t i_ = 0; i_ < (n); i_++)                                                           \
    ((type *)(p))[i_] = (type)value(rank, (from) + i_)

#define EXPECT_ALL(type, p, n, want)                                                               \
    for (int64_t i = 0; i < (n); i++)                                                              \
    CHECK(((type *)(p))[i] == (type)(want), "rank %d element %jd of " #type ": %g, not %g", rank,  \
          (intmax_t)i, (double)((type *)(p))[i], (double)(want))

static void sum_in_place(ddl_comm *comm, void *argument)
{
    int rank = ddl_comm_rank(comm);
    int64_t n = 6 * MEBI + 131;
    void *base;
    float *data = room(n, sizeof *data, 4, &base);
    for (int round = 0; round < ROUNDS; round++) {
        FILL(float, data, rank, 0, n);
        OK(ddl_allreduce(comm, NULL, data, n, DDL_F32, DDL_SUM, NULL, NULL));
        EXPECT_ALL(float, data, n, value(0, i) + value(1, i));
    }
    free(base);
}

/* Make spans of all lengths non-temporal, as to a far core, until the other kind is tried. */
static void pretend_far(ddl_comm *comm)
{
    ddl__engine *engine = comm->engine;
    pthread_mutex_lock(&engine->lock);
    for (int i = 0; i < DDL__STORES; i++)
        engine->config.links[1 - ddl_comm_rank(comm)]->stores[i] =
            (ddl__stores){.rate = {1e-6f, 1}, .nontemporal = true};
    pthread_mutex_unlock(&engine->lock);
}

/* With non-temporal stores, shorter operations are interleaved as well. */
static void sums_far_away(ddl_comm *comm, void *argument)
{
    static const int64_t counts[] = {MEBI / 4 + 3, MEBI / 2 + 1, MEBI + 21, 4 * MEBI + 5};
    int rank = ddl_comm_rank(comm);
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
        void *base;
        float *data = room(counts[c], sizeof *data, 4 * (c + 1), &base);
        for (int round = 0; round < ROUNDS; round++) {
            FILL(float, data, rank, round, counts[c]);
            pretend_far(comm);
            OK(ddl_allreduce(comm, NULL, data, counts[c], DDL_F32, DDL_SUM, NULL, NULL));
            EXPECT_ALL(float, data, counts[c], value(0, round + i) + value(1, round + i));
        }
        free(base);
    }
}

/* Operations that only move data are not interleaved then: each span is timed. */
static void moves_far_away(ddl_comm *comm, void *argument)
{
    enum { SPANS = 70, SPAN = 256 * 1024 };
    int rank = ddl_comm_rank(comm);
    int64_t n = SPANS * SPAN / 4;
    void *bases[2];
    uint32_t *from = room(n, 4, 0, &bases[0]), *to = room(2 * n, 4, 0, &bases[1]);
    FILL(uint32_t, from, rank, 0, n);
    OK(ddl_allgather(comm, from, to, n, DDL_U32, NULL,
                     NULL)); /* a ring's first spans are not timed */
    pretend_far(comm);
    ddl__engine *engine = comm->engine;
    const ddl__link *link = engine->config.links[1 - rank];
    unsigned before = ddl__link_stores(link, false, SPAN, true)->spans;
    OK(ddl_allgather(comm, from, to, n, DDL_U32, NULL, NULL));
    EXPECT_ALL(uint32_t, to, 2 * n, i < n ? value(0, i) : value(1, i - n));
    unsigned timed = ddl__link_stores(link, false, SPAN, true)->spans - before;
    bool is_short = ddl__ring_bytes(&comm->layout.location, 2) == DDL__RING_NEAR;
    unsigned spans = is_short ? 2 * SPANS : SPANS; /* two spans in the shorter ring */
    CHECK(timed == spans, "rank %d: %u of %u spans were timed", rank, timed, spans);
    free(bases[0]);
    free(bases[1]);
}

static void average(ddl_comm *comm, void *argument)
{
    int rank = ddl_comm_rank(comm);
    int64_t n = 3 * MEBI + 5;
    void *bases[2];
    double *from = room(n, sizeof *from, 8, &bases[0]), *to = room(n, sizeof *to, 40, &bases[1]);
    FILL(double, from, rank, 0, n);
    OK(ddl_allreduce(comm, from, to, n, DDL_F64, DDL_AVERAGE, NULL, NULL));
    EXPECT_ALL(double, to, n, (value(0, i) + value(1, i)) / 2.0);
    EXPECT_ALL(double, from, n, value(rank, i));
    free(bases[0]);
    free(bases[1]);
}

/* The largest sum of bytes, at an odd address. */
static void most(ddl_comm *comm, void *argument)
{
    int rank = ddl_comm_rank(comm);
    int64_t n = 23 * MEBI + 77;
    void *base;
    uint8_t *data = room(n, 1, 3, &base);
    FILL(uint8_t, data, rank, 0, n);
    OK(ddl_allreduce(comm, NULL, data, n, DDL_U8, DDL_MAX, NULL, NULL));
    EXPECT_ALL(uint8_t, data, n,
               (uint8_t)value(0, i) > (uint8_t)value(1, i) ? value(0, i) : value(1, i));
    free(base);
}

static void reduce_scatter(ddl_comm *comm, void *argument)
{
    int rank = ddl_comm_rank(comm);
    int64_t n = 5 * MEBI + 3, first = rank * n;
    void *bases[2];
    int32_t *from = room(2 * n, sizeof *from, 12, &bases[0]), *to = room(n, 4, 20, &bases[1]);
    FILL(int32_t, from, rank, 0, 2 * n);
    OK(ddl_reduce_scatter(comm, from, to, n, DDL_I32, DDL_SUM, NULL, NULL));
    EXPECT_ALL(int32_t, to, n, value(0, first + i) + value(1, first + i));
    free(bases[0]);
    free(bases[1]);
}

static void allgather(ddl_comm *comm, void *argument)
{
    int rank = ddl_comm_rank(comm);
    int64_t n = 5 * MEBI + 9;
    void *bases[2];
    int32_t *from = room(n, sizeof *from, 4, &bases[0]), *to = room(2 * n, 4, 36, &bases[1]);
    FILL(int32_t, from, rank, 0, n);
    OK(ddl_allgather(comm, from, to, n, DDL_I32, NULL, NULL));
    EXPECT_ALL(int32_t, to, 2 * n, i < n ? value(0, i) : value(1, i - n));
    memset(to + (1 - rank) * n, 0, (size_t)n * sizeof *to);
    OK(ddl_allgather(comm, NULL, to, n, DDL_I32, NULL, NULL));
    EXPECT_ALL(int32_t, to, 2 * n, i < n ? value(0, i) : value(1, i - n));
    free(bases[0]);
    free(bases[1]);
}

static void alltoall(ddl_comm *comm, void *argument)
{
    int rank = ddl_comm_rank(comm);
    int64_t n = 5 * MEBI + 1, first = rank * n;
    void *bases[2];
    int32_t *from = room(2 * n, sizeof *from, 4, &bases[0]), *to = room(2 * n, 4, 8, &bases[1]);
    FILL(int32_t, from, rank, 0, 2 * n);
    OK(ddl_alltoall(comm, from, to, n, DDL_I32, NULL, NULL));
    EXPECT_ALL(int32_t, to, 2 * n, i < n ? value(0, first + i) : value(1, first + i - n));
    OK(ddl_alltoall(comm, NULL, from, n, DDL_I32, NULL, NULL));
    EXPECT_ALL(int32_t, from, 2 * n, i < n ? value(0, first + i) : value(1, first + i - n));
    free(bases[0]);
    free(bases[1]);
}

typedef struct ending {
    unsigned wait_us;
    atomic_int aborted; /* number of ranks that saw the abort */
} ending;

/* Abort in the middle, on both ranks, unless the operation has completed. */
static void aborted(ddl_comm *comm, void *argument)
{
    ending *e = argument;
    int64_t n = 16 * MEBI;
    float *data = calloc((size_t)n, sizeof *data);
    ddl_work *work = NULL;
    CHECK(data, "no memory");
    ddl_status status = ddl_allreduce(comm, NULL, data, n, DDL_F32, DDL_SUM, NULL, &work);
    if (ddl_comm_rank(comm) == 1) {
        usleep(e->wait_us);
        OK(ddl_comm_abort(comm, "enough"));
    }
    if (status == DDL_OK) /* otherwise it was aborted before it began here */
        status = ddl_work_wait(work, 60000);
    CHECK(status == DDL_OK || status == DDL_EABORTED, "%d %s", status, ddl_last_error());
    e->aborted += status == DDL_EABORTED;
    ddl_work_destroy(work);
    free(data);
}

int main(void)
{
    rank_fn *const all[] = {sum_in_place, sums_far_away,  moves_far_away, average,
                            most,         reduce_scatter, allgather,      alltoall};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        run_ranks(2, DDL_LINK_SHM, all[i], NULL);
    ending e = {0};
    for (; e.wait_us < 8000; e.wait_us += 900)
        run_ranks(2, DDL_LINK_SHM, aborted, &e);
    CHECK(e.aborted, "each time it was over before");
}
