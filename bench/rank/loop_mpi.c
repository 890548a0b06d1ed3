/* SPDX-License-Identifier: Apache-2.0 */
/* loop_mpi.c - all-reduces of an MPI in a loop. */
#define _GNU_SOURCE
#include "loop.h"

#include <mpi.h>

double loop(void *comm, void *buffer, int count, int batch)
{
    double start = now();
    for (int i = 0; i < batch; i++)
        if (MPI_Allreduce(MPI_IN_PLACE, buffer, count, MPI_FLOAT, i ? MPI_MAX : MPI_SUM,
                          *(MPI_Comm *)comm))
            return -1;
    return now() - start;
}
