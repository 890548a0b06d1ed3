/* SPDX-License-Identifier: Apache-2.0 */
/* A rank of a job: adds over all ranks, is idle for as many seconds as the argument says, and adds
 * again. */
#include "check.h"
#include "ddl/ddl.h"

int main(int argc, char **argv)
{
    ddl_endpoint *endpoint;
    ddl_comm *comm;
    OK(ddl_endpoint_create(NULL, &endpoint));
    OK(ddl_rendezvous(endpoint, NULL, -1, 0, NULL, &comm));
    for (int k = 0; k < 2; k++) {
        int32_t sum = ddl_comm_rank(comm) + 1, size = ddl_comm_size(comm);
        OK(ddl_allreduce(comm, NULL, &sum, 1, DDL_I32, DDL_SUM, NULL, NULL));
        CHECK(sum == size * (size + 1) / 2, "%d", sum);
        if (!k && argc > 1)
            sleep((unsigned)atoi(argv[1]));
    }
    printf("rank %d of %d has added\n", ddl_comm_rank(comm), ddl_comm_size(comm));
    ddl_comm_destroy(comm);
    ddl_endpoint_destroy(endpoint);
    return 0;
}
