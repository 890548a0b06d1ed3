/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/comm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/forks.h"
#include "base/log.h"
#include "base/time_limits.h"
#include "comm/environment.h"
#include "comm/explore.h"
#include "comm/members.h"
#include "comm/plan_file.h"
#include "connect/neighbours.h"
#include "connect/wireup.h"

enum {
    /* Messages and named operations have a ring for each pair, half of which may be published. In
     * a small ring, large operations would take more turns. */
    MESSAGES_BYTES = 8 * 1024 * 1024, /* for all peers of a rank */
    MESSAGE_MOST = DDL__RING,         /* upper and ... */
    MESSAGE_LEAST = 512 * 1024,       /* ... lower limit for one peer */
    SLOT_BYTES = 256 * 1024,
    SLOTS = 64,
    COMMIT_LEAST_MS = DDL__COMMIT_LEAST / DDL__MS
};

int64_t ddl__comm_creation_ms(const ddl_comm_config *config)
{
    return config->timeout_ms ? config->timeout_ms : DDL__CREATION_LIMIT / DDL__MS;
}

/* Equal on all ranks. The pages take no memory until they are used. */
static size_t message_bytes(size_t size)
{
    size_t bytes = MESSAGE_MOST;
    while (bytes > MESSAGE_LEAST && bytes * (size - 1) > MESSAGES_BYTES)
        bytes /= 2;
    return bytes;
}

/* The endpoints' ids are random, so no other job has the same list. */
static ddl__digest digest_list(const ddl__address *addresses, int size)
{
    ddl__digest list = {{0, 0}};
    for (int i = 0; i < size; i++)
        ddl__digest_add(&list, &addresses[i].endpoint, sizeof addresses[i].endpoint);
    return list;
}

