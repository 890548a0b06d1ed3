/* SPDX-License-Identifier: Apache-2.0 */
/* A second rank dies while the survivors of a first death create their comm: before it has
 * connected to any rank, in between, at the end, or at another moment. The evidence of its death
 * ends the attempt, so that the survivors need not wait for a time limit. Ranks are processes. */
#include "base/test_points.h"
#include "processes.h"
#include "survivors.h"

enum { SIZE = 5, FIRST = 1, MOMENTS = 6, DUPLICATES = 8 };

static const char *const moments[MOMENTS] = {"not connected", "connected", "monitors",
                                             "nearly done",   "soon",      "later"};
static const int victims[] = {0, 2, 4};

typedef struct board {
    atomic_int begun;
    atomic_long microseconds; /* of the slowest survivor */
} board;

static board *b;
static int moment, victim;
static atomic_bool dies_at; /* this process dies at the moment */
static const ddl_comm_config config = {.struct_size = sizeof config, .timeout_ms = 40000};

static ddl_status die_at_moment(ddl__test_point point, const void *subject)
{
    static const ddl__test_point points[] = {DDL__AT_WIREUP, DDL__AT_ENGINE, DDL__AT_HEALTH,
                                             DDL__AT_COMMIT};
    if (dies_at && moment < 4 && point == points[moment])
        raise(SIGKILL);
    return DDL_OK;
}

static void *die_soon(void *argument)
{
    unsigned most = moment == MOMENTS - 1 ? 40000 : 4000;
    usleep((unsigned)getpid() * 7919 % most);
    raise(SIGKILL);
    return argument;
}

static void second_death(ddl_comm *comm)
{
    pthread_t thread;
    int rank = ddl_comm_rank(comm);
    atomic_fetch_add(&b->begun, 1);
    while (atomic_load(&b->begun) < SIZE)
        usleep(200);
    if (rank == FIRST)
        raise(SIGKILL);
    survivors_await_death(comm);
    double start = seconds();
    dies_at = rank == victim;
    if (dies_at && moment >= 4)
        CHECK(!pthread_create(&thread, NULL, die_soon, NULL), "thread");
    for (int size = SIZE; size != SIZE - 2;) {
        ddl_comm *next;
        OK(ddl_comm_shrink(comm, &config, &next));
        ddl_comm_destroy(comm);
        comm = next;
        size = ddl_comm_size(comm);
        if (size != SIZE - 2) /* the victim has died at the very end, or will die */
            survivors_await_death(comm);
    }
    OK(ddl_barrier(comm, NULL, NULL));
    long took = (long)((seconds() - start) * 1e6), most = atomic_load(&b->microseconds);
    while (took > most && !atomic_compare_exchange_weak(&b->microseconds, &most, took))
        ;
    OK(ddl_barrier(comm, NULL, NULL));
    ddl_comm_destroy(comm);
}

/* A rank dies before it takes part in a creation from a running comm. */
static void dies_before_duplicate(ddl_comm *comm)
{
    ddl_comm *twin;
    int rank = ddl_comm_rank(comm);
    if (rank == victim)
        raise(SIGKILL);
    ddl_status status = ddl_comm_duplicate(comm, &config, &twin);
    REFUSED(status, DDL_EPEER, "rank 4 on ");
    ddl_comm_destroy(comm);
}

/* Return how long the slowest survivor took, in seconds. */
static double run_once(uint32_t links)
{
    process_test test = {moments[moment], second_death, 1u << FIRST | 1u << victim, links};
    run_silent_test(&test, SIZE);
    return (double)atomic_load(&b->microseconds) * 1e-6;
}

/* The longest time from the death to the next comm, in seconds. The limits of single steps are
 * longer, and no rank waits for one. */
enum { LIMIT = 4 };

int main(int argc, char **argv)
{
    enum { VICTIMS = sizeof victims / sizeof *victims };
    int times = argc > 1 ? atoi(argv[1]) : 1, n = 0, slow = 0;
    setenv("DDL_LOG", "off", 0); /* the comms die on purpose */
    setenv("DDL_DEAD_MS", "60000", 1);
    ddl__test_hook = die_at_moment;
    b = map_per_run(sizeof *b);
    victim = SIZE - 1;
    for (int i = 0; i < times * DUPLICATES; i++)
        run_process_test(&(process_test){"dies before duplicate", dies_before_duplicate,
                                         1u << victim, i % 2 ? DDL_LINK_TCP : DDL_LINK_SHM},
                         SIZE);
    for (uint32_t links = DDL_LINK_SHM; links <= DDL_LINK_TCP; links *= 2)
        for (moment = 0; moment < MOMENTS; moment++) {
            double sum = 0, most = 0;
            for (int i = 0; i < times * VICTIMS; i++) {
                victim = victims[i % VICTIMS];
                double took = run_once(links);
                sum += took;
                most = took > most ? took : most;
                n++;
                slow += took > LIMIT;
            }
            printf("%s %-14s mean %.3f s, at most %.3f s\n", links == DDL_LINK_SHM ? "shm" : "tcp",
                   moments[moment], sum / (times * VICTIMS), most);
            fflush(stdout);
        }
    CHECK(slow * 20 <= n, "%d of %d took too long", slow, n);
}
