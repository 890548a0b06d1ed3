/* SPDX-License-Identifier: Apache-2.0 */
/* test_packed.c - all-reduces of f32 with packed spans between hosts: all ranks get the same bits,
 * within the error of two roundings. NaN and infinity arrive. Other operations are exact. */
#include "packed_values.h"

/* The sum of a host is rounded once, and the result once, by at most half a step: a step is at most
 * 2 / limit of the greatest magnitude of the block. */
static void check_errors(const float *result, int64_t count, ddl_op op, int size, double limit)
{
    double divisor = op == DDL_AVERAGE ? size : 1;
    for (int64_t i = 0; i < count; i++) {
        double error = fabs(result[i] - exact[i] / divisor);
        CHECK(error <= 2.001 * size / divisor * near_magnitude(i) / limit,
              "%d ranks, element %lld of %lld: %g, not %g", size, (long long)i, (long long)count,
              (double)result[i], exact[i] / divisor);
    }
}

static void check_one(ddl_comm *comm, int64_t count, ddl_op op, bool in_place, double limit)
{
    int rank = ddl_comm_rank(comm), size = ddl_comm_size(comm);
    float *result = results[rank];
    prepare(rank, size, count);
    if (in_place)
        memcpy(result, inputs[rank], (size_t)count * sizeof *result);
    OK(ddl_allreduce(comm, in_place ? NULL : inputs[rank], result, count, DDL_F32, op, NULL, NULL));
    check_errors(result, count, op, size, limit);
    double error = 0;
    for (int64_t i = 0; i < STRETCH; i++)
        error = fmax(error, fabs(result[i] - exact[i] / (op == DDL_AVERAGE ? size : 1)));
    CHECK(error > 0.1 * magnitude(0) / limit, "an error of only %g: not packed", error);
    pthread_barrier_wait(&turns);
    if (rank == 0)
        check_equal(count, size);
}

/* Return true if the first errors are of the size that this wire format makes. */
static bool errors_are(const float *result, ddl_wire wire, int size)
{
    double error = 0;
    for (int64_t i = 0; i < STRETCH; i++)
        error = fmax(error, fabs(result[i] - exact[i]) / magnitude(0));
    return wire == DDL_WIRE_F32 ? error < 1e-6 * size
                                : error > 0.1 / limits[wire] && error < 2.001 * size / limits[wire];
}

/* An element that is not finite on one rank is the same on all; the others stay finite. Not the
 * elements of their block are left for the next call, only errors of other ranks' blocks. */
static void check_special(ddl_comm *comm, double limit)
{
    static float residuals[RANKS][LONGEST];
    int rank = ddl_comm_rank(comm), size = ddl_comm_size(comm);
    int64_t count = least(comm) + 404;
    float *result = results[rank], *residual = residuals[rank];
    ddl_options options = {.struct_size = sizeof options, .residual = residual};
    prepare(rank, size, count);
    memset(residual, 0, sizeof residuals[rank]);
    if (rank == size - 1) {
        inputs[rank][5] = NAN;
        inputs[rank][count - 1] = INFINITY;
        inputs[rank][count / 2] = -INFINITY;
    }
    OK(ddl_allreduce(comm, inputs[rank], result, count, DDL_F32, DDL_SUM, &options, NULL));
    CHECK(isnan(result[5]) && result[count - 1] > 1e38f && result[count / 2] < -1e38f, "%g %g %g",
          (double)result[5], (double)result[count - 1], (double)result[count / 2]);
    for (int64_t i = 0; i < count; i++)
        CHECK((i == 5 || i == count / 2 || i == count - 1 || isfinite(result[i])) &&
                  fabsf(residual[i]) <= size * near_magnitude(i) / limit,
              "element %lld: %g, %g left", (long long)i, (double)result[i], (double)residual[i]);
    pthread_barrier_wait(&turns);
    if (rank == 0)
        check_equal(count, size);
    pthread_barrier_wait(&turns);
}

/* A large value of one operation of a group rounds no other operation's. */
static void check_group(ddl_comm *comm)
{
    enum { N = 8192 };
    int rank = ddl_comm_rank(comm);
    float loss[1] = {1000};
    ddl_group *group;
    ddl_options options = {.struct_size = sizeof options};
    for (int i = 0; i < N; i++)
        results[rank][i] = 0.01f;
    OK(ddl_group_create(comm, &group));
    options.group = group;
    OK(ddl_allreduce(comm, NULL, loss, 1, DDL_F32, DDL_AVERAGE, &options, NULL));
    OK(ddl_allreduce(comm, NULL, results[rank], N, DDL_F32, DDL_AVERAGE, &options, NULL));
    OK(ddl_group_submit(group, NULL, NULL));
    ddl_group_destroy(group);
    for (int i = 0; i < N; i++)
        CHECK(fabsf(results[rank][i] - 0.01f) < 0.001f, "%g", (double)results[rank][i]);
}

/* The wire format of each call, which need not be the comm's: of calls by order, by name and in a
 * group. */
