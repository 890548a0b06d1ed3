/* SPDX-License-Identifier: Apache-2.0 */
/* Members that are alive and expelled: one is stopped at the very end of a shrink until the
 * others have continued, and one sends invalid heartbeats. Only one side continues. Ranks are
 * processes. */
#include "base/test_points.h"
#include "comm/comm.h"
#include "health/health_state.h"
#include "processes.h"

enum { SIZE = 4, STOPPED = 2, VICTIM = 3 };

static atomic_bool armed;

/* Stop when all control connections are open, and the survivor's comm is nearly created. */
static ddl_status stop_when_armed(ddl__test_point point, const void *subject)
{
    if (armed && point == DDL__AT_DETECTOR) {
        armed = false;
        become_ready();
        raise(SIGSTOP);
    }
    return DDL_OK;
}

static const ddl_comm_config config = {.struct_size = sizeof config, .timeout_ms = 30000};

static ddl_status fail_once(ddl_comm *comm)
{
    ddl_status status = DDL_OK;
    while (status == DDL_OK)
        status = ddl_barrier(comm, NULL, NULL);
    return status;
}

/* After it was continued, neither this shrink nor another one may end in a comm that works. */
static void stay_out(ddl_comm *comm)
{
    ddl_comm *next = NULL;
    armed = true;
    ddl_status status = ddl_comm_shrink(comm, &config, &next);
    for (int i = 0; status == DDL_OK; i++) {
        CHECK(i < 2, "it goes on");
        CHECK(fail_once(next) == DDL_EPEER, "%s", ddl_last_error());
        ddl_comm *again = NULL;
        status = ddl_comm_shrink(next, &config, &again);
        ddl_comm_destroy(next);
        next = again;
    }
    CHECK(status == DDL_EMINORITY, "%d %s", status, ddl_last_error());
}

static void is_expelled(ddl_comm *comm)
{
    int32_t pids[SIZE], own = getpid();
    int rank = ddl_comm_rank(comm);
    ddl_comm *next;
    OK(ddl_allgather(comm, &own, pids, 1, DDL_I32, NULL, NULL));
    start_together(comm);
    if (rank == VICTIM)
        kill(getpid(), SIGKILL);
    CHECK(fail_once(comm) == DDL_EPEER, "%s", ddl_last_error());
    if (rank == STOPPED) {
        stay_out(comm);
        return;
    }
    OK(ddl_comm_shrink(comm, &config, &next));
    CHECK(atomic_load(&process_counts->ready), "rank %d was not stopped in time", STOPPED);
    CHECK(ddl_comm_size(next) == 2, "%d are left", ddl_comm_size(next));
    OK(ddl_barrier(next, NULL, NULL));
    if (rank == 0)
        kill(pids[STOPPED], SIGCONT);
    ddl_comm_destroy(comm);
    for (int i = 0; i < 100; i++) {
        int32_t one = 1;
        usleep(10000);
        OK(ddl_allreduce(next, NULL, &one, 1, DDL_I32, DDL_SUM, NULL, NULL));
        CHECK(one == 2, "%d", one);
    }
    ddl_comm_destroy(next);
}

/* Check that the survivors continue without the stopped rank. */
static void check_members(ddl_comm *comm, int rank)
{
    int32_t own = rank, all[SIZE];
    OK(ddl_allgather(comm, &own, all, 1, DDL_I32, NULL, NULL));
    for (int i = 0; i < ddl_comm_size(comm); i++)
        CHECK(all[i] != STOPPED, "rank %d is a member", STOPPED);
}

/* Send heartbeats that look altered in transit. The highest rank accuses the sender and is accused
 * by it, so it is left out as well if it has seen that before the others. */
static void sends_garbage(ddl_comm *comm)
{
    static const char nonsense[] =
        "this is no message of libddl, and long enough to be seen as none";
    ddl_comm *next = NULL;
    int rank = ddl_comm_rank(comm);
    start_together(comm);
    ddl__health *c = comm->health;
    pthread_mutex_lock(&c->detector->lock);
    for (int peer = 0; peer < SIZE; peer++)
        if (rank == STOPPED && peer != rank)
            send(c->members[peer].conn.fd, nonsense, sizeof nonsense, MSG_NOSIGNAL);
    pthread_mutex_unlock(&c->detector->lock);
    CHECK(fail_once(comm) == DDL_EPEER, "%s", ddl_last_error());
    ddl_status status = ddl_comm_shrink(comm, &config, &next);
    if (rank == STOPPED) {
        CHECK(status == DDL_EMINORITY, "%d %s", status, ddl_last_error());
    } else if (rank < SIZE - 1 || status == DDL_OK) {
        CHECK(status == DDL_OK && ddl_comm_size(next) >= SIZE - 2, "%d %s", status,
              ddl_last_error());
        check_members(next, rank);
    } else {
        CHECK(status == DDL_EMINORITY, "%d %s", status, ddl_last_error());
    }
    ddl_comm_destroy(next);
    ddl_comm_destroy(comm);
}

int main(int argc, char **argv)
{
    static const process_test tests[] = {{"is_expelled", is_expelled, 1 << VICTIM},
                                         {"sends_garbage", sends_garbage, 0}};
    setenv("DDL_LOG", "off", 0);
    setenv("DDL_DEAD_MS", "1000", 1);
    ddl__test_hook = stop_when_armed;
    run_process_tests(tests, sizeof tests / sizeof *tests, SIZE, argc, argv);
}
