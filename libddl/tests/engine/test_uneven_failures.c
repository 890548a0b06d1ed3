/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks that disagree on an operation with a root or on uneven blocks all get an error that names
 * both calls, on every link kind. Ranks are processes. */
#include "processes.h"

enum { SIZE = 3, LARGE = 1 << 20 };

static float data[LARGE], other[LARGE];

static void disagree(ddl_comm *comm, ddl_status status, const char *one, const char *another)
{
    EXPECT(status, DDL_EMISMATCH, one);
    EXPECT(status, DDL_EMISMATCH, another);
    ddl_comm_destroy(comm);
}

/* The same, but a rank without a part in it gets the error at its next operation. */
static void disagree_soon(ddl_comm *comm, ddl_status status, const char *one, const char *another)
{
    if (status == DDL_OK)
        status = ddl_barrier(comm, NULL, NULL);
    disagree(comm, status, one, another);
}

/* Rank 2 expects 29 elements of rank 1, which sends 30. A rank without a part in it gets the error
 * at its next operation. */
static void alltoallv_counts(ddl_comm *comm)
{
    int rank = ddl_comm_rank(comm);
    int64_t sent[SIZE] = {5, 5, 5}, received[SIZE] = {5, 5, 5};
    if (rank == 1)
        sent[2] = 30;
    if (rank == 2)
        received[1] = 29;
    ddl_status status =
        ddl_alltoallv(comm, data, sent, NULL, other, received, NULL, DDL_F32, NULL, NULL);
    if (status == DDL_OK)
        status = ddl_barrier(comm, NULL, NULL);
    EXPECT(status, DDL_EMISMATCH, "rank 1 on ");
    disagree(comm, status, "all-to-all-v(f32, 29 between the two)",
             "all-to-all-v(f32, 30 between the two)");
}

static void gatherv_counts(ddl_comm *comm)
{
    int64_t counts[SIZE] = {LARGE / 4, LARGE / 4, LARGE / 4};
    int64_t own = ddl_comm_rank(comm) == 1 ? LARGE / 4 - 1 : LARGE / 4;
    ddl_status status = ddl_gatherv(comm, data, own, other, counts, NULL, DDL_F32, 2, NULL, NULL);
    disagree_soon(comm, status, "gather-v(f32, 262144 between the two, root 2)",
                  "gather-v(f32, 262143 between the two, root 2)");
}

static void scatterv_counts(ddl_comm *comm)
{
    int64_t counts[SIZE] = {7, 8, 9}, own = counts[ddl_comm_rank(comm)];
    own += ddl_comm_rank(comm) == 1;
    ddl_status status = ddl_scatterv(comm, data, counts, NULL, other, own, DDL_F32, 0, NULL, NULL);
    disagree_soon(comm, status, "scatter-v(f32, 8 between the two, root 0)",
                  "scatter-v(f32, 9 between the two, root 0)");
}

/* The counts are equal in the block that two ranks exchange first, but differ later. */
static void allgatherv_counts(ddl_comm *comm)
{
    int64_t counts[SIZE] = {40, 40, 40};
    counts[2] += ddl_comm_rank(comm) == 0;
    ddl_status status = ddl_allgatherv(comm, data, other, counts, NULL, DDL_F32, NULL, NULL);
    disagree(comm, status, "all-gather-v(f32, 4", "in this block, counts with digest ");
}

static void reduce_scatterv_counts(ddl_comm *comm)
{
    int64_t counts[SIZE] = {40, 40, 0};
    counts[2] += ddl_comm_rank(comm) == 2;
    ddl_status status =
        ddl_reduce_scatterv(comm, data, other, counts, DDL_F32, DDL_SUM, NULL, NULL);
    disagree(comm, status, "reduce-scatter-v(f32, ", "in this block, sum, counts with ");
}

static void even_and_uneven(ddl_comm *comm)
{
    int64_t counts[SIZE] = {40, 40, 40};
    ddl_status status =
        ddl_comm_rank(comm) == 1
            ? ddl_alltoall(comm, data, other, 40, DDL_F32, NULL, NULL)
            : ddl_alltoallv(comm, data, counts, NULL, other, counts, NULL, DDL_F32, NULL, NULL);
    disagree(comm, status, "all-to-all(f32, 40)", "all-to-all-v(f32");
}

