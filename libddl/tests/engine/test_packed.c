/* SPDX-License-Identifier: Apache-2.0 */
/* test_packed.c - all-reduces of f32 with packed spans between hosts: all ranks get the same bits,
 * within the error of two roundings. NaN and infinity arrive. Other operations are exact. */
#include <math.h>
#include <stdlib.h>

#include "comm/comm.h"
#include "ranks.h"

enum { RANKS = 8, LONGEST = SANITIZED ? 22000 : 200000, STRETCH = 1000, BLOCK = 128 };

static float inputs[RANKS][LONGEST], results[RANKS][LONGEST];
static double exact[LONGEST];
static pthread_barrier_t turns;

/* The magnitude of the inputs, different in each stretch. */
static double magnitude(int64_t i)
{
    return ldexp(1, (int)(i / STRETCH % 37) - 18);
}

/* The greatest magnitude in a block that element i may be in. */
static double near_magnitude(int64_t i)
{
    double before = magnitude(i < BLOCK ? 0 : i - BLOCK), after = magnitude(i + BLOCK);
    return fmax(fmax(before, after), magnitude(i));
}

static void fill(int rank, int64_t count)
{
    uint64_t state = (uint64_t)rank + 1;
    for (int64_t i = 0; i < count; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        double unit = (double)(int32_t)(state >> 32) / 2147483648.0;
        inputs[rank][i] = i % 11 ? (float)(unit * magnitude(i)) : 0;
    }
}

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

static void check_equal(int64_t count, int size)
{
    for (int r = 1; r < size; r++)
        CHECK(!memcmp(results[r], results[0], (size_t)count * sizeof(float)),
              "ranks 0 and %d of %d differ", r, size);
}

/* Fill all inputs; rank 0 adds them. */
static void prepare(int rank, int size, int64_t count)
{
    fill(rank, count);
    pthread_barrier_wait(&turns);
    for (int64_t i = 0; rank == 0 && i < count; i++) {
        exact[i] = 0;
        for (int r = 0; r < size; r++)
            exact[i] += inputs[r][i];
    }
    pthread_barrier_wait(&turns);
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

/* The fewest elements that are packed. */
static int64_t least(const ddl_comm *comm)
{
    int hosts = comm->topology->groups[DDL__HOSTS];
    return hosts > 2 ? 2048 * hosts : 4096;
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
    double limit = *(ddl_wire *)format == DDL_WIRE_INT8 ? 127 : 7;
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
        for (int way = 0; way < 4; way++)
            check_one(comm, counts[c], way / 2 ? DDL_AVERAGE : DDL_SUM, way % 2, limit);
    check_feedback(comm, DDL_SUM, least(comm) + 4904, limit);
    check_feedback(comm, DDL_AVERAGE, least(comm) - 1, limit); /* not packed */
    check_feedback(comm, DDL_AVERAGE, least(comm) + 907, limit);
    check_special(comm, limit);
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
    config.wire = 4;
    INVALID(ddl_comm_create(self->all->endpoints[self->rank], addresses, self->all->lengths,
                            self->rank, 2, &config, &comm),
            "wire is 4");
    return NULL;
}

int main(int argc, char **argv)
{
    uint32_t links = links_argument(argc, argv);
    for (int size = 2; size <= RANKS; size += size < 5 ? 1 : 3)
        for (ddl_wire wire = DDL_WIRE_INT8; wire <= DDL_WIRE_INT4; wire++) {
            pthread_barrier_init(&turns, NULL, (unsigned)size);
            run_ranks_with(size, (ddl_comm_config){.links = links, .wire = wire}, all_cases, &wire);
            pthread_barrier_destroy(&turns);
        }
    static ranks two = {.size = 2, .config = {.struct_size = sizeof two.config}};
    if (links == DDL_LINK_TCP)
        run_threads(&two, refused);
    return 0;
}
