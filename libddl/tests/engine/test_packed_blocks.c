/* SPDX-License-Identifier: Apache-2.0 */
/* test_packed_blocks.c - reduce-scatters and all-gathers of f32 with packed spans between hosts. A
 * reduce-scatter rounds the sum of each host once, and not the result. After an all-gather, all
 * ranks have the same bits. Uneven blocks, NaN and infinity, error feedback, and refusals. */
#include "packed_values.h"

static float residuals[RANKS][LONGEST];

/* The blocks of all ranks; `counts` is NULL if they are even. */
typedef struct blocks {
    int64_t starts[RANKS + 1];
    const int64_t *counts;
} blocks;

/* Divide about `total` elements. Uneven blocks end anywhere, and the block of rank 1 is empty. */
static blocks divide(int64_t total, int size, int64_t *counts)
{
    blocks b = {.counts = counts};
    int64_t n = counts ? size - 1 : size, each = (total + n - 1) / n;
    for (int r = 0; r < size; r++) {
        int64_t count = !counts ? each : r == 1 ? 0 : each + 37 * r;
        b.starts[r + 1] = b.starts[r] + count;
        if (counts)
            counts[r] = count;
    }
    return b;
}

static ddl_status reduce_scatter(ddl_comm *comm, const float *send, float *recv, const blocks *b,
                                 ddl_op op, const ddl_options *options)
{
    return b->counts
               ? ddl_reduce_scatterv(comm, send, recv, b->counts, DDL_F32, op, options, NULL)
               : ddl_reduce_scatter(comm, send, recv, b->starts[1], DDL_F32, op, options, NULL);
}

static ddl_status allgather(ddl_comm *comm, const float *send, float *recv, const blocks *b,
                            const ddl_options *options)
{
    return b->counts ? ddl_allgatherv(comm, send, recv, b->counts, NULL, DDL_F32, options, NULL)
                     : ddl_allgather(comm, send, recv, b->starts[1], DDL_F32, options, NULL);
}

/* Check the errors of `count` elements, which begin at element `start` of the exact values. Each
 * was rounded at most once for each of `operands`. */
static void check_errors(const float *result, const double *want, int64_t start, int64_t count,
                         ddl_wire wire, int operands, double divisor)
{
    double greatest = 0, limit = wire == DDL_WIRE_F32 ? 1e6 : limits[wire];
    for (int64_t i = 0; i < count; i++) {
        double error = fabs(result[i] - want[i] / divisor) * divisor / near_magnitude(start + i);
        CHECK(error <= 1.001 * operands / limit, "element %lld of %lld: %g, not %g", (long long)i,
              (long long)count, (double)result[i], want[i] / divisor);
        greatest = fmax(greatest, error * limit);
    }
    CHECK(count < STRETCH || wire == DDL_WIRE_F32 || greatest > 0.1, "not packed: %g", greatest);
}

/* way: 1 in place, 2 average, 4 uneven. */
static void check_reduce_scatter(ddl_comm *comm, int64_t total, int way, ddl_wire wire,
                                 const ddl_options *options)
{
    int rank = ddl_comm_rank(comm), size = ddl_comm_size(comm);
    int64_t counts[RANKS];
    blocks b = divide(total, size, way & 4 ? counts : NULL);
    int64_t start = b.starts[rank], count = b.starts[rank + 1] - start;
    ddl_op op = way & 2 ? DDL_AVERAGE : DDL_SUM;
    float *result = results[rank];
    prepare(rank, size, b.starts[size]);
    memcpy(result, inputs[rank], sizeof inputs[rank]);
    OK(reduce_scatter(comm, way & 1 ? result : inputs[rank], result, &b, op, options));
    check_errors(result + (way & 1 ? start : 0), exact + start, start, count, wire, size,
                 way & 2 ? size : 1);
    for (int64_t i = 0; way & 1 && i < b.starts[size]; i++)
        CHECK((i >= start && i < start + count) || result[i] == inputs[rank][i],
              "element %lld has changed in place", (long long)i);
    pthread_barrier_wait(&turns);
}

