/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/comm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/dtype.h"
#include "base/forks.h"
#include "base/log.h"
#include "base/test_points.h"
#include "base/time_limits.h"
#include "comm/environment.h"
#include "comm/members.h"
#include "comm/plan_file.h"
#include "connect/addresses/neighbours.h"
#include "connect/wireup/wireup.h"
#include "engine/calls/ordered.h"
#include "membership/creation.h"

enum {
    /* Messages and named operations use a separate ring for each pair of ranks. At most half of a
     * ring may be published at a time. If the rings were smaller, large operations would take more
     * turns. */
    MESSAGES_BYTES = 8 * 1024 * 1024, /* bytes of the message rings for all peers of a rank */
    MESSAGE_MOST = DDL__RING,         /* largest message ring for one peer */
    MESSAGE_LEAST = 512 * 1024,       /* smallest message ring for one peer */
    SLOT_BYTES = 256 * 1024,
    SLOTS = 64
};

int64_t ddl__comm_creation_ms(const ddl_comm_config *config)
{
    return config->timeout_ms ? config->timeout_ms : DDL__CREATION_LIMIT / DDL__MS;
}

/* Return the size of a message ring, which is equal on all ranks. Its pages take no memory until
 * they are used. */
static size_t message_bytes(size_t size)
{
    size_t bytes = MESSAGE_MOST;
    while (bytes > MESSAGE_LEAST && bytes * (size - 1) > MESSAGES_BYTES)
        bytes /= 2;
    return bytes;
}

/* Return the id of a comm, without the number of its creation. The endpoints' ids are random, so no
 * other job has the same list of members. */
static ddl__comm_id family_id(const ddl__address *addresses, int size, ddl__digest parent,
                              const ddl_comm_config *config)
{
    ddl__comm_id id = {.family = parent};
    uint64_t fields[] = {config->tag, config->epoch};
    for (int i = 0; i < size; i++)
        ddl__digest_add(&id.family, &addresses[i].endpoint, sizeof addresses[i].endpoint);
    ddl__digest_add(&id.family, fields, sizeof fields);
    return id;
}

/* Number the creation. A comm with a tag is unique by the tag and has no number. */
static ddl_status number_creation(ddl_comm *comm, ddl__digest parent)
{
    if (!comm->config.tag)
        comm->id.number = ddl__endpoint_propose_creation(comm->endpoint, comm->id.family, parent);
    if (!comm->config.tag && !comm->id.number)
        return ddl__fail(DDL_ENOMEM, "out of memory: cannot count the creations of a comm");
    comm->id.comm = comm->id.family;
    ddl__digest_add(&comm->id.comm, &comm->id.number, sizeof comm->id.number);
    return DDL_OK;
}

static void need_progress(void *context, ddl__urgency urgency)
{
    ddl_comm *comm = context;
    ddl__endpoint_need_progress(comm->endpoint, comm->slot, urgency == DDL__NOW);
}

static bool run_in_background(void *engine)
{
    return ddl__engine_background(engine) == DDL__BACKGROUND_ASLEEP;
}

static bool was_driven(void *engine)
{
    return ddl__engine_was_driven(engine);
}

/* Return the number of members with this host's address. */
static uint64_t count_members_here(const ddl_comm *comm)
{
    const ddl__address *own = &comm->addresses[comm->rank];
    uint64_t members = 0;
    for (int i = 0; i < comm->size; i++) {
        const ddl__address *other = &comm->addresses[i];
        members += other->network == own->network && !strcmp(other->host, own->host);
    }
    return members;
}

/* Return true if there is a core for each member on this host. Members that share cores sleep more
 * often. */
static bool has_cores(const ddl_comm *comm)
{
    return count_members_here(comm) <= comm->layout.location.cores;
}

/* Create the memory that is shared with members on this host. If that fails, use TCP instead, if it
 * is allowed. */
