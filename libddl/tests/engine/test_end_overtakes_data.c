/* SPDX-License-Identifier: Apache-2.0 */
/* The notice of a comm's end may overtake data that was sent before it. An operation whose data
 * have all arrived still succeeds, so that no rank reports an error for an operation that the
 * others have completed. A link of rank 0 is made to look empty until the data and the notice have
 * arrived. */
#include "comm/comm.h"
#include "ranks.h"

enum { SIZE = 3 };

/* Operations of rank 0's link. */
static const ddl__link_ops *real;
static ddl__link_ops held_back;
static ddl__engine *engine;

/* numbers of ranks other than 0 that are done, and that have aborted */
static atomic_int done, aborted;
static atomic_bool hidden;
typedef void look_fn(void);
static _Atomic(look_fn *) first_look;

static void await(atomic_int *counter, int n)
{
    while (atomic_load(counter) < n)
        usleep(100);
}

/* True if the link may show its data. The first poll comes just before everything arrives. */
static bool may_show(void)
{
    if (atomic_load(&hidden))
        return false;
    look_fn *look = atomic_exchange(&first_look, NULL);
    if (look)
        look();
    return !look;
}

static const void *peek(ddl__link *link, unsigned ahead, void *into, size_t bytes,
                        const ddl__signature *signature)
{
    return may_show() ? real->peek(link, ahead, into, bytes, signature) : NULL;
}

static void hold_back(ddl_comm *comm)
{
    engine = comm->engine;
    ddl__engine_snapshot(engine); /* the previous driver is done */
    ddl__link *link = ddl__engine_links(engine)[1];
    real = link->ops;
    held_back = *real;
    held_back.peek = peek;
    link->ops = &held_back;
}

static ddl_status add(ddl_comm *comm, ddl_work **work)
{
    static int32_t sums[SIZE];
    int32_t *sum = &sums[ddl_comm_rank(comm)];
    *sum = 1;
    return ddl_allreduce(comm, NULL, sum, 1, DDL_I32, DDL_SUM, NULL, work);
}

/* Check that the comm is dead from now on. */
static void check_dead(ddl_comm *comm, ddl_status want, const char *words)
{
    REFUSED(add(comm, NULL), want, words);
    if (ddl_comm_rank(comm))
        await(&aborted, SIZE); /* rank 0 gets the notice in one way only */
    else
        atomic_store(&aborted, SIZE);
}

/* ------------------------------------------------------------------------------------ the tests */

static void receive_notice(void)
{
    await(&done, SIZE - 1);
    ddl__engine_fail(engine, DDL_EPEER, "reported by the detector");
}

/* The failure detector delivers the notice, while the driver polls. */
static void by_detector(ddl_comm *comm, void *argument)
{
    if (ddl_comm_rank(comm) == 0) {
        hold_back(comm);
        atomic_store(&first_look, receive_notice);
    }
    OK(add(comm, NULL));
    atomic_fetch_add(&done, 1);
    check_dead(comm, DDL_EPEER, "reported by the detector");
}

/* Add on rank 0 while no caller drives. When all data have arrived, `end` ends the comm. */
static void add_in_background(ddl_comm *comm, void (*end)(ddl_comm *comm, ddl_work *work))
{
    if (ddl_comm_rank(comm) == 0) {
        ddl_work *work;
        hold_back(comm);
        atomic_store(&hidden, true);
        OK(add(comm, &work));
        await(&done, SIZE - 1);
        usleep(50000); /* the background driver is asleep by now */
        atomic_store(&hidden, false);
        end(comm, work);
        ddl_work_destroy(work);
    } else {
        OK(add(comm, NULL));
        atomic_fetch_add(&done, 1);
    }
}

static void end_by_detector(ddl_comm *comm, ddl_work *work)
{
    ddl__engine_fail(engine, DDL_EPEER, "reported by the detector");
    OK(ddl_work_wait(work, -1));
}

static void by_detector_in_background(ddl_comm *comm, void *argument)
{
    add_in_background(comm, end_by_detector);
    check_dead(comm, DDL_EPEER, "reported by the detector");
}

static void await_abort(void)
{
    ddl__link *other = ddl__engine_links(engine)[2];
    await(&aborted, 1);
    while (other->state != DDL__LINK_ABORTED)
        other->ops->poll(other);
}

/* A link to a rank for which the barrier does not wait delivers the notice: on every kind of link,
 * a barrier takes the data of that rank before it needs those of rank 1. */
static void by_link(ddl_comm *comm, void *argument)
{
    int rank = ddl_comm_rank(comm);
    ddl_work *work;
    if (rank == 0) {
        hold_back(comm);
        atomic_store(&hidden, true);
    }
    OK(ddl_barrier(comm, NULL, &work));
    if (rank == 0) { /* no caller waits, so each poll that finds nothing could be the last one */
        await(&done, SIZE - 1);
        atomic_store(&first_look, await_abort);
        atomic_store(&hidden, false);
        atomic_store(&done, SIZE);
        while (ddl_work_test(work) == DDL_INPROGRESS)
            usleep(100);
    }
    OK(ddl_work_wait(work, -1));
    ddl_work_destroy(work);
    atomic_fetch_add(&done, 1);
    if (rank == 2) {
        await(&done, SIZE);
        OK(ddl_comm_abort(comm, "enough"));
        atomic_store(&aborted, 1);
    }
    check_dead(comm, DDL_EABORTED, "enough");
}

/* An abort by this rank ends pending operations at once, even if their data have arrived. */
static void end_by_abort(ddl_comm *comm, ddl_work *work)
{
    OK(ddl_comm_abort(comm, "enough"));
    REFUSED(ddl_work_wait(work, -1), DDL_EABORTED, "enough");
}

static void by_this_rank(ddl_comm *comm, void *argument)
{
    add_in_background(comm, end_by_abort);
    check_dead(comm, DDL_EABORTED, "enough");
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        rank_fn *fn;
    } tests[] = {{"by_detector", by_detector},
                 {"by_detector_in_background", by_detector_in_background},
                 {"by_link", by_link},
                 {"by_this_rank", by_this_rank}};
    setenv("DDL_LOG", "off", 0); /* the comms die on purpose */
    for (size_t t = 0; t < sizeof tests / sizeof *tests; t++)
        for (uint32_t links = DDL_LINK_SHM; links <= DDL_LINK_TCP; links *= 2) {
            if (argc > 1 && strcmp(argv[1], tests[t].name) != 0)
                continue;
            atomic_store(&done, 0);
            atomic_store(&aborted, 0);
            run_ranks(SIZE, links, tests[t].fn, NULL);
            printf("%s %s\n", tests[t].name, links == DDL_LINK_SHM ? "shm" : "tcp");
            fflush(stdout);
        }
}
