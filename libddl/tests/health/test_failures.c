/* SPDX-License-Identifier: Apache-2.0 */
/* One rank dies, leaves, aborts, calls a different operation or does not connect: the others soon
 * get an error that names it, on every link kind. Ranks are processes. */
#include "processes.h"

enum { SIZE = 3, VICTIM = 1, LARGE = 1 << 20 };

static float data[LARGE];

/* Run operations until one fails. Returns its status. */
static ddl_status until_failure(ddl_comm *comm, int64_t count)
{
    ddl_status status = DDL_OK;
    for (int i = 0; i < 100000 && status == DDL_OK; i++)
        status = ddl_allreduce(comm, NULL, data, count, DDL_F32, DDL_MAX, NULL, NULL);
    return status;
}

static void killed(ddl_comm *comm, int64_t count)
{
    if (ddl_comm_rank(comm) == VICTIM) {
        for (int i = 0; i < 20; i++)
            OK(ddl_allreduce(comm, NULL, data, count, DDL_F32, DDL_MAX, NULL, NULL));
        kill(getpid(), SIGKILL);
    }
    ddl_status status = until_failure(comm, count);
    EXPECT(status, DDL_EPEER, "rank 1 on ");
    EXPECT(ddl_comm_status(comm), DDL_EPEER, "rank 1 on ");
    EXPECT(ddl_barrier(comm, NULL, NULL), DDL_EPEER, "rank 1 on "); /* sticky */
    ddl_comm_destroy(comm);
}

static void killed_small(ddl_comm *comm)
{
    killed(comm, 1);
}

static void killed_large(ddl_comm *comm)
{
    killed(comm, LARGE);
}

/* A rank is killed while the others sleep in a long wait. */
static void killed_in_wait(ddl_comm *comm)
{
    if (ddl_comm_rank(comm) == VICTIM) {
        await_ready(SIZE - 1);
        usleep(200000);
        kill(getpid(), SIGKILL);
    }
    ddl_work *work;
    OK(ddl_allreduce(comm, NULL, data, 1, DDL_F32, DDL_SUM, NULL, &work));
    become_ready();
    EXPECT(ddl_work_wait(work, -1), DDL_EPEER, "rank 1 on ");
    ddl_work_destroy(work);
    ddl_comm_destroy(comm);
}

/* A forked child, like a data loader's worker, outlives its parent; it must not keep the parent's
 * connections open, and cannot use its comm. */
static void killed_with_child(ddl_comm *comm)
{
    start_together(comm);
    if (ddl_comm_rank(comm) == VICTIM) {
        if (fork() == 0) {
            EXPECT(ddl_barrier(comm, NULL, NULL), DDL_ESTATE, "forked");
            ddl_comm_destroy(comm); /* has no effect on the parent */
            become_ready();
            close(STDOUT_FILENO); /* the parent waits for its end */
            close(STDERR_FILENO);
            sleep(20);
            _exit(0);
        }
        await_ready(1);
        kill(getpid(), SIGKILL);
    }
    double start = seconds();
    EXPECT(until_failure(comm, 10), DDL_EPEER, "rank 1 on ");
    CHECK(seconds() - start < 15, "%g s", seconds() - start);
    ddl_comm_destroy(comm);
}

static void left_early(ddl_comm *comm)
{
    OK(ddl_barrier(comm, NULL, NULL));
    if (ddl_comm_rank(comm) == VICTIM) {
        ddl_comm_destroy(comm);
        return;
    }
    EXPECT(until_failure(comm, 10), DDL_EPEER, "rank 1 on ");
    ddl_comm_destroy(comm);
}

/* A rank may exit right after its last operation, with or without a leave message: no other rank
 * fails. */
static void leaves_after_last(ddl_comm *comm)
{
    int rank = ddl_comm_rank(comm);
    for (int i = 0; i < 50; i++) {
        for (int k = 0; k < 5000; k++)
            data[k] = 1;
        OK(ddl_allreduce(comm, NULL, data, 5000, DDL_F32, DDL_SUM, NULL, NULL));
        CHECK(data[4999] == SIZE, "%g", (double)data[4999]);
    }
    if (rank != VICTIM)
        ddl_comm_destroy(comm);
}

