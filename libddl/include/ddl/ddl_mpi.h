/* SPDX-License-Identifier: Apache-2.0 */
/* ddl_mpi.h - a comm of the ranks of an MPI communicator, for programs that mpirun starts.
 *
 *     ddl_endpoint_create(NULL, &endpoint);
 *     ddl_comm_from_mpi(MPI_COMM_WORLD, endpoint, NULL, &comm);
 *     ddl_allreduce(comm, ...);
 *
 * This header is compiled against your MPI; libddl itself does not depend on MPI. MPI only
 * exchanges the endpoints' addresses. */
#ifndef DDL_MPI_H
#define DDL_MPI_H

#include <mpi.h>
#include <stdlib.h>

#include "ddl.h"

/* The record that a rank sends to the others: its endpoint's address. */
typedef struct ddl_mpi_card {
    unsigned char address[DDL_ADDRESS_MAX]; /* as written by ddl_endpoint_address */
    size_t length;                          /* in bytes; 0 if the rank cannot join */
} ddl_mpi_card;

/* Fill in this rank's record. To check endpoint and config, create a comm of this rank alone: if
 * that fails now, the other ranks do not wait for this rank later. */
static inline ddl_status ddl_mpi_card_fill(ddl_mpi_card *record, ddl_endpoint *endpoint,
                                           const ddl_comm_config *config, ddl_comm **comm)
{
    ddl_comm *alone = NULL;
    const void *address = record->address;
    record->length = 0;
    ddl_status status =
        ddl_endpoint_address(endpoint, record->address, sizeof record->address, &record->length);
    if (status == DDL_OK)
        status = ddl_comm_create(endpoint, &address, &record->length, 0, 1, config,
                                 comm ? &alone : NULL);
    if (status == DDL_OK)
        ddl_comm_destroy(alone);
    else
        record->length = 0;
    return status;
}

/* Gather all ranks' records, by rank. Returns DDL_ENOMEM on all ranks if a rank is out of
 * memory. */
static inline ddl_status ddl_mpi_exchange(MPI_Comm mpi, ddl_mpi_card *own, ddl_mpi_card *records)
{
    int mine = records != NULL, all = 0, n = (int)sizeof *own;
    if (MPI_Allreduce(&mine, &all, 1, MPI_INT, MPI_LAND, mpi) != MPI_SUCCESS)
        return DDL_ESYSTEM;
    if (!all)
        return DDL_ENOMEM;
    return MPI_Allgather(own, n, MPI_BYTE, records, n, MPI_BYTE, mpi) == MPI_SUCCESS ? DDL_OK
                                                                                     : DDL_ESYSTEM;
}

/* Join the ranks of `mpi`, an intracommunicator, in its order. All of them must call it. If a rank
 * R cannot join, for example without an endpoint, it returns the reason, and all others return
 * DDL_EINVAL at once with "addresses[R] is NULL". There is no message for DDL_ENOMEM (a rank is out
 * of memory) and DDL_ESYSTEM (MPI failed). Blocks until all ranks have called it, which MPI does
 * not limit, then at most config->timeout_ms. config may be NULL. *comm is owned by the caller; the
 * endpoint must outlive it. Thread-safe if MPI is. Otherwise as ddl_comm_create. */
static inline ddl_status ddl_comm_from_mpi(MPI_Comm mpi, ddl_endpoint *endpoint,
                                           const ddl_comm_config *config, ddl_comm **comm)
{
    int rank = 0, size = 0;
    if (MPI_Comm_rank(mpi, &rank) != MPI_SUCCESS || MPI_Comm_size(mpi, &size) != MPI_SUCCESS)
        return DDL_ESYSTEM;
    size_t n = (size_t)size;
    const void **addresses = (const void **)malloc(n * sizeof *addresses);
    size_t *lengths = (size_t *)malloc(n * sizeof *lengths);
    ddl_mpi_card *records = (ddl_mpi_card *)malloc(n * sizeof *records);
    if (!addresses || !lengths) {
        free(records);
        records = NULL;
    }

    ddl_mpi_card own = {{0}, 0};
    ddl_status joinable = ddl_mpi_card_fill(&own, endpoint, config, comm);
    ddl_status status = ddl_mpi_exchange(mpi, &own, records);
    if (status == DDL_OK && joinable == DDL_OK) {
        for (int i = 0; i < size; i++) {
            addresses[i] = records[i].length ? records[i].address : NULL;
            lengths[i] = records[i].length;
        }
        status = ddl_comm_create(endpoint, addresses, lengths, rank, size, config, comm);
    } else if (joinable != DDL_OK) {
        status = joinable;
    }
    free(records);
    free(lengths);
    free(addresses);
    return status;
}

#endif
