/* SPDX-License-Identifier: Apache-2.0 */
/* Operations with a root and on uneven blocks reject invalid arguments and ignore unused ones: the
 * status, a message that names the argument and the value, buffers untouched, the comm still
 * usable. */
#include "ranks.h"

enum { SIZE = 2, BIG = 1 << 20 };

/* Counts or displacements of two ranks. */
#define TWO(a, b) ((const int64_t[]){a, b})

static void counts(ddl_comm *comm, float *a, float *b)
{
    int64_t most = ((int64_t)1 << 48) - 1, far = (int64_t)1 << 58;
    INVALID(ddl_alltoallv(NULL, a, TWO(1, 1), NULL, b, TWO(1, 1), NULL, DDL_F32, NULL, NULL),
            "comm is NULL");
    INVALID(ddl_alltoallv(comm, a, NULL, NULL, b, TWO(1, 1), NULL, DDL_F32, NULL, NULL),
            "send_counts is NULL");
    INVALID(ddl_alltoallv(comm, a, TWO(1, 1), NULL, b, NULL, NULL, DDL_F32, NULL, NULL),
            "recv_counts is NULL");
    INVALID(ddl_alltoallv(comm, a, TWO(1, -4), NULL, b, TWO(1, 1), NULL, DDL_F32, NULL, NULL),
            "send_counts[1] is -4");
    INVALID(ddl_alltoallv(comm, a, TWO(1, 1), NULL, b, TWO(-5, 1), NULL, DDL_F32, NULL, NULL),
            "recv_counts[0] is -5");
    INVALID(ddl_allgatherv(comm, a, b, TWO(INT64_MAX, 1), NULL, DDL_F32, NULL, NULL),
            "counts[0] is 9223372036854775807, which is too large for 2 ranks");
    INVALID(ddl_allgatherv(comm, a, b, TWO(1, 1), TWO(0, -2), DDL_F32, NULL, NULL),
            "displs[1] is -2");
    INVALID(ddl_allgatherv(comm, a, b, TWO(1, 1), TWO(0, far), DDL_F32, NULL, NULL),
            "displs[1] is 288230376151711744, which is too large");
    INVALID(ddl_allgatherv(comm, a, b, TWO(1, 1), TWO(INT64_MAX, 0), DDL_F32, NULL, NULL),
            "displs[0] is 9223372036854775807, which is too large");
    INVALID(ddl_allgatherv(comm, a, b, NULL, NULL, DDL_F32, NULL, NULL), "counts is NULL");
    INVALID(ddl_allgatherv(comm, a, b, TWO(1, 1), NULL, (ddl_dtype)77, NULL, NULL), "dtype is 77");
    INVALID(ddl_reduce_scatterv(comm, a, b, NULL, DDL_F32, DDL_SUM, NULL, NULL), "counts is NULL");
    INVALID(ddl_reduce_scatterv(comm, a, b, TWO(1, most + 1), DDL_F32, DDL_SUM, NULL, NULL),
            "counts[1] is 281474976710656, which is too large");
    INVALID(ddl_reduce_scatterv(comm, a, b, TWO(1, 1), DDL_F32, (ddl_op)0, NULL, NULL), "op is 0");
    INVALID(ddl_alltoallv(comm, a, TWO(1, 1), NULL, b, TWO(2, 2), NULL, DDL_F32, NULL, NULL),
            ddl_comm_rank(comm) ? "send_counts[1] is 1, but recv_counts[1] is 2"
                                : "send_counts[0] is 1, but recv_counts[0] is 2");
}

static void overlaps(ddl_comm *comm, float *a, float *b)
{
    const char *both = "4 elements at 2 for rank 1, and 3 at 5 for rank 0";
    INVALID(ddl_allgatherv(comm, a, b, TWO(3, 4), TWO(5, 2), DDL_F32, NULL, NULL), both);
    INVALID(ddl_alltoallv(comm, a, TWO(3, 3), NULL, b, TWO(3, 3), TWO(1, 3), DDL_F32, NULL, NULL),
            "recv_counts and recv_displs give overlapping blocks of recv: 3 elements at 1 for rank "
            "0, and 3 at 3 for rank 1");
    INVALID(ddl_allgatherv(comm, a + 11, a, TWO(2, 2), TWO(10, 0), DDL_F32, NULL, NULL),
            "send and recv overlap");
    INVALID(ddl_alltoallv(comm, a + 3, TWO(1, 1), TWO(0, 5), a, TWO(1, 1), TWO(2, 4), DDL_F32, NULL,
                          NULL),
            "send and recv overlap");
    INVALID(ddl_reduce_scatterv(comm, a, a + 3, TWO(2, 2), DDL_F32, DDL_SUM, NULL, NULL),
            "send and recv overlap");
    INVALID(ddl_alltoall(comm, a, a + 3, 2, DDL_F32, NULL, NULL), "send and recv overlap");
}

