/* SPDX-License-Identifier: Apache-2.0 */
/* allreduce.c - sum a vector over the ranks that mpirun started.
 *
 *     mpicc allreduce.c $(pkg-config --cflags --libs libddl) -o allreduce
 *     mpirun -n 2 ./allreduce
 */
#include <ddl/ddl_mpi.h>
#include <stdio.h>

int main(int argc, char **argv)
{
    ddl_endpoint *endpoint = NULL;
    ddl_comm *comm = NULL;
    float x[1000];
    MPI_Init(&argc, &argv);

    ddl_status status = ddl_endpoint_create(NULL, &endpoint);
    if (status == DDL_OK)
        status = ddl_comm_from_mpi(MPI_COMM_WORLD, endpoint, NULL, &comm);
    int rank = ddl_comm_rank(comm), size = ddl_comm_size(comm);
    for (int i = 0; i < 1000; i++)
        x[i] = (float)(rank + 1);
    if (status == DDL_OK)
        status = ddl_allreduce(comm, x, x, 1000, DDL_F32, DDL_SUM, NULL, NULL);

    if (status == DDL_OK)
        printf("rank %d of %d: every sum is %g\n", rank, size, (double)x[0]);
    else
        fprintf(stderr, "%s: %s\n", ddl_strerror(status), ddl_last_error());
    ddl_comm_destroy(comm);
    ddl_endpoint_destroy(endpoint);
    MPI_Finalize();
    return status != DDL_OK;
}
