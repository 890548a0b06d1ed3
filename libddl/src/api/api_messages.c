/* SPDX-License-Identifier: Apache-2.0 */
/* The exported functions for messages. */
#include "api/api_operations.h"
#include "api/check_object.h"

static ddl_status check_message(const ddl_comm *comm, const ddl__call *call, const void *buffer)
{
    bool sends = call->kind == DDL__SEND, any = !sends && call->root == DDL_ANY_SOURCE;
    if (!any && (call->root < 0 || call->root >= comm->size))
        return ddl__fail(DDL_EINVAL, "%s is %d; must be from 0 to %d", sends ? "dest" : "source",
                         call->root, comm->size - 1);
    if (call->tag < 0)
        return ddl__fail(DDL_EINVAL, "tag is %d; must be at least 0", call->tag);
    if (!buffer && call->count)
        return ddl__fail(DDL_EINVAL, "buffer is NULL, but count is %lld", (long long)call->count);
    return ddl__check_elements(comm, call);
}

static ddl_status take_options(ddl_options *own, const ddl_options *options, ddl_work *const *work)
{
    ddl_status status = ddl__take_options(own, options, work);
    if (status == DDL_OK && own->name && *own->name)
        return ddl__fail(DDL_EINVAL,
                         "options.name is \"%.100s\", but messages have tags and no names",
                         own->name);
    return status;
}

static ddl__call send_call(const void *buffer, int64_t count, ddl_dtype dtype, int dest, int tag)
{
    return (ddl__call){.kind = DDL__SEND,
                       .dtype = dtype,
                       .root = dest,
                       .count = count,
                       .send = buffer,
                       .tag = tag};
}

static ddl__call recv_call(void *buffer, int64_t count, ddl_dtype dtype, int source, int tag)
{
    return (ddl__call){.kind = DDL__RECV,
                       .dtype = dtype,
                       .root = source,
                       .count = count,
                       .recv = buffer,
                       .tag = tag};
}

ddl_status ddl_send(ddl_comm *comm, const void *buffer, int64_t count, ddl_dtype dtype, int dest,
                    int tag, const ddl_options *options, ddl_work **work)
{
    ddl_options own;
    ddl__call call = send_call(buffer, count, dtype, dest, tag);
    ddl_status status = ddl__check_comm(comm);
    if (status == DDL_OK)
        status = check_message(comm, &call, buffer);
    if (status == DDL_OK)
        status = take_options(&own, options, work);
    return status == DDL_OK ? ddl__submit_call(comm, &call, &own, work) : status;
}

ddl_status ddl_recv(ddl_comm *comm, void *buffer, int64_t count, ddl_dtype dtype, int source,
                    int tag, int *sender, const ddl_options *options, ddl_work **work)
{
    ddl_options own;
    ddl__call call = recv_call(buffer, count, dtype, source, tag);
    call.sender = sender;
    ddl_status status = ddl__check_comm(comm);
    if (status == DDL_OK)
        status = check_message(comm, &call, buffer);
    if (status == DDL_OK)
        status = take_options(&own, options, work);
    return status == DDL_OK ? ddl__submit_call(comm, &call, &own, work) : status;
}

/* --------------------------------------------------------------------------------- both at once */

static ddl_status check_apart(const ddl__call *sent, const ddl__call *received, ddl_dtype dtype)
{
    uintptr_t out = (uintptr_t)sent->send, in = (uintptr_t)received->recv;
    size_t out_bytes = (size_t)sent->count * ddl_dtype_size(dtype);
    size_t in_bytes = (size_t)received->count * ddl_dtype_size(dtype);
    if (out < in + in_bytes && in < out + out_bytes)
        return ddl__fail(DDL_EINVAL, "send and recv overlap: %zu bytes at %p, %zu bytes at %p",
                         out_bytes, sent->send, in_bytes, received->recv);
    return DDL_OK;
}

/* Submit the send and the receive as an internal group, which exists until both are complete. */
static ddl_status submit_both(ddl_comm *comm, const ddl__call *sent, const ddl__call *received,
                              const ddl_options *own, ddl_work **work)
{
    ddl__call whole = {0};
    ddl__apply_options(&whole, own, comm->operation_timeout_ms);
    ddl_group *group = ddl__group_create(comm->engine, comm->operation_timeout_ms);
    if (!group)
        return DDL_ENOMEM;
    ddl_status status = ddl__group_add(group, sent);
    if (status == DDL_OK)
        status = ddl__group_add(group, received);
    if (status == DDL_OK)
        status = ddl__engine_submit_group(comm->engine, group, &whole, work);
    ddl__engine_drop_group(comm->engine, group);
    return status;
}

ddl_status ddl_sendrecv(ddl_comm *comm, const void *send, int64_t send_count, int dest,
                        int send_tag, void *recv, int64_t recv_count, int source, int recv_tag,
                        ddl_dtype dtype, const ddl_options *options, ddl_work **work)
{
    ddl_options own;
    ddl__call sent = send_call(send, send_count, dtype, dest, send_tag);
    ddl__call received = recv_call(recv, recv_count, dtype, source, recv_tag);
    ddl_status status = ddl__check_comm(comm);
    if (status == DDL_OK)
        status = check_message(comm, &sent, send);
    if (status == DDL_OK)
        status = check_message(comm, &received, recv);
    if (status == DDL_OK)
        status = check_apart(&sent, &received, dtype);
    if (status == DDL_OK)
        status = take_options(&own, options, work);
    if (status != DDL_OK || !own.group)
        return status == DDL_OK ? submit_both(comm, &sent, &received, &own, work) : status;
    status = ddl__submit_call(comm, &sent, &own, work);
    return status == DDL_OK ? ddl__submit_call(comm, &received, &own, work) : status;
}
