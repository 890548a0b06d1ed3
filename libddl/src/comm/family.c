/* SPDX-License-Identifier: Apache-2.0 */
/* Creates comms from an existing comm, whose members already know each other's addresses. */
#include <stdlib.h>

#include "base/clock.h"
#include "comm/comm.h"
#include "comm/members.h"
#include "health/agreement.h"

ddl_comm_config ddl__comm_inherit(const ddl_comm *parent, const ddl_comm_config *config)
{
    ddl_comm_config child = *config;
    if (!child.links)
        child.links = parent->config.links;
    if (!child.timeout_ms)
        child.timeout_ms = parent->config.timeout_ms;
    if (!child.operation_timeout_ms)
        child.operation_timeout_ms = parent->config.operation_timeout_ms;
    if (!child.segment_bytes)
        child.segment_bytes = parent->config.segment_bytes;
    if (!child.heartbeat_ms)
        child.heartbeat_ms = parent->config.heartbeat_ms;
    if (!child.suspect_ms)
        child.suspect_ms = parent->config.suspect_ms;
    if (!child.dead_ms)
        child.dead_ms = parent->config.dead_ms;
    if (!child.stall_warn_ms)
        child.stall_warn_ms = parent->config.stall_warn_ms;
    if (!child.invariant)
        child.invariant = parent->config.invariant;
    if (!child.wire)
        child.wire = parent->config.wire;
    return child;
}

/* Check every entry of the list, and return this rank's index in it, or -1 with the message set. */
static int find_self(const ddl_comm *parent, const int *ranks, int size)
{
    int self = -1;
    for (int i = 0; i < size; i++) {
        if (ranks[i] < 0 || ranks[i] >= parent->size) {
            ddl__fail(DDL_EINVAL, "ranks[%d] is %d; must be from 0 to %d", i, ranks[i],
                      parent->size - 1);
            return -1;
        }
        if (ranks[i] == parent->rank)
            self = i;
    }
    if (self < 0)
        ddl__fail(DDL_EINVAL, "rank %d calls this function, but is not in the list of ranks",
                  parent->rank);
    return self;
}

/* The members of a child comm that is being created, for check_parent. */
typedef struct child_members {
    const ddl_comm *parent;
    const int *ranks;
    int size;
} child_members;

/* Fail if the parent has failed, or if a member of the child is dead. The first failure of the
 * parent ends every creation from it, even if the dead or aborting member is not in the child: the
 * parent's members continue with a shrink. */
static ddl_status check_parent(void *context)
{
    const child_members *m = context;
    ddl_status status = ddl__engine_status(m->parent->engine);
    if (status != DDL_OK || !m->parent->health)
        return status;
    return ddl__health_check(m->parent->health, m->ranks, m->size);
}

ddl_status ddl__comm_subset(ddl_comm *parent, const int *ranks, int size,
                            const ddl_comm_config *config, const ddl__until *until, ddl_comm **comm)
{
    int self = find_self(parent, ranks, size);
    if (self < 0)
        return DDL_EINVAL;
    unsigned char *seen = calloc((size_t)parent->size, 1);
    ddl__address *addresses = ddl__members_create(size);
    ddl_status status =
        seen && addresses ? DDL_OK : ddl__fail(DDL_ENOMEM, "out of memory for %d members", size);
    for (int i = 0; i < size && status == DDL_OK; i++) {
        if (seen[ranks[i]]++)
            status = ddl__fail(DDL_EINVAL, "rank %d is in the list of ranks twice", ranks[i]);
        ddl__members_copy(addresses, i, size, &parent->addresses[ranks[i]]);
    }
    free(seen);
    if (status != DDL_OK) {
        free(addresses);
        return status;
    }
    child_members members = {parent, ranks, size};
    ddl__until own = until ? *until : (ddl__until){.deadline = DDL__NEVER};
    if (!own.check) /* a shrink has its own check, because its parent is dead */
        own = (ddl__until){own.deadline, check_parent, &members, NULL};
    return ddl__comm_join(parent->endpoint, parent, addresses, self, size, config, false, &own,
                          comm);
}

