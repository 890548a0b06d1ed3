/* SPDX-License-Identifier: Apache-2.0 */
/* allreduce.c - sum a vector over all ranks, and receive a number from rank 0.
 *
 *     cc allreduce.c $(pkg-config --cflags --libs libddl) -o allreduce
 *     ddlrun -n 2 ./allreduce
 */
#include <ddl/ddl.h>
#include <stdbool.h>
#include <stdio.h>

enum { COUNT = 1000 };

static bool good(ddl_status status)
{
    if (status != DDL_OK)
        fprintf(stderr, "%s: %s\n", ddl_strerror(status), ddl_last_error());
    return status == DDL_OK;
}

static bool run(ddl_comm *comm)
{
    int rank = ddl_comm_rank(comm), size = ddl_comm_size(comm);
    float x[COUNT], word = rank == 0 ? 42 : 0;
    for (int i = 0; i < COUNT; i++)
        x[i] = (float)(rank + 1);

    /* In place and blocking: send == recv, work NULL. */
    if (!good(ddl_allreduce(comm, x, x, COUNT, DDL_F32, DDL_SUM, NULL, NULL)) ||
        !good(ddl_broadcast(comm, &word, 1, DDL_F32, 0, NULL, NULL)))
        return false;

    bool right = word == 42;
    for (int i = 0; i < COUNT; i++)
        right = right && x[i] == (float)(size * (size + 1) / 2);
    printf("rank %d of %d: every sum is %g, rank 0 says %g, %s\n", rank, size, (double)x[0],
           (double)word, right ? "right" : "wrong");
    return right;
}

int main(void)
{
    ddl_endpoint *endpoint = NULL;
    ddl_comm *comm = NULL;

    /* The ranks that a launcher such as ddlrun has started; without one, this one alone. */
    bool right = good(ddl_endpoint_create(NULL, &endpoint)) &&
                 good(ddl_rendezvous(endpoint, NULL, -1, 0, NULL, &comm)) && run(comm);
    ddl_comm_destroy(comm);
    ddl_endpoint_destroy(endpoint);
    return right ? 0 : 1;
}
