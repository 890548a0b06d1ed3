/* SPDX-License-Identifier: Apache-2.0 */
/* Groups: fused and single operations, one work for all, repeated submission, and rejected
 * calls. */
#include "ranks.h"

static ddl_options collected(ddl_group *group)
{
    return (ddl_options){.struct_size = sizeof(ddl_options), .group = group};
}

/* Each rank has its own scales, and a different call without scales. All have the same parts. */
static void scaled(ddl_comm *comm, void *argument)
{
    enum { CALLS = 6 };
    int rank = ddl_comm_rank(comm), size = ddl_comm_size(comm);
    static const float values[CALLS] = {1, 10, 100, 1000, 10000, 100000};
    float data[CALLS];
    ddl_group *group;
    OK(ddl_group_create(comm, &group));
    ddl_options in = collected(group);
    for (int i = 0; i < CALLS; i++) {
        in.prescale = i % size == rank ? 2 : i % 2;
        in.postscale = i == rank ? 0.5 : 0;
        OK(ddl_allreduce(comm, NULL, &data[i], 1, DDL_F32, DDL_SUM, &in, NULL));
        data[i] = values[i];
    }
    OK(ddl_group_submit(group, NULL, NULL));
    for (int i = 0; i < CALLS; i++) {
        float want = (float)(size + 1) * values[i] * (i == rank ? 0.5f : 1);
        CHECK(data[i] == want, "call %d: %g, not %g", i, data[i], want);
    }
    ddl_group_destroy(group);
}

/* Calls of all sizes, dtypes and kinds, some of which are fused, have the results of single
 * calls. */
static void mixed(ddl_comm *comm, void *argument)
{
    enum { SMALL = 40, LARGE = 300000 };
    static const int64_t counts[] = {0, 1, 7, 100, 5000, 40000, LARGE};
    int rank = ddl_comm_rank(comm), size = ddl_comm_size(comm);
    ddl_group *group;
    OK(ddl_group_create(comm, &group));
    ddl_options in = collected(group);
    int32_t *data[SMALL], *wide = calloc((size_t)size * 100, sizeof *wide);
    double twice[3] = {0}, out[3] = {0};
    for (int i = 0; i < SMALL; i++) {
        int64_t n = counts[i % 7];
        data[i] = calloc((size_t)n + 1, sizeof **data);
        OK(ddl_allreduce(comm, NULL, data[i], n, DDL_I32, i % 3 ? DDL_SUM : DDL_MAX, &in, NULL));
        if (i == 5)
            OK(ddl_broadcast(comm, wide, 100, DDL_I32, size - 1, &in, NULL));
        if (i == 9)
            OK(ddl_allreduce(comm, twice, out, 3, DDL_F64, DDL_SUM, &in, NULL));
        if (i == 11)
            OK(ddl_barrier(comm, &in, NULL));
    }
    for (int round = 0; round < 6; round++) { /* the same group repeatedly */
        for (int i = 0; i < SMALL; i++)
            for (int64_t k = 0; k < counts[i % 7]; k++)
                data[i][k] = (int32_t)(rank + k + i + round);
        for (int k = 0; k < 100; k++)
            wide[k] = rank + k + round;
        twice[2] = rank + 0.5;
        ddl_work *work = NULL;
        OK(ddl_group_submit(group, NULL, round % 2 ? &work : NULL));
        if (work)
            OK(ddl_work_wait(work, -1));
        ddl_work_destroy(work);
        for (int i = 0; i < SMALL; i++)
            for (int64_t k = 0; k < counts[i % 7]; k++) {
                int32_t base = (int32_t)(k + i + round);
                int32_t want = i % 3 ? size * base + size * (size - 1) / 2 : base + size - 1;
                CHECK(data[i][k] == want, "call %d of round %d, element %d: %d", i, round, (int)k,
                      data[i][k]);
            }
        for (int k = 0; k < 100; k++)
            CHECK(wide[k] == size - 1 + k + round, "broadcast in a group");
        CHECK(twice[2] == rank + 0.5 && out[2] == size * (size - 1) / 2 + size * 0.5, "%g", out[2]);
    }
    for (int i = 0; i < SMALL; i++)
        free(data[i]);
    free(wide);
    ddl_group_destroy(group);
}

