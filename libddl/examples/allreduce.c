/* allreduce.c - sum a vector over all ranks. Run it by `ddlrun -n 2 ./allreduce`. */
#include <ddl/ddl.h>
#include <stdio.h>

int main(void)
{
    ddl_endpoint *endpoint = NULL;
    ddl_comm *comm = NULL;
    float x[1000];

    ddl_status status = ddl_endpoint_create(NULL, &endpoint);
    if (status == DDL_OK) /* the group that ddlrun tells of by environment; alone without it */
        status = ddl_rendezvous(endpoint, NULL, -1, 0, NULL, &comm);
    for (int i = 0; i < 1000; i++)
        x[i] = (float)(ddl_comm_rank(comm) + 1);
    if (status == DDL_OK) /* in place, blocking */
        status = ddl_allreduce(comm, x, x, 1000, DDL_F32, DDL_SUM, NULL, NULL);

    if (status != DDL_OK)
        fprintf(stderr, "%s: %s\n", ddl_strerror(status), ddl_last_error());
    else if (ddl_comm_rank(comm) == 0)
        printf("%d ranks, every sum is %g\n", ddl_comm_size(comm), (double)x[999]);
    ddl_comm_destroy(comm);
    ddl_endpoint_destroy(endpoint);
    return status != DDL_OK;
}
