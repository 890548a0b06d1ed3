#include "api/check_object.h"

#include "base/forks.h"

static ddl_status fail_inherited(const char *what)
{
    return ddl__fail(
        DDL_ESTATE,
        "this %s was created before the process was forked: a child must create its own", what);
}

ddl_status ddl__check_endpoint(const ddl_endpoint *endpoint)
{
    if (!endpoint)
        return ddl__fail(DDL_EINVAL, "endpoint is NULL");
    return ddl__endpoint_inherited(endpoint) ? fail_inherited("endpoint") : DDL_OK;
}

ddl_status ddl__check_comm(const ddl_comm *comm)
{
    if (!comm)
        return ddl__fail(DDL_EINVAL, "comm is NULL");
    return ddl__endpoint_inherited(comm->endpoint) ? fail_inherited("comm") : DDL_OK;
}

ddl_status ddl__check_work(const ddl_work *work)
{
    if (!work)
        return ddl__fail(DDL_EINVAL, "work is NULL");
    return work->generation != ddl__generation() ? fail_inherited("work") : DDL_OK;
}

ddl_status ddl__check_group(const ddl_group *group)
{
    if (!group)
        return ddl__fail(DDL_EINVAL, "group is NULL");
    return group->generation != ddl__generation() ? fail_inherited("group") : DDL_OK;
}
