/* SPDX-License-Identifier: Apache-2.0 */
/* operation_times.h - -dump_iter: every so many operations, rank 0 logs how long they took, and who
 * was slow. */
#ifndef DDL_COMM_OPERATION_TIMES_H
#define DDL_COMM_OPERATION_TIMES_H

#include "base/status.h"

typedef struct ddl_comm ddl_comm;
typedef struct ddl__operation_times ddl__operation_times;

/* Measure from now on, and report every `iter` operations. NULL when out of memory. */
ddl__operation_times *ddl__operation_times_create(ddl_comm *comm, int iter);

/* An ordered operation is about to be submitted. If a report is due, the exchange of the ranks'
 * times is submitted before it: all ranks submit the same operations, so they do it at the same
 * place. Any thread. */
void ddl__operation_times_next(ddl__operation_times *times);

/* Log what is complete, before the engine ends; free, after that. */
void ddl__operation_times_close(ddl__operation_times *times);
void ddl__operation_times_destroy(ddl__operation_times *times);

#endif
