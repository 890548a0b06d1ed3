/* SPDX-License-Identifier: Apache-2.0 */
/* Two members wait for each other when all members between them have left a sparse comm: each still
 * learns of the other's end. Ranks are processes; linked with sparse_comms.c. */
#include "processes.h"

enum { SIZE = 7, WAITS = 0, ENDS = 3 };

/* number of ranks that have left; told: 1 if the waiting rank has the error */
static atomic_int *left, *told;

/* Let all but two ranks leave, one after the other. Return true on ranks that have left. */
static bool leave_others(ddl_comm *comm)
{
    int rank = ddl_comm_rank(comm);
    OK(ddl_barrier(comm, NULL, NULL));
    if (rank != WAITS && rank != ENDS) {
        ddl_comm_destroy(comm);
        atomic_fetch_add(left, 1);
        return true;
    }
    double end = seconds() + 20;
    while (atomic_load(left) < SIZE - 2 && seconds() < end)
        usleep(1000);
    return false;
}

static void expect_failed_receive(ddl_comm *comm, const char *words)
{
    int32_t in;
    double start = seconds();
    ddl_status status = ddl_recv(comm, &in, 1, DDL_I32, ENDS, 0, NULL, NULL, NULL);
    REFUSED(status, DDL_EPEER, words);
    CHECK(seconds() - start < 10, "after %g s", seconds() - start);
    ddl_comm_destroy(comm);
}

static void one_leaves(ddl_comm *comm)
{
    if (leave_others(comm))
        return;
    if (ddl_comm_rank(comm) == WAITS)
        expect_failed_receive(comm, "rank 3 on ");
    else
        ddl_comm_destroy(comm);
}

/* The process of the rank that left still runs, so its endpoint still answers. */
static void one_leaves_and_lives(ddl_comm *comm)
{
    if (leave_others(comm))
        return;
    if (ddl_comm_rank(comm) == WAITS) {
        expect_failed_receive(comm, "rank 3 on ");
        atomic_store(told, 1);
        return;
    }
    ddl_comm_destroy(comm);
    double end = seconds() + 20;
    while (!atomic_load(told) && seconds() < end)
        usleep(1000);
}

static void one_is_killed(ddl_comm *comm)
{
    if (leave_others(comm))
        return;
    if (ddl_comm_rank(comm) == ENDS) {
        usleep(500000);
        raise(SIGKILL);
    }
    expect_failed_receive(comm, "rank 3 on ");
}

static const process_test tests[] = {
    {"one_leaves", one_leaves, 0, DDL_LINK_TCP},
    {"one_leaves_and_lives", one_leaves_and_lives, 0, DDL_LINK_TCP},
    {"one_is_killed", one_is_killed, 1 << ENDS, DDL_LINK_TCP},
};

int main(int argc, char **argv)
{
    left = map_per_run(2 * sizeof *left);
    told = left + 1;
    run_process_tests(tests, sizeof tests / sizeof *tests, SIZE, argc, argv);
}