static void check_call_formats(ddl_comm *comm)
{
    static float second[RANKS][LONGEST];

    int rank = ddl_comm_rank(comm), size = ddl_comm_size(comm);
    int64_t count = 40000; /* not a small part of a group */
    for (uint32_t wire = DDL_WIRE_F32; wire <= DDL_WIRE_BF16; wire++)
        for (int way = 0; way < 3; way++) {
            ddl_options options = {.struct_size = sizeof options, .wire = wire};
            ddl_group *group;
            float *result = results[rank];
            prepare(rank, size, count);
            options.name = way == 1 ? "gradients" : NULL;
            if (way == 2) {
                OK(ddl_group_create(comm, &group));
                options.group = group;
            }
            OK(ddl_allreduce(comm, inputs[rank], result, count, DDL_F32, DDL_SUM, &options, NULL));
            if (way == 2) {
                options.wire = DDL_WIRE_F32;
                OK(ddl_allreduce(comm, inputs[rank], second[rank], count, DDL_F32, DDL_SUM,
                                 &options, NULL));
                OK(ddl_group_submit(group, NULL, NULL));
                ddl_group_destroy(group);
                CHECK(errors_are(second[rank], DDL_WIRE_F32, size), "f32 in a group");
            }
            CHECK(errors_are(result, wire, size), "wire %u, way %d", wire, way);
            pthread_barrier_wait(&turns);
            if (rank == 0)
                check_equal(count, size);
            pthread_barrier_wait(&turns);
        }
}

/* What all calls have returned, plus what is still to be added, is the exact sum of all calls. */
static void check_feedback(ddl_comm *comm, ddl_op op, int64_t count, double limit)
{
    enum { CALLS = 20 };
    static float residuals[RANKS][LONGEST];
    static double totals[LONGEST];
    int rank = ddl_comm_rank(comm), size = ddl_comm_size(comm);
    double divisor = op == DDL_AVERAGE ? size : 1;
    bool packs = count >= least(comm);
    ddl_options options = {.struct_size = sizeof options, .residual = residuals[rank]};
    prepare(rank, size, count);
    memset(residuals[rank], 0, sizeof residuals[rank]);
    for (int call = 0; call < CALLS; call++) {
        OK(ddl_allreduce(comm, inputs[rank], results[rank], count, DDL_F32, op, &options, NULL));
        for (int64_t i = 0; rank == 0 && i < count; i++)
            totals[i] = (call ? totals[i] : 0) + results[0][i];
    }
    pthread_barrier_wait(&turns);
    for (int64_t i = 0; rank == 0 && i < count; i++) {
        double left = 0;
        for (int r = 0; r < size; r++)
            left += residuals[r][i];
        double error = fabs(totals[i] + left / divisor - CALLS * exact[i] / divisor);
        CHECK(error <= 1e-5 * CALLS * size * near_magnitude(i), "element %lld: %g after %d calls",
              (long long)i, error, CALLS);
        CHECK(fabs(left) <= (packs ? 4.2 * size * near_magnitude(i) / limit : 0),
              "element %lld: %g is left", (long long)i, left);
    }
    pthread_barrier_wait(&turns);
    REFUSED(ddl_allreduce(comm, inputs[rank], results[rank], 10, DDL_F32, DDL_MAX, &options, NULL),
            DDL_EINVAL, "residual");
    REFUSED(ddl_allreduce(comm, inputs[rank], residuals[rank], 10, DDL_F32, op, &options, NULL),
            DDL_EINVAL, "overlaps");
}

/* Options that are refused. */
static void check_refusals(ddl_comm *comm)
{
    int rank = ddl_comm_rank(comm);
    ddl_options options = {.struct_size = sizeof options, .wire = 9};
    ddl_group *group;
    REFUSED(ddl_allreduce(comm, NULL, results[rank], 10, DDL_F32, DDL_SUM, &options, NULL),
            DDL_EINVAL, "options.wire is 9; must be 0");
    options.wire = DDL_WIRE_INT4;
    REFUSED(ddl_allreduce(comm, NULL, results[rank], 10, DDL_F32, DDL_MAX, &options, NULL),
            DDL_EINVAL, "options.wire is int4, which is only for");
    REFUSED(ddl_broadcast(comm, results[rank], 10, DDL_F32, 0, &options, NULL), DDL_EINVAL,
            "options.wire is int4");
    OK(ddl_group_create(comm, &group));
    REFUSED(ddl_group_submit(group, &options, NULL), DDL_EINVAL, "options.wire is set");
    ddl_group_destroy(group);
}

