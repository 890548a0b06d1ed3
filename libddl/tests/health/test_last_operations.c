/* SPDX-License-Identifier: Apache-2.0 */
/* Different calls may complete on all ranks if no rank needs data of another. The ranks' last
 * operations reveal them, in heartbeats or when a rank leaves. Calls that may differ, such as
 * counts of uneven blocks, are not reported. Ranks are processes. */
#include "processes.h"

enum { SIZE = 2 };

/* In shared memory: numbers of ranks that know of the difference, and that have left. */
typedef struct shared {
    atomic_int n_aware, left;
} shared;

static shared *all;
static float data[100], more[100];

static void expect_words(int rank, const char *text, const char *const words[3])
{
    for (int i = 0; i < 3; i++)
        CHECK(strstr(text, words[i]), "rank %d: \"%s\" lacks \"%s\"", rank, text, words[i]);
}

/* Leave the comm. Return true if this rank then knows of the difference. */
static bool leave(ddl_comm *comm, const char *const words[3])
{
    int rank = ddl_comm_rank(comm);
    ddl_comm_destroy(comm);
    bool knows = ddl_last_error()[0];
    if (knows)
        expect_words(rank, ddl_last_error(), words);
    atomic_fetch_add(&all->n_aware, knows);
    atomic_fetch_add(&all->left, 1);
    return knows;
}

static const char *const roots[] = {"broadcast(f32, 4, root 0)", "broadcast(f32, 4, root 1)",
                                    "as operation 1"};

/* Both ranks leave at once. */
static void both_leave(ddl_comm *comm)
{
    OK(ddl_broadcast(comm, data, 4, DDL_F32, ddl_comm_rank(comm), NULL, NULL));
    leave(comm, roots);
}

/* Rank 0 leaves before the other one has called anything. */
static void leaves_early(ddl_comm *comm)
{
    int rank = ddl_comm_rank(comm);
    if (rank == 1)
        while (!atomic_load(&all->left))
            usleep(1000);
    OK(ddl_broadcast(comm, data, 4, DDL_F32, rank, NULL, NULL));
    CHECK(leave(comm, roots) == (rank == 1), "rank %d", rank);
}

/* No rank leaves: heartbeats reveal the difference, and the comm fails. It is reported only
 * once. */
static void none_leaves(ddl_comm *comm)
{
    OK(ddl_broadcast(comm, data, 4, DDL_F32, ddl_comm_rank(comm), NULL, NULL));
    while (ddl_comm_status(comm) == DDL_OK)
        usleep(1000);
    ddl_status status = ddl_barrier(comm, NULL, NULL);
    CHECK(status == DDL_EMISMATCH, "%d %s", status, ddl_last_error());
    expect_words(ddl_comm_rank(comm), ddl_last_error(), roots);
    leave(comm, roots);
}

/* Heartbeats may have revealed the difference, but no call has reported it. */
static void not_reported(ddl_comm *comm)
{
    OK(ddl_broadcast(comm, data, 4, DDL_F32, ddl_comm_rank(comm), NULL, NULL));
    usleep(300000);
    leave(comm, roots);
}

/* The counts differ by rank, and no rank knows all of them. */
static void gather(ddl_comm *comm)
{
    static const int64_t counts[SIZE] = {3, 1};
    int rank = ddl_comm_rank(comm);
    OK(ddl_gatherv(comm, data, counts[rank], more, rank ? NULL : counts, NULL, DDL_F32, 0, NULL,
                   NULL));
    CHECK(!leave(comm, roots), "rank %d", rank);
}

static void alltoall(ddl_comm *comm)
{
    static const int64_t give[SIZE][SIZE] = {{1, 5}, {2, 7}}, take[SIZE][SIZE] = {{1, 2}, {5, 7}};
    int rank = ddl_comm_rank(comm);
    OK(ddl_alltoallv(comm, data, give[rank], NULL, more, take[rank], NULL, DDL_F32, NULL, NULL));
    CHECK(!leave(comm, roots), "rank %d", rank);
}

/* One rank has called one operation more, which is complete there, and which the other never calls.
 * Rank `late` leaves last, and reports it; the other one may. */
static void leave_after_more(ddl_comm *comm, int late, const char *call)
{
    const char *const words[] = {call, "as operation 2", "is number 1"};
    int rank = ddl_comm_rank(comm);
    for (double end = seconds() + 20; rank == late && !atomic_load(&all->left);)
        CHECK(seconds() < end, "the other rank does not leave");
    CHECK(leave(comm, words) || rank != late, "rank %d does not know", rank);
}

static void one_more_of_first(ddl_comm *comm)
{
    OK(ddl_barrier(comm, NULL, NULL));
    if (ddl_comm_rank(comm) == 0)
        OK(ddl_broadcast(comm, data, 4, DDL_F32, 0, NULL, NULL));
    leave_after_more(comm, 1, "broadcast(f32, 4, root 0)");
}

static void one_more_of_last(ddl_comm *comm)
{
    OK(ddl_barrier(comm, NULL, NULL));
    if (ddl_comm_rank(comm) == 1)
        OK(ddl_reduce(comm, data, more, 4, DDL_F32, DDL_SUM, 0, NULL, NULL));
    leave_after_more(comm, 1, "reduce(f32, 4, sum, root 0)");
}

/* The operation has failed, or its rank knows why it cannot complete: nothing is left to report. */
static void one_more_fails(ddl_comm *comm)
{
    int rank = ddl_comm_rank(comm);
    OK(ddl_barrier(comm, NULL, NULL));
    if (rank == 0) {
        ddl_status status = ddl_barrier(comm, NULL, NULL);
        CHECK(status == DDL_EPEER, "%d: %s", status, ddl_last_error());
    }
    CHECK(!leave(comm, roots), "rank %d", rank);
}

typedef struct last_case {
    process_test test;
    int least, most; /* fewest and most ranks that know of the difference */
} last_case;

static const last_case cases[] = {
    {{"both_leave", both_leave, 0}, 1, 2},
    {{"leaves_early", leaves_early, 0}, 1, 1},
    {{"none_leaves", none_leaves, 0}, 0, 0},
    {{"not_reported", not_reported, 0}, 1, 2},
    {{"gather", gather, 0}, 0, 0},
    {{"alltoall", alltoall, 0}, 0, 0},
    {{"one_more_of_first", one_more_of_first, 0}, 1, 2},
    {{"one_more_of_last", one_more_of_last, 0}, 1, 2},
    {{"one_more_fails", one_more_fails, 0}, 0, 0},
};

int main(int argc, char **argv)
{
    setenv("DDL_LOG", "off", 0);
    all = map_per_run(sizeof *all);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (uint32_t links = DDL_LINK_SHM; links <= DDL_LINK_TCP; links *= 2) {
            process_test test = cases[i].test;
            if (!is_asked_for(&test, argc, argv))
                continue;
            test.links = links;
            run_process_test(&test, SIZE);
            int n_aware = atomic_load(&all->n_aware);
            CHECK(n_aware >= cases[i].least && n_aware <= cases[i].most, "%s: %d ranks know",
                  cases[i].test.name, n_aware);
        }
}
