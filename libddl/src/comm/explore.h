/* SPDX-License-Identifier: Apache-2.0 */
/* explore.h - the measurement of the fastest algorithm for each operation and size, for -mode p. */
#ifndef DDL_COMM_EXPLORE_H
#define DDL_COMM_EXPLORE_H

#include "comm/comm.h"

/* Run every operation in growing sizes with each of its candidates. Stores the choices in the
 * comm's layout, equal on all members, and on rank 0 in $DDL_PLAN_FILE. All members call it, with
 * an empty layout.choices; nothing else may run on the comm meanwhile. */
ddl_status ddl__explore(ddl_comm *comm, int64_t deadline);

#endif
