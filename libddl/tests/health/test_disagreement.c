/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks call different operations, and exchange no data by which the data path could detect it: the
 * members compare their waiting operations, and every rank gets an error that describes the calls.
 * Ranks are processes. */
#include "processes.h"

enum { SIZE = 4, ODD = 2 };

static float data[1000], more[1000];

/* Wait for the error of this call or the next one. */
static ddl_status fail_soon(ddl_comm *comm, ddl_status status)
{
    while (status == DDL_OK)
        status = ddl_barrier(comm, NULL, NULL);
    return status;
}

static void finish(ddl_comm *comm, double start, double limit)
{
    CHECK(seconds() - start < limit, "rank %d: %g s", ddl_comm_rank(comm), seconds() - start);
    ddl_comm_destroy(comm);
}

/* Each half has another root: with most plans, the halves exchange nothing. A rank that has sent
 * its block may be in the barrier. */
static void different_roots(ddl_comm *comm)
{
    int rank = ddl_comm_rank(comm);
    OK(ddl_barrier(comm, NULL, NULL));
    double start = seconds();
    ddl_status status = ddl_gather(comm, data, more, 5, DDL_F32, rank == ODD ? ODD : 0, NULL, NULL);
    status = fail_soon(comm, status);
    EXPECT(status, DDL_EMISMATCH, "called gather(f32, 5, root 2)");
    CHECK(strstr(ddl_last_error(), "called gather(f32, 5, root 0)") ||
              strstr(ddl_last_error(), "called barrier as operation 3"),
          "rank %d got \"%s\"", rank, ddl_last_error());
    finish(comm, start, 20);
}

/* One rank has sent its data to a rank that does not receive them, and computes. */
static void sent_already(ddl_comm *comm)
{
    int rank = ddl_comm_rank(comm);
    OK(ddl_barrier(comm, NULL, NULL));
    double start = seconds();
    ddl_status status = DDL_OK;
    if (rank == ODD) {
        status = ddl_reduce(comm, data, more, 100, DDL_F32, DDL_SUM, 1, NULL, NULL);
        sleep(2);
    } else {
        status = ddl_gather(comm, data, more, 7, DDL_I32, 0, NULL, NULL);
    }
    status = fail_soon(comm, status);
    EXPECT(status, DDL_EMISMATCH, "reduce(f32, 100, sum, root 1)");
    EXPECT(status, DDL_EMISMATCH, "gather(i32, 7, root 0)");
    finish(comm, start, 20);
}

/* Rank 0 expects a block that another rank considers empty. */
static void empty_block(ddl_comm *comm)
{
    int rank = ddl_comm_rank(comm);
    int64_t give[SIZE] = {0}, take[SIZE] = {0};
    if (rank == 0)
        take[ODD] = 100;
    OK(ddl_barrier(comm, NULL, NULL));
    double start = seconds();
    ddl_status status =
        ddl_alltoallv(comm, data, give, NULL, more, take, NULL, DDL_F32, NULL, NULL);
    if (rank == 0) {
        EXPECT(status, DDL_EMISMATCH, "rank 0 on ");
        EXPECT(status, DDL_EMISMATCH, "all-to-all-v(f32) as operation 2");
    } else {
        OK(status);
        while (ddl_comm_status(comm) == DDL_OK && seconds() - start < 30)
            usleep(10000);
        EXPECT(ddl_barrier(comm, NULL, NULL), DDL_EMISMATCH, "all-to-all-v(f32) as operation 2");
    }
    finish(comm, start, 30);
}

/* The other ranks have finished and leave. */
static void one_more(ddl_comm *comm)
{
    OK(ddl_barrier(comm, NULL, NULL));
    double start = seconds();
    if (ddl_comm_rank(comm) == ODD) {
        ddl_status status = ddl_gather(comm, data, more, 5, DDL_F32, ODD, NULL, NULL);
        EXPECT(status, DDL_EPEER, "left the comm");
    }
    finish(comm, start, 20);
}

/* A rank is only late: no error, however long it takes. */
static void late(ddl_comm *comm)
{
    OK(ddl_barrier(comm, NULL, NULL));
    if (ddl_comm_rank(comm) == ODD)
        usleep(2500000);
    OK(ddl_allreduce(comm, NULL, data, 10, DDL_F32, DDL_SUM, NULL, NULL));
    int64_t counts[SIZE] = {1, 2, 3, 4};
    OK(ddl_allgatherv(comm, data, more, counts, NULL, DDL_F32, NULL, NULL));
    ddl_comm_destroy(comm);
}

static const process_test tests[] = {
    {"different_roots", different_roots, 0},
    {"sent_already", sent_already, 0},
    {"empty_block", empty_block, 0, DDL_LINK_TCP},
    {"one_more", one_more, 0},
    {"late", late, 0},
};

int main(int argc, char **argv)
{
    run_process_tests(tests, sizeof tests / sizeof *tests, SIZE, argc, argv);
}