static void check_allgather(ddl_comm *comm, int64_t total, int way, ddl_wire wire,
                            const ddl_options *options)
{
    int rank = ddl_comm_rank(comm), size = ddl_comm_size(comm);
    int64_t counts[RANKS];
    blocks b = divide(total, size, way & 4 ? counts : NULL);
    int64_t start = b.starts[rank], count = b.starts[rank + 1] - start;
    float *result = results[rank];
    double *want = malloc((size_t)LONGEST * sizeof *want);
    prepare(rank, size, b.starts[size]);
    memset(result, 0xff, sizeof results[rank]);
    memcpy(result + start, inputs[rank], (size_t)count * sizeof *result);
    OK(allgather(comm, way & 1 ? result : inputs[rank], result, &b, options));
    for (int r = 0; r < size; r++) {
        int64_t n = b.starts[r + 1] - b.starts[r];
        for (int64_t i = 0; i < n; i++)
            want[i] = inputs[r][i];
        check_errors(result + b.starts[r], want, 0, n, wire, 1, 1);
    }
    free(want);
    pthread_barrier_wait(&turns);
    if (rank == 0)
        check_equal(b.starts[size], size);
    pthread_barrier_wait(&turns);
}

/* Elements that are not finite on one rank arrive. The elements of their block may become 0. */
static void check_special(ddl_comm *comm, const ddl_options *own)
{
    int rank = ddl_comm_rank(comm), size = ddl_comm_size(comm);
    blocks b = divide(least(comm) + 404, size, NULL);
    int64_t count = b.starts[1];
    float *result = results[rank];
    ddl_options options = *own;
    for (int gathers = 0; gathers < 2; gathers++) {
        prepare(rank, size, b.starts[size]);
        for (int r = 0; r < size && rank == size - 1; r++) {
            inputs[rank][b.starts[r] + 5] = NAN;
            inputs[rank][b.starts[r] + count / 2] = -INFINITY;
            inputs[rank][b.starts[r] + count - 1] = INFINITY;
        }
        memset(residuals[rank], 0, sizeof residuals[rank]);
        options.residual = gathers ? NULL : residuals[rank];
        OK(gathers ? allgather(comm, inputs[rank], result, &b, &options)
                   : reduce_scatter(comm, inputs[rank], result, &b, DDL_SUM, &options));
        const float *values = result + (gathers ? b.starts[size - 1] : 0);
        CHECK(isnan(values[5]) && values[count - 1] > 1e38f && values[count / 2] < -1e38f,
              "%g %g %g", (double)values[5], (double)values[count - 1], (double)values[count / 2]);
        for (int64_t i = 0; i < count; i++)
            CHECK(i == 5 || i == count / 2 || i == count - 1 || isfinite(values[i]),
                  "element %lld: %g", (long long)i, (double)values[i]);
        for (int64_t i = 0; i < b.starts[size]; i++)
            CHECK(fabsf(residuals[rank][i]) <= size * near_magnitude(i) / limits[own->wire],
                  "%g is left", (double)residuals[rank][i]);
        pthread_barrier_wait(&turns);
        if (rank == 0 && gathers)
            check_equal(b.starts[size], size);
        pthread_barrier_wait(&turns);
    }
}

static void check_zeros(ddl_comm *comm, const ddl_options *options)
{
    int rank = ddl_comm_rank(comm), size = ddl_comm_size(comm);
    blocks b = divide(least(comm), size, NULL);
    memset(inputs[rank], 0, sizeof inputs[rank]);
    memset(results[rank], 0xff, sizeof results[rank]);
    OK(reduce_scatter(comm, inputs[rank], results[rank], &b, DDL_SUM, options));
    for (int64_t i = 0; i < b.starts[1]; i++)
        CHECK(results[rank][i] == 0, "%g", (double)results[rank][i]);
    OK(allgather(comm, inputs[rank], results[rank], &b, options));
    for (int64_t i = 0; i < b.starts[size]; i++)
        CHECK(results[rank][i] == 0, "%g", (double)results[rank][i]);
    pthread_barrier_wait(&turns);
}

/* The results of all reduce-scatters, plus what is still to be added, are the exact sum of all
 * calls. way: 1 in place and scaled, 2 average, 4 uneven. */
