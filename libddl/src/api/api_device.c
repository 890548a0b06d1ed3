/* SPDX-License-Identifier: Apache-2.0 */
/* Operations on buffers in GPU memory. */
#include "api/api_operations.h"
#include "comm/environment.h"
#include "device/device.h"

/* Return the name of a feature that the call uses and that is not supported with buffers on GPUs,
 * or NULL. */
static const char *find_unsupported(const ddl__call *call)
{
    if (call->kind == DDL__SEND || call->kind == DDL__RECV)
        return "messages";
    return call->name ? "named operations" : NULL;
}

static ddl_status check_supported(const ddl__call *call)
{
    const char *what = find_unsupported(call);
    if (!what)
        return DDL_OK;
    return ddl__fail(
        DDL_EUNSUPPORTED,
        "options.memory is DDL_MEMORY_CUDA, which %s do not support; copy the buffer to "
        "host memory",
        what);
}

static const void *buffer_of(const ddl__call *call)
{
    return call->send ? call->send : call->recv;
}

/* Find the comm's device, or create it. Threads may race for the first use. */
static ddl_status find_device(ddl_comm *comm, const void *address, void *stream, ddl__device **out)
{
    ddl__device *made, *none = NULL;
    *out = atomic_load_explicit(&comm->device, memory_order_acquire);
    if (*out)
        return DDL_OK;
    ddl__device_config config = {.engine = comm->engine,
                                 .rank = comm->rank,
                                 .size = comm->size,
                                 .names = comm->names,
                                 .topology = comm->topology,
                                 .regions = ddl__endpoint_regions(comm->endpoint)};
    config.in_order = comm->order;
    ddl_status status = ddl__environment_gpu(&config.direct_bytes, &config.uses_nccl);
    if (status == DDL_OK)
        status = ddl__device_create(&config, address, stream, &made);
    if (status != DDL_OK)
        return status;
    if (!atomic_compare_exchange_strong_explicit(&comm->device, &none, made, memory_order_acq_rel,
                                                 memory_order_acquire)) {
        ddl__device_destroy(made);
        made = none;
    }
    *out = made;
    return DDL_OK;
}

ddl_status ddl__submit_to_device(ddl_comm *comm, const ddl__call *call, void *stream,
                                 ddl_work **work)
{
    ddl__device *device;
    ddl_status status = check_supported(call);
    if (status == DDL_OK)
        status = find_device(comm, buffer_of(call), stream, &device);
    if (status == DDL_OK)
        status = ddl__device_check_call(device, call);
    if (status == DDL_OK)
        status = ddl__device_check_stream(device, stream);
    if (status != DDL_OK)
        return status;
    if (comm->times)
        ddl__operation_times_next(comm->times);
    return ddl__device_submit(device, call, 1, call, stream, work);
}

/* Check a call that is added to a group. A call without buffers needs no device, because the stream
 * is given when the group is submitted. */
ddl_status ddl__check_for_device(ddl_comm *comm, const ddl__call *call)
{
    ddl__device *device;
    ddl_status status = check_supported(call);
    if (status != DDL_OK || !buffer_of(call))
        return status;
    status = find_device(comm, buffer_of(call), NULL, &device);
    return status == DDL_OK ? ddl__device_check_call(device, call) : status;
}

ddl_status ddl__submit_group_to_device(ddl_group *group, const ddl__call *whole, void *stream,
                                       ddl_work **work)
{
    ddl__device *device;
    ddl_status status = check_supported(whole);
    if (status == DDL_OK)
        status = find_device(group->comm, NULL, stream, &device);
    if (status == DDL_OK)
        status = ddl__device_check_stream(device, stream);
    if (status != DDL_OK)
        return status;
    return ddl__device_submit(device, group->calls, group->n_calls, whole, stream, work);
}
