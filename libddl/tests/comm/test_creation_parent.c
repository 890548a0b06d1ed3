/* SPDX-License-Identifier: Apache-2.0 */
/* Creations from a comm. If the comm fails meanwhile, they end at once, and the survivors shrink
 * it. Creations from one comm belong together, whatever failed before. */
#include "base/test_points.h"
#include "comm/comm.h"
#include "net/tcp/tcp.h"
#include "processes.h"

enum { SIZE = 3, SOON_MS = 300 };

/* What this process does before the last step of a creation. */
static atomic_bool cuts_link;
static ddl_comm *awaited; /* waits until this comm has failed, and omits the step */

static const double AT_ONCE = 1.0;

/* The link with rank 1 is ended as by a reset that has overtaken the reason. */
static ddl_status disturb_commit(ddl__test_point point, const void *subject)
{
    if (point != DDL__AT_COMMIT)
        return DDL_OK;
    const ddl_comm *comm = subject;
    const ddl__link *link = ddl__engine_links(comm->engine)[1];
    if (cuts_link && !link->shared)
        shutdown(ddl__tcp_link_socket(link), SHUT_RDWR);
    while (awaited && ddl_comm_status(awaited) == DDL_OK)
        usleep(1000);
    return awaited ? ddl_comm_status(awaited) : DDL_OK;
}

/* Check the time since the first event that ends the creation. */
static void check_fast(double since, const char *what)
{
    CHECK(seconds() - since < AT_ONCE, "%s took %g s", what, seconds() - since);
}

/* Shrink the comm: all living members continue, at once. */
static void shrink_to(ddl_comm *comm, int size)
{
    ddl_comm *next;
    double start = seconds();
    int32_t one = 1;
    OK(ddl_comm_shrink(comm, NULL, &next));
    check_fast(start, "the shrink");
    OK(ddl_allreduce(next, &one, &one, 1, DDL_I32, DDL_SUM, NULL, NULL));
    CHECK(one == size, "%d of %d ranks", one, size);
    ddl_comm_destroy(next);
    ddl_comm_destroy(comm);
}

/* Rank 2 creates a comm with rank 0, which is late. Rank 1, which is in no list, dies. */
static void outsider_dies(ddl_comm *comm)
{
    int list[] = {0, 2};
    ddl_comm *part = NULL;
    int rank = ddl_comm_rank(comm);
    start_together(comm);
    usleep(rank == 2 ? 0 : SOON_MS * 1000);
    if (rank == 1)
        raise(SIGKILL);
    double start = seconds();
    if (rank == 0)
        while (ddl_comm_status(comm) == DDL_OK)
            CHECK(seconds() - start < 20, "the death was not noticed");
    ddl_status status = ddl_comm_subset(comm, list, 2, NULL, &part);
    CHECK(status == DDL_EPEER && !part, "%d: %s", status, ddl_last_error());
    CHECK(strstr(ddl_last_error(), "rank 1"), "%s", ddl_last_error());
    CHECK(seconds() - start < AT_ONCE + 1e-3 * SOON_MS, "after %g s", seconds() - start);
    shrink_to(comm, 2);
}

/* Rank 0 duplicates the comm, rank 1 is late, and rank 2 aborts the comm instead. */
static void other_rank_aborts(ddl_comm *comm)
{
    ddl_comm *twin = NULL;
    int rank = ddl_comm_rank(comm);
    double start = start_together(comm);
    if (rank == 2) {
        usleep(SOON_MS * 1000);
        OK(ddl_comm_abort(comm, "enough"));
    } else if (rank == 0) {
        ddl_status status = ddl_comm_duplicate(comm, NULL, &twin);
        CHECK(status == DDL_EABORTED && !twin, "%d: %s", status, ddl_last_error());
        CHECK(strstr(ddl_last_error(), "enough"), "%s", ddl_last_error());
        CHECK(seconds() - start < AT_ONCE + 1e-3 * SOON_MS, "after %g s", seconds() - start);
    }
    while (ddl_comm_status(comm) == DDL_OK)
        CHECK(seconds() - start < 20, "the abort was not noticed");
    shrink_to(comm, SIZE);
}

static void *abort_soon(void *comm)
{
    usleep(SOON_MS * 1000);
    OK(ddl_comm_abort(comm, "enough"));
    return NULL;
}

