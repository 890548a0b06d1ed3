/* SPDX-License-Identifier: Apache-2.0 */
/* Operations on buffers in the memory of a GPU. */
#include "api/api_operations.h"
#include "device/device.h"

/* What buffers on GPUs are not for, or NULL. */
static const char *find_unsupported(const ddl__call *call, const ddl_options *own)
{
    if (call->kind == DDL__SEND || call->kind == DDL__RECV)
        return "messages";
    if (own->group)
        return "operations of a group";
    return call->name ? "named operations" : NULL;
}

/* The comm's device. Threads may race for the first use. */
static ddl_status find_device(ddl_comm *comm, const void *address, void *stream, ddl__device **out)
{
    ddl__device *made, *none = NULL;
    *out = atomic_load_explicit(&comm->device, memory_order_acquire);
    if (*out)
        return DDL_OK;
    ddl__device_config config = {.engine = comm->engine,
                                 .rank = comm->rank,
                                 .size = comm->size,
                                 .name = comm->names[comm->rank],
                                 .regions = ddl__endpoint_regions(comm->endpoint)};
    ddl_status status = ddl__device_create(&config, address, stream, &made);
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

ddl_status ddl__submit_to_device(ddl_comm *comm, const ddl__call *call, const ddl_options *own,
                                 ddl_work **work)
{
    ddl__device *device;
    const char *what = find_unsupported(call, own);
    if (what)
        return ddl__fail(DDL_EUNSUPPORTED,
                         "options.memory is DDL_MEMORY_CUDA: not for %s so far; copy the buffer to "
                         "host memory",
                         what);
    ddl_status status =
        find_device(comm, call->send ? call->send : call->recv, own->stream, &device);
    if (status != DDL_OK)
        return status;
    status = ddl__device_check_call(device, call, own->stream);
    if (status != DDL_OK)
        return status;
    if (comm->times)
        ddl__operation_times_next(comm->times);
    return ddl__device_submit(device, call, own->stream, work);
}