static ddl_status open_arena(ddl_comm *comm, uint32_t *kinds)
{
    const uint32_t sharing = DDL_LINK_SHM | DDL_LINK_INPROC;
    size_t size = (size_t)comm->size;
    ddl__location here = comm->layout.location;
    /* A cache size of 0 means that the ring does not stay in a cache. That is so without an arena,
     * with several hosts, or if ranks share cores. */
    comm->layout.location.cache = 0;
    if (size == 1 || !(*kinds & sharing))
        return DDL_OK;
    if (count_members_here(comm) < size || !has_cores(comm))
        here.cache = 0;
    bool reachable = ddl__endpoint_is_local(comm->endpoint);
    if (reachable)
        comm->arena = ddl__arena_create((unsigned)size, ddl__ring_bytes(&here, comm->size),
                                        message_bytes(size));
    else
        ddl__fail(DDL_ESYSTEM,
                  "the endpoint has no abstract unix socket, which shared memory requires");
    comm->layout.location.cache = comm->arena ? here.cache : 0;
    if (comm->arena)
        return DDL_OK;
    if (!(*kinds & DDL_LINK_TCP))
        return DDL_ESYSTEM;
    if (reachable) /* otherwise a warning was logged when the endpoint was created */
        ddl__log(
            DDL__WARN,
            "%s cannot share memory, so it uses TCP to the ranks of its host, which is slower: %s",
            comm->names[comm->rank], ddl__message());
    *kinds &= ~sharing;
    return DDL_OK;
}

/* Connect to all members and create the engine over the links. If this fails before the engine
 * exists, the links created so far stay in the wireup. */
static ddl_status connect_all(ddl_comm *comm, ddl__wireup *wireup)
{
    size_t size = (size_t)comm->size;
    ddl_status status = open_arena(comm, &wireup->kinds);
    if (status != DDL_OK)
        return status;
    bool cores = wireup->has_cores = has_cores(comm);
    if (cores)
        ddl__endpoint_grant_cores(comm->endpoint, comm->slot);
    const ddl__fences *fences = comm->arena && cores ? ddl__endpoint_fences(comm->endpoint) : NULL;
    if (fences)
        ddl__arena_fence(comm->arena, fences);
    size_t slot = comm->segment_bytes > SLOT_BYTES ? comm->segment_bytes : SLOT_BYTES;
    comm->slots = ddl__slots_create(slot, SLOTS);
    wireup->arena = comm->arena;
    wireup->slots = comm->slots;
    wireup->links = calloc(size, sizeof *wireup->links);
    wireup->messages = calloc(size, sizeof *wireup->messages);
    wireup->controls = ddl__controls_create(comm->size);
    if (!comm->slots || !wireup->links || !wireup->messages || !wireup->controls)
        return ddl__fail(DDL_ENOMEM, "out of memory for %zu links", size);
    bool opens_late = wireup->kinds & DDL_LINK_TCP ? ddl__first_use_is_for(comm->size)
                                                   : ddl__is_sparse(comm->size);
    if (opens_late && !(wireup->first_use = comm->first_use = ddl__first_use_create(wireup)))
        return DDL_ENOMEM;
    status = DDL__TEST_POINT(DDL__AT_WIREUP, wireup);
    if (status == DDL_OK)
        status = ddl__wireup_run(wireup);
    if (status == DDL_OK)
        status = DDL__TEST_POINT(DDL__AT_ENGINE, wireup);
    if (status != DDL_OK)
        return status;
    ddl__engine_config config = {.rank = comm->rank,
                                 .size = comm->size,
                                 .links = wireup->links,
                                 .messages = wireup->messages,
                                 .names = comm->names,
                                 .segment_bytes = (int64_t)comm->segment_bytes,
                                 .window = DDL__RING_NEAR, /* fit_rings replaces this value */
                                 .message_window = (int64_t)message_bytes(size) / 2,
                                 .regions = ddl__endpoint_regions(comm->endpoint),
                                 .fences = fences,
                                 .sharing_cores = !cores,
                                 .need_progress = need_progress,
                                 .context = comm};
    wireup->links = wireup->messages = NULL; /* the engine takes ownership, even if it fails */
    comm->engine = ddl__engine_create(&config);
    if (!comm->engine)
        return DDL_ESYSTEM;
    ddl__background_task task = {comm->engine, ddl__engine_fd(comm->engine), run_in_background,
                                 was_driven};
    status = ddl__endpoint_set_task(comm->endpoint, comm->slot, &task);
    ddl__first_use_events events = {comm->engine, ddl__engine_watch, ddl__engine_wake,
                                    ddl__engine_peer_unreachable};
    return status == DDL_OK && comm->first_use ? ddl__first_use_start(comm->first_use, &events)
                                               : status;
}

