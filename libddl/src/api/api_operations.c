/* Exported: collective operations on even blocks. */
#include "api/submit.h"

ddl_status ddl_allreduce(ddl_comm *comm, const void *send, void *recv, int64_t count,
                         ddl_dtype dtype, ddl_op op, const ddl_options *options, ddl_work **work)
{
    ddl__call call = {.kind = DDL__ALLREDUCE, .dtype = dtype, .op = op, .count = count};
    return ddl__submit(comm, &call, &(ddl__buffers){send, recv, 1, 1}, options, work);
}

ddl_status ddl_reduce_scatter(ddl_comm *comm, const void *send, void *recv, int64_t count,
                              ddl_dtype dtype, ddl_op op, const ddl_options *options,
                              ddl_work **work)
{
    ddl__call call = {.kind = DDL__REDUCE_SCATTER, .dtype = dtype, .op = op, .count = count};
    return ddl__submit(comm, &call, &(ddl__buffers){send, recv, comm ? comm->size : 0, 1}, options,
                       work);
}

ddl_status ddl_allgather(ddl_comm *comm, const void *send, void *recv, int64_t count,
                         ddl_dtype dtype, const ddl_options *options, ddl_work **work)
{
    ddl__call call = {.kind = DDL__ALLGATHER, .dtype = dtype, .count = count};
    return ddl__submit(comm, &call, &(ddl__buffers){send, recv, 1, comm ? comm->size : 0}, options,
                       work);
}

ddl_status ddl_broadcast(ddl_comm *comm, void *buffer, int64_t count, ddl_dtype dtype, int root,
                         const ddl_options *options, ddl_work **work)
{
    ddl__call call = {.kind = DDL__BROADCAST, .dtype = dtype, .root = root, .count = count};
    return ddl__submit(comm, &call, &(ddl__buffers){NULL, buffer, 1, 1}, options, work);
}

/* comm NULL and a wrong root are refused by ddl__submit. */
static bool is_root(const ddl_comm *comm, int root)
{
    return comm && comm->rank == root;
}

ddl_status ddl_reduce(ddl_comm *comm, const void *send, void *recv, int64_t count, ddl_dtype dtype,
                      ddl_op op, int root, const ddl_options *options, ddl_work **work)
{
    ddl__call call = {
        .kind = DDL__REDUCE_TO_ROOT, .dtype = dtype, .op = op, .root = root, .count = count};
    return ddl__submit(comm, &call, &(ddl__buffers){send, recv, 1, is_root(comm, root)}, options,
                       work);
}

ddl_status ddl_gather(ddl_comm *comm, const void *send, void *recv, int64_t count, ddl_dtype dtype,
                      int root, const ddl_options *options, ddl_work **work)
{
    ddl__call call = {.kind = DDL__GATHER, .dtype = dtype, .root = root, .count = count};
    ddl__buffers buffers = {.send = send, .send_blocks = 1};
    if (is_root(comm, root)) {
        buffers.recv = recv;
        buffers.recv_blocks = comm->size;
    }
    return ddl__submit(comm, &call, &buffers, options, work);
}

ddl_status ddl_scatter(ddl_comm *comm, const void *send, void *recv, int64_t count, ddl_dtype dtype,
                       int root, const ddl_options *options, ddl_work **work)
{
    ddl__call call = {.kind = DDL__SCATTER, .dtype = dtype, .root = root, .count = count};
    ddl__buffers buffers = {.recv = recv, .recv_blocks = 1};
    if (is_root(comm, root)) {
        ddl__scatter_from(&buffers, send);
        buffers.send_blocks = comm->size;
    }
    return ddl__submit(comm, &call, &buffers, options, work);
}

ddl_status ddl_alltoall(ddl_comm *comm, const void *send, void *recv, int64_t count,
                        ddl_dtype dtype, const ddl_options *options, ddl_work **work)
{
    ddl__call call = {.kind = DDL__ALLTOALL, .dtype = dtype, .count = count};
    int64_t size = comm ? comm->size : 0;
    return ddl__submit(comm, &call, &(ddl__buffers){send, recv, size, size}, options, work);
}

ddl_status ddl_barrier(ddl_comm *comm, const ddl_options *options, ddl_work **work)
{
    ddl__call call = {.kind = DDL__BARRIER, .dtype = DDL_U8};
    return ddl__submit(comm, &call, &(ddl__buffers){NULL, NULL, 0, 0}, options, work);
}
