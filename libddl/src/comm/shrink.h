/* shrink.h - the survivors of a comm agree on who they are. */
#ifndef DDL_COMM_SHRINK_H
#define DDL_COMM_SHRINK_H

#include "comm/comm.h"

/* A comm of those members of a dead comm that are alive and call this as well. */
ddl_status ddl__comm_shrink(ddl_comm *parent, const ddl_comm_config *config, ddl_comm **next);

#endif
