/* report.h - what a comm says about itself. */
#ifndef DDL_COMM_REPORT_H
#define DDL_COMM_REPORT_H

#include "base/text.h"
#include "comm/comm.h"

/* How the comm goes, whom it waits for and what the others do, as JSON. */
void ddl__report_json(ddl_comm *comm, ddl__text *to);

void ddl__comm_counters(ddl_comm *comm, ddl_counters *counters);

#endif