static void in_place(ddl_comm *comm, float *a)
{
    int other = !ddl_comm_rank(comm);
    int64_t one[] = {1, 1}, more[] = {1, 1}, here[] = {0, 4}, there[] = {0, 5};
    more[other] = 3;
    INVALID(
        ddl_alltoallv(comm, NULL, one, NULL, a, more, NULL, DDL_F32, NULL, NULL),
        other ? "in place, but this rank sends rank 1 1 elements at 1 and receives 3 at 1 from it"
              : "in place, but this rank sends rank 0 1 elements at 0 and receives 3 at 0 from it");
    INVALID(ddl_alltoallv(comm, a, one, here, a, one, there, DDL_F32, NULL, NULL),
            "in place, but this rank sends rank 1 1 elements at 4 and receives 1 at 5 from it");
}

static void pointers(ddl_comm *comm, float *a, float *b)
{
    int rank = ddl_comm_rank(comm), other = !rank;
    INVALID(ddl_reduce(comm, NULL, NULL, 1, DDL_F32, DDL_SUM, 0, NULL, NULL), "send is NULL");
    INVALID(ddl_reduce(comm, a, NULL, 1, DDL_F32, DDL_SUM, rank, NULL, NULL), "recv is NULL");
    INVALID(ddl_reduce(comm, a, a + 1, 2, DDL_F32, DDL_SUM, rank, NULL, NULL), "overlap");
    INVALID(ddl_reduce(comm, a, b, 1, DDL_F32, (ddl_op)0, rank, NULL, NULL), "op is 0");
    INVALID(ddl_reduce(comm, a, b, 1, DDL_F32, DDL_SUM, SIZE, NULL, NULL),
            "root is 2; must be from 0 to 1");
    INVALID(ddl_gather(comm, NULL, b, 1, DDL_F32, other, NULL, NULL), "send is NULL");
    INVALID(ddl_gather(comm, a, NULL, 1, DDL_F32, rank, NULL, NULL), "recv is NULL");
    INVALID(ddl_gather(comm, a + 1, a, 2, DDL_F32, rank, NULL, NULL), "overlap");
    INVALID(ddl_gather(comm, a, b, -1, DDL_F32, rank, NULL, NULL), "count is -1");
    INVALID(ddl_gather(comm, a, b, 1, DDL_F32, -1, NULL, NULL), "root is -1");
    INVALID(ddl_scatter(comm, NULL, b, 1, DDL_F32, rank, NULL, NULL), "send is NULL");
    INVALID(ddl_scatter(comm, a, NULL, 1, DDL_F32, other, NULL, NULL), "recv is NULL");
    INVALID(ddl_scatter(comm, a, a + 1, 2, DDL_F32, rank, NULL, NULL), "overlap");
    INVALID(ddl_alltoall(comm, a, NULL, 1, DDL_F32, NULL, NULL), "recv is NULL");
    INVALID(ddl_alltoall(comm, a, b, INT64_MAX / 4, DDL_F32, NULL, NULL), "too large for 2 ranks");
    INVALID(ddl_allgatherv(comm, a, NULL, TWO(1, 1), NULL, DDL_F32, NULL, NULL), "recv is NULL");
    INVALID(ddl_reduce_scatterv(comm, NULL, NULL, TWO(1, 1), DDL_F32, DDL_SUM, NULL, NULL),
            "send is NULL");
    INVALID(ddl_alltoallv(comm, NULL, TWO(1, 1), NULL, NULL, TWO(1, 1), NULL, DDL_F32, NULL, NULL),
            "send is NULL");
}

