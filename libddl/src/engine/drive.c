/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fences.h"
#include "base/log.h"
#include "base/test_points.h"
#include "base/thread.h"
#include "base/time_limits.h"
#include "engine/state.h"

enum {
    EVENTS = 32,
    LIMIT_PASSES = 4 /* check the time limits after this many passes that moved something */
};

/* Mark the current operations of both streams as having waited, so that they are timed. */
static void streams_note_wait(ddl__engine *engine)
{
    engine->ordered.waited = engine->named.stream.waited = true;
}

static void announce_sleep(ddl__engine *engine, bool asleep)
{
    atomic_store_explicit(&engine->asleep, asleep, memory_order_seq_cst);
    bool shared = false;
    for (int i = 0; i < engine->config.size; i++) {
        ddl__link *link = engine->config.links[i];
        if (!link || (shared && link->shared))
            continue;
        link->ops->sleeping(link, asleep);
        shared = shared || link->shared;
    }
    if (ddl__has_more(engine))
        ddl__messages_sleeping(engine->messages, asleep);
    if (!asleep)
        return;
    /* Take and release the lock: the driver then finds all works whose submitters did not know that
     * it sleeps. */
    pthread_mutex_lock(&engine->lock);
    pthread_mutex_unlock(&engine->lock);
    if (engine->config.fences && ddl__fences_joined(engine->config.fences))
        ddl__fence_heavy();
}

bool ddl__links_poll(ddl__engine *engine, int timeout_ms)
{
    struct epoll_event events[EVENTS];
    int n = epoll_wait(engine->epoll, events, EVENTS, timeout_ms);
    for (int i = 0; i < n; i++) {
        ddl__link *link = events[i].data.ptr;
        uint64_t count;
        if (link)
            link->ops->poll(link);
        else if (read(engine->wake, &count, sizeof count) < 0 && errno != EAGAIN)
            ddl__log(DDL__WARN, "eventfd: %s", strerror(errno));
    }
    return n > 0;
}

void ddl__wake_sleeper(ddl__engine *engine)
{
    if (atomic_load_explicit(&engine->asleep, memory_order_seq_cst))
        ddl__wake_driver(engine);
}

void ddl__wake_driver(ddl__engine *engine)
{
    uint64_t one = 1;
    ssize_t n = write(engine->wake, &one, sizeof one);
    (void)n; /* a full counter also wakes the driver */
}

static int64_t earlier(const ddl__stream *stream, int64_t deadline)
{
    const ddl_work *first = ddl__stream_first(stream);
    int64_t queued = atomic_load_explicit(&stream->queue_limit, memory_order_relaxed);
    deadline = first && first->deadline < deadline ? first->deadline : deadline;
    return queued < deadline ? queued : deadline;
}

/* Return the timeout of a sleep, in milliseconds: the time until the next limit or the deadline. */
static int sleep_ms(const ddl__engine *engine, int64_t deadline)
{
    deadline = earlier(&engine->ordered, deadline);
    deadline = earlier(&engine->named.stream, deadline);
    if (engine->named.deadline < deadline)
        deadline = engine->named.deadline;
    if (ddl__has_more(engine) && ddl__messages_deadline(engine->messages) < deadline)
        deadline = ddl__messages_deadline(engine->messages);
    if (engine->unconfirmed_until && engine->unconfirmed_until < deadline)
        deadline = engine->unconfirmed_until;
    const int most = DDL__SLEEP_LIMIT / DDL__MS;
    if (deadline == DDL__NEVER)
        return most;
    int64_t left = (deadline - ddl__now()) / 1000000 + 1;
    return left < 0 ? 0 : left < most ? (int)left : most;
}

/* Announce sleep, then advance once more. Return true if there is nothing to do. */
static bool fall_asleep(ddl__engine *engine)
{
    announce_sleep(engine, true);
    (void)DDL__TEST_POINT(DDL__AT_SLEEP, engine);
    if (!ddl__advance(engine))
        return true;
    announce_sleep(engine, false);
    return false;
}

/* Return true if the awaited work is complete, or if `work` is NULL, any work. */
static bool is_awaited_done(ddl__engine *engine, const ddl_work *work)
{
    if (work)
        return engine->ended || ddl__is_complete(work);
    pthread_mutex_lock(&engine->lock);
    bool any = engine->completed || !engine->queued;
    pthread_mutex_unlock(&engine->lock);
    return any;
}

