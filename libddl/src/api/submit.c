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

static ddl_status check_reduction(ddl_dtype dtype, ddl_op op)
{
    if (op < DDL_SUM || op > DDL_LOGICAL_OR)
        return ddl__fail(DDL_EINVAL, "op is %d, which is none", (int)op);
    if (ddl__reduces(dtype, op))
        return DDL_OK;
    const char *name = ddl__dtype_name(dtype), *has = "sum, average, min, max and product";
    if (ddl__dtype_class(dtype) == DDL__TRUTH)
        has = "all others";
    if (ddl__dtype_class(dtype) == DDL__COMPLEX)
        has = "sum and average";
    return ddl__fail(DDL_EUNSUPPORTED, "%s of %s is not defined; %s has %s", ddl__op_name(op), name,
                     name, has);
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
    ddl_status status = reduces ? check_reduction(call->dtype, call->op) : DDL_OK;
    if (status != DDL_OK)
        return status;
    if (call->root < 0 || call->root >= comm->size)
        return ddl__fail(DDL_EINVAL, "root is %d, size is %d", call->root, comm->size);
    return DDL_OK;
}

ddl_status ddl__submit(ddl_comm *comm, ddl__call call, ddl__buffers b, const ddl_options *options,
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
