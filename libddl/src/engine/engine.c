/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include "base/clock.h"
#include "base/forks.h"
#include "base/log.h"
#include "base/thread.h"
#include "engine/calls/describe.h"
#include "engine/calls/frames.h"
#include "engine/state.h"

static bool engine_watch_fd(ddl__engine *engine, int fd, ddl__link *link)
{
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET,
                                .data.ptr = link};
    if (!link)
        event.events = EPOLLIN;
    else if (link->shared) /* without EPOLLOUT: links over shared memory never wait for room in a
                              socket */
        event.events = EPOLLIN | EPOLLET;
    /* If links share a descriptor, the first link polls it. */
    return !epoll_ctl(engine->epoll, EPOLL_CTL_ADD, fd, &event) || errno == EEXIST;
}

static bool open_descriptors(ddl__engine *engine)
{
    engine->epoll = ddl__guard(epoll_create1(EPOLL_CLOEXEC));
    engine->wake = ddl__guard(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (engine->epoll < 0 || engine->wake < 0 || !engine_watch_fd(engine, engine->wake, NULL))
        return false;
    for (int i = 0; i < engine->config.size; i++)
        for (int second = 0; second < 2; second++) {
            ddl__link *link = (second ? engine->config.messages : engine->config.links)[i];
            if (link && link->fd >= 0 && !engine_watch_fd(engine, link->fd, link))
                return false;
        }
    return true;
}

ddl__engine *ddl__engine_create(const ddl__engine_config *config)
{
    ddl__engine *engine = calloc(1, sizeof *engine);
    if (!engine) {
        ddl__links_destroy(config->messages, (size_t)config->size);
        ddl__links_destroy(config->links, (size_t)config->size);
        ddl__fail(DDL_ENOMEM, "out of memory for an engine");
        return NULL;
    }
    engine->config = *config;
    atomic_init(&engine->references, 1);
    engine->probed_at = ddl__now();
    for (int i = 0; i < config->size && !engine->neighbour; i++)
        if (config->links[i] && config->links[i]->shared)
            engine->neighbour = config->links[i];
    engine->wait_policy.computed_here = ddl__computed_here;
    engine->wait_policy.context = engine;
    engine->wait_policy.sharing = config->sharing_cores;
    /* The first operations wait for members that are still connecting and need the cores. So if
     * members share cores, the first waits sleep at once; otherwise they yield instead of
     * spinning. */
    if (config->sharing_cores)
        engine->wait_policy.core_taken.left = 2 * (uint32_t)config->size;
    else
        engine->wait_policy.oversubscribed.left = 2 * (uint32_t)config->size;
    engine->ordered.segment_bytes = config->segment_bytes;
    engine->ordered.window = config->window;
    engine->ordered.runner.regions = config->regions;
    engine->named.stream.segment_bytes = config->segment_bytes;
    engine->named.stream.window = config->message_window;
    engine->named.stream.sequences = 1u << DDL__SEQUENCE_BITS;
    engine->named.stream.runner.among_frames = true;
    engine->named.announcements.size = config->size;
    engine->named.deadline = DDL__NEVER;
    engine->last = &engine->completed;
    engine->epoll = engine->wake = engine->report = -1;
    engine->ordered.queue_limit = engine->named.stream.queue_limit = DDL__NEVER;
    pthread_mutex_init(&engine->lock, NULL);
    pthread_mutex_init(&engine->explaining, NULL);
    ddl__cond_init(&engine->changed);
    engine->messages = ddl__messages_create(config->rank, config->size, config->messages,
                                            config->names, &engine->lock, &engine->names_unsent);
    if (engine->messages)
        ddl__messages_record(engine->messages, &engine->recorder);
    engine->losses = calloc((size_t)config->size, sizeof *engine->losses);
    if (!open_descriptors(engine)) {
        ddl__fail(DDL_ESYSTEM, "cannot open the descriptors of a comm: %s", strerror(errno));
    } else if (!ddl__stream_open(&engine->ordered, config->rank, config->size, config->links) ||
               !ddl__stream_open(&engine->named.stream, config->rank, config->size,
                                 config->messages) ||
               (config->rank == 0 &&
                !ddl__announcements_open(&engine->named.announcements, config->size)) ||
               !engine->messages || !engine->losses || !ddl__recorder_open(&engine->recorder)) {
        ddl__fail(DDL_ENOMEM, "out of memory for %d links", config->size);
    } else {
        return engine;
    }
    ddl__engine_destroy(engine);
    return NULL;
}

ddl__link *const *ddl__engine_links(const ddl__engine *engine)
{
    return engine->config.links;
}

ddl__link *const *ddl__engine_message_links(const ddl__engine *engine)
{
    return engine->config.messages;
}

void ddl__engine_created(ddl__engine *engine)
{
    atomic_store_explicit(&engine->created, true, memory_order_relaxed);
}

bool ddl__engine_is_created(const ddl__engine *engine)
{
    return atomic_load_explicit(&engine->created, memory_order_relaxed);
}

void ddl__engine_peer_died(ddl__engine *engine, int rank)
{
    atomic_store_explicit(&engine->losses[rank].ended, true, memory_order_release);
    ddl__engine_peer_gone(engine, rank);
    ddl__wake_driver(engine);
}

void ddl__engine_peer_gone(ddl__engine *engine, int rank)
{
    ddl__link *link = engine->config.links[rank];
    if (link && link->shared)
        link->ops->peer_ended(link);
}

void ddl__engine_watch(ddl__engine *engine, ddl__link *link, int fd)
{
    if (!engine_watch_fd(engine, fd, link))
        ddl__log(DDL__WARN, "cannot add a link to epoll: %s", strerror(errno));
    /* All links over shared memory have the same descriptor. It may already be watched, and then
     * there is no new event, so wake the driver. */
    ddl__engine_wake(engine);
}

void ddl__engine_wake(ddl__engine *engine)
{
    ddl__messages_links_changed(engine->messages);
    ddl__wake_driver(engine);
}

void ddl__engine_all_shared(ddl__engine *engine)
{
    engine->ordered.all_shared = engine->named.stream.all_shared = true;
}

void ddl__engine_set_window(ddl__engine *engine, int64_t window, bool is_near)
{
    engine->ordered.window = window;
    engine->ordered.runner.rings_are_near = is_near;
}

void ddl__engine_set_topology(ddl__engine *engine, const ddl__topology *topology)
{
    engine->ordered.topology = engine->named.stream.topology = topology;
}

void ddl__engine_set_choices(ddl__engine *engine, const ddl__choices *choices, ddl__algorithm by)
{
    engine->ordered.choices = engine->named.stream.choices = choices;
    engine->ordered.by = engine->named.stream.by = by;
}

void ddl__engine_set_order(ddl__engine *engine, ddl_order *order)
{
    engine->ordered.order = engine->named.stream.order = order;
}

bool ddl__engine_allow_packing(ddl__engine *engine)
{
    const ddl__stream *stream = &engine->ordered;
    ddl__request request = {.kind = DDL__ALLREDUCE,
                            .size = stream->runner.size,
                            .element = sizeof(float),
                            .wire = DDL_WIRE_INT8,
                            .topology = stream->topology,
                            .window = stream->window};
    request.count = ddl__packs_from(&request);
    if (!ddl__algorithm_fits(DDL__ALGORITHM_PACKED, &request))
        return false;
    engine->ordered.packs_from = engine->named.stream.packs_from = request.count;
    return true;
}

void ddl__engine_set_meter(ddl__engine *engine, ddl__meter *meter)
{
    engine->ordered.meter = meter;
}

int ddl__engine_candidates(const ddl__engine *engine, const ddl__call *call,
                           ddl__candidate found[DDL__ALGORITHMS])
{
    /* costs must be equal on all members, so compute them in the library's mode */
    ddl__fp_mode caller = ddl__fp_enter();
    int n = ddl__stream_candidates(&engine->ordered, call, found);
    ddl__fp_leave(caller);
    return n;
}

ddl_status ddl__engine_status(ddl__engine *engine)
{
    ddl_status status = (ddl_status)atomic_load_explicit(&engine->failure, memory_order_acquire);
    if (status == DDL_OK)
        return DDL_OK;
    atomic_store_explicit(&engine->told, true, memory_order_relaxed);
    return ddl__fail(status, "%s", engine->message);
}

ddl__snapshot ddl__engine_snapshot(ddl__engine *engine)
{
    pthread_mutex_lock(&engine->lock);
    ddl__snapshot snapshot = {
        .status = (ddl_status)atomic_load_explicit(&engine->failure, memory_order_relaxed),
        .told = atomic_load_explicit(&engine->told, memory_order_relaxed),
        .pending = engine->admitted - engine->finished,
        .finished = engine->finished,
        .moves = atomic_load_explicit(&engine->moves, memory_order_relaxed),
        .passes = atomic_load_explicit(&engine->passes, memory_order_relaxed),
        .scratch =
            ddl__stream_scratch(&engine->ordered) + ddl__stream_scratch(&engine->named.stream),
        .lent = ddl__stream_lent(&engine->ordered) + ddl__stream_lent(&engine->named.stream)};
    if (snapshot.status != DDL_OK)
        snprintf(snapshot.text, sizeof snapshot.text, "%s", engine->message);
    pthread_mutex_unlock(&engine->lock);
    return snapshot;
}

const ddl__recorder *ddl__engine_recorder(const ddl__engine *engine)
{
    return &engine->recorder;
}

void ddl__engine_release(ddl__engine *engine)
{
    if (atomic_fetch_sub_explicit(&engine->references, 1, memory_order_acq_rel) > 1)
        return;
    pthread_cond_destroy(&engine->changed);
    pthread_mutex_destroy(&engine->explaining);
    pthread_mutex_destroy(&engine->lock);
    free(engine);
}

/* Wait until all threads that wait for works have left, including the driver. All works are
 * complete. */
static void await_leaving(ddl__engine *engine)
{
    pthread_mutex_lock(&engine->lock);
    /* count this thread as a waiter, so that it is woken */
    atomic_fetch_add_explicit(&engine->waiters, 1, memory_order_relaxed);
    while (engine->driven || atomic_load_explicit(&engine->waiters, memory_order_relaxed) > 1)
        pthread_cond_wait(&engine->changed, &engine->lock);
    for (ddl_work *work = engine->completed, *next; work; work = next) {
        next = work->next;
        ddl__leave_list(work);
    }
    engine->completed = NULL;
    atomic_fetch_sub_explicit(&engine->waiters, 1, memory_order_relaxed);
    pthread_mutex_unlock(&engine->lock);
}

/* Describe the oldest operation that is not complete. Return false if there is none that can be
 * described. */
static bool describe_oldest(ddl__engine *engine, char *text, size_t size)
{
    uint64_t next = ddl__record_count(&engine->recorder);
    for (uint64_t i = next > DDL__RECORDS ? next - DDL__RECORDS : 0; i < next; i++) {
        ddl__record record;
        if (ddl__record_read(&engine->recorder, i, &record) && !record.ended) {
            ddl__describe_record(text, size, &record);
            return true;
        }
    }
    pthread_mutex_lock(&engine->lock);
    const ddl_work *work = engine->ordered.head; /* not started yet */
    bool found = work && !work->whole_of;
    if (found) {
        ddl__signature signature = ddl__signature_of(&work->call, 0);
        ddl__describe_whole(text, size, &signature);
    }
    pthread_mutex_unlock(&engine->lock);
    return found;
}

/* Log the operations that ddl_comm_destroy interrupts. */
static void log_interrupted(ddl__engine *engine)
{
    ddl__snapshot snapshot = ddl__engine_snapshot(engine);
    char oldest[DDL__CALL_MAX];
    if (snapshot.status != DDL_OK || !snapshot.pending)
        return;
    bool found = describe_oldest(engine, oldest, sizeof oldest);
    ddl__log(DDL__WARN,
             "%s: ddl_comm_destroy while %llu operation%s pending%s%s: wait for their works first",
             engine->config.names[engine->config.rank], (unsigned long long)snapshot.pending,
             snapshot.pending == 1 ? " was" : "s were", found ? ", the oldest is " : "",
             found ? oldest : "");
}

void ddl__engine_destroy(ddl__engine *engine)
{
    if (!engine)
        return;
    log_interrupted(engine);
    if (ddl__pending(engine))
        ddl__engine_abort(engine, "ddl_comm_destroy while operations were pending");
    await_leaving(engine);
    ddl__messages_destroy(engine->messages);
    ddl__links_destroy(engine->config.messages, (size_t)engine->config.size);
    ddl__links_destroy(engine->config.links, (size_t)engine->config.size);
    ddl__stream_close(&engine->ordered);
    ddl__stream_close(&engine->named.stream);
    ddl__announcements_close(&engine->named.announcements);
    ddl__recorder_close(&engine->recorder);
    free(engine->losses);
    ddl__close_guarded(engine->epoll);
    ddl__close_guarded(engine->wake);
    ddl__close_guarded(engine->report);
    ddl__engine_release(engine);
}