static int64_t ms_to_ns(int64_t milliseconds)
{
    return ddl__deadline_after(0, milliseconds);
}

/* Dial the control connections to the lower ranks, which answer when all members have connected. */
static ddl_status connect_control(ddl_comm *comm, ddl__wireup *wireup, const ddl__until *until)
{
    if (comm->size == 1)
        return DDL_OK;
    ddl__control_dial *controls = wireup->controls;
    wireup->controls = NULL; /* ddl__health takes ownership, even if it fails */
    const ddl_comm_config *config = &comm->config;
    ddl__health_config setup = {.endpoint = comm->endpoint,
                                .slot = comm->slot,
                                .engine = comm->engine,
                                .comm = wireup->id.comm,
                                .addresses = comm->addresses,
                                .names = comm->names,
                                .first_use = comm->first_use,
                                .controls = controls,
                                .rank = comm->rank,
                                .size = comm->size,
                                .kinds = wireup->kinds,
                                .limits = {.heartbeat = ms_to_ns(config->heartbeat_ms),
                                           .suspect = ms_to_ns(config->suspect_ms),
                                           .dead = ms_to_ns(config->dead_ms),
                                           .stall = ms_to_ns(config->stall_warn_ms)},
                                .witness = ddl__environment_text("DDL_WITNESS"),
                                .trace_dir = ddl__environment_text("DDL_TRACE_DIR"),
                                .timeline_dir = ddl__environment_text("DDL_TIMELINE_DIR"),
                                .deadline = until->deadline,
                                .until = until};
    return ddl__health_connect(&setup, &comm->health);
}

static bool is_lost(const ddl_comm *comm, int rank)
{
    ddl__finding found = ddl__engine_find_peer(comm->engine, rank);
    return found == DDL__PEER_LOST || found == DDL__PEER_DOUBTED;
}

/* Return the member whose link has ended without a reason, or -1. */
static int find_lost_member(const ddl_comm *comm)
{
    for (int i = 0; comm->engine && i < comm->size; i++)
        if (is_lost(comm, i))
            return i;
    return -1;
}

/* The context of the last steps of a creation, after all members have connected. */
typedef struct last_steps {
    ddl_comm *comm;
    ddl__wireup *wireup;
} last_steps;

/* Fail if the comm can no longer be created. If a link has ended without a reason, look for the
 * reason elsewhere. If no reason is found in time, the member counts as dead, and the engine ends
 * the comm. */
static ddl_status check_last_steps(void *context)
{
    const last_steps *steps = context;
    ddl_comm *comm = steps->comm;
    ddl__wireup *wireup = steps->wireup;
    wireup->lost = find_lost_member(comm);
    if (wireup->lost < 0)
        return ddl__until_check(wireup->until);
    bool is_over;
    ddl_status status = ddl__wireup_look_for_reason(wireup, &is_over);
    for (int i = 0; status == DDL_OK && is_over && i < comm->size; i++)
        if (is_lost(comm, i))
            ddl__engine_peer_died(comm->engine, i);
    return status;
}

/* Notify the other members that this one cannot create the comm, so that they do not wait for
 * it. */
static void announce_failure(const ddl_comm *comm, ddl__wireup *wireup, ddl_status status)
{
    char text[DDL__MESSAGE_MAX];
    if (!comm->engine) {
        (void)DDL__TEST_POINT(DDL__AT_FAILURE, &status);
        ddl__wireup_announce_failure(wireup, status);
        if (wireup->messages)
            ddl__links_destroy(wireup->messages, (size_t)comm->size);
        if (wireup->links)
            ddl__links_destroy(wireup->links, (size_t)comm->size);
        return;
    }
    snprintf(text, sizeof text, "%s could not create the comm: %.300s", comm->names[comm->rank],
             ddl__message());
    ddl__engine_close_links(comm->engine, status, text);
    if (comm->first_use) /* members whose links are unopened are notified by the failure detector */
        ddl__engine_fail(comm->engine, status, text);
}

