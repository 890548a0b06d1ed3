/* check_object.h - checks the handles that callers pass: not NULL, and not inherited by fork. */
#ifndef DDL_API_CHECK_OBJECT_H
#define DDL_API_CHECK_OBJECT_H

#include "comm/comm.h"

ddl_status ddl__check_endpoint(const ddl_endpoint *endpoint);
ddl_status ddl__check_comm(const ddl_comm *comm);
ddl_status ddl__check_work(const ddl_work *work);
ddl_status ddl__check_group(const ddl_group *group);

#endif
