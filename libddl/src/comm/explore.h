/* SPDX-License-Identifier: Apache-2.0 */
/* explore.h - measures which algorithm is the fastest for each operation and size, for -mode p. */
#ifndef DDL_COMM_EXPLORE_H
#define DDL_COMM_EXPLORE_H

#include "comm/comm.h"

/* Run every operation in growing sizes by each of its candidates. The choices go to the layout of
 * the comm, equal on all members, and from rank 0 to $DDL_PLAN_FILE. All members call it, with an
 * empty layout.choices, and nothing else runs on the comm meanwhile. */
ddl_status ddl__explore(ddl_comm *comm, int64_t deadline);

#endif