/* Refuse the remaining control connections after an early failure of the creation. Members that
 * have all their control connections no longer check for create-failure notices. */
static void refuse(const ddl_comm *comm, ddl__wireup *wireup, ddl_status status)
{
    char text[DDL__MESSAGE_MAX], message[DDL__MESSAGE_MAX];
    snprintf(message, sizeof message, "%s", ddl__message());
    snprintf(text, sizeof text, "%s could not create the comm: %.300s", comm->names[comm->rank],
             message);
    bool is_told = ddl__creation_is_told(wireup->creation);
    ddl__health_refuse(wireup->controls, comm->size, status, is_told ? message : text);
    wireup->controls = NULL;
    if (status != DDL_OK)
        ddl__fail(status, "%s", message);
}

/* Complete the caller's config from the environment. */
static ddl_status complete_settings(ddl_comm *comm, uint32_t *kinds)
{
    ddl_status status = *kinds ? DDL_OK : ddl__environment_links(kinds);
    comm->fabric.wanted = *kinds & DDL_LINK_UCX;
    comm->fabric.required = comm->fabric.wanted && !(*kinds & DDL_LINK_TCP);
    if (comm->fabric.wanted) /* links over UCX are TCP links first */
        *kinds = (*kinds & ~(uint32_t)DDL_LINK_UCX) | DDL_LINK_TCP;
    if (status == DDL_OK)
        status = ddl__environment_layout(&comm->layout);
    if (status == DDL_OK)
        status = ddl__environment_limits(&comm->config);
    if (status == DDL_OK)
        status = ddl__environment_invariant(&comm->config.invariant);
    if (status == DDL_OK)
        status = ddl__environment_wire(&comm->config.wire);
    if (status == DDL_OK && comm->config.wire != DDL_WIRE_F32 &&
        comm->config.invariant != DDL_INVARIANT_NONE)
        status =
            ddl__fail(DDL_EINVAL,
                      "the wire format is %s, set or inherited, but invariant sums must not be "
                      "rounded: choose f32 or no invariant",
                      ddl__wire_name(comm->config.wire));
    if (status == DDL_OK && comm->rank == 0 &&
        (comm->plan_file = ddl__environment_text("DDL_PLAN_FILE")))
        status = ddl__plan_file_read(comm->plan_file, comm->size, &comm->layout.choices);
    return status;
}

void ddl__comm_warn_unpacked(ddl_comm *comm, uint32_t wire)
{
    if (wire > DDL_WIRE_F32 && comm->never_packs && comm->rank == 0 &&
        !atomic_exchange_explicit(&comm->warned_unpacked, true, memory_order_relaxed))
        ddl__log(DDL__WARN,
                 "the wire format is %s, but f32 is sent as it is: DDL_OPTIONS chooses one "
                 "ring, or a host has more than three times as many ranks as another host with "
                 "several ranks",
                 ddl__wire_name(wire));
}

