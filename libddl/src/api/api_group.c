/* SPDX-License-Identifier: Apache-2.0 */
/* The exported functions for groups. */
#include "api/api_operations.h"
#include "api/check_object.h"
#include "base/forks.h"

ddl_status ddl_group_create(ddl_comm *comm, ddl_group **group)
{
    ddl_status status = ddl__check_comm(comm);
    if (status == DDL_OK && !group)
        status = ddl__fail(DDL_EINVAL, "group is NULL");
    if (status != DDL_OK)
        return status;
    ddl_group *made = ddl__group_create(comm->engine, comm->operation_timeout_ms);
    if (!made)
        return DDL_ENOMEM;
    made->comm = comm;
    *group = made;
    return DDL_OK;
}

static bool is_message(const ddl__call *call)
{
    return call->kind == DDL__SEND || call->kind == DDL__RECV;
}

/* For -dump_iter: count a group that is matched by order. A group of messages only is not counted,
 * because messages may differ between ranks. */
static void count_group(const ddl_group *group)
{
    bool operations = false;
    for (uint32_t i = 0; i < group->n_calls; i++)
        operations = operations || !is_message(&group->calls[i]);
    if (operations && !ddl__engine_holds_group(group->engine, group))
        ddl__operation_times_next(group->comm->times);
}

ddl_status ddl_group_submit(ddl_group *group, const ddl_options *options, ddl_work **work)
{
    ddl_options own;
    ddl__call whole = {0};
    ddl_status status = ddl__check_group(group);
    if (status == DDL_OK)
        status = ddl__take_options(&own, options, work);
    if (status != DDL_OK)
        return status;
    if (own.group || own.prescale != 0 || own.postscale != 0 || own.residual || own.wire)
        return ddl__fail(DDL_EINVAL,
                         "options.%s is set; set it for the operations of the group, not for its "
                         "submission",
                         own.group      ? "group"
                         : own.residual ? "residual"
                         : own.wire     ? "wire"
                                        : "prescale and postscale");
    if (group->n_calls && own.memory != group->memory)
        return ddl__fail(DDL_EINVAL,
                         "options.memory is %u, but the group's operations have %u: pass the same "
                         "value to ddl_group_submit",
                         own.memory, group->memory);
    bool named = own.name && own.name[0];
    for (uint32_t i = 0; named && i < group->n_calls; i++)
        if (is_message(&group->calls[i]))
            return ddl__fail(DDL_EINVAL,
                             "options.name is \"%.100s\", but the group contains messages, "
                             "which have tags and no names",
                             own.name);
    ddl__apply_options(&whole, &own, group->limit_ms);
    if (group->comm->times && !named)
        count_group(group);
    if (own.memory == DDL_MEMORY_CUDA && group->n_calls)
        return ddl__submit_group_to_device(group, &whole, own.stream, work);
    return ddl__engine_submit_group(group->engine, group, &whole, work);
}

void ddl_group_destroy(ddl_group *group)
{
    if (group && group->generation == ddl__generation())
        ddl__engine_drop_group(group->engine, group);
}
