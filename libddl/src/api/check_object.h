/* SPDX-License-Identifier: Apache-2.0 */
/* check_object.h - checks that a handle passed by the caller is not NULL and was not inherited
 * through fork. */
#ifndef DDL_API_CHECK_OBJECT_H
#define DDL_API_CHECK_OBJECT_H

#include "base/forks.h"
#include "comm/comm.h"

static inline ddl_status ddl__check_object(const void *object, const char *what, bool inherited)
{
    if (!object)
        return ddl__fail(DDL_EINVAL, "%s is NULL", what);
    return inherited
               ? ddl__fail(DDL_ESTATE,
                           "this %s was created before the process was forked: the child must "
                           "create its own",
                           what)
               : DDL_OK;
}

static inline ddl_status ddl__check_endpoint(const ddl_endpoint *endpoint)
{
    return ddl__check_object(endpoint, "endpoint", endpoint && ddl__endpoint_inherited(endpoint));
}

static inline ddl_status ddl__check_comm(const ddl_comm *comm)
{
    return ddl__check_object(comm, "comm", comm && comm->generation != ddl__generation());
}

static inline ddl_status ddl__check_work(const ddl_work *work)
{
    return ddl__check_object(work, "work", work && work->generation != ddl__generation());
}

static inline ddl_status ddl__check_group(const ddl_group *group)
{
    return ddl__check_object(group, "group", group && group->generation != ddl__generation());
}

#endif