static ddl_status comm_set_up(ddl_comm *comm, const ddl__until *until)
{
    const ddl__address *addresses = comm->addresses;
    if (!(comm->names = ddl__members_name(addresses, comm->size)))
        return ddl__fail(DDL_ENOMEM, "out of memory for %d names", comm->size);
    ddl__creation creation = {.number = comm->id.number,
                              .is_witnessed = until->check != NULL,
                              .deadline = until->deadline};
    int64_t warn_at = DDL__NEVER;
    if (ddl__is_sparse(comm->size))
        ddl__find_places(comm->addresses, comm->size);
    ddl__wireup wireup = {.endpoint = comm->endpoint,
                          .id = comm->id,
                          .addresses = addresses,
                          .rank = comm->rank,
                          .size = comm->size,
                          .kinds = comm->config.links,
                          .begun = ddl__now(),
                          .deadline = until->deadline,
                          .until = until,
                          .warn_at = &warn_at,
                          .lost = -1,
                          .creation = &creation};
    last_steps steps = {comm, &wireup};
    ddl__until last_until = {until->deadline, check_last_steps, &steps, NULL};
    ddl_status status = complete_settings(comm, &wireup.kinds);
    warn_at = ddl__deadline_after(wireup.begun, comm->config.stall_warn_ms);
    if (status == DDL_OK)
        status = ddl__descriptors_provide(comm->endpoint, addresses, comm->rank, comm->size,
                                          wireup.kinds);
    if (status == DDL_OK)
        status = ddl__endpoint_open_slot(comm->endpoint, &comm->id, &comm->slot);
    /* DDL_ESTATE means that a comm with this id is alive, on this rank and perhaps on other
     * members. That comm must not receive this failure. */
    bool entered = status != DDL_ESTATE;
    wireup.slot = comm->slot;
    if (status == DDL_OK)
        status = connect_all(comm, &wireup);
    if (status == DDL_OK)
        status = DDL__TEST_POINT(DDL__AT_CONTROL, comm);
    if (status == DDL_OK)
        status = connect_control(comm, &wireup, &last_until);
    if (status == DDL_OK)
        status = DDL__TEST_POINT(DDL__AT_HEALTH, comm);
    if (status == DDL_OK && comm->health)
        status = ddl__health_open(comm->health);
    if (status == DDL_OK)
        status = DDL__TEST_POINT(DDL__AT_AGREEMENT, comm);
    if (status == DDL_OK)
        status = ddl__exchange_settings(comm, &wireup, &last_until);
    if (status == DDL_OK)
        status = ddl__comm_set_order(comm);
    if (status == DDL_OK && comm->explores) {
        ddl__engine_created(comm->engine); /* so that its operations do not search for reasons */
        status = ddl__explore(comm, until->deadline);
    }
    if (status == DDL_OK && comm->layout.dump_iter &&
        !(comm->times = ddl__operation_times_create(comm, comm->layout.dump_iter)))
        status = ddl__fail(DDL_ENOMEM, "out of memory for the times of %d ranks", comm->size);
    if (status == DDL_OK)
        status = DDL__TEST_POINT(DDL__AT_COMMIT, comm);
    if (status == DDL_OK)
        status = ddl__creation_commit(comm, &last_until);
    if (status == DDL_OK) {
        ddl__engine_created(comm->engine);
        ddl__health_created(comm->health);
    }
    wireup.lost = find_lost_member(comm);
    if (status != DDL_OK && wireup.lost >= 0) {
        status = ddl__wireup_find_reason(&wireup, status);
    } else if (status == DDL_EPEER) { /* the parent may have failed, too */
        bool is_over;
        ddl_status reason = ddl__wireup_look_for_reason(&wireup, &is_over);
        status = reason != DDL_OK ? reason : status;
    }
    if (status != DDL_OK && entered)
        announce_failure(comm, &wireup, status);
    /* without a refusal, members would notice the end of the connections before they receive the
     * reason */
    refuse(comm, &wireup, status);
    if (status != DDL_OK && comm->health) /* this rank may try again: not dead */
        ddl__health_abandon(comm->health);
    return status;
}

/* Close the comm and free it, but not its addresses. */
static ddl_status tear_down(ddl_comm *comm)
{
    char difference[DDL__MESSAGE_MAX];
    ddl__health_close(comm->health, difference);
    if (comm->slot)
        ddl__endpoint_close_slot(comm->endpoint, comm->slot);
    ddl__first_use_stop(comm->first_use);
    ddl__operation_times_close(comm->times);
    ddl__device_detach(comm->device);
    (void)DDL__TEST_POINT(DDL__AT_ENGINE_END, comm);
    ddl__engine_destroy(comm->engine);
    ddl__ucx_destroy(comm->fabric.ucx);
    ddl__health_destroy(comm->health);
    ddl__device_destroy(comm->device);
    ddl__first_use_destroy(comm->first_use);
    ddl__operation_times_destroy(comm->times);
    ddl__slots_destroy(comm->slots);
    ddl__arena_drop(comm->arena);
    ddl__topology_destroy(comm->topology);
    ddl__order_release(comm->order);
    free(comm->names);
    free(comm);
    return difference[0] ? ddl__fail(DDL_EMISMATCH, "%s", difference) : DDL_OK;
}

