/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/fabric.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/time_limits.h"
#include "comm/comm.h"
#include "comm/environment.h"
#include "connect/addresses/neighbours.h"

enum { ROW_MAX = 64 * 1024, PROBE_POLL_MS = 10 };

static bool has_tcp_link(const ddl_comm *comm)
{
    bool found = false;
    for (int i = 0; i < comm->size && !found; i++) {
        const ddl__link *link = ddl__engine_links(comm->engine)[i];
        found = link && !link->shared;
    }
    return found;
}

ddl__fabric ddl__fabric_inherit(const ddl__fabric *parent)
{
    ddl__fabric child = {.given_up = parent->given_up};
    if (child.given_up)
        memcpy(child.why, parent->why, sizeof child.why);
    return child;
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
    if (!has_tcp_link(comm))
        f->why[0] = '\0';
    else if (!f->wanted)
        snprintf(f->why, sizeof f->why, "its DDL_LINKS do not include ucx");
    else if (!f->given_up)
        fabric_open(comm, f);
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
            if (links[second] && !links[second]->shared)
                ddl__ucx_carry(comm->fabric.ucx, links[second], i, second);
    }
}

static ddl__link *tcp_link(const ddl_comm *comm, int peer)
{
    ddl__link *link = ddl__engine_links(comm->engine)[peer];
    return link && !link->shared ? link : NULL;
}

static void fabric_use(ddl_comm *comm)
{
    ddl__ucx *ucx = comm->fabric.ucx;
    if (!ucx)
        return;
    ddl__engine_as_driver(comm->engine, carry_all, comm);
    int first = 0;
    while (!tcp_link(comm, first))
        first++;
    ddl__engine_watch(comm->engine, tcp_link(comm, first), ddl__ucx_fd(ucx));
    ddl__log(DDL__INFO, "%s uses UCX %s to other hosts", comm->names[comm->rank],
             ddl__ucx_version(ucx));
}

/* A member's report about its probes. */
typedef struct outcome {
    int32_t unreached; /* the first peer that it did not reach, or -1 */
    char why[100];
} outcome;

/* Probe the peers to which the creation has opened connections, and store the first one that was
 * not reached. */
static ddl_status fabric_probe(ddl_comm *comm, const ddl__until *until, outcome *found)
{
    ddl__ucx *ucx = comm->fabric.ucx;
    int64_t now = ddl__now(), half = (until->deadline - now) / 2; /* the rest is for TCP */
    int64_t limit = now + (half < DDL__UCX_PROBE_LIMIT ? half : DDL__UCX_PROBE_LIMIT);
    ddl_status status = DDL_OK;
    const char *why = NULL;
    found->unreached = -1;
    if (!ucx)
        return DDL_OK;
    for (int i = 0; i < comm->size; i++)
        if (tcp_link(comm, i) &&
            ddl__are_connected_early(comm->addresses, comm->size, DDL_LINK_TCP, comm->rank, i))
            ddl__ucx_probe(ucx, i);
    while (!ddl__ucx_await_probes(ucx, PROBE_POLL_MS) && ddl__now() < limit && status == DDL_OK)
        status = ddl__until_check(until);
    found->unreached = ddl__ucx_find_unreached(ucx, &why);
    snprintf(found->why, sizeof found->why, "%s",
             why ? why : "no message was received from it in time");
    return status;
}

/* While this member waits for the others, its UCX has to work, because a peer may not have finished
 * its probes. */
typedef struct probing {
    ddl__ucx *ucx;
    const ddl__until *until;
} probing;

static ddl_status check_and_work(void *context)
{
    const probing *p = context;
    if (p->ucx)
        ddl__ucx_await_probes(p->ucx, 0);
    return ddl__until_check(p->until);
}

/* Probe, and exchange the results. *unusable is the first member that has not reached a peer, or
 * -1; `why`, of DDL__FABRIC_REASON bytes, is then the reason. */
static ddl_status fabric_prove(ddl_comm *comm, const ddl__until *until, int *unusable, char *why)
{
    outcome *all = calloc((size_t)comm->size, sizeof *all);
    if (!all)
        return ddl__fail(DDL_ENOMEM, "out of memory for %d members", comm->size);
    probing context = {comm->fabric.ucx, until};
    ddl__until meanwhile = {until->deadline, check_and_work, &context, NULL};
    ddl_status status = fabric_probe(comm, until, &all[comm->rank]);
    if (status == DDL_OK)
        status = ddl__gather_rows(comm, all, sizeof *all, false, &meanwhile);
    for (int i = comm->size - 1; status == DDL_OK && i >= 0; i--) {
        if (all[i].unreached < 0 || all[i].unreached >= comm->size)
            continue;
        *unusable = i;
        comm->fabric.given_up = true;
        snprintf(why, DDL__FABRIC_REASON, "it does not reach %s (%.*s)",
                 comm->names[all[i].unreached], (int)sizeof all[i].why - 1, all[i].why);
        snprintf(comm->fabric.why, DDL__FABRIC_REASON, "in a comm before, %s did not reach %s",
                 comm->names[i], comm->names[all[i].unreached]);
    }
    free(all);
    return status;
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
    char why[DDL__FABRIC_REASON];
    if (status == DDL_OK && unusable >= 0)
        snprintf(why, sizeof why, "%.*s", (int)row, rows + (size_t)unusable * row);
    if (comm->fabric.ucx)
        ddl__ucx_set_addresses(comm->fabric.ucx, rows, row);
    else
        free(rows);
    if (status == DDL_OK && unusable < 0)
        status = fabric_prove(comm, until, &unusable, why);
    if (status == DDL_OK && unusable < 0) {
        fabric_use(comm);
        return DDL_OK;
    }
    if (status == DDL_OK && required)
        status = ddl__fail_together(
            comm,
            ddl__fail(DDL_EUNSUPPORTED,
                      "%s cannot use UCX: %s. To continue over TCP instead, add tcp to DDL_LINKS",
                      comm->names[unusable], why),
            until);
    else if (status == DDL_OK && comm->rank == 0)
        ddl__log(DDL__WARN, "the ranks use TCP instead of UCX: %s cannot use UCX: %s",
                 comm->names[unusable], why);
    ddl__ucx_destroy(comm->fabric.ucx);
    comm->fabric.ucx = NULL;
    return status;
}
