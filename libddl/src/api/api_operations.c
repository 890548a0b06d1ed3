/* Exported: collective operations with equal counts. */
#include "api/submit.h"

ddl_status ddl_allreduce(ddl_comm *comm, const void *send, void *recv, int64_t count,
                         ddl_dtype dtype, ddl_op op, const ddl_options *options, ddl_work **work)
{
    ddl__call call = {.kind = DDL__ALLREDUCE, .dtype = dtype, .op = op, .count = count};
    return ddl__submit(comm, call, (ddl__buffers){send, recv, 1, 1}, options, work);
}

ddl_status ddl_reduce_scatter(ddl_comm *comm, const void *send, void *recv, int64_t count,
                              ddl_dtype dtype, ddl_op op, const ddl_options *options,
                              ddl_work **work)
{
    ddl__call call = {.kind = DDL__REDUCE_SCATTER, .dtype = dtype, .op = op, .count = count};
    return ddl__submit(comm, call, (ddl__buffers){send, recv, comm ? comm->size : 0, 1}, options,
                       work);
}

ddl_status ddl_allgather(ddl_comm *comm, const void *send, void *recv, int64_t count,
                         ddl_dtype dtype, const ddl_options *options, ddl_work **work)
{
    ddl__call call = {.kind = DDL__ALLGATHER, .dtype = dtype, .count = count};
    return ddl__submit(comm, call, (ddl__buffers){send, recv, 1, comm ? comm->size : 0}, options,
                       work);
}

ddl_status ddl_broadcast(ddl_comm *comm, void *buffer, int64_t count, ddl_dtype dtype, int root,
                         const ddl_options *options, ddl_work **work)
{
    ddl__call call = {.kind = DDL__BROADCAST, .dtype = dtype, .root = root, .count = count};
    return ddl__submit(comm, call, (ddl__buffers){NULL, buffer, 1, 1}, options, work);
}

ddl_status ddl_barrier(ddl_comm *comm, const ddl_options *options, ddl_work **work)
{
    ddl__call call = {.kind = DDL__BARRIER, .dtype = DDL_U8};
    return ddl__submit(comm, call, (ddl__buffers){NULL, NULL, 0, 0}, options, work);
}
