/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/comm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/dtype.h"
#include "base/test_points.h"
#include "base/time_limits.h"
#include "connect/addresses/neighbours.h"

enum { COMMIT_LEAST_MS = DDL__COMMIT_LEAST / DDL__MS };

/* The settings that must be equal on all members, and whether the rank shares memory. */
typedef struct settings {
    uint64_t segment_bytes;
    int64_t heartbeat_ms;
    bool shares; /* this rank uses shared memory */
    int32_t invariant;
    uint32_t wire;
    ddl__layout layout;
    ddl__sharing sharing;
    ddl__fabric_offer fabric;
} settings;

/* Check that another member's settings are equal. If this fails on one member, it fails on all. */
static ddl_status settings_compare(const ddl_comm *comm, const settings *theirs, int rank)
{
    const char *name = comm->names[rank];
    if (theirs->segment_bytes != comm->segment_bytes)
        return ddl__fail(DDL_EINVAL,
                         "segment_bytes is %llu on %s and %llu on %s; must be equal on all ranks",
                         (unsigned long long)comm->segment_bytes, comm->names[comm->rank],
                         (unsigned long long)theirs->segment_bytes, name);
    if (theirs->heartbeat_ms != comm->config.heartbeat_ms)
        return ddl__fail(DDL_EINVAL,
                         "heartbeat_ms is %lld on %s and %lld on %s; must be equal on all ranks",
                         (long long)comm->config.heartbeat_ms, comm->names[comm->rank],
                         (long long)theirs->heartbeat_ms, name);
    char ours[DDL__INVARIANT_TEXT], other[DDL__INVARIANT_TEXT];
    if (theirs->invariant != comm->config.invariant)
        return ddl__fail(DDL_EINVAL,
                         "DDL_INVARIANT is %s on %s and %s on %s; must be equal on all ranks",
                         ddl__invariant_text(comm->config.invariant, ours), comm->names[comm->rank],
                         ddl__invariant_text(theirs->invariant, other), name);
    if (theirs->wire != comm->config.wire)
        return ddl__fail(DDL_EINVAL,
                         "DDL_WIRE is %s on %s and %s on %s; must be equal on all ranks",
                         ddl__wire_name(comm->config.wire), comm->names[comm->rank],
                         ddl__wire_name(theirs->wire), name);
    return ddl__layout_compare(comm, &theirs->layout, name);
}

/* In a large comm, check that either both ranks use shared memory or neither does. For pairs that
 * are connected later, both ends must decide in advance which kind of link they will use. */
static ddl_status sharing_compare(const ddl_comm *comm, const settings *own, const settings *theirs,
                                  int rank)
{
    const char *self = comm->names[comm->rank], *name = comm->names[rank];
    if (!ddl__is_sparse(comm->size) || theirs->shares == own->shares ||
        !ddl__may_share_memory(&comm->addresses[comm->rank], &comm->addresses[rank]))
        return DDL_OK;
    return ddl__fail(
        DDL_EINVAL,
        "%s uses shared memory, but %s does not: set the same DDL_LINKS and the same `links` in "
        "the comm's config on both, and check the warnings that they have logged",
        own->shares ? self : name, own->shares ? name : self);
}

static void link_shorten(ddl__link *link)
{
    if (link && !link->shared)
        ddl__tcp_link_shorten(link);
}

/* Use short socket queues to members on this machine that are in other containers or were
 * configured to use TCP. */
static void shorten_same_machine(ddl_comm *comm, const ddl__location *locations)
{
    for (int i = 0; i < comm->size; i++) {
        if (i == comm->rank || locations[i].machine != locations[comm->rank].machine)
            continue;
        link_shorten(ddl__engine_links(comm->engine)[i]);
        link_shorten(ddl__engine_message_links(comm->engine)[i]);
    }
}

/* Return true for a comm of two members that runs no further operation in its creation. */
static bool comm_is_pair(const ddl_comm *comm)
{
    return comm->size == 2 && comm->layout.mode != 'p';
}

static int64_t left_ms(const ddl__until *until, int64_t least)
{
    int64_t left = (until->deadline - ddl__now()) / DDL__MS;
    return left > least ? left : least;
}

/* Run an operation of the creation. End the comm if it cannot complete. */
static ddl_status run_operation(ddl_comm *comm, const ddl__call *call, const ddl__until *until)
{
    ddl_work *work;
    ddl_status status = ddl__engine_submit(comm->engine, call, &work);
    if (status != DDL_OK)
        return status;
    while ((status = ddl__work_wait(work, ddl__now() + DDL__MEMBERS_POLL)) == DDL_INPROGRESS)
        if ((status = ddl__until_check(until)) != DDL_OK) {
            ddl__engine_fail(comm->engine, status, ddl__message());
            status = ddl__work_wait(work, DDL__NEVER);
            break;
        }
    ddl__work_destroy(work);
    return status;
}

static ddl_status run_barrier(ddl_comm *comm, const ddl__until *until)
{
    ddl__call call = {.kind = DDL__BARRIER,
                      .dtype = DDL_U8,
                      .uncounted = true, /* this is not one of the user's operations */
                      .timeout_ms = left_ms(until, COMMIT_LEAST_MS)};
    return run_operation(comm, &call, until);
}

/* All-gather `rows` in place. In a large comm, use trees: the next barrier uses the same links, and
 * other algorithms would open the links of many more pairs for this operation alone. */
