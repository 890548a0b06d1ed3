/* SPDX-License-Identifier: Apache-2.0 */
/* No split brain: whatever happens, all members that continue do so in one comm. Members are
 * stopped, cut off, expelled, and killed later. Every remaining rank reports the comm in which it
 * ended, and stays until all have reported. Ranks are processes. Most of these scenes split the
 * comm once. */
#include "comm/comm.h"
#include "health/health_state.h"
#include "membership/graph.h"
#include "processes.h"
#include "survivors.h"

enum { MOST = 4 };

typedef struct board {
    atomic_int stage, said, pids[MOST];
    /* the lowest rank of its next comm, + 1; -1: it does not continue */
    atomic_int next_comm[MOST];
} board;

static board *b;
static int rank, left; /* this process; number of ranks that have to report */
static const ddl_comm_config config = {.struct_size = sizeof config, .timeout_ms = 20000};

static void await(const atomic_int *value, int least)
{
    for (double end = seconds() + 15; atomic_load(value) < least; usleep(500))
        CHECK(seconds() < end, "rank %d waits for %d", rank, least);
}

static void begin(ddl_comm *comm, int survivors)
{
    rank = ddl_comm_rank(comm);
    left = survivors;
    atomic_store(&b->pids[rank], getpid());
    start_together(comm);
}

static void fail_once(ddl_comm *comm)
{
    while (ddl_barrier(comm, NULL, NULL) == DDL_OK)
        ;
}

static ddl_comm *shrink(ddl_comm *comm)
{
    return survivors_shrink(comm, &config);
}

/* Report the comm in which this rank has ended: ranks that continue together report the same
 * one. */
static void report_comm(ddl_comm *comm)
{
    int32_t lowest = rank;
    bool goes_on =
        comm && ddl_allreduce(comm, NULL, &lowest, 1, DDL_I32, DDL_MIN, NULL, NULL) == DDL_OK;
    atomic_store(&b->next_comm[rank], goes_on ? lowest + 1 : -1);
    atomic_fetch_add(&b->said, 1);
    await(&b->said, left);
}

static void stop(int peer)
{
    kill(b->pids[peer], SIGSTOP);
}

static void continue_member(int peer)
{
    kill(b->pids[peer], SIGCONT);
}

/* Stop ranks until they are expelled for their silence, and continue them. */
static void stop_until_expelled(ddl_comm *comm, int peer, int other)
{
    int dead[PROCESSES_MAX], n = 0;
    stop(peer);
    stop(other);
    for (double end = seconds() + 15; n < 2; usleep(1000)) {
        CHECK(seconds() < end, "%d are expelled", n);
        OK(ddl_comm_failed(comm, dead, PROCESSES_MAX, &n));
    }
    continue_member(peer);
    continue_member(other);
}

/* End the control connection with this member, as a reset would. */
static void cut(ddl_comm *comm, int peer)
{
    ddl__health *c = comm->health;
    pthread_mutex_lock(&c->detector->lock);
    shutdown(c->members[peer].conn.fd, SHUT_RDWR);
    pthread_mutex_unlock(&c->detector->lock);
}

/* 1 and 2 are stopped, expelled by 0, and continued; 0 computes while they continue and leave. */
static void others_leave_later(ddl_comm *comm)
{
    begin(comm, 3);
    if (rank == 0) {
        stop_until_expelled(comm, 1, 2);
        await(&b->stage, 2);
        usleep(500000);
        report_comm(shrink(comm));
        return;
    }
    fail_once(comm);
    ddl_comm *next = shrink(comm);
    ddl_comm_destroy(comm);
    atomic_fetch_add(&b->stage, 1);
    report_comm(next);
}

/* 1 and 2 continue together; 1 reports that and waits to be killed. */
static void shrink_until_1_dies(ddl_comm *comm)
{
    fail_once(comm);
    ddl_comm *next = shrink(comm);
    OK(ddl_barrier(next, NULL, NULL));
    if (rank == 1) {
        usleep(100000);
        atomic_store(&b->stage, 1);
        pause();
    }
    fail_once(next);
    report_comm(shrink(next));
}

