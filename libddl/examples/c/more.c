/* SPDX-License-Identifier: Apache-2.0 */
/* more.c - asynchronous operations, messages, a group of operations, and survivors of a failure.
 *
 *     cc more.c $(pkg-config --cflags --libs libddl) -o more
 *     ddlrun -n 2 ./more
 */
#include <ddl/ddl.h>
#include <stdio.h>
#include <stdlib.h>

/* Compute while an operation is in progress. Do not use x until the work is complete. */
static ddl_status overlap(ddl_comm *comm, float *x, int count)
{
    ddl_work *work;
    ddl_status status = ddl_allreduce(comm, x, x, count, DDL_F32, DDL_SUM, NULL, &work);
    if (status != DDL_OK)
        return status;
    /* compute something that does not need x */
    status = ddl_work_wait(work, -1); /* without a limit; or poll with ddl_work_test */
    ddl_work_destroy(work);
    return status;
}

/* Send a value to the next rank, and receive one from the previous rank. ddl_send and ddl_recv are
 * the two halves. */
static ddl_status pass_on(ddl_comm *comm, const int32_t *mine, int32_t *received)
{
    int rank = ddl_comm_rank(comm), size = ddl_comm_size(comm), tag = 7;
    return ddl_sendrecv(comm, mine, 1, (rank + 1) % size, tag, received, 1,
                        (rank + size - 1) % size, tag, DDL_I32, NULL, NULL);
}

/* Submit many small operations as one. They share the time of one operation. */
static ddl_status sum_all(ddl_comm *comm, float (*tensors)[4], int n)
{
    ddl_group *group;
    ddl_status status = ddl_group_create(comm, &group);
    if (status != DDL_OK)
        return status;
    ddl_options options = {.struct_size = sizeof options, .group = group};
    for (int i = 0; i < n && status == DDL_OK; i++)
        status = ddl_allreduce(comm, tensors[i], tensors[i], 4, DDL_F32, DDL_SUM, &options, NULL);
    if (status == DDL_OK)
        status = ddl_group_submit(group, NULL, NULL);
    ddl_group_destroy(group);
    return status;
}

/* Sum x into result. If a rank dies, continue with the surviving ranks. The buffers differ, because
 * a failed operation leaves undefined values in the result. */
static ddl_status sum_of_survivors(ddl_comm **comm, const float *x, float *result, int count)
{
    ddl_status status;
    while ((status = ddl_allreduce(*comm, x, result, count, DDL_F32, DDL_SUM, NULL, NULL)) ==
           DDL_EPEER) {
        ddl_comm *next;
        fprintf(stderr, "%s\n", ddl_last_error());
        status = ddl_comm_shrink(*comm, NULL, &next);
        if (status != DDL_OK)
            return status;
        ddl_comm_destroy(*comm);
        *comm = next;
    }
    return status;
}

static void check(ddl_status status)
{
    if (status == DDL_OK)
        return;
    fprintf(stderr, "%s: %s\n", ddl_strerror(status), ddl_last_error());
    exit(1);
}

int main(void)
{
    ddl_endpoint *endpoint;
    ddl_comm *comm;
    check(ddl_endpoint_create(NULL, &endpoint));
    check(ddl_rendezvous(endpoint, NULL, -1, 0, NULL, &comm));
    int rank = ddl_comm_rank(comm), size = ddl_comm_size(comm);

    float x[4] = {1, 1, 1, 1}, tensors[3][4] = {{1}, {2}, {3}}, sum;
    int32_t mine = rank, received = -1;
    check(overlap(comm, x, 4));
    check(pass_on(comm, &mine, &received));
    check(sum_all(comm, tensors, 3));
    printf("rank %d of %d: %g, from rank %d, %g\n", rank, size, (double)x[0], received,
           (double)tensors[2][0]);

    if (rank > 0 && rank == size - 1)
        exit(0); /* without ddl_comm_destroy: to the other ranks, this is a crash */
    float one = 1;
    check(sum_of_survivors(&comm, &one, &sum, 1));
    printf("rank %d: %g of %d ranks are left\n", rank, (double)sum, size);
    ddl_comm_destroy(comm);
    ddl_endpoint_destroy(endpoint);
    return 0;
}