static void aborted(ddl_comm *comm)
{
    start_together(comm);
    if (ddl_comm_rank(comm) == VICTIM) {
        usleep(50000);
        OK(ddl_comm_abort(comm, "loss is NaN"));
        OK(ddl_comm_abort(comm, "a second reason"));
        EXPECT(ddl_comm_status(comm), DDL_EABORTED, "loss is NaN");
    }
    EXPECT(ddl_allreduce(comm, NULL, data, 5, DDL_F32, DDL_SUM, NULL, NULL), DDL_EABORTED,
           "rank 1 on ");
    CHECK(strstr(ddl_last_error(), "loss is NaN"), "%s", ddl_last_error());
    ddl_comm_destroy(comm);
}

/* The message on every rank describes both calls. */
static void mismatch(ddl_comm *comm, int64_t count, ddl_dtype dtype, ddl_op op, const char *words)
{
    OK(ddl_barrier(comm, NULL, NULL));
    ddl_status status = ddl_allreduce(comm, NULL, data, count, dtype, op, NULL, NULL);
    EXPECT(status, DDL_EMISMATCH, words);
    EXPECT(status, DDL_EMISMATCH, "all-reduce(f32, 1000, sum)");
    ddl_comm_destroy(comm);
}

static void mismatched_count(ddl_comm *comm)
{
    bool victim = ddl_comm_rank(comm) == VICTIM;
    mismatch(comm, victim ? 999 : 1000, DDL_F32, DDL_SUM, "all-reduce(f32, 999, sum)");
}

static void mismatched_dtype(ddl_comm *comm)
{
    bool victim = ddl_comm_rank(comm) == VICTIM;
    mismatch(comm, 1000, victim ? DDL_I32 : DDL_F32, DDL_SUM, "all-reduce(i32, 1000, sum)");
}

static void mismatched_op(ddl_comm *comm)
{
    bool victim = ddl_comm_rank(comm) == VICTIM;
    mismatch(comm, 1000, DDL_F32, victim ? DDL_MAX : DDL_SUM, "all-reduce(f32, 1000, max)");
}

static void mismatched_large(ddl_comm *comm)
{
    bool victim = ddl_comm_rank(comm) == VICTIM;
    OK(ddl_barrier(comm, NULL, NULL));
    ddl_status status = victim
                            ? ddl_allreduce(comm, NULL, data, LARGE, DDL_F32, DDL_SUM, NULL, NULL)
                            : ddl_broadcast(comm, data, LARGE / 2, DDL_F32, VICTIM, NULL, NULL);
    EXPECT(status, DDL_EMISMATCH, "broadcast(f32, 524288, root 1)");
    EXPECT(status, DDL_EMISMATCH, "all-reduce(f32, 1048576, sum)");
    ddl_comm_destroy(comm);
}

static void expired(ddl_comm *comm)
{
    OK(ddl_barrier(comm, NULL, NULL));
    if (ddl_comm_rank(comm) == VICTIM) {
        await_ready(SIZE - 1);
    } else {
        ddl_options options = {.struct_size = sizeof options, .timeout_ms = 300};
        double start = seconds();
        ddl_status status = ddl_allreduce(comm, NULL, data, 7, DDL_F32, DDL_SUM, &options, NULL);
        EXPECT(status, DDL_EEXPIRED, "all-reduce(f32, 7, sum)");
        CHECK(seconds() - start < 10, "%g s", seconds() - start);
        become_ready();
    }
    ddl_comm_destroy(comm);
}

static const process_test tests[] = {
    {"killed_small", killed_small, 1 << VICTIM},
    {"killed_large", killed_large, 1 << VICTIM},
    {"killed_in_wait", killed_in_wait, 1 << VICTIM},
    {"killed_with_child", killed_with_child, 1 << VICTIM},
    {"left_early", left_early, 0},
    {"leaves_after_last", leaves_after_last, 0},
    {"aborted", aborted, 0},
    {"mismatched_count", mismatched_count, 0},
    {"mismatched_dtype", mismatched_dtype, 0},
    {"mismatched_op", mismatched_op, 0},
    {"mismatched_large", mismatched_large, 0},
    {"expired", expired, 0},
};

int main(int argc, char **argv)
{
    run_process_tests(tests, sizeof tests / sizeof *tests, SIZE, argc, argv);
}
