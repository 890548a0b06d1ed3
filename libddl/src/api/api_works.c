/* SPDX-License-Identifier: Apache-2.0 */
/* The exported functions for works and the completion queue. */
#include "api/check_object.h"
#include "base/clock.h"
#include "base/forks.h"
#include "comm/comm.h"

ddl_status ddl_work_wait(ddl_work *work, int64_t timeout_ms)
{
    ddl_status status = ddl__check_work(work);
    if (status != DDL_OK)
        return status;
    status =
        timeout_ms == 0 ? ddl__work_test(work) : ddl__work_wait(work, ddl__deadline(timeout_ms));
    if (status != DDL_INPROGRESS)
        return status;
    return ddl__fail(DDL_ETIMEDOUT, "the work is still pending after %lld ms",
                     (long long)timeout_ms);
}

ddl_status ddl_work_test(ddl_work *work)
{
    ddl_status status = ddl__check_work(work);
    return status == DDL_OK ? ddl__work_test(work) : status;
}

void ddl_work_destroy(ddl_work *work)
{
    if (work && work->generation == ddl__generation())
        ddl__work_destroy(work);
}

ddl_status ddl_comm_completed(ddl_comm *comm, ddl_work **works, void **users, int max,
                              int64_t timeout_ms, int *taken)
{
    ddl_status status = ddl__check_comm(comm);
    if (status != DDL_OK)
        return status;
    if (!taken)
        return ddl__fail(DDL_EINVAL, "taken is NULL");
    if (max < 1)
        return ddl__fail(DDL_EINVAL, "max is %d; must be at least 1", max);
    return ddl__engine_completed(comm->engine, works, users, max, ddl__deadline(timeout_ms), taken);
}
