/* SPDX-License-Identifier: Apache-2.0 */
/* ddl_mpi.c - ddl_comm_from_mpi on the ranks of mpirun: joined in the communicator's order; refused
 * everywhere at once when one rank cannot join. Valid C and C++. Exit code 0: all right. */
#include <ddl/ddl_mpi.h>

#include <stdio.h>
#include <string.h>

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s; \"%s\"\n", __FILE__, __LINE__, #condition,                 \
                    ddl_last_error());                                                             \
            MPI_Abort(MPI_COMM_WORLD, 1);                                                          \
        }                                                                                          \
    } while (0)

static void joined(ddl_endpoint *endpoint, MPI_Comm mpi)
{
    int rank, size;
    ddl_comm *comm = NULL;
    MPI_Comm_rank(mpi, &rank);
    MPI_Comm_size(mpi, &size);
    CHECK(ddl_comm_from_mpi(mpi, endpoint, NULL, &comm) == DDL_OK);
    CHECK(ddl_comm_rank(comm) == rank && ddl_comm_size(comm) == size);
    int32_t x = rank + 1;
    CHECK(ddl_allreduce(comm, &x, &x, 1, DDL_I32, DDL_SUM, NULL, NULL) == DDL_OK);
    CHECK(x == size * (size + 1) / 2);
    ddl_comm_destroy(comm);
}

/* The last rank cannot join, and says why; the others hear who it is. */
static void refused(ddl_endpoint *endpoint, const ddl_comm_config *config, int bad,
                    const char *reason)
{
    int rank, size;
    char others[64];
    ddl_comm *comm = NULL;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    sprintf(others, "addresses[%d] is NULL", size - 1);
    double start = MPI_Wtime();
    CHECK(ddl_comm_from_mpi(MPI_COMM_WORLD, endpoint, config, &comm) == DDL_EINVAL);
    CHECK(strstr(ddl_last_error(), bad ? reason : others));
    CHECK(!comm && MPI_Wtime() - start < 30);
}

int main(int argc, char **argv)
{
    int rank, size;
    ddl_endpoint *endpoint = NULL;
    ddl_comm *comm = NULL;
    ddl_comm_config config;
    MPI_Comm reverse;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    int last = rank == size - 1;
    CHECK(ddl_endpoint_create(NULL, &endpoint) == DDL_OK);

    joined(endpoint, MPI_COMM_WORLD);
    joined(endpoint, MPI_COMM_WORLD);
    joined(endpoint, MPI_COMM_SELF);
    MPI_Comm_split(MPI_COMM_WORLD, 0, -rank, &reverse);
    joined(endpoint, reverse);
    MPI_Comm_free(&reverse);

    refused(last ? NULL : endpoint, NULL, last, "endpoint is NULL");
    memset(&config, 0, sizeof config);
    config.struct_size = sizeof config;
    config.timeout_ms = last ? -5 : 0;
    refused(endpoint, &config, last, "timeout_ms is -5");
    CHECK(ddl_comm_from_mpi(MPI_COMM_SELF, endpoint, NULL, NULL) == DDL_EINVAL);
    CHECK(ddl_comm_from_mpi(MPI_COMM_SELF, NULL, NULL, &comm) == DDL_EINVAL && !comm);
    joined(endpoint, MPI_COMM_WORLD);

    ddl_endpoint_destroy(endpoint);
    MPI_Finalize();
    if (rank == 0)
        printf("%d ranks\n", size);
    return 0;
}