/* One work for all operations, reported once; single operations before and behind keep their
 * order. */
static void reported(ddl_comm *comm, void *argument)
{
    enum { N = 12 };
    int size = ddl_comm_size(comm), taken;
    float data[N][50], before = 1, behind = 1;
    ddl_group *group, *empty;
    ddl_work *works[3], *got[4];
    void *users[4];
    OK(ddl_group_create(comm, &group));
    OK(ddl_group_create(comm, &empty));
    ddl_options in = collected(group);
    for (int i = 0; i < N; i++) {
        data[i][0] = data[i][49] = 1;
        OK(ddl_allreduce(comm, NULL, data[i], 50, DDL_F32, DDL_SUM, &in, NULL));
    }
    ddl_options options = {.struct_size = sizeof options, .queued = 1};
    options.user = (void *)1;
    OK(ddl_allreduce(comm, NULL, &before, 1, DDL_F32, DDL_SUM, &options, &works[0]));
    options.user = (void *)2;
    OK(ddl_group_submit(group, &options, &works[1]));
    options.user = (void *)3;
    OK(ddl_allreduce(comm, NULL, &behind, 1, DDL_F32, DDL_SUM, &options, &works[2]));
    for (intptr_t next = 1; next <= 3;) {
        OK(ddl_comm_completed(comm, got, users, 4, -1, &taken));
        for (int i = 0; i < taken; i++, next++)
            CHECK(users[i] == (void *)next && got[i] == works[next - 1], "out of order");
    }
    CHECK(before == (float)size && behind == before && data[N - 1][49] == before, "sums");
    for (int i = 0; i < 3; i++)
        ddl_work_destroy(works[i]);

    OK(ddl_group_submit(empty, NULL, NULL));
    options.user = (void *)7;
    OK(ddl_group_submit(empty, &options, works));
    OK(ddl_work_wait(works[0], 0));
    OK(ddl_comm_completed(comm, got, users, 4, 0, &taken));
    CHECK(taken == 1 && users[0] == (void *)7, "the empty group's report");
    ddl_work_destroy(works[0]);

    /* Abandoned while pending: buffers stay borrowed, and the group is freed when it completes. */
    OK(ddl_group_submit(group, NULL, works));
    ddl_work_destroy(works[0]);
    ddl_group_destroy(group);
    ddl_group_destroy(empty);
    OK(ddl_barrier(comm, NULL, NULL));
}

/* Many small operations must cost far fewer messages than as many calls, because they are fused. */
static void fused(ddl_comm *comm, void *argument)
{
    enum { N = 4000 };
    static _Thread_local int64_t data[N];
    ddl_group *group;
    OK(ddl_group_create(comm, &group));
    ddl_options in = collected(group);
    for (int i = 0; i < N; i++) {
        data[i] = i;
        OK(ddl_allreduce(comm, NULL, &data[i], 1, DDL_I64, DDL_SUM, &in, NULL));
    }
    OK(ddl_group_submit(group, NULL, NULL));
    for (int i = 0; i < N; i++)
        CHECK(data[i] == (int64_t)i * ddl_comm_size(comm), "%d", i);
    ddl_group_destroy(group);
    /* The fused calls were one operation: this is the comm's third, after its first agreement. */
    if (ddl_comm_size(comm) == 2) {
        ddl_status status = ddl_comm_rank(comm)
                                ? ddl_allreduce(comm, NULL, data, 2, DDL_I64, DDL_SUM, NULL, NULL)
                                : ddl_allreduce(comm, NULL, data, 1, DDL_I64, DDL_SUM, NULL, NULL);
        REFUSED(status, DDL_EMISMATCH, "as operation 2");
    }
}

