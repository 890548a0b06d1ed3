/* Word of the comm's end may overtake what was sent before it: an operation for which all has come
 * succeeds all the same, so that no rank reports an error for what the others have completed. A
 * link of rank 0 is made to look empty until what was to come, and the word, are there. */
#include <unistd.h>

#include "comm/comm.h"
#include "ranks.h"

enum { SIZE = 3 };

/* Rank 0's. */
static const ddl__link_ops *real;
static ddl__link_ops held_back;
static ddl__engine *engine;

static atomic_int done, aborted; /* ranks other than 0 that are through */
static atomic_bool hidden;
typedef void look_fn(void);
static _Atomic(look_fn *) first_look;

static void await(atomic_int *counter, int n)
{
    while (atomic_load(counter) < n)
        usleep(100);
}

/* Whether the link may show what it has. It is looked at for the first time just before everything
 * comes. */
static bool shows(void)
{
    if (atomic_load(&hidden))
        return false;
    look_fn *look = atomic_exchange(&first_look, NULL);
    if (look)
        look();
    return !look;
}

static const void *peek(ddl__link *link, size_t bytes, const ddl__signature *signature)
{
    return shows() ? real->peek(link, bytes, signature) : NULL;
}

static bool take(ddl__link *link, void *dst, size_t bytes, const ddl__signature *signature)
{
    return shows() && real->take(link, dst, bytes, signature);
}

static void hold_back(ddl_comm *comm)
{
    engine = comm->engine;
    ddl__engine_pulse(engine); /* whoever drove before is through */
    ddl__link *link = ddl__engine_links(engine)[1];
    real = link->ops;
    held_back = *real;
    held_back.peek = peek;
    held_back.take = take;
    link->ops = &held_back;
}

static ddl_status add(ddl_comm *comm, ddl_work **work)
{
    static int32_t sums[SIZE];
    int32_t *sum = &sums[ddl_comm_rank(comm)];
    *sum = 1;
    return ddl_allreduce(comm, NULL, sum, 1, DDL_I32, DDL_SUM, NULL, work);
}

/* It is dead from now on. */
static void is_dead(ddl_comm *comm, ddl_status want, const char *words)
{
    REFUSED(add(comm, NULL), want, words);
    if (ddl_comm_rank(comm))
        await(&aborted, SIZE); /* rank 0 hears it in one way only */
    else
        atomic_store(&aborted, SIZE);
}

/* -------------------------------------------------------------------------------------- the tests
 */

static void hear_word(void)
{
    await(&done, SIZE - 1);
    ddl__engine_fail(engine, DDL_EPEER, "a watcher's word");
}

/* From who watches the peers, while the driver looks. */
static void by_word(ddl_comm *comm, void *argument)
{
    (void)argument;
    if (ddl_comm_rank(comm) == 0) {
        hold_back(comm);
        atomic_store(&first_look, hear_word);
    }
    OK(add(comm, NULL));
    atomic_fetch_add(&done, 1);
    is_dead(comm, DDL_EPEER, "a watcher's word");
}

/* The same while nobody drives. */
static void by_word_in_background(ddl_comm *comm, void *argument)
{
    (void)argument;
    if (ddl_comm_rank(comm) == 0) {
        ddl_work *work;
        hold_back(comm);
        atomic_store(&hidden, true);
        OK(add(comm, &work));
        await(&done, SIZE - 1);
        usleep(50000); /* who drove in the background sleeps by now */
        atomic_store(&hidden, false);
        ddl__engine_fail(engine, DDL_EPEER, "a watcher's word");
        OK(ddl_work_wait(work, -1));
        ddl_work_destroy(work);
    } else {
        OK(add(comm, NULL));
        atomic_fetch_add(&done, 1);
    }
    is_dead(comm, DDL_EPEER, "a watcher's word");
}

static void see_abort(void)
{
    ddl__link *other = ddl__engine_links(engine)[2];
    await(&aborted, 1);
    while (other->state != DDL__LINK_ABORTED)
        other->ops->attend(other);
}

/* Over the link to another rank than the one that is waited for: of that one, whatever the links,
 * a barrier has taken what it sent before it asks for what rank 1 has sent. */
static void by_link(ddl_comm *comm, void *argument)
{
    (void)argument;
    int rank = ddl_comm_rank(comm);
    ddl_work *work;
    if (rank == 0) {
        hold_back(comm);
        atomic_store(&hidden, true);
    }
    OK(ddl_barrier(comm, NULL, &work));
    if (rank == 0) { /* nobody waits: so each look that finds nothing could be the last one */
        await(&done, SIZE - 1);
        atomic_store(&first_look, see_abort);
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
    is_dead(comm, DDL_EABORTED, "enough");
}

/* An abort by this rank ends at once what is pending, whatever has come. */
static void by_ourselves(ddl_comm *comm, void *argument)
{
    (void)argument;
    if (ddl_comm_rank(comm) == 0) {
        ddl_work *work;
        hold_back(comm);
        atomic_store(&hidden, true);
        OK(add(comm, &work));
        await(&done, SIZE - 1);
        usleep(50000);
        atomic_store(&hidden, false);
        OK(ddl_comm_abort(comm, "enough"));
        REFUSED(ddl_work_wait(work, -1), DDL_EABORTED, "enough");
        ddl_work_destroy(work);
    } else {
        OK(add(comm, NULL));
        atomic_fetch_add(&done, 1);
    }
    is_dead(comm, DDL_EABORTED, "enough");
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        rank_fn *fn;
    } tests[] = {{"by_word", by_word},
                 {"by_word_in_background", by_word_in_background},
                 {"by_link", by_link},
                 {"by_ourselves", by_ourselves}};
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
    return 0;
}