static void roots(ddl_comm *comm, float *a, float *b)
{
    int rank = ddl_comm_rank(comm), other = !rank;
    INVALID(ddl_gatherv(comm, a, 1, b, TWO(1, 1), NULL, DDL_F32, SIZE, NULL, NULL), "root is 2");
    INVALID(ddl_gatherv(comm, a, -1, NULL, NULL, NULL, DDL_F32, other, NULL, NULL), "count is -1");
    INVALID(ddl_gatherv(comm, a, (int64_t)1 << 48, NULL, NULL, NULL, DDL_F32, other, NULL, NULL),
            "count is 281474976710656, which is too large");
    INVALID(ddl_gatherv(comm, a, 1, b, NULL, NULL, DDL_F32, rank, NULL, NULL), "counts is NULL");
    INVALID(ddl_gatherv(comm, a, 1, b, TWO(2, 2), NULL, DDL_F32, rank, NULL, NULL),
            rank ? "count is 1, but counts[1] of the root is 2"
                 : "count is 1, but counts[0] of the root is 2");
    INVALID(ddl_gatherv(comm, a, 3, b, TWO(3, 3), TWO(2, 0), DDL_F32, rank, NULL, NULL),
            "3 elements at 0 for rank 1, and 3 at 2 for rank 0");
    INVALID(ddl_gatherv(comm, a, 1, NULL, TWO(1, 1), NULL, DDL_F32, rank, NULL, NULL),
            "recv is NULL");
    INVALID(ddl_gatherv(comm, NULL, 1, b, NULL, NULL, DDL_F32, other, NULL, NULL), "send is NULL");
    INVALID(ddl_gatherv(comm, a + 6, 1, a, TWO(1, 1), TWO(0, 8), DDL_F32, rank, NULL, NULL),
            "send and recv overlap");
    INVALID(ddl_scatterv(comm, a, NULL, NULL, b, 1, DDL_F32, rank, NULL, NULL), "counts is NULL");
    INVALID(ddl_scatterv(comm, a, TWO(0, 0), NULL, b, 1, DDL_F32, rank, NULL, NULL),
            "count is 1, but counts[");
    INVALID(ddl_scatterv(comm, a, TWO(1, 1), TWO(0, -1), b, 1, DDL_F32, rank, NULL, NULL),
            "displs[1] is -1");
    INVALID(ddl_scatterv(comm, NULL, TWO(1, 1), NULL, b, 1, DDL_F32, rank, NULL, NULL),
            "send is NULL");
    INVALID(ddl_scatterv(comm, NULL, NULL, NULL, NULL, 1, DDL_F32, other, NULL, NULL),
            "recv is NULL");
    INVALID(ddl_scatterv(comm, a, TWO(1, 1), NULL, b, 1, DDL_F32, -3, NULL, NULL), "root is -3");
    ddl_options options = {.struct_size = sizeof options, .timeout_ms = -1}; /* checked last */
    INVALID(ddl_scatterv(comm, a, TWO(1, 1), NULL, b, 1, DDL_F32, rank, &options, NULL),
            "timeout_ms is -1");
}

/* A pointer is ignored if nothing is sent or received, as is the displacement of an empty block. */
static void ignored(ddl_comm *comm, float *a, float *b)
{
    int rank = ddl_comm_rank(comm);
    void *wild = (void *)(uintptr_t)8;
    int64_t to_other[] = {0, 0}, nothing[] = {0, 0}, wild_displs[] = {-7, INT64_MAX};
    OK(ddl_alltoallv(comm, wild, nothing, wild_displs, NULL, nothing, NULL, DDL_F32, NULL, NULL));
    OK(ddl_gather(comm, wild, wild, 0, DDL_F32, 0, NULL, NULL));
    to_other[1] = 2; /* from rank 0 to rank 1 only */
    a[0] = 5;
    a[1] = 6;
    b[0] = b[1] = 0;
    if (rank == 0)
        OK(ddl_alltoallv(comm, a, to_other, NULL, NULL, nothing, NULL, DDL_F32, NULL, NULL));
    else
        OK(ddl_alltoallv(comm, NULL, nothing, NULL, b, TWO(2, 0), NULL, DDL_F32, NULL, NULL));
    CHECK(b[0] == (rank ? 5 : 0) && b[1] == (rank ? 6 : 0), "%g %g", (double)b[0], (double)b[1]);
    /* In place although this rank receives nothing: its operand is in recv. */
    a[0] = 1;
    a[1] = 2;
    OK(ddl_reduce_scatterv(comm, NULL, a, TWO(0, 2), DDL_F32, DDL_SUM, NULL, NULL));
    CHECK(a[0] == (rank ? 2 : 1) && a[1] == (rank ? 4 : 2), "%g %g", (double)a[0], (double)a[1]);
}

static void refusals(ddl_comm *comm, void *argument)
{
    float a[32], b[32], kept[32];
    for (int i = 0; i < 32; i++)
        kept[i] = a[i] = b[i] = (float)i;
    counts(comm, a, b);
    overlaps(comm, a, b);
    in_place(comm, a);
    pointers(comm, a, b);
    roots(comm, a, b);
    CHECK(!memcmp(a, kept, sizeof a) && !memcmp(b, kept, sizeof b), "something was touched");
    OK(ddl_comm_status(comm));
    ignored(comm, a, b);
}

/* Calls on a dead comm leak nothing, which the address sanitizer checks. */
static void on_dead_comm(ddl_comm *comm, void *argument)
{
    float a[2] = {0}, b[2];
    ddl_work *work = NULL;
    OK(ddl_alltoallv(comm, a, TWO(1, 1), NULL, b, TWO(1, 1), NULL, DDL_F32, NULL, NULL));
    OK(ddl_comm_abort(comm, "enough"));
    REFUSED(ddl_alltoallv(comm, a, TWO(1, 1), NULL, b, TWO(1, 1), NULL, DDL_F32, NULL, NULL),
            DDL_EABORTED, "");
    CHECK(ddl_alltoallv(comm, a, TWO(1, 1), NULL, b, TWO(1, 1), NULL, DDL_F32, NULL, &work) ==
                  DDL_EABORTED &&
              !work,
          "asynchronous: %s", ddl_last_error());
}

int main(void)
{
    setenv("DDL_LOG", "off", 1); /* a comm dies on purpose */
    run_ranks(SIZE, 0, refusals, NULL);
    run_ranks(1, 0, on_dead_comm, NULL);
}
