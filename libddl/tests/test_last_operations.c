/* test_last_operations.c - different calls that end everywhere, since no rank needs what another
 * one sends, are found by the ranks' last operations: when they leave, or by heartbeats. Calls that
 * may differ, like counts of uneven blocks, are no difference. Ranks are processes. */
#include "processes.h"

enum { SIZE = 2 };

/* In memory of all ranks: how many know of the difference. */
typedef struct shared {
    atomic_int knowing, left;
} shared;

static shared *all;
static float data[100], more[100];

static void expect_words(int rank, const char *text, const char *const words[3])
{
    for (int i = 0; i < 3; i++)
        CHECK(strstr(text, words[i]), "rank %d: \"%s\" lacks \"%s\"", rank, text, words[i]);
}

/* Leave; whether this rank then knows of the difference. */
static bool leave(ddl_comm *comm, const char *const words[3])
{
    int rank = ddl_comm_rank(comm);
    ddl_comm_destroy(comm);
    bool knows = ddl_last_error()[0];
    if (knows)
        expect_words(rank, ddl_last_error(), words);
    atomic_fetch_add(&all->knowing, knows);
    atomic_fetch_add(&all->left, 1);
    return knows;
}

static const char *const roots[] = {"broadcast(f32, 4, root 0)", "broadcast(f32, 4, root 1)",
                                    "as operation 1"};

/* Both leave at once. */
static int both(ddl_comm *comm)
{
    OK(ddl_broadcast(comm, data, 4, DDL_F32, ddl_comm_rank(comm), NULL, NULL));
    leave(comm, roots);
    return 0;
}

/* Rank 0 leaves before the other one has called anything. */
static int early(ddl_comm *comm)
{
    int rank = ddl_comm_rank(comm);
    if (rank == 1)
        while (!atomic_load(&all->left))
            usleep(1000);
    OK(ddl_broadcast(comm, data, 4, DDL_F32, rank, NULL, NULL));
    CHECK(leave(comm, roots) == (rank == 1), "rank %d", rank);
    return 0;
}

/* Nobody leaves: heartbeats find it, and the comm fails. Who knows it is not told once more. */
static int nobody(ddl_comm *comm)
{
    OK(ddl_broadcast(comm, data, 4, DDL_F32, ddl_comm_rank(comm), NULL, NULL));
    while (ddl_comm_status(comm) == DDL_OK)
        usleep(1000);
    ddl_status status = ddl_barrier(comm, NULL, NULL);
    CHECK(status == DDL_EMISMATCH, "%d %s", status, ddl_last_error());
    expect_words(ddl_comm_rank(comm), ddl_last_error(), roots);
    leave(comm, roots);
    return 0;
}

/* Heartbeats may have found it, but nobody has asked. */
static int unasked(ddl_comm *comm)
{
    OK(ddl_broadcast(comm, data, 4, DDL_F32, ddl_comm_rank(comm), NULL, NULL));
    usleep(300000);
    leave(comm, roots);
    return 0;
}

/* Each rank's own counts, which the other does not know all of. */
static int gather(ddl_comm *comm)
{
    static const int64_t counts[SIZE] = {3, 1};
    int rank = ddl_comm_rank(comm);
    OK(ddl_gatherv(comm, data, counts[rank], more, rank ? NULL : counts, NULL, DDL_F32, 0, NULL,
                   NULL));
    CHECK(!leave(comm, roots), "rank %d", rank);
    return 0;
}

static int alltoall(ddl_comm *comm)
{
    static const int64_t give[SIZE][SIZE] = {{1, 5}, {2, 7}}, take[SIZE][SIZE] = {{1, 2}, {5, 7}};
    int rank = ddl_comm_rank(comm);
    OK(ddl_alltoallv(comm, data, give[rank], NULL, more, take[rank], NULL, DDL_F32, NULL, NULL));
    CHECK(!leave(comm, roots), "rank %d", rank);
    return 0;
}

/* One rank has called something more, to which the other never comes. */
static int one_more(ddl_comm *comm)
{
    int rank = ddl_comm_rank(comm);
    OK(ddl_barrier(comm, NULL, NULL));
    if (rank == 0)
        OK(ddl_broadcast(comm, data, 4, DDL_F32, 0, NULL, NULL));
    CHECK(!leave(comm, roots), "rank %d", rank);
    return 0;
}

typedef struct last_case {
    process_test test;
    int least, most; /* ranks that know */
} last_case;

static const last_case cases[] = {
    {{"both", both, 0, false}, 1, 2},         {{"early", early, 0, false}, 1, 1},
    {{"nobody", nobody, 0, false}, 0, 0},     {{"unasked", unasked, 0, false}, 1, 2},
    {{"gather", gather, 0, false}, 0, 0},     {{"alltoall", alltoall, 0, false}, 0, 0},
    {{"one_more", one_more, 0, false}, 0, 0},
};

int main(int argc, char **argv)
{
    setenv("DDL_LOG", "off", 0);
    all = mmap(NULL, sizeof *all, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(all != MAP_FAILED, "no shared memory");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (uint32_t links = DDL_LINK_SHM; links <= DDL_LINK_TCP; links *= 2) {
            if (!is_asked_for(&cases[i].test, argc, argv))
                continue;
            atomic_store(&all->knowing, 0);
            atomic_store(&all->left, 0);
            run_process_test(&cases[i].test, SIZE, links);
            int knowing = atomic_load(&all->knowing);
            CHECK(knowing >= cases[i].least && knowing <= cases[i].most, "%s: %d ranks know",
                  cases[i].test.name, knowing);
        }
    return 0;
}
