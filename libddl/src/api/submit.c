#include "api/submit.h"

#include "api/check_object.h"
#include "api/take_struct.h"
#include "base/dtype.h"

/* Bytes that one buffer may have; keeps all later sums of offsets within 64 bits. */
static const int64_t BYTES_MAX = (int64_t)1 << 60, COUNT_MAX = ((int64_t)1 << 48) - 1;

static ddl_status check_buffers(const ddl__buffers *b, int64_t count, size_t element)
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

ddl_status ddl__check_elements(const ddl_comm *comm, const ddl__call *call)
{
    size_t element = ddl__dtype_size(call->dtype);
    if (call->count < 0)
        return ddl__fail(DDL_EINVAL, "count is %lld", (long long)call->count);
    if (!element)
        return ddl__fail(DDL_EINVAL, "dtype is %d, which is none", (int)call->dtype);
    if (call->count > COUNT_MAX || call->count > BYTES_MAX / (int64_t)element / comm->size)
        return ddl__fail(DDL_EINVAL, "count is %lld, too large for %d ranks",
                         (long long)call->count, comm->size);
    return DDL_OK;
}

static ddl_status check_call(const ddl_comm *comm, const ddl__call *call)
{
    ddl_status status = ddl__check_elements(comm, call);
    if (status != DDL_OK)
        return status;
    bool reduces = call->kind == DDL__ALLREDUCE || call->kind == DDL__REDUCE_SCATTER;
    if (reduces && (call->op < DDL_SUM || call->op > DDL_LOGICAL_OR))
        return ddl__fail(DDL_EINVAL, "op is %d, which is none", (int)call->op);
    if (call->root < 0 || call->root >= comm->size)
        return ddl__fail(DDL_EINVAL, "root is %d, size is %d", call->root, comm->size);
    return DDL_OK;
}

ddl_status ddl__take_options(const ddl_comm *comm, const ddl_options *options, bool blocks,
                             ddl_options *own, ddl__call *call)
{
    ddl_status status = ddl__take_struct(own, sizeof *own, options, "ddl_options");
    if (status != DDL_OK)
        return status;
    if (own->memory != DDL_MEMORY_HOST)
        return ddl__fail(DDL_EUNSUPPORTED, "options.memory is %u: only host memory so far",
                         own->memory);
    if (own->timeout_ms < 0 || own->queued > 1)
        return ddl__fail(DDL_EINVAL, "options.timeout_ms is %lld, options.queued is %u",
                         (long long)own->timeout_ms, own->queued);
    if (own->queued && blocks)
        return ddl__fail(DDL_EINVAL, "options.queued is 1, but work is NULL: a blocking call has "
                                     "nothing to report");
    call->timeout_ms = own->timeout_ms ? own->timeout_ms : comm->operation_timeout_ms;
    call->queued = own->queued;
    call->user = own->user;
    return DDL_OK;
}

ddl_status ddl__submit(ddl_comm *comm, ddl__call call, ddl__buffers b, const ddl_options *options,
                       ddl_work **work)
{
    ddl_options own;
    ddl_status status = ddl__check_comm(comm);
    if (status == DDL_OK)
        status = check_call(comm, &call);
    if (status == DDL_OK)
        status = check_buffers(&b, call.count, ddl__dtype_size(call.dtype));
    if (status == DDL_OK)
        status = ddl__take_options(comm, options, !work, &own, &call);
    if (status != DDL_OK)
        return status;
    call.send = b.send ? b.send : b.recv;
    call.recv = b.recv;
    return ddl__engine_submit(comm->engine, &call, work);
}