typedef struct member {
    int64_t color, key;
} member;

/* List the ranks of this color, ordered by key and then by rank. Return their number. */
static int select_color(const member *members, int size, int64_t color, int *ranks)
{
    int n = 0;
    for (int i = 0; i < size; i++) {
        if (members[i].color != color)
            continue;
        int at = n++;
        for (; at > 0 && members[ranks[at - 1]].key > members[i].key; at--)
            ranks[at] = ranks[at - 1];
        ranks[at] = i;
    }
    return n;
}

ddl_status ddl__comm_split(ddl_comm *parent, int color, int key, const ddl_comm_config *config,
                           ddl_comm **comm)
{
    size_t size = (size_t)parent->size;
    ddl__until until = {.deadline = ddl__deadline(ddl__comm_creation_ms(config))};
    member *members = calloc(size, sizeof *members);
    int *ranks = calloc(size, sizeof *ranks);
    ddl_status status = members && ranks
                            ? DDL_OK
                            : ddl__fail(DDL_ENOMEM, "out of memory for %d members", parent->size);
    if (status == DDL_OK) {
        members[parent->rank] = (member){color < 0 ? -1 : color, key};
        ddl__call call = {.kind = DDL__ALLGATHER,
                          .dtype = DDL_I64,
                          .count = 2,
                          .send = members,
                          .recv = members,
                          .timeout_ms = ddl__comm_creation_ms(config)};
        status = ddl__engine_submit(parent->engine, &call, NULL);
    }
    if (status == DDL_OK && color < 0)
        *comm = NULL;
    if (status == DDL_OK && color >= 0) {
        int n = select_color(members, parent->size, color, ranks);
        status = ddl__comm_subset(parent, ranks, n, config, &until, comm);
    }
    free(members);
    free(ranks);
    return status;
}

ddl_status ddl__comm_duplicate(ddl_comm *parent, const ddl_comm_config *config, ddl_comm **comm)
{
    int *ranks = calloc((size_t)parent->size, sizeof *ranks);
    if (!ranks)
        return ddl__fail(DDL_ENOMEM, "out of memory for %d members", parent->size);
    for (int i = 0; i < parent->size; i++)
        ranks[i] = i;
    ddl_status status = ddl__comm_subset(parent, ranks, parent->size, config, NULL, comm);
    free(ranks);
    return status;
}

/* The comm of the survivors. health/agreement.c implements the agreement on their list. */
typedef struct next_comm {
    ddl_comm *parent, *comm;
    const ddl_comm_config *config;
} next_comm;

static ddl_status create(void *context, const int *ranks, int n, uint32_t attempt,
                         const ddl__until *until)
{
    next_comm *next = context;
    ddl__digest id = ddl__health_comm(next->parent->health);
    uint64_t mark[] = {attempt, next->config->tag};
    ddl__digest_add(&id, mark, sizeof mark);
    ddl_comm_config config = *next->config;
    config.tag = id.words[0] | 1;
    return ddl__comm_subset(next->parent, ranks, n, &config, until, &next->comm);
}

static void abandon(void *context)
{
    next_comm *next = context;
    ddl__comm_abandon(next->comm);
    next->comm = NULL;
}

ddl_status ddl__comm_shrink(ddl_comm *parent, const ddl_comm_config *config, ddl_comm **comm)
{
    if (!parent->health)
        return ddl__fail(DDL_ESTATE, "the comm has only one member, so it cannot be shrunk");
    next_comm next = {.parent = parent, .config = config};
    ddl__agreement_handlers handlers = {&next, create, abandon};
    ddl_status status =
        ddl__agreement_run(parent->health, ddl__deadline(ddl__comm_creation_ms(config)), &handlers);
    if (status == DDL_OK)
        *comm = next.comm;
    return status;
}