ddl_status ddl__gather_rows(ddl_comm *comm, void *rows, size_t row, bool counted,
                            const ddl__until *until)
{
    int64_t timeout_ms = left_ms(until, comm_is_pair(comm) ? COMMIT_LEAST_MS : 1);
    /* Only the neighbours of a missing rank know that it is missing, so wait longer to let them
     * report it first. */
    if (ddl__is_sparse(comm->size))
        timeout_ms += COMMIT_LEAST_MS;
    ddl__call call = {.kind = DDL__ALLGATHER,
                      .dtype = DDL_U8,
                      .count = (int64_t)row,
                      .send = rows,
                      .recv = rows,
                      .uncounted = !counted,
                      .timeout_ms = timeout_ms};
    if (!ddl__first_use_is_for(comm->size))
        return run_operation(comm, &call, until);
    call.kind = DDL__GATHER;
    call.by = DDL__ALGORITHM_TREE;
    call.send = (char *)rows + (size_t)comm->rank * row;
    call.recv = comm->rank == 0 ? rows : NULL;
    ddl_status status = run_operation(comm, &call, until);
    if (status != DDL_OK)
        return status;
    call.kind = DDL__BROADCAST;
    call.uncounted = true;
    call.count = (int64_t)row * comm->size;
    call.send = call.recv = rows;
    return run_operation(comm, &call, until);
}

/* Find the ranks with which this rank shares memory, and its index among them. */
static ddl_status find_sharing(ddl_comm *comm, ddl__link *const *links, ddl__sharing *sharing)
{
    unsigned char *shared = calloc((size_t)comm->size, 1);
    if (!shared)
        return ddl__fail(DDL_ENOMEM, "out of memory for %d members", comm->size);
    for (int i = 0; i < comm->size; i++) {
        shared[i] = i == comm->rank || (links[i] && links[i]->shared);
        comm->local_size += shared[i];
        comm->local_rank += i < comm->rank && shared[i];
    }
    *sharing = ddl__sharing_of(shared, comm->rank, comm->size);
    free(shared);
    return DDL_OK;
}

ddl_status ddl__fail_together(ddl_comm *comm, ddl_status status, const ddl__until *until)
{
    char why[DDL__MESSAGE_MAX];
    snprintf(why, sizeof why, "%s", ddl__message());
    int64_t second = ddl__now() + DDL__COMMIT_LEAST;
    ddl__until soon = *until;
    soon.deadline = second < until->deadline ? second : until->deadline;
    run_barrier(comm, &soon);
    return ddl__fail(status, "%s", why);
}

/* Compare the settings of all members, by rank. All members find the same difference, so no member
 * waits in the last step of the creation. */
static ddl_status compare_settings(ddl_comm *comm, const settings *all, const ddl__until *until)
{
    ddl_status status = DDL_OK;
    for (int i = 0; status == DDL_OK && i < comm->size; i++)
        status = settings_compare(comm, &all[i], i);
    return status == DDL_OK ? DDL_OK : ddl__fail_together(comm, status, until);
}

/* Apply the settings of all members, by rank. */
static ddl_status apply_settings(ddl_comm *comm, const settings *all)
{
    size_t size = (size_t)comm->size;
    ddl__location *locations = calloc(size, sizeof *locations);
    ddl__sharing *sharing = calloc(size, sizeof *sharing);
    ddl_status status = locations && sharing
                            ? DDL_OK
                            : ddl__fail(DDL_ENOMEM, "out of memory for %zu members", size);
    for (size_t i = 0; status == DDL_OK && i < size; i++) {
        status = sharing_compare(comm, &all[comm->rank], &all[i], (int)i);
        locations[i] = all[i].layout.location;
        sharing[i] = all[i].sharing;
    }
    comm->layout.choices = all[0].layout.choices;
    if (status == DDL_OK)
        status = ddl__layout_apply(comm, sharing, locations);
    if (status == DDL_OK)
        status = DDL__TEST_POINT(DDL__AT_LAYOUT, comm);
    if (status == DDL_OK)
        shorten_same_machine(comm, locations);
    free(locations);
    free(sharing);
    return status;
}

ddl_status ddl__exchange_settings(ddl_comm *comm, const ddl__wireup *wireup,
                                  const ddl__until *until)
{
    settings *all = calloc((size_t)comm->size, sizeof *all);
    if (!all)
        return ddl__fail(DDL_ENOMEM, "out of memory for %d members", comm->size);
    settings *own = &all[comm->rank];
    own->segment_bytes = comm->segment_bytes;
    own->heartbeat_ms = comm->config.heartbeat_ms;
    own->invariant = comm->config.invariant;
    own->wire = comm->config.wire;
    own->shares = wireup->kinds & DDL_LINK_SHM;
    own->layout = comm->layout;
    ddl_status status = find_sharing(comm, ddl__engine_links(comm->engine), &own->sharing);
    if (status == DDL_OK)
        own->fabric = ddl__fabric_open(comm);
    if (status == DDL_OK)
        status = ddl__gather_rows(comm, all, sizeof *all, true, until);
    if (status == DDL_OK)
        status = compare_settings(comm, all, until);
    if (status == DDL_OK)
        status = apply_settings(comm, all);
    if (status == DDL_OK)
        status = ddl__fabric_agree(comm, &all[0].fabric, sizeof *all, until);
    free(all);
    return status;
}

ddl_status ddl__creation_commit(ddl_comm *comm, const ddl__until *until)
{
    return comm->size == 1 || comm_is_pair(comm) ? DDL_OK : run_barrier(comm, until);
}