/* The id of a comm: a digest of its ordered addresses, tag, number and epoch. */
static ddl__digest comm_id(ddl__digest list, uint64_t number, const ddl_comm_config *config)
{
    uint64_t fields[] = {config->tag, number, config->epoch};
    ddl__digest_add(&list, fields, sizeof fields);
    return list;
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

/* Members that have this host's address. */
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

/* True if there is a core for each of them. Members that share cores sleep more often. */
static bool has_cores(const ddl_comm *comm)
{
    return count_members_here(comm) <= comm->layout.location.cores;
}

/* Create the memory that is shared with members on this host. If that fails, TCP is used instead,
 * where it is allowed. */
static ddl_status open_arena(ddl_comm *comm, uint32_t *kinds)
{
    const uint32_t sharing = DDL_LINK_SHM | DDL_LINK_INPROC;
    size_t size = (size_t)comm->size;
    ddl__location here = comm->layout.location;
    /* Without an arena, with several hosts, or with ranks that share cores. */
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
        ddl__fail(DDL_ESYSTEM, "this endpoint has no abstract unix socket");
    comm->layout.location.cache = comm->arena ? here.cache : 0;
    if (comm->arena)
        return DDL_OK;
    if (!(*kinds & DDL_LINK_TCP))
        return DDL_ESYSTEM;
    if (reachable) /* else a warning was logged when the endpoint was created */
        ddl__log(DDL__WARN, "%s uses TCP to ranks of its host, which is slower: %s",
                 comm->names[comm->rank], ddl__message());
    *kinds &= ~sharing;
    return DDL_OK;
}

/* Connect to all members and create the engine over the links. If there is no engine on failure,
 * the links made so far stay in the wireup. */
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
        return ddl__fail(DDL_ENOMEM, "no memory for %zu links", size);
    bool opens_late = wireup->kinds & DDL_LINK_TCP ? ddl__first_use_is_for(comm->size)
                                                   : ddl__is_sparse(comm->size);
    if (opens_late && !(wireup->first_use = comm->first_use = ddl__first_use_create(wireup)))
        return DDL_ENOMEM;
    status = ddl__wireup_run(wireup);
    if (status != DDL_OK)
        return status;
    ddl__engine_config config = {.rank = comm->rank,
                                 .size = comm->size,
                                 .links = wireup->links,
                                 .messages = wireup->messages,
                                 .names = comm->names,
                                 .segment_bytes = (int64_t)comm->segment_bytes,
                                 .window = DDL__RING_NEAR, /* until fit_rings */
                                 .message_window = (int64_t)message_bytes(size) / 2,
                                 .regions = ddl__endpoint_regions(comm->endpoint),
                                 .fences = fences,
                                 .sharing_cores = !cores,
                                 .need_progress = need_progress,
                                 .context = comm};
    wireup->links = wireup->messages = NULL; /* the engine takes them over, even if it fails */
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

/* The settings that have to be equal on all members, and with whom the rank shares memory. */
typedef struct settings {
    uint64_t segment_bytes;
    int64_t heartbeat_ms;
    bool shares; /* it uses shared memory */
    ddl__layout layout;
    ddl__sharing sharing;
} settings;

static ddl_status settings_compare(const ddl_comm *comm, const settings *own,
                                   const settings *theirs, int rank)
{
    const char *name = comm->names[rank];
    if (theirs->segment_bytes != comm->segment_bytes)
        return ddl__fail(DDL_EINVAL, "segment_bytes is %llu on %s and %llu on %s",
                         (unsigned long long)comm->segment_bytes, comm->names[comm->rank],
                         (unsigned long long)theirs->segment_bytes, name);
    if (theirs->heartbeat_ms != comm->config.heartbeat_ms)
        return ddl__fail(DDL_EINVAL, "heartbeat_ms is %lld on %s and %lld on %s",
                         (long long)comm->config.heartbeat_ms, comm->names[comm->rank],
                         (long long)theirs->heartbeat_ms, name);
    /* Of pairs that are connected later, both ends decide how before. */
    if (ddl__is_sparse(comm->size) && theirs->shares != own->shares &&
        ddl__may_share_memory(&comm->addresses[comm->rank], &comm->addresses[rank]))
        return ddl__fail(DDL_EINVAL,
                         "%s uses shared memory and %s does not: set DDL_LINKS or the comm's links "
                         "alike on both, and see their warnings",
                         own->shares ? comm->names[comm->rank] : name,
                         own->shares ? name : comm->names[comm->rank]);
    return ddl__layout_compare(comm, &theirs->layout, name);
}

static void link_shorten(ddl__link *link)
{
    if (link && !link->ops->shared)
        ddl__tcp_link_shorten(link);
}

/* Queue less in sockets to members on this machine, which are in other containers or were
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

/* Two members that run nothing more to create their comm. */
static bool comm_is_pair(const ddl_comm *comm)
{
    return comm->size == 2 && comm->layout.mode != 'p';
}

static int64_t left_ms(const ddl__until *until, int64_t least)
{
    int64_t left = (until->deadline - ddl__now()) / DDL__MS;
    return left > least ? left : least;
}

/* Run an operation of the creation. The comm ends when waiting for it is in vain. */
static ddl_status run_operation(ddl_comm *comm, const ddl__call *call, const ddl__until *until)
{
    ddl_work *work;
    if (!until->check)
        return ddl__engine_submit(comm->engine, call, NULL);
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

/* All-gather `rows` in place. In a large comm by trees, whose edges the barrier that follows uses
 * as well: every other pair would have its link opened for this alone. */
static ddl_status gather_rows(ddl_comm *comm, void *rows, size_t row, int64_t timeout_ms,
                              const ddl__until *until)
{
    ddl__call call = {.kind = DDL__ALLGATHER,
                      .dtype = DDL_U8,
                      .count = (int64_t)row,
                      .send = rows,
                      .recv = rows,
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

/* With whom this rank shares memory, and its place among them. */
static ddl_status find_sharing(ddl_comm *comm, ddl__link *const *links, ddl__sharing *sharing)
{
    unsigned char *shared = calloc((size_t)comm->size, 1);
    if (!shared)
        return ddl__fail(DDL_ENOMEM, "no memory for %d members", comm->size);
    for (int i = 0; i < comm->size; i++) {
        shared[i] = i == comm->rank || (links[i] && links[i]->ops->shared);
        comm->local_size += shared[i];
        comm->local_rank += i < comm->rank && shared[i];
    }
    *sharing = ddl__sharing_of(shared, comm->rank, comm->size);
    free(shared);
    return DDL_OK;
}

/* All members' settings are here, by rank. */
static ddl_status apply_settings(ddl_comm *comm, const settings *all, bool *agreed)
{
    size_t size = (size_t)comm->size;
    ddl__location *locations = calloc(size, sizeof *locations);
    ddl__sharing *sharing = calloc(size, sizeof *sharing);
    ddl_status status =
        locations && sharing ? DDL_OK : ddl__fail(DDL_ENOMEM, "no memory for %zu members", size);
    for (size_t i = 0; status == DDL_OK && i < size; i++) {
        status = settings_compare(comm, &all[comm->rank], &all[i], (int)i);
        locations[i] = all[i].layout.location;
        sharing[i] = all[i].sharing;
    }
    *agreed = status == DDL_OK;
    comm->layout.choices = all[0].layout.choices;
    if (status == DDL_OK)
        status = ddl__layout_apply(comm, sharing, locations);
    if (status == DDL_OK)
        shorten_same_machine(comm, locations);
    free(locations);
    free(sharing);
    return status;
}

/* Exchange which members share memory, and the settings. This is the first operation of every comm;
 * when it is complete, all members are here. `agreed`: and all have equal settings. */
static ddl_status exchange_settings(ddl_comm *comm, const ddl__wireup *wireup, bool *agreed)
{
    settings *all = calloc((size_t)comm->size, sizeof *all);
    if (!all)
        return ddl__fail(DDL_ENOMEM, "no memory for %d members", comm->size);
    settings *own = &all[comm->rank];
    own->segment_bytes = comm->segment_bytes;
    own->heartbeat_ms = comm->config.heartbeat_ms;
    own->shares = wireup->kinds & DDL_LINK_SHM;
    own->layout = comm->layout;
    ddl_status status = find_sharing(comm, ddl__engine_links(comm->engine), &own->sharing);
    int64_t left = left_ms(wireup->until, comm_is_pair(comm) ? COMMIT_LEAST_MS : 1);
    /* A rank that does not come is known to its neighbours only: let them say so before. */
    if (ddl__is_sparse(comm->size))
        left += COMMIT_LEAST_MS;
    if (status == DDL_OK)
        status = gather_rows(comm, all, sizeof *all, left, wireup->until);
    if (status == DDL_OK)
        status = apply_settings(comm, all, agreed);
    free(all);
    return status;
}

static int64_t ms_to_ns(int64_t milliseconds)
{
    return ddl__deadline_after(0, milliseconds);
}

/* Dial the lower ranks for control messages; they answer when all members are here. */
static ddl_status connect_control(ddl_comm *comm, ddl__wireup *wireup, const ddl__until *until)
{
    if (comm->size == 1)
        return DDL_OK;
    ddl__control_dial *controls = wireup->controls;
    wireup->controls = NULL; /* the health takes them over, even if it fails */
    const ddl_comm_config *config = &comm->config;
    ddl__health_config setup = {.endpoint = comm->endpoint,
                                .slot = comm->slot,
                                .engine = comm->engine,
                                .comm = wireup->comm,
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
                                .deadline = until->deadline,
                                .until = until};
    return ddl__health_connect(&setup, &comm->health);
}

/* Return only when all members have created the comm. Without this barrier, a member that fails at
 * the very end would count one creation less than the others, as a failed creation does not count.
 * If another member fails, it reports that, and its health is monitored by now. A pair has no third
 * member that one of them may still wait for, so its exchange of settings is as good. */
static ddl_status commit_creation(ddl_comm *comm, const ddl__until *until)
{
    ddl__call call = {.kind = DDL__BARRIER,
                      .dtype = DDL_U8,
                      .uncounted = true, /* it is not one of the user's operations */
                      .timeout_ms = left_ms(until, COMMIT_LEAST_MS)};
    return comm->size == 1 || comm_is_pair(comm) ? DDL_OK : run_operation(comm, &call, until);
}

/* This member cannot create the comm: notify the others, so that they do not wait for it. */
static void announce_failure(const ddl_comm *comm, ddl__wireup *wireup, ddl_status status)
{
    char text[DDL__MESSAGE_MAX];
    if (!comm->engine) {
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
    if (comm->first_use) /* members whose links are unopened hear it from the failure detector */
        ddl__engine_fail(comm->engine, status, text);
}

/* The control connections that are left, if the creation has failed early: members that have all
 * theirs do not look for create-failure notices any more. */
static void refuse(const ddl_comm *comm, ddl__wireup *wireup, ddl_status status)
{
    char text[DDL__MESSAGE_MAX], message[DDL__MESSAGE_MAX];
    snprintf(message, sizeof message, "%s", ddl__message());
    snprintf(text, sizeof text, "%s could not create the comm: %.300s", comm->names[comm->rank],
             message);
    bool is_told = wireup->peer_reason->status != DDL_OK;
    ddl__health_refuse(wireup->controls, comm->size, status, is_told ? message : text);
    wireup->controls = NULL;
    if (status != DDL_OK)
        ddl__fail(status, "%s", message);
}

/* Take from the environment what the caller's config leaves open. */
static ddl_status complete_settings(ddl_comm *comm, uint32_t *kinds)
{
    ddl_status status = *kinds ? DDL_OK : ddl__environment_links(kinds);
    if (status == DDL_OK)
        status = ddl__environment_layout(&comm->layout);
    if (status == DDL_OK)
        status = ddl__environment_limits(&comm->config);
    if (status == DDL_OK && comm->rank == 0 &&
        (comm->plan_file = ddl__environment_text("DDL_PLAN_FILE")))
        status = ddl__plan_file_read(comm->plan_file, comm->size, &comm->layout.choices);
    return status;
}

static ddl_status comm_set_up(ddl_comm *comm, const ddl__address *addresses,
                              const ddl_comm_config *config, const ddl__until *until)
{
    if (!(comm->names = ddl__members_name(addresses, comm->size)))
        return ddl__fail(DDL_ENOMEM, "no memory for %d names", comm->size);
    ddl__digest list = digest_list(addresses, comm->size);
    uint64_t number = config->tag ? 0 : ddl__endpoint_count_creation(comm->endpoint, list, 1);
    ddl__reason peer_reason = {.status = DDL_OK};
    int64_t warn_at = DDL__NEVER;
    bool agreed = false;
    if (ddl__is_sparse(comm->size))
        ddl__find_places(comm->addresses, comm->size);
    ddl__wireup wireup = {.endpoint = comm->endpoint,
                          .comm = comm_id(list, number, config),
                          .addresses = addresses,
                          .rank = comm->rank,
                          .size = comm->size,
                          .kinds = config->links,
                          .begun = ddl__now(),
                          .deadline = until->deadline,
                          .until = until,
                          .warn_at = &warn_at,
                          .peer_reason = &peer_reason};
    ddl_status status = complete_settings(comm, &wireup.kinds);
    warn_at = ddl__deadline_after(wireup.begun, comm->config.stall_warn_ms);
    if (status == DDL_OK)
        status = ddl__descriptors_provide(comm->endpoint, addresses, comm->rank, comm->size,
                                          wireup.kinds);
    if (status == DDL_OK)
        status = ddl__endpoint_open_slot(comm->endpoint, wireup.comm, &comm->slot);
    /* DDL_ESTATE: a comm with this id is alive, here and perhaps at the others. It must not be sent
     * this failure. */
    bool entered = status != DDL_ESTATE;
    wireup.slot = comm->slot;
    if (status == DDL_OK)
        status = connect_all(comm, &wireup);
    if (status == DDL_OK)
        status = connect_control(comm, &wireup, until);
    if (status == DDL_OK && comm->health)
        status = ddl__health_open(comm->health);
    if (status == DDL_OK)
        status = exchange_settings(comm, &wireup, &agreed);
    bool counts = agreed && comm_is_pair(comm); /* the other one's creation has succeeded */
    if (status == DDL_OK)
        ddl__engine_created(comm->engine);
    if (status == DDL_OK && comm->explores)
        status = ddl__explore(comm, until->deadline);
    if (status == DDL_OK && comm->layout.dump_iter &&
        !(comm->times = ddl__operation_times_create(comm, comm->layout.dump_iter)))
        status = ddl__fail(DDL_ENOMEM, "no memory for the times of %d ranks", comm->size);
    if (status == DDL_OK)
        status = commit_creation(comm, until);
    if (status == DDL_OK)
        ddl__health_created(comm->health);
    if (status != DDL_OK && entered)
        announce_failure(comm, &wireup, status);
    refuse(comm, &wireup, status);        /* their end would come before the reason */
    if (status != DDL_OK && comm->health) /* this rank is not gone: it may try again */
        ddl__health_abandon(comm->health);
    if (status != DDL_OK && number && !counts)
        ddl__endpoint_count_creation(comm->endpoint, list, -1);
    return status;
}

ddl_status ddl__comm_join(ddl_endpoint *endpoint, ddl__address *addresses, int rank, int size,
                          const ddl_comm_config *config, bool is_world, const ddl__until *until,
                          ddl_comm **out)
{
    ddl__until own = until ? *until : (ddl__until){.deadline = DDL__NEVER};
    int64_t limit = ddl__deadline(ddl__comm_creation_ms(config));
    own.deadline = limit < own.deadline ? limit : own.deadline;
    ddl_comm *comm = calloc(1, sizeof *comm);
    if (!comm) {
        free(addresses);
        return ddl__fail(DDL_ENOMEM, "no memory for %d members", size);
    }
    comm->endpoint = endpoint;
    comm->generation = ddl__generation();
    comm->addresses = addresses;
    comm->config = *config;
    comm->is_world = is_world;
    comm->rank = rank;
    comm->size = size;
    comm->segment_bytes = config->segment_bytes;
    comm->operation_timeout_ms = config->operation_timeout_ms ? config->operation_timeout_ms
                                                              : DDL__OPERATION_LIMIT / DDL__MS;
    ddl_status status = comm_set_up(comm, addresses, config, &own);
    if (status == DDL_OK)
        *out = comm;
    else
        ddl__comm_destroy(comm);
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
        return ddl__comm_join(endpoint, decoded, rank, size, config, is_world, until, out);
    free(decoded);
    return status;
}

void ddl__comm_abandon(ddl_comm *comm)
{
    if (!comm)
        return;
    char why[DDL__MESSAGE_MAX];
    snprintf(why, sizeof why, "%s has abandoned this comm, which not all survivors could create",
             comm->names[comm->rank]);
    ddl__engine_fail(comm->engine, DDL_EPEER, why);
    if (comm->health)
        ddl__health_abandon(comm->health);
    ddl__comm_destroy(comm);
}

ddl_status ddl__comm_destroy(ddl_comm *comm)
{
    char difference[DDL__MESSAGE_MAX];
    if (!comm)
        return DDL_OK;
    ddl__health_close(comm->health, difference);
    if (comm->slot)
        ddl__endpoint_close_slot(comm->endpoint, comm->slot);
    ddl__first_use_stop(comm->first_use);
    ddl__operation_times_close(comm->times);
    ddl__device_detach(comm->device);
    ddl__engine_destroy(comm->engine);
    ddl__device_destroy(comm->device);
    ddl__first_use_destroy(comm->first_use);
    ddl__operation_times_destroy(comm->times);
    ddl__slots_destroy(comm->slots);
    ddl__arena_drop(comm->arena);
    ddl__topology_destroy(comm->topology);
    free(comm->names);
    free(comm->addresses);
    free(comm);
    return difference[0] ? ddl__fail(DDL_EMISMATCH, "%s", difference) : DDL_OK;
}
