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
    if (reduces && (call->op < DDL_SUM || call->op > DDL_LOGICAL_OR))
        return ddl__fail(DDL_EINVAL, "op is %d, which is none", (int)call->op);
    if (call->root < 0 || call->root >= comm->size)
        return ddl__fail(DDL_EINVAL, "root is %d, size is %d", call->root, comm->size);
    return DDL_OK;
}

static ddl_status check_options(const ddl_options *options)
{
    if (options->memory != DDL_MEMORY_HOST)
        return ddl__fail(DDL_EUNSUPPORTED, "options.memory is %u: only host memory so far",
                         options->memory);
    if (options->timeout_ms < 0 || options->queued > 1)
        return ddl__fail(DDL_EINVAL, "options.timeout_ms is %lld, options.queued is %u",
                         (long long)options->timeout_ms, options->queued);
    return DDL_OK;
}

ddl_status ddl__take_options(ddl_options *own, const ddl_options *options, ddl_work *const *work)
{
    ddl_status status = ddl__take_struct(own, sizeof *own, options, "ddl_options");
    if (status == DDL_OK)
        status = check_options(own);
    if (status == DDL_OK && own->queued && !work)
        status = ddl__fail(DDL_EINVAL, "options.queued is 1, but work is NULL: a blocking call has "
                                       "nothing to report");
    return status;
}

void ddl__apply_options(ddl__call *call, const ddl_options *own, int64_t limit_ms)
{
    call->timeout_ms = own->timeout_ms ? own->timeout_ms : limit_ms;
    call->queued = own->queued;
    call->user = own->user;
    call->prescale = own->prescale == 1 ? 0 : own->prescale;
    call->postscale = own->postscale == 1 ? 0 : own->postscale;
}

/* A call with options.group is kept for later. */
static ddl_status collect(ddl_comm *comm, const ddl__call *call, const ddl_options *options,
                          ddl_work *const *work)
{
    ddl_group *group = options->group;
    ddl_status status = ddl__check_group(group);
    if (status != DDL_OK)
        return status;
    if (group->engine != comm->engine)
        return ddl__fail(DDL_EINVAL, "options.group belongs to another comm");
    if (work)
        return ddl__fail(DDL_EINVAL, "work is not NULL: the operations of a group have one work "
                                     "together, from ddl_group_submit");
    if (options->name && options->name[0])
        return ddl__fail(DDL_EINVAL,
                         "options.name is \"%.64s\": name the group instead, in "
                         "ddl_group_submit",
                         options->name);
    if (ddl__engine_holds_group(comm->engine, group))
        return ddl__fail(DDL_ESTATE, "the group is under way: add to it when it is complete");
    return ddl__group_add(group, call);
}

static bool reduces(const ddl__call *call)
{
    return call->kind == DDL__ALLREDUCE || call->kind == DDL__REDUCE_SCATTER ||
           call->kind == DDL__REDUCE_TO_ROOT;
}

static ddl_status check_scales(const ddl__call *call, const ddl_options *own)
{
    if (own->prescale == 0 && own->postscale == 0)
        return DDL_OK;
    const char *which = own->prescale != 0 ? "prescale" : "postscale";
    double factor = own->prescale != 0 ? own->prescale : own->postscale;
    if (!reduces(call))
        return ddl__fail(DDL_EINVAL, "options.%s is %g, but this operation reduces nothing", which,
                         factor);
    ddl__class class = ddl__dtype_class(call->dtype);
    if (class != DDL__FLOAT && class != DDL__COMPLEX)
        return ddl__fail(DDL_EUNSUPPORTED,
                         "options.%s is %g, but %s cannot be scaled: only floats "
                         "and complex numbers can",
                         which, factor, ddl__dtype_name(call->dtype));
    return DDL_OK;
}

ddl_status ddl__submit_call(ddl_comm *comm, ddl__call *call, const ddl_options *own,
                            ddl_work **work)
{
    ddl_status status = check_scales(call, own);
    if (status != DDL_OK)
        return status;
    ddl__apply_options(call, own, comm->operation_timeout_ms);
    return own->group ? collect(comm, call, own, work)
                      : ddl__engine_submit(comm->engine, call, work);
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
        status = ddl__take_options(&own, options, work);
    if (status != DDL_OK)
        return status;
    call.send = b.send ? b.send : b.recv;
    call.recv = b.recv;
    return ddl__submit_call(comm, &call, &own, work);
}
