/* shrink.h - creates the comm of a dead comm's survivors. */
#ifndef DDL_COMM_SHRINK_H
#define DDL_COMM_SHRINK_H

#include "comm/comm.h"

/* Create a comm of the members of a dead comm that are alive and call this as well. */
ddl_status ddl__comm_shrink(ddl_comm *parent, const ddl_comm_config *config, ddl_comm **next);

#endif
