/* SPDX-License-Identifier: Apache-2.0 */
/* loop_ddl.c - all-reduces of libddl in a loop. */
#define _GNU_SOURCE
#include "loop.h"

#include "ddl/ddl.h"

double loop(void *comm, void *buffer, int count, int batch)
{
    double start = now();
    for (int i = 0; i < batch; i++)
        if (ddl_allreduce(comm, NULL, buffer, count, DDL_F32, i ? DDL_MAX : DDL_SUM, NULL, NULL))
            return -1;
    return now() - start;
}