/* Operations that are never packed: few elements, other types and other reductions. */
static void check_exact(ddl_comm *comm)
{
    enum { N = 5000 };
    int rank = ddl_comm_rank(comm), size = ddl_comm_size(comm);
    double *wide = calloc(N, sizeof *wide);
    prepare(rank, size, N);
    for (int i = 0; i < N; i++)
        wide[i] = (double)(rank + i) + 1e-12;
    OK(ddl_allreduce(comm, NULL, wide, N, DDL_F64, DDL_SUM, NULL, NULL));
    for (int i = 0; i < N; i++)
        CHECK(fabs(wide[i] - size * (i + (size - 1) / 2.0)) < 1e-9, "%.15g", wide[i]);
    OK(ddl_allreduce(comm, inputs[rank], results[rank], N, DDL_F32, DDL_MAX, NULL, NULL));
    for (int i = 0; i < N; i++)
        for (int r = 0; r < size; r++)
            CHECK(results[rank][i] >= inputs[r][i], "a rounded maximum");
    OK(ddl_allreduce(comm, inputs[rank], results[rank], 100, DDL_F32, DDL_SUM, NULL, NULL));
    for (int i = 0; i < 100; i++)
        CHECK(fabs(results[rank][i] - exact[i]) <= 1e-6 * size * magnitude(i), "a rounded sum");
    free(wide);
}

static void all_cases(ddl_comm *comm, void *format)
{
    const int64_t counts[] = {least(comm), least(comm) + 1, least(comm) + 4095, LONGEST};
    double limit = limits[*(ddl_wire *)format];
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
        for (int way = 0; way < 4; way++)
            check_one(comm, counts[c], way / 2 ? DDL_AVERAGE : DDL_SUM, way % 2, limit);
    check_feedback(comm, DDL_SUM, least(comm) + 4904, limit);
    check_feedback(comm, DDL_AVERAGE, least(comm) - 1, limit); /* not packed */
    check_feedback(comm, DDL_AVERAGE, least(comm) + 907, limit);
    check_special(comm, limit);
    check_call_formats(comm);
    check_refusals(comm);
    check_group(comm);
    check_exact(comm);
}

/* The members' settings differ, or contradict each other. */
static void *refused(void *argument)
{
    rank_thread *self = argument;
    const void *addresses[] = {self->all->addresses[0], self->all->addresses[1]};
    ddl_comm_config config = self->all->config;
    config.wire = self->rank ? DDL_WIRE_INT8 : DDL_WIRE_INT4;
    ddl_comm *comm;
    INVALID(ddl_comm_create(self->all->endpoints[self->rank], addresses, self->all->lengths,
                            self->rank, 2, &config, &comm),
            "DDL_WIRE is int");
    config.invariant = DDL_INVARIANT_SIZE;
    INVALID(ddl_comm_create(self->all->endpoints[self->rank], addresses, self->all->lengths,
                            self->rank, 2, &config, &comm),
            "invariant sums");
    config.wire = 5;
    INVALID(ddl_comm_create(self->all->endpoints[self->rank], addresses, self->all->lengths,
                            self->rank, 2, &config, &comm),
            "wire is 5");
    return NULL;
}

/* Rank 1's wire format differs, of a call by order or by name. */
static void mismatched(ddl_comm *comm, void *name)
{
    static float values[2][LONGEST];
    int rank = ddl_comm_rank(comm);
    ddl_options options = {.struct_size = sizeof options, .name = name};
    options.wire = rank ? 0 : DDL_WIRE_INT8;
    ddl_status status =
        ddl_allreduce(comm, NULL, values[rank], 20000, DDL_F32, DDL_SUM, &options, NULL);
    if (status == DDL_OK)
        status = ddl_barrier(comm, NULL, NULL);
    CHECK(status == DDL_EMISMATCH &&
              strstr(ddl_last_error(), "all-reduce(f32, 20000, sum, int8 on the wire)") &&
              strstr(ddl_last_error(), "all-reduce(f32, 20000, sum, f32 on the wire)"),
          "%d: %s", status, ddl_last_error());
}

/* A call may not be packed if sums are invariant. */
static void invariant(ddl_comm *comm, void *unused)
{
    (void)unused;
    ddl_options options = {.struct_size = sizeof options, .wire = DDL_WIRE_INT8};
    REFUSED(ddl_allreduce(comm, NULL, results[0], 10, DDL_F32, DDL_SUM, &options, NULL), DDL_EINVAL,
            "invariant sums must not be rounded");
}

int main(int argc, char **argv)
{
    uint32_t links = links_argument(argc, argv);
    ddl_wire last = last_format(argc, argv);
    for (int size = 2; size <= RANKS; size += size < 5 ? 1 : 3)
        for (ddl_wire wire = DDL_WIRE_INT8; wire <= last; wire++) {
            pthread_barrier_init(&turns, NULL, (unsigned)size);
            run_ranks_with(size, (ddl_comm_config){.links = links, .wire = wire}, all_cases, &wire);
            pthread_barrier_destroy(&turns);
        }
    static ranks two = {.size = 2, .config = {.struct_size = sizeof two.config}};
    if (links != DDL_LINK_TCP)
        return 0;
    run_threads(&two, refused);
    run_ranks(2, DDL_LINK_TCP, mismatched, NULL);
    run_ranks(2, DDL_LINK_TCP, mismatched, "gradients");
    run_ranks_with(2, (ddl_comm_config){.links = DDL_LINK_TCP, .invariant = DDL_INVARIANT_SIZE},
                   invariant, NULL);
    return 0;
}
