/* SPDX-License-Identifier: Apache-2.0 */
/* Creations from a comm that fails meanwhile: they end at once, and the survivors shrink it. */
#include <pthread.h>

#include "processes.h"

enum { SIZE = 3, SOON_MS = 300 };

static const double AT_ONCE = 1.0;

/* The time since the first fact that ends the creation. */
static void check_fast(double since, const char *what)
{
    CHECK(seconds() - since < AT_ONCE, "%s took %g s", what, seconds() - since);
}

/* All but the dead go on, at once. */
static int shrink_to(ddl_comm *comm, int size)
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
    return 0;
}

/* Rank 2 creates a comm with rank 0, which is late. Rank 1, which is in no list, dies. */
static int outsider_dies(ddl_comm *comm)
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
    return shrink_to(comm, 2);
}

/* Rank 0 duplicates the comm, rank 1 is late, and rank 2 aborts the comm instead. */
static int other_rank_aborts(ddl_comm *comm)
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
    return shrink_to(comm, SIZE);
}

static void *abort_soon(void *comm)
{
    usleep(SOON_MS * 1000);
    OK(ddl_comm_abort(comm, "enough"));
    return NULL;
}

/* The same by another thread of the rank that waits. */
static int own_thread_aborts(ddl_comm *comm)
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
    return shrink_to(comm, SIZE);
}

int main(int argc, char **argv)
{
    static const process_test tests[] = {
        {"outsider_dies", outsider_dies, 1 << 1, false},
        {"other_rank_aborts", other_rank_aborts, 0, false},
        {"own_thread_aborts", own_thread_aborts, 0, false},
    };
    run_process_tests(tests, sizeof tests / sizeof *tests, SIZE, argc, argv);
    return 0;
}
