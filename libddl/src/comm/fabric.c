/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/fabric.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "comm/comm.h"
#include "comm/environment.h"

enum { ROW_MAX = 64 * 1024 };

static bool has_tcp_link(const ddl_comm *comm)
{
    bool found = false;
    for (int i = 0; i < comm->size && !found; i++) {
        const ddl__link *link = ddl__engine_links(comm->engine)[i];
        found = link && !link->ops->shared;
    }
    return found;
}

/* Open UCX, or set the reason why it is not usable. */
static void fabric_open(ddl_comm *comm, ddl__fabric *f)
{
    if (ddl__endpoint_job(comm->endpoint)->encrypts)
        ddl__fail(DDL_EUNSUPPORTED, "DDL_ENCRYPT=1, and UCX does not encrypt");
    else
        f->ucx = ddl__ucx_create(comm->slots, comm->rank, comm->size, ddl__environment_text);
    if (!f->ucx)
        snprintf(f->why, sizeof f->why, "%s", ddl__message());
}

/* Return the bytes that this member sends: its address, or the reason why it has none. */
static const void *own_row(const ddl__fabric *f, size_t *bytes)
{
    if (f->ucx)
        return ddl__ucx_address(f->ucx, bytes);
    *bytes = f->why[0] ? strlen(f->why) + 1 : 0;
    return f->why;
}

ddl__fabric_offer ddl__fabric_open(ddl_comm *comm)
{
    ddl__fabric *f = &comm->fabric;
    size_t bytes;
    if (has_tcp_link(comm)) {
        if (f->wanted)
            fabric_open(comm, f);
        else
            snprintf(f->why, sizeof f->why, "its DDL_LINKS do not include ucx");
    }
    own_row(f, &bytes);
    return (ddl__fabric_offer){f->wanted, f->required, !f->why[0], (uint32_t)bytes};
}

/* Use UCX for all TCP links. Called by the driver. */
static void carry_all(void *context)
{
    ddl_comm *comm = context;
    for (int i = 0; i < comm->size; i++) {
        ddl__link *links[] = {ddl__engine_links(comm->engine)[i],
                              ddl__engine_message_links(comm->engine)[i]};
        for (int second = 0; second < 2; second++)
            if (links[second] && !links[second]->ops->shared)
                ddl__ucx_carry(comm->fabric.ucx, links[second], i, second);
    }
}

static void fabric_use(ddl_comm *comm, void *rows, size_t row)
{
    ddl__ucx *ucx = comm->fabric.ucx;
    if (!ucx) {
        free(rows);
        return;
    }
    ddl__ucx_set_addresses(ucx, rows, row);
    ddl__engine_as_driver(comm->engine, carry_all, comm);
    int first = 0;
    while (!ddl__engine_links(comm->engine)[first] ||
           ddl__engine_links(comm->engine)[first]->ops->shared)
        first++;
    ddl__engine_watch(comm->engine, ddl__engine_links(comm->engine)[first], ddl__ucx_fd(ucx));
    ddl__log(DDL__INFO, "%s uses UCX %s to other hosts", comm->names[comm->rank],
             ddl__ucx_version(ucx));
}

ddl_status ddl__fabric_agree(ddl_comm *comm, const ddl__fabric_offer *offers, size_t stride,
                             const ddl__until *until)
{
    bool wanted = false, required = false;
    int unusable = -1;
    size_t row = 0, bytes;
    for (int i = comm->size - 1; i >= 0; i--) {
        const ddl__fabric_offer *o =
            (const ddl__fabric_offer *)((const char *)offers + (size_t)i * stride);
        wanted = wanted || o->wanted;
        required = required || o->required;
        unusable = o->usable ? unusable : i;
        row = o->bytes > row ? o->bytes : row;
    }
    if (!wanted || !row) /* no member has a link to another host */
        return DDL_OK;
    char *rows = row <= ROW_MAX ? calloc((size_t)comm->size, row) : NULL;
    if (!rows)
        return ddl__fail(DDL_ENOMEM, "out of memory for UCX addresses of %zu bytes", row);
    const void *own = own_row(&comm->fabric, &bytes);
    memcpy(rows + (size_t)comm->rank * row, own, bytes);
    ddl_status status = ddl__gather_rows(comm, rows, row, false, until);
    if (status == DDL_OK && unusable < 0) {
        fabric_use(comm, rows, row);
        return DDL_OK;
    }
    const char *why = rows + (size_t)unusable * row;
    if (status == DDL_OK && required)
        status = ddl__fail_together(
            comm,
            ddl__fail(DDL_EUNSUPPORTED,
                      "%s cannot use UCX: %.*s. To continue over TCP instead, add tcp to DDL_LINKS",
                      comm->names[unusable], DDL__FABRIC_REASON, why),
            until);
    else if (status == DDL_OK && comm->rank == 0)
        ddl__log(DDL__WARN, "the ranks use TCP instead of UCX: %s cannot use UCX: %.*s",
                 comm->names[unusable], DDL__FABRIC_REASON, why);
    ddl__ucx_destroy(comm->fabric.ucx);
    comm->fabric.ucx = NULL;
    free(rows);
    return status;
}
