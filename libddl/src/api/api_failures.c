/* SPDX-License-Identifier: Apache-2.0 */
/* The exported functions for failures, reports, traces and counters. */
#include <string.h>

#include "api/check_object.h"
#include "comm/comm.h"
#include "engine/recorder/recorder.h"

ddl_status ddl_comm_failed(ddl_comm *comm, int *ranks, int capacity, int *count)
{
    ddl_status status = ddl__check_comm(comm);
    if (status != DDL_OK)
        return status;
    if (capacity < 0 || (capacity && !ranks) || !count)
        return ddl__fail(DDL_EINVAL,
                         "capacity is %d, ranks is %s and count is %s; give count, and ranks "
                         "unless capacity is 0",
                         capacity, ranks ? "given" : "NULL", count ? "given" : "NULL");
    *count = comm->health ? ddl__health_failed(comm->health, ranks, capacity) : 0;
    return DDL_OK;
}

ddl_status ddl_comm_expel(ddl_comm *comm, int rank, const char *reason)
{
    ddl_status status = ddl__check_comm(comm);
    if (status != DDL_OK)
        return status;
    if (rank < 0 || rank >= comm->size)
        return ddl__fail(DDL_EINVAL, "rank is %d; must be from 0 to %d", rank, comm->size - 1);
    if (rank == comm->rank)
        return ddl__fail(DDL_EINVAL,
                         "rank is %d, which is the calling rank; call ddl_comm_destroy to leave",
                         rank);
    return ddl__health_expel(comm->health, rank, reason);
}

static ddl_status check_text(const ddl_comm *comm, const char *buffer, size_t capacity,
                             const size_t *length)
{
    ddl_status status = ddl__check_comm(comm);
    if (status == DDL_OK && ((capacity && !buffer) || !length))
        status = ddl__fail(DDL_EINVAL, "%s is NULL", length ? "buffer" : "length");
    return status;
}

static ddl_status give_text(const ddl__text *text, size_t *length)
{
    *length = text->length;
    if (text->length < text->capacity)
        return DDL_OK;
    return ddl__fail(DDL_EINVAL,
                     "capacity is %zu bytes; must be at least %zu for the text and its NUL",
                     text->capacity, text->length + 1);
}

ddl_status ddl_comm_report(ddl_comm *comm, char *buffer, size_t capacity, size_t *length)
{
    ddl_status status = check_text(comm, buffer, capacity, length);
    if (status != DDL_OK)
        return status;
    ddl__text text = {.to = buffer, .capacity = capacity};
    ddl__report_json(comm, &text);
    return give_text(&text, length);
}

ddl_status ddl_comm_trace(ddl_comm *comm, char *buffer, size_t capacity, size_t *length)
{
    ddl_status status = check_text(comm, buffer, capacity, length);
    if (status != DDL_OK)
        return status;
    ddl__text text = {.to = buffer, .capacity = capacity};
    ddl__trace(ddl__engine_recorder(comm->engine), comm->rank, comm->names[comm->rank], &text);
    return give_text(&text, length);
}

ddl_status ddl_comm_counters(ddl_comm *comm, ddl_counters *counters)
{
    ddl_status status = ddl__check_comm(comm);
    if (status == DDL_OK && !counters)
        status = ddl__fail(DDL_EINVAL, "counters is NULL");
    if (status == DDL_OK && (counters->struct_size < 8 || counters->struct_size > 4096))
        status =
            ddl__fail(DDL_EINVAL, "ddl_counters.struct_size is %u; must be sizeof(ddl_counters)",
                      counters->struct_size);
    if (status != DDL_OK)
        return status;
    uint32_t given = counters->struct_size;
    ddl_counters all = {.struct_size = given};
    ddl__comm_counters(comm, &all);
    memset(counters, 0, given);
    memcpy(counters, &all, given < sizeof all ? given : sizeof all);
    return DDL_OK;
}