/* Rank 2 sends its data to rank 1, and rank 0 finds its next operation instead. */
static void roots(ddl_comm *comm)
{
    int root = ddl_comm_rank(comm) == 2 ? 1 : 0;
    ddl_status status = ddl_reduce(comm, data, other, 100, DDL_F32, DDL_SUM, root, NULL, NULL);
    disagree_soon(comm, status, "rank 2 on ", "reduce(f32, 100, sum, root 0)");
}

static void kinds(ddl_comm *comm)
{
    ddl_status status = ddl_comm_rank(comm) == 1
                            ? ddl_gather(comm, data, other, 10, DDL_F32, 0, NULL, NULL)
                            : ddl_scatter(comm, data, other, 10, DDL_F32, 1, NULL, NULL);
    disagree_soon(comm, status, "scatter(f32, 10, root 1)", "rank 1 on ");
}

/* Rank 1 sends nothing where rank 0 expects data: its next operation reveals it. */
static void empty_for_one(ddl_comm *comm)
{
    int rank = ddl_comm_rank(comm);
    int64_t counts[SIZE] = {5, 5, 5};
    ddl_status status =
        ddl_gatherv(comm, data, rank == 1 ? 0 : 5, other, counts, NULL, DDL_F32, 0, NULL, NULL);
    if (status == DDL_OK)
        status = ddl_alltoall(comm, data, other, 6, DDL_F32, NULL, NULL);
    disagree(comm, status, "gather-v(f32, 5 between the two, root 0) as operation 1",
             "all-to-all(f32, 6) as operation 2");
}

/* Without a next operation, the limit reveals it. */
static void empty_and_silent(ddl_comm *comm)
{
    int rank = ddl_comm_rank(comm);
    int64_t counts[SIZE] = {5, 5, 5};
    ddl_options options = {.struct_size = sizeof options, .timeout_ms = 300};
    double start = seconds();
    ddl_status status =
        ddl_gatherv(comm, data, rank == 1 ? 0 : 5, other, counts, NULL, DDL_F32, 0, &options, NULL);
    if (rank > 0) {
        await_ready(1);
    } else {
        EXPECT(status, DDL_EEXPIRED, "gather-v(f32, 5 between the two, root 0)");
        CHECK(seconds() - start < 10, "%g s", seconds() - start);
        become_ready();
    }
    ddl_comm_destroy(comm);
}

/* One rank dies while the others exchange. */
static void killed(ddl_comm *comm)
{
    int64_t counts[SIZE] = {LARGE / 8, 3, LARGE / 4}, displs[SIZE] = {0, LARGE / 8, LARGE / 2};
    ddl_status status = DDL_OK;
    int64_t sent[SIZE];
    for (int r = 0; r < SIZE; r++)
        sent[r] = counts[ddl_comm_rank(comm)];
    for (int i = 0; i < 100000 && status == DDL_OK; i++) {
        if (ddl_comm_rank(comm) == 1 && i == 10)
            kill(getpid(), SIGKILL);
        ddl_work *work;
        status =
            ddl_alltoallv(comm, data, sent, displs, other, counts, displs, DDL_F32, NULL, &work);
        if (status == DDL_OK) {
            status = ddl_work_wait(work, -1);
            ddl_work_destroy(work);
        }
    }
    EXPECT(status, DDL_EPEER, "rank 1 on ");
    ddl_comm_destroy(comm);
}

static const process_test tests[] = {
    {"alltoallv_counts", alltoallv_counts, 0},
    {"gatherv_counts", gatherv_counts, 0},
    {"scatterv_counts", scatterv_counts, 0},
    {"allgatherv_counts", allgatherv_counts, 0},
    {"reduce_scatterv_counts", reduce_scatterv_counts, 0},
    {"even_and_uneven", even_and_uneven, 0},
    {"roots", roots, 0},
    {"kinds", kinds, 0},
    {"empty_for_one", empty_for_one, 0},
    {"empty_and_silent", empty_and_silent, 0},
    {"killed", killed, 1 << 1},
};

int main(int argc, char **argv)
{
    run_process_tests(tests, sizeof tests / sizeof *tests, SIZE, argc, argv);
}