static void check_feedback(ddl_comm *comm, int64_t total, int way, const ddl_options *own)
{
    enum { CALLS = 10 };
    static double totals[RANKS][LONGEST];
    int rank = ddl_comm_rank(comm), size = ddl_comm_size(comm);
    int64_t counts[RANKS];
    blocks b = divide(total, size, way & 4 ? counts : NULL);
    int64_t start = b.starts[rank], count = b.starts[rank + 1] - start;
    double divisor = way & 2 ? size : 1, scale = way & 1 ? 2 : 1;
    bool packs = b.starts[size] >= least(comm);
    float *result = results[rank], *block = result + (way & 1 ? start : 0);
    ddl_options options = *own;
    options.residual = residuals[rank];
    options.prescale = scale;
    prepare(rank, size, b.starts[size]);
    memset(residuals[rank], 0, sizeof residuals[rank]);
    for (int call = 0; call < CALLS; call++) {
        memcpy(result, inputs[rank], sizeof inputs[rank]);
        OK(reduce_scatter(comm, way & 1 ? result : inputs[rank], result, &b,
                          way & 2 ? DDL_AVERAGE : DDL_SUM, &options));
        for (int64_t i = 0; i < count; i++)
            totals[rank][i] = (call ? totals[rank][i] : 0) + block[i];
    }
    pthread_barrier_wait(&turns);
    for (int64_t i = 0; i < count; i++) {
        double left = 0, all = CALLS * scale * exact[start + i] / divisor;
        for (int r = 0; r < size; r++)
            left += residuals[r][start + i];
        double error = fabs(totals[rank][i] + left / divisor - all);
        CHECK(error <= 1e-5 * CALLS * scale * size * near_magnitude(start + i),
              "element %lld: %g after %d calls", (long long)i, error, CALLS);
        CHECK(fabs(left) <=
                  (packs ? 2.1 * scale * size * near_magnitude(start + i) / limits[own->wire] : 0),
              "element %lld: %g is left", (long long)i, left);
    }
    pthread_barrier_wait(&turns);
}

/* Calls by name and in a group have their own formats, too. */
static void check_ways_to_call(ddl_comm *comm, const ddl_options *own)
{
    int rank = ddl_comm_rank(comm), size = ddl_comm_size(comm);
    ddl_options options = *own;
    ddl_group *group;
    options.name = "blocks";
    check_reduce_scatter(comm, least(comm), 0, (ddl_wire)own->wire, &options);
    check_allgather(comm, least(comm), 0, (ddl_wire)own->wire, &options);
    options.name = NULL;
    blocks b = divide(least(comm), size, NULL);
    prepare(rank, size, b.starts[size]);
    OK(ddl_group_create(comm, &group));
    options.group = group;
    OK(reduce_scatter(comm, inputs[rank], residuals[rank], &b, DDL_SUM, &options));
    OK(allgather(comm, inputs[rank], results[rank], &b, &options));
    OK(ddl_group_submit(group, NULL, NULL));
    ddl_group_destroy(group);
    check_errors(residuals[rank], exact + b.starts[rank], b.starts[rank], b.starts[1],
                 (ddl_wire)own->wire, size, 1);
    pthread_barrier_wait(&turns);
    if (rank == 0)
        check_equal(b.starts[size], size);
    pthread_barrier_wait(&turns);
}

static void check_refusals(ddl_comm *comm)
{
    int rank = ddl_comm_rank(comm), size = ddl_comm_size(comm);
    int64_t counts[RANKS];
    blocks even = divide(1000, size, NULL), uneven = divide(1000, size, counts);
    float *send = inputs[rank], *recv = results[rank];
    double wide[RANKS];
    ddl_options options = {.struct_size = sizeof options, .residual = residuals[rank]};
    REFUSED(allgather(comm, send, recv, &even, &options), DDL_EINVAL, "options.residual is set");
    REFUSED(reduce_scatter(comm, send, recv, &even, DDL_MAX, &options), DDL_EINVAL, "residual");
    options.residual = send + even.starts[size] - 1;
    REFUSED(reduce_scatter(comm, send, recv, &even, DDL_SUM, &options), DDL_EINVAL, "overlaps");
    options.residual = send + uneven.starts[size] - 1;
    REFUSED(reduce_scatter(comm, send, recv, &uneven, DDL_SUM, &options), DDL_EINVAL, "overlaps");
    options.residual = recv + even.starts[1] - 1;
    REFUSED(reduce_scatter(comm, send, recv, &even, DDL_SUM, &options), DDL_EINVAL, "overlaps");
    options = (ddl_options){.struct_size = sizeof options, .wire = DDL_WIRE_INT4};
    REFUSED(ddl_allgather(comm, &wide[rank], wide, 1, DDL_F64, &options, NULL), DDL_EINVAL,
            "options.wire is int4, which is only for f32");
    REFUSED(reduce_scatter(comm, send, recv, &even, DDL_MAX, &options), DDL_EINVAL,
            "options.wire is int4");
    REFUSED(ddl_reduce(comm, send, recv, 10, DDL_F32, DDL_SUM, 0, &options, NULL), DDL_EINVAL,
            "options.wire is int4");
}