/* Another thread of the waiting rank aborts the comm. */
static void own_thread_aborts(ddl_comm *comm)
{
    pthread_t thread;
    ddl_comm *twin = NULL;
    double start = start_together(comm);
    if (ddl_comm_rank(comm) == 0) {
        CHECK(!pthread_create(&thread, NULL, abort_soon, comm), "thread");
        ddl_status status = ddl_comm_duplicate(comm, NULL, &twin);
        CHECK(status == DDL_EABORTED && !twin, "%d: %s", status, ddl_last_error());
        CHECK(seconds() - start < AT_ONCE + 1e-3 * SOON_MS, "after %g s", seconds() - start);
        pthread_join(thread, NULL);
    }
    while (ddl_comm_status(comm) == DDL_OK)
        CHECK(seconds() - start < 20, "the abort was not noticed");
    shrink_to(comm, SIZE);
}

/* Ranks 0 and 1 lose their link in the last step of a creation. Rank 2, which is late for that
 * step, aborts the comm soon after: all report this reason, none a death. */
static void loss_before_abort(ddl_comm *comm)
{
    pthread_t thread;
    ddl_comm *twin = NULL;
    double start = start_together(comm);
    int rank = ddl_comm_rank(comm);
    cuts_link = rank == 0;
    awaited = rank == 0 ? comm : NULL;
    if (rank == 2)
        CHECK(!pthread_create(&thread, NULL, abort_soon, comm), "thread");
    ddl_status status = ddl_comm_duplicate(comm, NULL, &twin);
    cuts_link = false;
    awaited = NULL;
    CHECK(status == DDL_EABORTED && !twin, "rank %d: %d: %s", rank, status, ddl_last_error());
    CHECK(seconds() - start < AT_ONCE + 1e-3 * SOON_MS, "after %g s", seconds() - start);
    if (rank == 2)
        pthread_join(thread, NULL);
    while (ddl_comm_status(comm) == DDL_OK)
        CHECK(seconds() - start < 20, "the abort was not noticed");
    shrink_to(comm, SIZE);
}

typedef struct twin_maker {
    ddl_comm *from;
    int value;
    bool first;
} twin_maker;

static void *make_twin(void *argument)
{
    const twin_maker *t = argument;
    ddl_comm *twin;
    int32_t sum = t->value;
    usleep(t->first ? 0 : SOON_MS * 1000);
    OK(ddl_comm_duplicate(t->from, NULL, &twin));
    OK(ddl_allreduce(twin, &sum, &sum, 1, DDL_I32, DDL_SUM, NULL, NULL));
    CHECK(sum == SIZE * t->value, "%d is the sum of another comm", sum);
    ddl_comm_destroy(twin);
    return NULL;
}

/* Two threads duplicate two comms of the same members, in a different order on each rank. */
static void crossed_threads(ddl_comm *comm)
{
    ddl_comm *other;
    pthread_t threads[2];
    OK(ddl_comm_duplicate(comm, NULL, &other));
    start_together(comm);
    bool odd = ddl_comm_rank(comm) % 2;
    twin_maker makers[] = {{comm, 1, !odd}, {other, 100, odd}};
    for (int i = 0; i < 2; i++)
        CHECK(!pthread_create(&threads[i], NULL, make_twin, &makers[i]), "thread");
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    ddl_comm_destroy(other);
    ddl_comm_destroy(comm);
}

/* Rank 0 aborts each child as soon as it has it, so that the child's creation fails on some other
 * ranks: the next creation succeeds. */
static void child_aborted(ddl_comm *comm)
{
    double start = start_together(comm);
    for (int round = 0; round < 30; round++) {
        ddl_comm *twin = NULL;
        OK(ddl_barrier(comm, NULL, NULL));
        ddl_status status = ddl_comm_duplicate(comm, NULL, &twin);
        CHECK(status == DDL_OK || status == DDL_EABORTED, "%d: %s", status, ddl_last_error());
        if (ddl_comm_rank(comm) == 0)
            OK(ddl_comm_abort(twin, "enough"));
        ddl_comm_destroy(twin);
    }
    CHECK(seconds() - start < 10, "after %g s", seconds() - start);
    ddl_comm_destroy(comm);
}

