/* SPDX-License-Identifier: Apache-2.0 */
/* Prescale and postscale of every reduction, with a different prescale on each rank, in place or
 * not, alone or in a group; and rejected calls. Powers of two and small integers make all results
 * exact. */
#include "ranks.h"

enum { COUNTS = 3 };
static const int64_t counts[COUNTS] = {1, 1000, 150000};

static ddl_options scales(int rank, ddl_group *group)
{
    return (ddl_options){.struct_size = sizeof(ddl_options),
                         .prescale = rank % 2 ? 0.5 : 2,
                         .postscale = 4,
                         .group = group};
}

static float element(int rank, int64_t i)
{
    return (float)(2 * ((i + rank) % 5));
}

static float result(int size, int64_t i)
{
    float sum = 0;
    for (int r = 0; r < size; r++)
        sum += element(r, i) * (r % 2 ? 0.5f : 2);
    return 4 * sum;
}

static void expect(const float *got, int size, int64_t first, int64_t n, const char *what)
{
    for (int64_t i = 0; i < n; i++)
        CHECK(got[i] == result(size, first + i), "%s: element %d of %d is %g, not %g", what, (int)i,
              (int)n, (double)got[i], (double)result(size, first + i));
}

static void reductions(ddl_comm *comm, int64_t n, bool in_place)
{
    int rank = ddl_comm_rank(comm), size = ddl_comm_size(comm), root = size - 1;
    int64_t all = n * size;
    float *send = malloc((size_t)all * sizeof *send), *recv = malloc((size_t)all * sizeof *recv);
    CHECK(send && recv, "no memory");
    ddl_options options = scales(rank, NULL);
    float *from = in_place ? recv : send;

    for (int64_t i = 0; i < n; i++)
        from[i] = element(rank, i);
    OK(ddl_allreduce(comm, from, recv, n, DDL_F32, DDL_SUM, &options, NULL));
    expect(recv, size, 0, n, "all-reduce");
    for (int64_t i = 0; i < n && !in_place; i++)
        CHECK(send[i] == element(rank, i), "all-reduce has written to send");

    for (int64_t i = 0; i < all; i++)
        from[i] = element(rank, i);
    OK(ddl_reduce_scatter(comm, from, recv, n, DDL_F32, DDL_SUM, &options, NULL));
    expect(in_place ? recv + n * rank : recv, size, n * rank, n, "reduce-scatter");
    for (int64_t i = 0; i < all && in_place; i++)
        CHECK(i / n == rank || recv[i] == element(rank, i), "reduce-scatter's other blocks");

    for (int64_t i = 0; i < n; i++)
        from[i] = element(rank, i);
    OK(ddl_reduce(comm, from, recv, n, DDL_F32, DDL_SUM, root, &options, NULL));
    if (rank == root)
        expect(recv, size, 0, n, "reduce");
    for (int64_t i = 0; i < n && (rank != root || !in_place); i++)
        CHECK(from[i] == element(rank, i), "reduce has written to its operands");
    free(send);
    free(recv);
}

static void all_counts(ddl_comm *comm, void *argument)
{
    for (int c = 0; c < COUNTS; c++)
        for (int in_place = 0; in_place < 2; in_place++)
            reductions(comm, counts[c], in_place);
}

/* Blocks of different lengths. The group is submitted twice, so its calls must not change. */
static void groups(ddl_comm *comm, void *argument)
{
    enum { N = 6 };
    int rank = ddl_comm_rank(comm), size = ddl_comm_size(comm);
    float data[N][20], blocks[RANKS_MAX * 12];
    int64_t lengths[RANKS_MAX], start = 0, total = 0;
    for (int r = 0; r < size; r++) {
        lengths[r] = (r * 5 + 3) % 12;
        start += r < rank ? lengths[r] : 0;
        total += lengths[r];
    }
    ddl_group *group;
    OK(ddl_group_create(comm, &group));
    ddl_options options = scales(rank, group);
    for (int k = 0; k < N; k++)
        OK(ddl_allreduce(comm, NULL, data[k], 20, DDL_F32, DDL_SUM, &options, NULL));
    OK(ddl_reduce_scatterv(comm, NULL, blocks, lengths, DDL_F32, DDL_SUM, &options, NULL));
    for (int round = 0; round < 2; round++) {
        for (int k = 0; k < N; k++)
            for (int i = 0; i < 20; i++)
                data[k][i] = element(rank, i + k);
        for (int64_t i = 0; i < total; i++)
            blocks[i] = element(rank, i);
        OK(ddl_group_submit(group, NULL, NULL));
        for (int k = 0; k < N; k++)
            expect(data[k], size, k, 20, "in a group");
        expect(blocks + start, size, start, lengths[rank], "reduce-scatter-v in a group");
    }
    ddl_group_destroy(group);
}

/* Other dtypes: each product is rounded to the dtype. */
static void dtypes(ddl_comm *comm, void *argument)
{
    int size = ddl_comm_size(comm);
    ddl_options half = {.struct_size = sizeof half, .prescale = 0.5};
    double d = 3, complex_d[2] = {1, -2};
    float complex_f[2] = {1, -2};
    uint16_t h = 0x4200, b = 0x4040; /* 3 */
    uint8_t e4m3 = 0x44;             /* 3 */
    OK(ddl_allreduce(comm, NULL, &d, 1, DDL_F64, DDL_MAX, &half, NULL));
    OK(ddl_allreduce(comm, NULL, &h, 1, DDL_F16, DDL_MAX, &half, NULL));
    OK(ddl_allreduce(comm, NULL, &b, 1, DDL_BF16, DDL_MAX, &half, NULL));
    OK(ddl_allreduce(comm, NULL, &e4m3, 1, DDL_F8_E4M3, DDL_MAX, &half, NULL));
    OK(ddl_allreduce(comm, NULL, complex_d, 1, DDL_C128, DDL_SUM, &half, NULL));
    OK(ddl_allreduce(comm, NULL, complex_f, 1, DDL_C64, DDL_SUM, &half, NULL));
    CHECK(d == 1.5 && h == 0x3e00 && b == 0x3fc0 && e4m3 == 0x3c, "%g %x %x %x", d, h, b, e4m3);
    CHECK(complex_d[0] == 0.5 * size && complex_d[1] == -1.0 * size, "c128");
    CHECK(complex_f[0] == 0.5f * (float)size && complex_f[1] == -1.0f * (float)size, "c64");
}

static void refusals(ddl_comm *comm, void *argument)
{
    int32_t x = 1;
    ddl_options options = {.struct_size = sizeof options, .postscale = 2};
    REFUSED(ddl_allreduce(comm, NULL, &x, 1, DDL_I32, DDL_SUM, &options, NULL), DDL_EUNSUPPORTED,
            "i32 cannot be scaled");
    REFUSED(ddl_broadcast(comm, &x, 1, DDL_F32, 0, &options, NULL), DDL_EINVAL, "reduces nothing");
    OK(ddl_barrier(comm, NULL, NULL));
}

int main(void)
{
    static const uint32_t links[] = {DDL_LINK_INPROC, DDL_LINK_SHM, DDL_LINK_TCP, LINKS_MIXED};
    static rank_fn *const tests[] = {all_counts, groups, dtypes, refusals};
    for (unsigned l = SANITIZED; l < 4; l++) /* inproc uses the code of shm */
        for (unsigned t = 0; t < sizeof tests / sizeof *tests; t++)
            for (int size = 1; size <= 4; size++)
                run_ranks(size, links[l], tests[t], NULL);
}