uint64_t ddl__computed_here(const void *context)
{
    const ddl__engine *engine = context;
    uint64_t core = ddl__number_here(0), sum = 0;
    for (int i = 0; engine->neighbour && i < engine->config.size; i++) {
        const ddl__link *link = engine->config.links[i];
        uint64_t number = link && link->shared ? link->ops->computed_of(link) : 0;
        if (number && (number & DDL__CORES) == core)
            sum += number;
    }
    return sum;
}

/* Drive until the awaited work is complete or the deadline passes. */
static void drive(ddl__engine *engine, const ddl_work *work, int64_t deadline)
{
    atomic_store_explicit(&engine->asleep, false, memory_order_relaxed);
    ddl__wait_policy *wait = &engine->wait_policy;
    for (unsigned passes = 1;; passes++) {
        bool moved = ddl__advance(engine);
        if (ddl__abort_is_pending(engine))
            ddl__abort_execute(engine);
        if (is_awaited_done(engine, work) || (deadline != DDL__NEVER && ddl__now() > deadline))
            break;
        if (moved) {
            if (wait->turns >= DDL__SHORT_WAIT_TURNS)
                streams_note_wait(engine);
            ddl__wait_policy_reset(wait);
            if (passes % LIMIT_PASSES == 0)
                ddl__check_limits(engine);
            continue;
        }
        if (ddl__wait_policy_turn(wait))
            continue;
        ddl__check_blocked(engine);
        if (is_awaited_done(engine, work))
            break;
        if (!fall_asleep(engine)) {
            if (is_awaited_done(engine, work))
                break;
            continue;
        }
        ddl__links_poll(engine, sleep_ms(engine, deadline));
        announce_sleep(engine, false);
    }
    ddl__wait_policy_reset(wait);
    streams_note_wait(engine);
}

/* Sleep until the driver wakes all waiters. */
static void await_driver(ddl__engine *engine, int64_t deadline)
{
    unsigned before = atomic_load_explicit(&engine->waiters, memory_order_relaxed);
    atomic_store_explicit(&engine->waiters, before + 1, memory_order_relaxed);
    ddl__cond_wait_until(&engine->changed, &engine->lock, deadline);
    before = atomic_load_explicit(&engine->waiters, memory_order_relaxed);
    atomic_store_explicit(&engine->waiters, before - 1, memory_order_relaxed);
}

/* Become the driver of the engine, and drive. Releases the lock meanwhile. */
static void become_driver(ddl__engine *engine, const ddl_work *work, int64_t deadline)
{
    ddl__driver_start(engine);
    engine->awaited = work;
    ddl__stream_prepare(&engine->ordered);
    pthread_mutex_unlock(&engine->lock);
    drive(engine, work, deadline);
    pthread_mutex_lock(&engine->lock);
    ddl__settle(engine);
    engine->awaited = NULL;
    ddl__driver_stop(engine);
}

void ddl__wait_locked(ddl__engine *engine, const ddl_work *work, int64_t deadline)
{
    while (work ? !ddl__is_complete(work) : !engine->completed && engine->queued) {
        if (engine->driven)
            await_driver(engine, deadline);
        else
            become_driver(engine, work, deadline);
        if (deadline != DDL__NEVER && ddl__now() > deadline)
            break;
    }
    if (atomic_load_explicit(&engine->waiters, memory_order_relaxed))
        pthread_cond_broadcast(&engine->changed);
}

bool ddl__pending(const ddl__engine *engine)
{
    return ddl__stream_pending(&engine->ordered) || ddl__has_more(engine) ||
           ddl__abort_is_pending(engine);
}

void ddl__unlock_and_hand_over(ddl__engine *engine, ddl__urgency urgency)
{
    bool orphaned = !engine->driven && ddl__pending(engine) &&
                    !atomic_load_explicit(&engine->waiters, memory_order_relaxed);
    pthread_mutex_unlock(&engine->lock);
    if (!orphaned)
        return;
    if (urgency == DDL__SOON)
        atomic_store_explicit(&engine->was_driven, true, memory_order_relaxed);
    engine->config.need_progress(engine->config.context, urgency);
}

