/* Exported: what becomes of a comm when members fail, and what it says about itself. */
#include "api/check_object.h"
#include "comm/comm.h"

ddl_status ddl_comm_failed(ddl_comm *comm, int *ranks, int capacity, int *count)
{
    ddl_status status = ddl__check_comm(comm);
    if (status != DDL_OK)
        return status;
    if (capacity < 0 || (capacity && !ranks) || !count)
        return ddl__fail(DDL_EINVAL, "capacity is %d, ranks is %s, count is %s", capacity,
                         ranks ? "given" : "NULL", count ? "given" : "NULL");
    *count = comm->control ? ddl__control_failed(comm->control, ranks, capacity) : 0;
    return DDL_OK;
}
