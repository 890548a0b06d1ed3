/* SPDX-License-Identifier: Apache-2.0 */
/* operation_times.h - the reports of -dump_iter: after every `iter` operations, rank 0 logs how
 * long they took, and which rank was slow. */
#ifndef DDL_COMM_OPERATION_TIMES_H
#define DDL_COMM_OPERATION_TIMES_H

#include "base/status.h"

typedef struct ddl_comm ddl_comm;
typedef struct ddl__operation_times ddl__operation_times;

/* Start to measure, and report every `iter` operations. Return NULL if out of memory. */
ddl__operation_times *ddl__operation_times_create(ddl_comm *comm, int iter);

/* Call this before an ordered operation is submitted. If a report is due, it first submits the
 * exchange of the ranks' times. All ranks submit the same operations, so they submit the exchange
 * at the same position. Any thread may call this. */
void ddl__operation_times_next(ddl__operation_times *times);

/* ddl__operation_times_close logs complete reports, before the engine ends;
 * ddl__operation_times_destroy frees the object, after that. */
void ddl__operation_times_close(ddl__operation_times *times);
void ddl__operation_times_destroy(ddl__operation_times *times);

#endif