bool ddl__engine_was_driven(ddl__engine *engine)
{
    return atomic_exchange_explicit(&engine->was_driven, false, memory_order_relaxed);
}

void ddl__advance_and_unlock(ddl__engine *engine)
{
    ddl__driver_start(engine);
    ddl__stream_prepare(&engine->ordered);
    pthread_mutex_unlock(&engine->lock);
    /* The endpoint's thread was the last driver to sleep. Announce that it is awake, or every
     * arriving span would wake that thread. */
    if (atomic_load_explicit(&engine->asleep, memory_order_relaxed))
        announce_sleep(engine, false);
    atomic_store_explicit(&engine->was_driven, true, memory_order_relaxed);
    ddl__advance(engine);
    streams_note_wait(engine);
    if (ddl__abort_is_pending(engine))
        ddl__abort_execute(engine);
    pthread_mutex_lock(&engine->lock);
    ddl__driver_stop(engine);
    bool wanted = atomic_load_explicit(&engine->waiters, memory_order_relaxed);
    if (wanted)
        pthread_cond_broadcast(&engine->changed);
    bool orphaned = ddl__pending(engine) && !wanted;
    pthread_mutex_unlock(&engine->lock);
    if (orphaned)
        engine->config.need_progress(engine->config.context, DDL__SOON);
}

void ddl__engine_as_driver(ddl__engine *engine, void (*run)(void *context), void *context)
{
    pthread_mutex_lock(&engine->lock);
    while (engine->driven)
        await_driver(engine, DDL__NEVER);
    ddl__driver_start(engine);
    pthread_mutex_unlock(&engine->lock);
    run(context);
    pthread_mutex_lock(&engine->lock);
    ddl__driver_stop(engine);
    pthread_cond_broadcast(&engine->changed);
    pthread_mutex_unlock(&engine->lock);
}

void ddl__engine_poll(ddl__engine *engine)
{
    pthread_mutex_lock(&engine->lock);
    if (engine->driven) { /* the driver polls */
        pthread_mutex_unlock(&engine->lock);
        return;
    }
    ddl__driver_start(engine);
    pthread_mutex_unlock(&engine->lock);
    ddl__links_poll(engine, 0);
    ddl__check_blocked(engine);
    pthread_mutex_lock(&engine->lock);
    ddl__driver_stop(engine);
    if (atomic_load_explicit(&engine->waiters, memory_order_relaxed))
        pthread_cond_broadcast(&engine->changed);
    pthread_mutex_unlock(&engine->lock);
}

ddl__background ddl__engine_background(ddl__engine *engine)
{
    pthread_mutex_lock(&engine->lock);
    if (engine->driven || atomic_load_explicit(&engine->waiters, memory_order_relaxed) ||
        !ddl__pending(engine)) {
        pthread_mutex_unlock(&engine->lock);
        return DDL__BACKGROUND_IDLE;
    }
    ddl__driver_start(engine);
    pthread_mutex_unlock(&engine->lock);

    ddl__links_poll(engine, 0);
    streams_note_wait(engine);
    bool asleep = false, wanted = false;
    do {
        for (unsigned passes = 1; !asleep; passes++) {
            if (atomic_load_explicit(&engine->waiters, memory_order_relaxed))
                break;
            bool moved = ddl__advance(engine);
            if (ddl__abort_is_pending(engine))
                ddl__abort_execute(engine);
            if (moved && passes % LIMIT_PASSES == 0)
                ddl__check_limits(engine);
            if (moved)
                continue;
            ddl__check_blocked(engine);
            asleep = fall_asleep(engine);
        }
        pthread_mutex_lock(&engine->lock);
        wanted = atomic_load_explicit(&engine->waiters, memory_order_relaxed);
        /* This thread has stopped driving for a waiter, but that waiter has left, so continue. */
        if (asleep || wanted || !ddl__pending(engine))
            break;
        pthread_mutex_unlock(&engine->lock);
    } while (true);

    ddl__driver_stop(engine);
    bool idle = !ddl__pending(engine) || wanted;
    if (wanted)
        pthread_cond_broadcast(&engine->changed);
    pthread_mutex_unlock(&engine->lock);
    return idle ? DDL__BACKGROUND_IDLE : DDL__BACKGROUND_ASLEEP;
}

int ddl__engine_fd(const ddl__engine *engine)
{
    return engine->epoll;
}