/* Rank `early` abandons some creations before the other ranks start them. */
static void give_up_first(ddl_comm *comm, int early)
{
    ddl_comm *twin;
    ddl_comm_config hurried = {.struct_size = sizeof hurried, .timeout_ms = 50};
    int tries = ddl_comm_rank(comm) == early ? 3 : 0;
    for (int i = 0; i < tries; i++) {
        ddl_status status = ddl_comm_duplicate(comm, &hurried, &twin);
        CHECK(status == DDL_ETIMEDOUT, "%d: %s", status, ddl_last_error());
    }
    OK(ddl_barrier(comm, NULL, NULL));
}

/* Some creations of one rank have timed out. Then all ranks create the comm; this rank or another
 * one is last. */
static void late_members(ddl_comm *comm)
{
    static const struct {
        int early, late;
    } cases[] = {{0, 2}, {1, 0}, {2, 1}, {2, 2}};
    start_together(comm);
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        ddl_comm *twin;
        give_up_first(comm, cases[i].early);
        usleep(ddl_comm_rank(comm) == cases[i].late ? 50 * 1000 : 0);
        double start = seconds();
        OK(ddl_comm_duplicate(comm, NULL, &twin));
        CHECK(seconds() - start < 5, "case %u: %g s", i, seconds() - start);
        OK(ddl_barrier(twin, NULL, NULL));
        ddl_comm_destroy(twin);
    }
    ddl_comm_destroy(comm);
}

/* A call with an invalid argument is rejected on its rank alone, and changes nothing for the
 * others. */
static void wrong_argument(ddl_comm *comm)
{
    ddl_comm *twin = NULL;
    int all[SIZE] = {0, 1, 2}, twice[SIZE] = {0, 0, 1};
    int rank = ddl_comm_rank(comm);
    ddl_comm_config wrong[] = {
        {.heartbeat_ms = -1}, {.links = 64}, {.timeout_ms = -1}, {.dead_ms = 1}};
    double start = start_together(comm);
    for (unsigned i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        wrong[i].struct_size = sizeof wrong[i];
        ddl_status status = rank ? DDL_EINVAL : ddl_comm_duplicate(comm, &wrong[i], &twin);
        CHECK(status == DDL_EINVAL && !twin, "%u: %d: %s", i, status, ddl_last_error());
        status = rank ? DDL_EINVAL : ddl_comm_subset(comm, all, SIZE, &wrong[i], &twin);
        CHECK(status == DDL_EINVAL && !twin, "%u: %d: %s", i, status, ddl_last_error());
        status = rank ? DDL_EINVAL : ddl_comm_subset(comm, twice, SIZE, NULL, &twin);
        CHECK(status == DDL_EINVAL && !twin, "%u: %d: %s", i, status, ddl_last_error());
        OK(ddl_comm_duplicate(comm, NULL, &twin));
        OK(ddl_barrier(twin, NULL, NULL));
        ddl_comm_destroy(twin);
        twin = NULL;
    }
    CHECK(seconds() - start < 5, "after %g s", seconds() - start);
    ddl_comm_destroy(comm);
}

/* A rank may destroy the parent as soon as it has its child. */
static void parent_destroyed_at_once(ddl_comm *comm)
{
    start_together(comm);
    for (int round = 0; round < 20; round++) {
        ddl_comm *twin;
        OK(ddl_comm_duplicate(comm, NULL, &twin));
        ddl_comm_destroy(comm);
        comm = twin;
    }
    OK(ddl_barrier(comm, NULL, NULL));
    ddl_comm_destroy(comm);
}

int main(int argc, char **argv)
{
    static const process_test tests[] = {
        {"outsider_dies", outsider_dies, 1 << 1},
        {"other_rank_aborts", other_rank_aborts, 0},
        {"own_thread_aborts", own_thread_aborts, 0},
        {"loss_before_abort", loss_before_abort, 0, DDL_LINK_TCP},
        {"crossed_threads", crossed_threads, 0},
        {"child_aborted", child_aborted, 0},
        {"late_members", late_members, 0},
        {"wrong_argument", wrong_argument, 0},
        {"parent_destroyed", parent_destroyed_at_once, 0},
    };
    ddl__test_hook = disturb_commit;
    run_process_tests(tests, sizeof tests / sizeof *tests, SIZE, argc, argv);
}