static void all_cases(ddl_comm *comm, void *format)
{
    ddl_wire wire = *(ddl_wire *)format;
    const int64_t totals[] = {least(comm), least(comm) + 4095, LONGEST - 5000};
    ddl_options options = {.struct_size = sizeof options, .wire = wire};
    ddl_options unpacked = {.struct_size = sizeof options, .wire = DDL_WIRE_F32};
    for (size_t t = 0; t < sizeof totals / sizeof *totals; t++)
        for (int way = 0; way < 8; way++) {
            check_reduce_scatter(comm, totals[t], way, wire, NULL);
            check_allgather(comm, totals[t], way, wire, &options);
        }
    for (int way = 0; way < 8; way += 4) {
        check_reduce_scatter(comm, least(comm) / 2, way, DDL_WIRE_F32, NULL);
        check_reduce_scatter(comm, least(comm), way, DDL_WIRE_F32, &unpacked);
        check_allgather(comm, least(comm) / 2, way, DDL_WIRE_F32, &options);
        check_allgather(comm, least(comm), way, DDL_WIRE_F32, NULL); /* not the comm's format */
    }
    for (int way = 0; way < 8; way++)
        check_feedback(comm, least(comm) + 907, way, &options);
    check_feedback(comm, least(comm) / 2, 0, &options);
    check_special(comm, &options);
    check_zeros(comm, &options);
    check_ways_to_call(comm, &options);
    check_refusals(comm);
}

/* Rank 1's wire format differs. */
static void mismatched(ddl_comm *comm, void *gathers)
{
    int rank = ddl_comm_rank(comm);
    ddl_options options = {.struct_size = sizeof options, .wire = rank ? 0 : DDL_WIRE_INT8};
    blocks b = {.starts = {0, 10000, 20000}};
    ddl_status status =
        gathers ? allgather(comm, inputs[rank], results[rank], &b, &options)
                : reduce_scatter(comm, inputs[rank], results[rank], &b, DDL_SUM, &options);
    if (status == DDL_OK)
        status = ddl_barrier(comm, NULL, NULL);
    const char *packed = gathers ? "all-gather(f32, 10000, int8 on the wire)"
                                 : "reduce-scatter(f32, 10000, sum, int8 on the wire)";
    const char *exactly = gathers ? "all-gather(f32, 10000, f32 on the wire)"
                                  : "reduce-scatter(f32, 10000, sum, f32 on the wire)";
    CHECK(status == DDL_EMISMATCH && strstr(ddl_last_error(), packed) &&
              strstr(ddl_last_error(), exactly),
          "%d: %s", status, ddl_last_error());
}

int main(int argc, char **argv)
{
    uint32_t links = links_argument(argc, argv);
    ddl_wire last = last_format(argc, argv);
    for (int size = links == LINKS_MIXED ? 3 : 2; size <= RANKS; size += size < 4 ? 1 : 2)
        for (ddl_wire wire = DDL_WIRE_INT8; wire <= last; wire++) {
            pthread_barrier_init(&turns, NULL, (unsigned)size);
            run_ranks_with(size, (ddl_comm_config){.links = links, .wire = wire}, all_cases, &wire);
            pthread_barrier_destroy(&turns);
        }
    if (links == DDL_LINK_TCP) {
        run_ranks(2, DDL_LINK_TCP, mismatched, NULL);
        run_ranks(2, DDL_LINK_TCP, mismatched, "gathers");
    }
    return 0;
}