/* A member fails within a group: the whole group fails, with the reason. */
static void failing(ddl_comm *comm, void *argument)
{
    static _Thread_local double large[100000];
    double small[4] = {0};
    ddl_group *group;
    OK(ddl_group_create(comm, &group));
    ddl_options in = collected(group);
    OK(ddl_allreduce(comm, NULL, small, 4, DDL_F64, DDL_SUM, &in, NULL));
    OK(ddl_allreduce(comm, NULL, large, 100000, DDL_F64, DDL_SUM, &in, NULL));
    if (ddl_comm_size(comm) > 1 && ddl_comm_rank(comm) == 0) {
        usleep(50000);
        OK(ddl_comm_abort(comm, "no more"));
    } else if (ddl_comm_size(comm) > 1) {
        ddl_work *work;
        ddl_status status = ddl_group_submit(group, NULL, &work);
        if (status == DDL_OK) {
            status = ddl_work_wait(work, -1);
            ddl_work_destroy(work);
        }
        REFUSED(status, DDL_EABORTED, "no more");
        CHECK(ddl_group_submit(group, NULL, NULL) == DDL_EABORTED, "submitted to a dead comm");
    }
    ddl_group_destroy(group);
}

static void refusals(ddl_comm *comm, void *argument)
{
    ddl_group *group;
    ddl_work *work;
    float x = 1;
    ddl_comm *twin;
    REFUSED(ddl_group_create(NULL, &group), DDL_EINVAL, "comm is NULL");
    REFUSED(ddl_group_create(comm, NULL), DDL_EINVAL, "group is NULL");
    REFUSED(ddl_group_submit(NULL, NULL, NULL), DDL_EINVAL, "group is NULL");
    ddl_group_destroy(NULL);
    OK(ddl_group_create(comm, &group));
    OK(ddl_comm_duplicate(comm, NULL, &twin));
    ddl_options in = collected(group);
    REFUSED(ddl_allreduce(twin, NULL, &x, 1, DDL_F32, DDL_SUM, &in, NULL), DDL_EINVAL,
            "another comm");
    REFUSED(ddl_allreduce(comm, NULL, &x, 1, DDL_F32, DDL_SUM, &in, &work), DDL_EINVAL,
            "returns one work");
    in.name = "x";
    REFUSED(ddl_allreduce(comm, NULL, &x, 1, DDL_F32, DDL_SUM, &in, NULL), DDL_EINVAL,
            "pass the name to ddl_group_submit");
    in.name = NULL;
    REFUSED(ddl_group_submit(group, &in, NULL), DDL_EINVAL, "options.group");
    in.group = NULL;
    in.postscale = 2;
    REFUSED(ddl_group_submit(group, &in, NULL), DDL_EINVAL, "prescale and postscale");
    /* While it is pending; on one rank it completes at once. */
    if (ddl_comm_size(comm) > 1) {
        in = collected(group);
        OK(ddl_allreduce(comm, NULL, &x, 1, DDL_F32, DDL_SUM, &in, NULL));
        if (ddl_comm_rank(comm) == 0) {
            OK(ddl_group_submit(group, NULL, &work));
            REFUSED(ddl_group_submit(group, NULL, NULL), DDL_ESTATE, "is pending");
            REFUSED(ddl_allreduce(comm, NULL, &x, 1, DDL_F32, DDL_SUM, &in, NULL), DDL_ESTATE,
                    "is pending");
            OK(ddl_barrier(twin, NULL, NULL));
            OK(ddl_work_wait(work, -1));
            ddl_work_destroy(work);
        } else {
            OK(ddl_barrier(twin, NULL, NULL));
            OK(ddl_group_submit(group, NULL, NULL));
        }
        CHECK(x == (float)ddl_comm_size(comm), "%g", (double)x);
    }
    ddl_group_destroy(group);
    ddl_comm_destroy(twin);
}

int main(void)
{
    static const uint32_t links[] = {DDL_LINK_INPROC, DDL_LINK_SHM, DDL_LINK_TCP, LINKS_MIXED};
    static rank_fn *const tests[] = {mixed, scaled, reported, fused, failing, refusals};
    for (unsigned l = SANITIZED; l < 4; l++) /* inproc uses the code of shm */
        for (unsigned t = 0; t < sizeof tests / sizeof *tests; t++)
            for (int size = 1; size <= 4; size++)
                run_ranks(size, links[l], tests[t], NULL);
}