/* As others_leave_later, but one of them is killed after they have continued. */
static void others_die_later(ddl_comm *comm)
{
    begin(comm, 2);
    if (rank == 0) {
        stop_until_expelled(comm, 1, 2);
        await(&b->stage, 1);
        kill(b->pids[1], SIGKILL);
        usleep(300000);
        report_comm(shrink(comm));
    } else {
        shrink_until_1_dies(comm);
    }
}

/* 0 is cut off, 1 and 2 continue, and 1 is killed: a witness confirms that to 0 too late. */
static void confirm_late(ddl_comm *comm)
{
    begin(comm, 2);
    if (rank == 0) {
        cut(comm, 1);
        cut(comm, 2);
        await(&b->stage, 1);
        usleep(1200000);
        kill(b->pids[1], SIGKILL);
        usleep(200000);
        ddl__health *c = comm->health;
        pthread_mutex_lock(&c->detector->lock);
        ddl__member_launcher_confirm(c->membership, 1, 0, ddl__now()); /* as the launcher would */
        pthread_mutex_unlock(&c->detector->lock);
        report_comm(shrink(comm));
    } else {
        shrink_until_1_dies(comm);
    }
}

/* Heartbeats fill the socket of a stopped member: the last message needs room. */
static void full_socket(ddl_comm *comm)
{
    begin(comm, 3);
    if (rank == 0)
        stop(2);
    fail_once(comm);
    ddl_comm *next = shrink(comm);
    if (rank == 2) {
        report_comm(next);
        return;
    }
    OK(ddl_barrier(next, NULL, NULL));
    ddl_comm_destroy(comm);
    OK(ddl_barrier(next, NULL, NULL));
    if (rank == 0)
        continue_member(2);
    report_comm(next);
}

/* 0 and 1 are cut off from 2 and 3: no rank of the minority waits for the creation's limit. */
static void minority(ddl_comm *comm)
{
    begin(comm, 4);
    if (rank >= 2) {
        cut(comm, 0);
        cut(comm, 1);
    }
    fail_once(comm);
    double start = seconds();
    ddl_comm *next = shrink(comm);
    CHECK(!next == (rank >= 2), "rank %d goes on or does not", rank);
    CHECK(seconds() - start < 10, "rank %d waited for %g s", rank, seconds() - start);
    report_comm(next);
}

/* 0, which leads the agreement, is cut off from 2 and 3, and 1 from none: 0 is left out. */
static void cut_off_leader(ddl_comm *comm)
{
    begin(comm, 4);
    if (rank == 0) {
        cut(comm, 2);
        cut(comm, 3);
    }
    fail_once(comm);
    double start = seconds();
    ddl_comm *next = shrink(comm);
    CHECK(!next == (rank == 0), "rank %d goes on or does not", rank);
    CHECK(seconds() - start < 10, "rank %d waited for %g s", rank, seconds() - start);
    report_comm(next);
}

#define SILENCE(heartbeat, silence)                                                                \
    .settings = {"DDL_HEARTBEAT_MS=" heartbeat, "DDL_SUSPECT_MS=" silence, "DDL_DEAD_MS=" silence}

static const process_test tests[] = {
    {"others_leave_later", others_leave_later, SILENCE("100", "1000")},
    {"others_die_later", others_die_later, 2, DDL_LINK_SHM, SILENCE("100", "1000")},
    {"confirm_late", confirm_late, 2, DDL_LINK_TCP, SILENCE("100", "1000")},
    {"full_socket", full_socket, 0, DDL_LINK_SHM, SILENCE("10", "4000")},
    {"minority", minority, 0, DDL_LINK_TCP, 4, SILENCE("100", "1000")},
    {"cut_off_leader", cut_off_leader, 0, DDL_LINK_TCP, 4, SILENCE("100", "1000")},
};

int main(int argc, char **argv)
{
    b = map_per_run(sizeof *b);
    for (const process_test *t = tests; t < tests + sizeof tests / sizeof *tests; t++) {
        if (t->fn == cut_off_leader && ddl__is_sparse(MOST)) /* has no such connections */
            continue;
        run_process_tests(t, 1, 3, argc, argv);
        int next_comm = -1;
        for (int r = 0; r < MOST; r++) {
            if (b->next_comm[r] <= 0)
                continue;
            CHECK(next_comm < 0 || next_comm == b->next_comm[r], "%s: ranks %d and %d go on apart",
                  t->name, next_comm - 1, r);
            next_comm = b->next_comm[r];
        }
    }
}