/* Make one attempt to create the comm. Returns DDL__SUPERSEDED if other members are at a later
 * attempt. */
static ddl_status attempt_creation(const ddl_comm *draft, ddl__digest parent,
                                   const ddl__until *until, ddl_comm **out)
{
    ddl_comm *comm = malloc(sizeof *comm);
    if (!comm)
        return ddl__fail(DDL_ENOMEM, "out of memory for a comm of %d members", draft->size);
    *comm = *draft;
    ddl_status status = number_creation(comm, parent);
    if (status == DDL_OK)
        status = comm_set_up(comm, until);
    if (status == DDL_OK) {
        *out = comm;
        return DDL_OK;
    }
    char why[DDL__MESSAGE_MAX];
    snprintf(why, sizeof why, "%s", ddl__message());
    tear_down(comm);
    return ddl__fail(status, "%s", why);
}

ddl_status ddl__comm_join(ddl_endpoint *endpoint, const ddl_comm *parent, ddl__address *addresses,
                          int rank, int size, const ddl_comm_config *config, bool is_world,
                          const ddl__until *until, ddl_comm **out)
{
    ddl__until own = until ? *until : (ddl__until){.deadline = DDL__NEVER};
    int64_t limit = ddl__deadline(ddl__comm_creation_ms(config));
    own.deadline = limit < own.deadline ? limit : own.deadline;
    ddl__digest parents = parent ? parent->id.comm : (ddl__digest){{0, 0}};
    int64_t operation_ms = config->operation_timeout_ms;
    ddl_comm draft = {.endpoint = endpoint,
                      .generation = ddl__generation(),
                      .id = family_id(addresses, size, parents, config),
                      .addresses = addresses,
                      .config = *config,
                      .is_world = is_world,
                      .rank = rank,
                      .size = size,
                      .segment_bytes = config->segment_bytes,
                      .operation_timeout_ms =
                          operation_ms ? operation_ms : DDL__OPERATION_LIMIT / DDL__MS};
    if (parent)
        draft.fabric = ddl__fabric_inherit(&parent->fabric);
    ddl_status status;
    do {
        status = attempt_creation(&draft, parents, &own, out);
        if (status == DDL__SUPERSEDED)
            ddl__log(DDL__INFO, "rank %d on %s restarts the creation of a comm: %s", rank,
                     addresses[rank].host, ddl__message());
    } while (ddl__creation_begins_again(status, ddl__now(), own.deadline));
    if (status == DDL__SUPERSEDED)
        status = ddl__fail(DDL_ETIMEDOUT, "the members did not agree on a creation in time");
    if (status != DDL_OK)
        free(addresses);
    return status;
}

ddl_status ddl__comm_create(ddl_endpoint *endpoint, const void *const *addresses,
                            const size_t *lengths, int rank, int size,
                            const ddl_comm_config *config, bool is_world, const ddl__until *until,
                            ddl_comm **out)
{
    ddl__address *decoded = ddl__members_create(size);
    if (!decoded)
        return DDL_ENOMEM;
    ddl_status status = ddl__members_decode(endpoint, addresses, lengths, rank, size, decoded);
    if (status == DDL_OK)
        return ddl__comm_join(endpoint, NULL, decoded, rank, size, config, is_world, until, out);
    free(decoded);
    return status;
}

void ddl__comm_abandon(ddl_comm *comm)
{
    if (!comm)
        return;
    char why[DDL__MESSAGE_MAX];
    snprintf(why, sizeof why,
             "%s has abandoned this comm because not all survivors could create it",
             comm->names[comm->rank]);
    ddl__engine_fail(comm->engine, DDL_EPEER, why);
    if (comm->health)
        ddl__health_abandon(comm->health);
    ddl__comm_destroy(comm);
}

ddl_status ddl__comm_destroy(ddl_comm *comm)
{
    if (!comm)
        return DDL_OK;
    ddl__address *addresses = comm->addresses;
    ddl__endpoint_forget_children(comm->endpoint, comm->id.comm);
    ddl_status status = tear_down(comm);
    free(addresses);
    return status;
}
