/* SPDX-License-Identifier: Apache-2.0 */
/* How soon a member's death is detected, even by ranks that exchange no data with it and by ranks
 * that wait for nothing; and ranks that must not be declared dead. Ranks are processes. */
#include "comm/comm.h"
#include "engine/state.h"
#include "processes.h"

enum { SIZE = 4, VICTIM = 3 };

static float data[1000];

/* Sanitizers and other programs on the machine slow everything down; docs/reliability.md has the
 * real limits. */
enum { SLACK = 5 };

static void within(ddl_comm *comm, double start, double limit)
{
    double took = seconds() - start;
    CHECK(took < limit + SLACK, "rank %d: %g s", ddl_comm_rank(comm), took);
    if (ddl_comm_rank(comm) == 0)
        printf("    %.3f s\n", took);
    fflush(stdout);
}

static ddl_status await_status(ddl_comm *comm, double limit)
{
    double end = seconds() + limit + SLACK;
    ddl_status status;
    while ((status = ddl_comm_status(comm)) == DDL_OK && seconds() < end)
        usleep(1000);
    return status;
}

/* Rank 0 waits for rank 1, and rank 1 for rank 0: neither needs the victim. */
static void killed_elsewhere(ddl_comm *comm)
{
    int rank = ddl_comm_rank(comm);
    double start = start_together(comm);
    if (rank == VICTIM) {
        usleep(100000);
        kill(getpid(), SIGKILL);
    }
    if (rank < 2) {
        ddl_status status = ddl_recv(comm, data, 10, DDL_F32, 1 - rank, 7, NULL, NULL, NULL);
        EXPECT(status, DDL_EPEER, "rank 3 on ");
        EXPECT(status, DDL_EPEER,
               comm->engine->config.links[VICTIM]->shared ? "its process ended"
                                                          : "its connection ended");
        within(comm, start + 0.1, 0.2);
    } else {
        EXPECT(await_status(comm, 0.3), DDL_EPEER, "rank 3 on ");
    }
    int dead[SIZE], n = -1;
    for (double end = seconds() + SLACK; n != 1 && seconds() < end;)
        OK(ddl_comm_failed(comm, dead, SIZE, &n));
    CHECK(n == 1 && dead[0] == VICTIM, "%d dead, %d", n, dead[0]);
    ddl_comm_destroy(comm);
}

static const ddl__link_ops *real;
static double last_part, longest_pause;

static void note_part(void)
{
    double now = seconds();
    if (!last_part)
        become_ready();
    else if (now - last_part > longest_pause)
        longest_pause = now - last_part;
    last_part = now;
}

/* Send one part in each pass of the driver. */
static bool send_slowly(ddl__link *const *to, unsigned n, const void *memory, size_t bytes,
                        const ddl__signature *signature)
{
    static bool done;
    if (!done)
        usleep(to[0]->shared ? 4000 : 16000);
    done = !done && real->send_user(to, n, memory, bytes, signature);
    if (done)
        note_part();
    return done;
}

/* Both survivors are busy with a message that takes several times as long as the grace period, and
 * that progresses all the time: it is completed, and then the comm ends. On a busy machine it may
 * stop progressing as well. */
static void killed_meanwhile(ddl_comm *comm)
{
    enum { LONG = 8 << 20 };
    static char message[LONG];
    static ddl__link_ops slow;
    int rank = ddl_comm_rank(comm);
    if (rank == 0) {
        ddl__link *link = comm->engine->config.messages[1];
        real = link->ops;
        slow = *real;
        slow.send_user = send_slowly;
        link->ops = &slow;
    }
    double start = start_together(comm);
    if (rank >= 2) {
        await_ready(1); /* the message is being sent */
        kill(getpid(), SIGKILL);
    }
    ddl_status status = rank ? ddl_recv(comm, message, LONG, DDL_U8, 0, 7, NULL, NULL, NULL)
                             : ddl_send(comm, message, LONG, DDL_U8, 1, 7, NULL, NULL);
    double took = seconds() - start;
    if (rank == 0) {
        note_part();
        if (longest_pause > 0.09) /* it stopped progressing */
            become_ready();
    }
    if (status != DDL_OK)
        await_ready(2);
    CHECK(took > 0.4 || status != DDL_OK, "%g s are too few", took);
    EXPECT(await_status(comm, 0.2), DDL_EPEER, " is dead: its ");
    ddl_comm_destroy(comm);
}

