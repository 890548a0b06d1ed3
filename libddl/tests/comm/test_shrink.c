/* SPDX-License-Identifier: Apache-2.0 */
/* The survivors agree on one list of the dead, and get a comm that works at once, even if members
 * die while it is created. An expelled member does not continue. Ranks are processes. */
#include "processes.h"
#include "survivors.h"

enum { SIZE = 5 };

static const ddl_comm_config config = {.struct_size = sizeof config, .timeout_ms = 30000};

/* The ranks in the comm before the first failure. */
static int origin;

static void works(ddl_comm *comm, int size)
{
    int32_t ranks[SIZE], one = 1;
    CHECK(ddl_comm_size(comm) == size, "size %d instead of %d", ddl_comm_size(comm), size);
    OK(ddl_allreduce(comm, NULL, &one, 1, DDL_I32, DDL_SUM, NULL, NULL));
    CHECK(one == size, "%d", one);
    int32_t own = origin;
    OK(ddl_allgather(comm, &own, ranks, 1, DDL_I32, NULL, NULL));
    for (int i = 1; i < size; i++)
        CHECK(ranks[i - 1] < ranks[i], "rank %d was %d before, rank %d %d", i - 1, ranks[i - 1], i,
              ranks[i]);
}

/* Wait until all ranks, including the one that will die, are here; other ranks may detect its death
 * before they get here. */
static void await_all_ranks(ddl_comm *comm)
{
    ddl_status status = ddl_barrier(comm, NULL, NULL);
    CHECK(status == DDL_OK || status == DDL_EPEER, "%d %s", status, ddl_last_error());
}

static void go_on(ddl_comm *comm, int size)
{
    ddl_comm *next;
    survivors_await_death(comm);
    double start = seconds();
    OK(ddl_comm_shrink(comm, &config, &next));
    if (origin == 1)
        printf("    shrunk in %.3f s\n", seconds() - start);
    fflush(stdout);
    ddl_comm_destroy(comm);
    works(next, size);
    ddl_comm_destroy(next);
}

static void one_dies(ddl_comm *comm)
{
    origin = ddl_comm_rank(comm);
    ddl_comm *next;
    OK(ddl_barrier(comm, NULL, NULL));
    CHECK(ddl_comm_shrink(comm, NULL, &next) == DDL_ESTATE, "shrunk alive");
    await_all_ranks(comm);
    if (origin == 0)
        kill(getpid(), SIGKILL);
    go_on(comm, SIZE - 1);
}

static void two_die(ddl_comm *comm)
{
    origin = ddl_comm_rank(comm);
    await_all_ranks(comm);
    if (origin == 0 || origin == 3)
        kill(getpid(), SIGKILL);
    go_on(comm, SIZE - 2);
}

/* A rank dies while the others wait for it to shrink the comm, for longer than dead_ms. */
static void dies_in_between(ddl_comm *comm)
{
    origin = ddl_comm_rank(comm);
    await_all_ranks(comm);
    if (origin == 4)
        kill(getpid(), SIGKILL);
    if (origin == 0) {
        survivors_await_death(comm);
        usleep(1500000);
        kill(getpid(), SIGKILL);
    }
    go_on(comm, SIZE - 2);
}

static void *die_soon(void *argument)
{
    usleep(*(useconds_t *)argument);
    kill(getpid(), SIGKILL);
    return NULL;
}

static useconds_t delay;

/* The leader dies during the agreement; the survivors may have to shrink the comm twice. */
static void leader_dies(ddl_comm *comm)
{
    origin = ddl_comm_rank(comm);
    await_all_ranks(comm);
    if (origin == 4)
        kill(getpid(), SIGKILL);
    survivors_await_death(comm);
    pthread_t thread;
    if (origin == 0)
        CHECK(!pthread_create(&thread, NULL, die_soon, &delay), "thread");
    for (ddl_status status = DDL_EPEER; status == DDL_EPEER;) {
        ddl_comm *next;
        OK(ddl_comm_shrink(comm, &config, &next));
        ddl_comm_destroy(comm);
        comm = next;
        if (origin == 0)
            pause();
        status = ddl_barrier(comm, NULL, NULL);
        if (status == DDL_OK && ddl_comm_size(comm) == SIZE - 1) /* soon without the dead one */
            survivors_await_death(comm), status = DDL_EPEER;
    }
    works(comm, SIZE - 2);
    ddl_comm_destroy(comm);
}

/* No member is dead. */
static void aborted(ddl_comm *comm)
{
    origin = ddl_comm_rank(comm);
    start_together(comm);
    if (origin == 2)
        OK(ddl_comm_abort(comm, "again"));
    while (ddl_barrier(comm, NULL, NULL) == DDL_OK)
        ;
    ddl_comm *next;
    OK(ddl_comm_shrink(comm, &config, &next));
    works(next, SIZE);
    ddl_comm_destroy(next);
    ddl_comm_destroy(comm);
}

static void share_pids(ddl_comm *comm, int32_t *pids)
{
    int32_t own = getpid();
    OK(ddl_allgather(comm, &own, pids, 1, DDL_I32, NULL, NULL));
    OK(ddl_barrier(comm, NULL, NULL));
}

/* A member that the others have expelled must not continue alone. */
static void stopped_member(ddl_comm *comm)
{
    int32_t pids[SIZE];
    origin = ddl_comm_rank(comm);
    share_pids(comm, pids);
    ddl_comm *next;
    if (origin == 0) {
        raise(SIGSTOP);
        while (ddl_comm_status(comm) == DDL_OK)
            usleep(1000);
        EXPECT(ddl_comm_shrink(comm, &config, &next), DDL_EMINORITY, "rank 0 on ");
        ddl_comm_destroy(comm);
        return;
    }
    survivors_await_death(comm);
    OK(ddl_comm_shrink(comm, &config, &next));
    works(next, SIZE - 1);
    if (origin == 1) {
        kill(pids[0], SIGCONT);
        usleep(1000000);
    }
    works(next, SIZE - 1);
    ddl_comm_destroy(next);
    ddl_comm_destroy(comm);
}

/* One rank cannot reach the majority, which later continues without it. */
static void minority(ddl_comm *comm)
{
    int32_t pids[SIZE];
    origin = ddl_comm_rank(comm);
    share_pids(comm, pids);
    ddl_comm *next;
    if (origin == 4) {
        usleep(100000);
        survivors_await_death(comm);
        usleep(300000);
        EXPECT(ddl_comm_shrink(comm, &config, &next), DDL_EMINORITY, "rank 4 on ");
        for (int rank = 0; rank < 4; rank++)
            kill(pids[rank], SIGCONT);
        ddl_comm_destroy(comm);
        return;
    }
    raise(SIGSTOP);
    go_on(comm, SIZE - 1);
}

static const process_test tests[] = {
    {"one_dies", one_dies, 1},
    {"two_die", two_die, 9},
    {"dies_in_between", dies_in_between, 17, .settings = {"DDL_DEAD_MS=1000"}},
    {"leader_dies", leader_dies, 17, .runs = 4},
    {"aborted", aborted, 0},
    {"stopped_member", stopped_member, 0, .settings = {"DDL_DEAD_MS=1000"}},
    {"minority", minority, 0, DDL_LINK_TCP,
     .settings = {"DDL_DEAD_MS=1000"}}, /* it takes 12 s over any links */
};

/* In tests without a shorter limit no healthy member may be declared dead, however busy the machine
 * is. */
int main(int argc, char **argv)
{
    setenv("DDL_DEAD_MS", "10000", 1);
    run_process_tests(tests, sizeof tests / sizeof *tests, SIZE, argc, argv);
}
