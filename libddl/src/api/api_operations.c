/* Exported: operations and works. */
#include "api/check_object.h"
#include "api/take_struct.h"
#include "base/clock.h"
#include "base/dtype.h"
#include "base/forks.h"
#include "comm/comm.h"

/* Bytes that one buffer may have; keeps all later sums of offsets within 64 bits. */
static const int64_t BYTES_MAX = (int64_t)1 << 60, COUNT_MAX = ((int64_t)1 << 48) - 1;

typedef struct buffers {
    const void *send;
    void *recv;
    int64_t send_blocks, recv_blocks; /* of count elements each */
} buffers;

static ddl_status check_buffers(const buffers *b, int64_t count, size_t element)
{
    const char *send = b->send, *recv = b->recv;
    if (count == 0)
        return DDL_OK;
    if (!recv)
        return ddl__fail(DDL_EINVAL, "recv is NULL, count is %lld", (long long)count);
    if (!send || send == recv)
        return DDL_OK;
    size_t n = (size_t)count * element;
    size_t sent = n * (size_t)b->send_blocks, received = n * (size_t)b->recv_blocks;
    if (send < recv + received && recv < send + sent)
        return ddl__fail(DDL_EINVAL,
                         "send and recv overlap: %zu bytes at %p, %zu bytes at %p; in place means "
                         "send == recv or send NULL",
                         sent, b->send, received, b->recv);
    return DDL_OK;
}

static ddl_status check_call(const ddl_comm *comm, const ddl__call *call)
{
    size_t element = ddl__dtype_size(call->dtype);
    if (call->count < 0)
        return ddl__fail(DDL_EINVAL, "count is %lld", (long long)call->count);
    if (!element)
        return ddl__fail(DDL_EINVAL, "dtype is %d, which is none", (int)call->dtype);
    if (call->count > COUNT_MAX || call->count > BYTES_MAX / (int64_t)element / comm->size)
        return ddl__fail(DDL_EINVAL, "count is %lld, too large for %d ranks",
                         (long long)call->count, comm->size);
    bool reduces = call->kind == DDL__ALLREDUCE || call->kind == DDL__REDUCE_SCATTER;
    if (reduces && (call->op < DDL_SUM || call->op > DDL_PRODUCT))
        return ddl__fail(DDL_EINVAL, "op is %d, which is none", (int)call->op);
    if (call->root < 0 || call->root >= comm->size)
        return ddl__fail(DDL_EINVAL, "root is %d, size is %d", call->root, comm->size);
    return DDL_OK;
}

static ddl_status submit(ddl_comm *comm, ddl__call call, buffers b, const ddl_options *options,
                         ddl_work **work)
{
    ddl_options own = {0};
    ddl_status status = ddl__check_comm(comm);
    if (status == DDL_OK)
        status = check_call(comm, &call);
    if (status == DDL_OK)
        status = check_buffers(&b, call.count, ddl__dtype_size(call.dtype));
    if (status == DDL_OK && options)
        status = ddl__take_struct(&own, sizeof own, options, "ddl_options");
    if (status != DDL_OK)
        return status;
    if (own.memory != DDL_MEMORY_HOST)
        return ddl__fail(DDL_EUNSUPPORTED, "options.memory is %u: only host memory so far",
                         own.memory);
    if (own.timeout_ms < 0 || own.queued > 1)
        return ddl__fail(DDL_EINVAL, "options.timeout_ms is %lld, options.queued is %u",
                         (long long)own.timeout_ms, own.queued);
    if (own.queued && !work)
        return ddl__fail(DDL_EINVAL, "options.queued is 1, but work is NULL: a blocking call has "
                                     "nothing to report");
    call.send = b.send ? b.send : b.recv;
    call.recv = b.recv;
    call.timeout_ms = own.timeout_ms ? own.timeout_ms : comm->operation_timeout_ms;
    call.queued = own.queued;
    call.user = own.user;
    return ddl__engine_submit(comm->engine, &call, work);
}

ddl_status ddl_allreduce(ddl_comm *comm, const void *send, void *recv, int64_t count,
                         ddl_dtype dtype, ddl_op op, const ddl_options *options, ddl_work **work)
{
    ddl__call call = {.kind = DDL__ALLREDUCE, .dtype = dtype, .op = op, .count = count};
    return submit(comm, call, (buffers){send, recv, 1, 1}, options, work);
}

ddl_status ddl_reduce_scatter(ddl_comm *comm, const void *send, void *recv, int64_t count,
                              ddl_dtype dtype, ddl_op op, const ddl_options *options,
                              ddl_work **work)
{
    ddl__call call = {.kind = DDL__REDUCE_SCATTER, .dtype = dtype, .op = op, .count = count};
    return submit(comm, call, (buffers){send, recv, comm ? comm->size : 0, 1}, options, work);
}

ddl_status ddl_allgather(ddl_comm *comm, const void *send, void *recv, int64_t count,
                         ddl_dtype dtype, const ddl_options *options, ddl_work **work)
{
    ddl__call call = {.kind = DDL__ALLGATHER, .dtype = dtype, .count = count};
    return submit(comm, call, (buffers){send, recv, 1, comm ? comm->size : 0}, options, work);
}

ddl_status ddl_broadcast(ddl_comm *comm, void *buffer, int64_t count, ddl_dtype dtype, int root,
                         const ddl_options *options, ddl_work **work)
{
    ddl__call call = {.kind = DDL__BROADCAST, .dtype = dtype, .root = root, .count = count};
    return submit(comm, call, (buffers){NULL, buffer, 1, 1}, options, work);
}

ddl_status ddl_barrier(ddl_comm *comm, const ddl_options *options, ddl_work **work)
{
    ddl__call call = {.kind = DDL__BARRIER, .dtype = DDL_U8};
    return submit(comm, call, (buffers){NULL, NULL, 0, 0}, options, work);
}

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
        return ddl__fail(DDL_EINVAL, "max is %d", max);
    return ddl__engine_completed(comm->engine, works, users, max, ddl__deadline(timeout_ms), taken);
}