/* No rank waits for anything. */
static void killed_unnoticed(ddl_comm *comm)
{
    double start = start_together(comm);
    if (ddl_comm_rank(comm) == VICTIM)
        kill(getpid(), SIGKILL);
    EXPECT(await_status(comm, 0.2), DDL_EPEER, "rank 3 on ");
    within(comm, start, 0.2);
    EXPECT(ddl_barrier(comm, NULL, NULL), DDL_EPEER, "rank 3 on ");
    ddl_comm_destroy(comm);
}

/* An abort reaches ranks that wait for nothing. */
static void aborted_unnoticed(ddl_comm *comm)
{
    double start = start_together(comm);
    if (ddl_comm_rank(comm) == 0)
        OK(ddl_comm_abort(comm, "enough"));
    EXPECT(await_status(comm, 0.4), DDL_EABORTED, "enough");
    within(comm, start, 0.4);
    ddl_comm_destroy(comm);
}

/* A rank is stopped, expelled by the others, and then continued: it must get an error. */
static void stopped(ddl_comm *comm)
{
    int rank = ddl_comm_rank(comm);
    int32_t pids[SIZE], own = getpid();
    double start = seconds();
    OK(ddl_allgather(comm, &own, pids, 1, DDL_I32, NULL, NULL));
    start_together(comm);
    if (rank == VICTIM) {
        raise(SIGSTOP);
        start = seconds();
        EXPECT(await_status(comm, 0.5), DDL_EPEER, "rank 3 on ");
        CHECK(seconds() - start < 0.5 + SLACK, "%g s", seconds() - start);
        ddl_status status = ddl_barrier(comm, NULL, NULL);
        EXPECT(status, DDL_EPEER, "silent for ");
        ddl_comm_destroy(comm);
        return;
    }
    ddl_status status = rank == 1
                            ? ddl_recv(comm, data, 10, DDL_F32, 0, 7, NULL, NULL, NULL)
                            : ddl_allreduce(comm, NULL, data, 10, DDL_F32, DDL_SUM, NULL, NULL);
    EXPECT(status, DDL_EPEER, "rank 3 on ");
    EXPECT(status, DDL_EPEER, "silent for 3.");
    CHECK(seconds() - start > 2.5, "expelled after %g s", seconds() - start);
    within(comm, start, 4);
    if (rank == 0) {
        kill(pids[VICTIM], SIGCONT);
        usleep(1500000);
    }
    ddl_comm_destroy(comm);
}

/* A program that does not call the library for a long time is not dead. */
static void busy(ddl_comm *comm)
{
    OK(ddl_barrier(comm, NULL, NULL));
    if (ddl_comm_rank(comm) == VICTIM)
        for (double end = seconds() + 4; seconds() < end;)
            ;
    OK(ddl_allreduce(comm, NULL, data, 10, DDL_F32, DDL_SUM, NULL, NULL));
    ddl_comm_destroy(comm);
}

static const process_test tests[] = {
    {"killed_elsewhere", killed_elsewhere, 1 << VICTIM},
    {"killed_meanwhile", killed_meanwhile, 1 << 2 | 1 << 3},
    {"killed_unnoticed", killed_unnoticed, 1 << VICTIM},
    {"aborted_unnoticed", aborted_unnoticed, 0},
    {"stopped", stopped, 0},
    {"busy", busy, 0, DDL_LINK_TCP},
};

int main(int argc, char **argv)
{
    run_process_tests(tests, sizeof tests / sizeof *tests, SIZE, argc, argv);
}
