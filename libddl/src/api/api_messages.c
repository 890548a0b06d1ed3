/* Exported: messages. */
#include "api/submit.h"

#include "api/check_object.h"

static ddl_status submit(ddl_comm *comm, ddl__call call, const void *buffer,
                         const ddl_options *options, ddl_work **work)
{
    ddl_options own;
    ddl_status status = ddl__check_elements(comm, &call);
    if (status != DDL_OK)
        return status;
    if (call.tag < 0)
        return ddl__fail(DDL_EINVAL, "tag is %d", call.tag);
    if (!buffer && call.count)
        return ddl__fail(DDL_EINVAL, "buffer is NULL, count is %lld", (long long)call.count);
    status = ddl__take_options(comm, options, !work, &own, &call);
    if (status != DDL_OK)
        return status;
    if (own.name && *own.name)
        return ddl__fail(DDL_EINVAL, "options.name is \"%.100s\": messages have tags, no names",
                         own.name);
    if (own.prescale != 0 || own.postscale != 0)
        return ddl__fail(DDL_EINVAL, "options.%s is %g: messages are not scaled",
                         own.prescale != 0 ? "prescale" : "postscale",
                         own.prescale != 0 ? own.prescale : own.postscale);
    return ddl__engine_submit(comm->engine, &call, work);
}

ddl_status ddl_send(ddl_comm *comm, const void *buffer, int64_t count, ddl_dtype dtype, int dest,
                    int tag, const ddl_options *options, ddl_work **work)
{
    ddl_status status = ddl__check_comm(comm);
    if (status != DDL_OK)
        return status;
    if (dest < 0 || dest >= comm->size)
        return ddl__fail(DDL_EINVAL, "dest is %d, size is %d", dest, comm->size);
    ddl__call call = {.kind = DDL__SEND,
                      .dtype = dtype,
                      .root = dest,
                      .count = count,
                      .send = buffer,
                      .tag = tag};
    return submit(comm, call, buffer, options, work);
}

ddl_status ddl_recv(ddl_comm *comm, void *buffer, int64_t count, ddl_dtype dtype, int source,
                    int tag, int *sender, const ddl_options *options, ddl_work **work)
{
    ddl_status status = ddl__check_comm(comm);
    if (status != DDL_OK)
        return status;
    if (source != DDL_ANY_SOURCE && (source < 0 || source >= comm->size))
        return ddl__fail(DDL_EINVAL, "source is %d, size is %d", source, comm->size);
    ddl__call call = {.kind = DDL__RECV,
                      .dtype = dtype,
                      .root = source,
                      .count = count,
                      .recv = buffer,
                      .tag = tag,
                      .sender = sender};
    return submit(comm, call, buffer, options, work);
}
