/* SPDX-License-Identifier: Apache-2.0 */
/* report.h - reports on a comm's state. */
#ifndef DDL_COMM_REPORT_H
#define DDL_COMM_REPORT_H

#include "base/text.h"
#include "comm/comm.h"

/* Write the comm's state as JSON: pending operations, missing ranks, and the members. */
void ddl__report_json(ddl_comm *comm, ddl__text *to);

void ddl__comm_counters(ddl_comm *comm, ddl_counters *counters);

#endif
