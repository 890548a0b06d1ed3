#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fences.h"
#include "base/log.h"
#include "engine/describe.h"
#include "engine/reason.h"
#include "engine/state.h"

enum {
    EVENTS = 32,
    SLEEP_MAX_MS = 1000,
    LIMIT_PASSES = 4,     /* how often an operation that gets on looks at its limit */
    SHORT_WAIT_TURNS = 64 /* shorter waits are not measured */
};

/* What was sent before the comm's end is taken in for so long at most; and so long a lost link is
 * not believed to be a member's end. */
static const int64_t DRAIN_NS = 100 * 1000000ll, UNCONFIRMED_NS = 50 * 1000000ll;

static const char *own_name(const ddl__engine *engine)
{
    return engine->config.names[engine->config.rank];
}

/* The comm ends because of what a link's state says. `call` is what this rank called. */
static void fail_by_link(ddl__engine *engine, const ddl__link *link, int rank, const char *call)
{
    const char *name = engine->config.names[rank];
    char theirs[DDL__CALL_MAX];
    ddl__reason reason;
    switch (link->state) {
    case DDL__LINK_OPEN: break;
    case DDL__LINK_MISMATCH:
        ddl__describe_signature(theirs, sizeof theirs, &link->found);
        ddl__fail_all(engine, DDL_EMISMATCH, "%s called %s; %s called %s", name, theirs,
                      own_name(engine), call);
        break;
    case DDL__LINK_LEFT:
        ddl__fail_all(engine, DDL_EPEER, "%s left the comm while %s called %s", name,
                      own_name(engine), call);
        break;
    case DDL__LINK_ABORTED:
        ddl__reason_read(link->reason, &reason);
        if (strstr(reason.text, "(told by ")) /* whoever told him */
            ddl__fail_all(engine, reason.status, "%s", reason.text);
        else
            ddl__fail_all(engine, reason.status, "%s (told by %s)", reason.text, name);
        break;
    case DDL__LINK_LOST:
        ddl__fail_all(engine, DDL_EPEER, "%s is lost: %s", name, link->reason);
        break;
    }
}

/* Give messages' works their results; what has gone wrong with one ends the comm. */
static void settle_messages(ddl__engine *engine)
{
    ddl_work *finished = ddl__messages_finished(engine->messages);
    if (finished) {
        pthread_mutex_lock(&engine->lock);
        ddl__finish_list(engine, finished, DDL_OK);
        pthread_mutex_unlock(&engine->lock);
    }
    const char *text;
    ddl_status status = ddl__messages_failure(engine->messages, &text);
    if (status != DDL_OK)
        ddl__fail_all(engine, status, "%s", text);
}

/* The driver alone counts. */
static void counter_increment(atomic_ullong *counter)
{
    atomic_store_explicit(counter, atomic_load_explicit(counter, memory_order_relaxed) + 1,
                          memory_order_relaxed);
}

/* Messages, also those of named operations. */
static bool advance_messages(ddl__engine *engine)
{
    bool moved = ddl__messages_run(engine->messages);
    if (moved)
        counter_increment(&engine->passes);
    settle_messages(engine);
    return moved;
}

/* Whether there is something to do beside the ordered operations. */
static bool has_more(const ddl__engine *engine)
{
    return atomic_load_explicit(&engine->n_messages, memory_order_relaxed) ||
           ddl__named_pending(engine) || ddl__messages_names_unsent(engine->messages);
}

/* Fail when the stream's current operation has run past its own limit. */
static void check_stream_limit(ddl__engine *engine, const ddl__stream *stream)
{
    const ddl_work *work = stream->current;
    if (!work || ddl__now() <= work->deadline)
        return;
    char text[DDL__CALL_MAX];
    ddl__describe_signature(text, sizeof text, &work->signature);
    ddl__fail_all(engine, DDL_EEXPIRED, "%s: %s ran past its limit of %lld ms", own_name(engine),
                  text, (long long)work->call.timeout_ms);
}

/* Fail when something has run past its own limit. */
static void check_limits(ddl__engine *engine)
{
    ddl__messages_check_limits(engine->messages);
    settle_messages(engine);
    check_stream_limit(engine, &engine->ordered);
    check_stream_limit(engine, &engine->named.stream);
    ddl__named_check_limits(engine);
}

/* Fail when what blocks the stream cannot come any more. */
static void check_stream(ddl__engine *engine, ddl__stream *stream)
{
    int rank;
    if (!stream->current)
        return;
    ddl__link *blocking = ddl__run_blocking_peer(&stream->runner, stream->current, &rank);
    if (blocking) {
        char call[DDL__CALL_MAX];
        ddl__describe_signature(call, sizeof call, &stream->current->signature);
        fail_by_link(engine, blocking, rank, call);
    }
}

/* The link to this rank by which it killed the comm, or NULL. */
static ddl__link *aborted(const ddl__engine *engine, int rank)
{
    ddl__link *link = engine->config.links[rank], *other = engine->config.messages[rank];
    if (link && link->state == DDL__LINK_ABORTED)
        return link;
    return other && other->state == DDL__LINK_ABORTED ? other : NULL;
}

static bool advance(ddl__engine *engine);

/* There is word of the comm's end: take in what was sent before. */
static void drain_last_spans(ddl__engine *engine)
{
    int64_t end = ddl__now() + DRAIN_NS;
    while (advance(engine) && ddl__now() < end)
        ;
}

void ddl__abort_execute(ddl__engine *engine)
{
    if (engine->abort_after_spans)
        drain_last_spans(engine);
    ddl__fail_all(engine, engine->abort_status, "%s", engine->abort_text);
}

static bool is_lost(const ddl__engine *engine, int rank)
{
    const ddl__link *link = engine->config.links[rank], *other = engine->config.messages[rank];
    return (link && link->state == DDL__LINK_LOST) || (other && other->state == DDL__LINK_LOST);
}

/* Whether a link was lost and nobody has said yet whether its member is to blame for that. */
static bool has_unconfirmed_loss(ddl__engine *engine)
{
    int64_t now = ddl__now();
    engine->unconfirmed_until = 0;
    for (int rank = 0; rank < engine->config.size; rank++) {
        ddl__loss *loss = &engine->losses[rank];
        if (!is_lost(engine, rank) || atomic_load_explicit(&loss->ended, memory_order_acquire))
            continue;
        if (!loss->noticed)
            loss->noticed = now;
        if (now - loss->noticed < UNCONFIRMED_NS)
            engine->unconfirmed_until = loss->noticed + UNCONFIRMED_NS;
    }
    return engine->unconfirmed_until;
}

/* While the comm is created, nobody but us misses a member whose process has ended, and others that
 * wait for it may keep us waiting. */
static void check_creation(ddl__engine *engine)
{
    for (int rank = 0; rank < engine->config.size; rank++) {
        const ddl__link *link = engine->config.links[rank];
        if (link && link->state == DDL__LINK_LOST)
            fail_by_link(engine, link, rank, "");
    }
}

static unsigned count_ended(const ddl__engine *engine)
{
    unsigned n = 0;
    for (int rank = 0; rank < engine->config.size; rank++) {
        const ddl__link *link = engine->config.links[rank], *other = engine->config.messages[rank];
        n += (link && link->state != DDL__LINK_OPEN) + (other && other->state != DDL__LINK_OPEN);
    }
    return n;
}

/* A peer's last spans count more than its end, and may have come together with it, after we looked
 * for them: whether there were any, once it was known. */
static bool advance_last_spans(ddl__engine *engine)
{
    for (unsigned ended = count_ended(engine), before = 0; ended != before;) {
        if (advance(engine))
            return true;
        before = ended;
        ended = count_ended(engine);
    }
    return false;
}

/* Fail when a peer killed the comm, or when what blocks cannot come any more. Only after a run that
 * found nothing to do. */
static void check_blocked(ddl__engine *engine)
{
    ddl__link *link;
    if (advance_last_spans(engine))
        return;
    for (int rank = 0; rank < engine->config.size; rank++)
        if ((link = aborted(engine, rank))) {
            drain_last_spans(engine);
            fail_by_link(engine, link, rank, "");
            return;
        }
    if (has_unconfirmed_loss(engine)) {
        check_limits(engine);
        return;
    }
    if (!atomic_load_explicit(&engine->created, memory_order_relaxed))
        check_creation(engine);
    check_stream(engine, &engine->ordered);
    check_stream(engine, &engine->named.stream);
    ddl__named_check_peers(engine);
    if (atomic_load_explicit(&engine->failure, memory_order_relaxed) != DDL_OK)
        return; /* nothing is pending any more */
    ddl__messages_check_peers(engine->messages);
    check_limits(engine);
}

static ddl__matching stream_matching(const ddl__engine *engine, const ddl__stream *stream)
{
    return stream == &engine->ordered ? DDL__MATCH_ORDER : DDL__MATCH_NAME;
}

/* Whether it can be told without a clock that the operation took very little: see recorder.h. */
static bool was_short(const ddl__engine *engine, const ddl__stream *stream)
{
    const ddl_work *work = stream->current;
    return work->plan->waves == 1 && !stream->waited &&
           engine->wait_policy.turns < SHORT_WAIT_TURNS && work->record % DDL__MEASURED;
}

/* What is under way has waited, or will while nobody drives. */
static void streams_note_wait(ddl__engine *engine)
{
    engine->ordered.waited = engine->named.stream.waited = true;
}

/* Begin with the work, or with one of our own that has to run before it: see tuning.h. */
static bool start(ddl__engine *engine, ddl__stream *stream, ddl_work *work)
{
    if (!ddl__stream_start(stream, work)) {
        ddl__fail_all(engine, DDL_ENOMEM,
                      "%s: no memory for a plan and the scaling of %lld elements", own_name(engine),
                      (long long)work->call.count);
        return false;
    }
    stream->waited = false;
    return true;
}

/* The current work has begun, and what its peers wait for is on its way: now there is time to read
 * a clock, and to write the record. What had to wait for others began now, else with its
 * submission. */
static void record(ddl__engine *engine, ddl__stream *stream)
{
    ddl_work *work = stream->current;
    if (!work->submitted)
        ddl__work_stamp(work);
    if (!ddl__stream_is_own(stream, work) && !work->call.uncounted)
        ddl__record_start(&engine->recorder, work, stream_matching(engine, stream),
                          &work->signature, stream->busy ? ddl__now() : work->submitted);
}

static ddl_work *take_next(ddl__engine *engine, ddl__stream *stream)
{
    if (!stream->next) {
        pthread_mutex_lock(&engine->lock);
        ddl__stream_prepare(stream);
        pthread_mutex_unlock(&engine->lock);
    }
    ddl_work *work = stream->next;
    stream->next = NULL;
    return work;
}

/* The current work's plan has ended: see `ended` in state.h. */
static void end(ddl__engine *engine, ddl__stream *stream)
{
    ddl_work *work = stream->current;
    stream->current = NULL;
    stream->busy = false;
    if (work == engine->awaited) {
        engine->ended = work;
        return;
    }
    pthread_mutex_lock(&engine->lock);
    ddl__finish(engine, work, DDL_OK);
    ddl__stream_prepare(stream);
    stream->busy = stream->next;
    pthread_mutex_unlock(&engine->lock);
}

bool ddl__advance_stream(ddl__engine *engine, ddl__stream *stream)
{
    if (!stream->current) {
        ddl_work *work = take_next(engine, stream);
        if (!work || !start(engine, stream, work))
            return false;
    }
    ddl__progress progress = ddl__stream_run(stream);
    if (!stream->current->record)
        record(engine, stream);
    if (progress == DDL__MOVED)
        counter_increment(&engine->moves);
    if (progress != DDL__FINISHED)
        return progress == DDL__MOVED;
    ddl_work *held = ddl__stream_held(stream);
    if (held) {
        stream->busy = true;
        return start(engine, stream, held);
    }
    ddl__record_end(&engine->recorder, stream->current, DDL_OK,
                    was_short(engine, stream) ? DDL__SHORT : ddl__now());
    end(engine, stream);
    return true;
}

/* Messages and operations by name. */
static bool advance_more(ddl__engine *engine)
{
    bool named = ddl__named_pending(engine);
    ddl__messages_set_named(engine->messages, named);
    bool moved = advance_messages(engine);
    return (named && ddl__named_advance(engine)) || moved;
}

/* The driver's one pass over what is to do. False when all is blocked or there is nothing. */
static bool advance(ddl__engine *engine)
{
    bool moved = has_more(engine) && advance_more(engine);
    return ddl__advance_stream(engine, &engine->ordered) || moved;
}

static void announce_sleep(ddl__engine *engine, bool asleep)
{
    atomic_store_explicit(&engine->asleep, asleep, memory_order_seq_cst);
    for (int i = 0; i < engine->config.size; i++)
        if (engine->config.links[i])
            engine->config.links[i]->ops->sleeping(engine->config.links[i], asleep);
    ddl__messages_sleeping(engine->messages, asleep);
    if (!asleep)
        return;
    /* Who has submitted under the lock and found nobody asleep is to be seen from here on. */
    pthread_mutex_lock(&engine->lock);
    pthread_mutex_unlock(&engine->lock);
    if (engine->config.fences && ddl__fences_joined(engine->config.fences))
        ddl__fence_heavy();
}

/* Take in what has happened on the links and on `wake`, waiting at most timeout_ms. */
static void links_poll(ddl__engine *engine, int timeout_ms)
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
    (void)n; /* a full counter wakes as well */
}

static int64_t earlier(const ddl__stream *stream, int64_t deadline)
{
    return stream->current && stream->current->deadline < deadline ? stream->current->deadline
                                                                   : deadline;
}

/* When to look again although nothing has happened: at the next limit, or the deadline. */
static int sleep_ms(const ddl__engine *engine, int64_t deadline)
{
    deadline = earlier(&engine->ordered, deadline);
    deadline = earlier(&engine->named.stream, deadline);
    if (engine->named.deadline < deadline)
        deadline = engine->named.deadline;
    if (ddl__messages_deadline(engine->messages) < deadline)
        deadline = ddl__messages_deadline(engine->messages);
    if (engine->unconfirmed_until && engine->unconfirmed_until < deadline)
        deadline = engine->unconfirmed_until;
    if (deadline == DDL__NEVER)
        return SLEEP_MAX_MS;
    int64_t left = (deadline - ddl__now()) / 1000000 + 1;
    return left < 0 ? 0 : left < SLEEP_MAX_MS ? (int)left : SLEEP_MAX_MS;
}

/* Announce sleep and look once more; true when there is nothing to do. */
static bool fall_asleep(ddl__engine *engine)
{
    announce_sleep(engine, true);
    if (!advance(engine))
        return true;
    announce_sleep(engine, false);
    return false;
}

/* What a waiter waits for: its work, or (NULL) any completed one to take. */
static bool is_awaited_done(ddl__engine *engine, const ddl_work *work)
{
    if (work)
        return engine->ended || ddl__is_complete(work);
    pthread_mutex_lock(&engine->lock);
    bool any = engine->completed || !engine->queued;
    pthread_mutex_unlock(&engine->lock);
    return any;
}

/* Drive until what is waited for has come or the deadline passes. */
static void drive(ddl__engine *engine, const ddl_work *work, int64_t deadline)
{
    atomic_store_explicit(&engine->asleep, false, memory_order_relaxed);
    ddl__wait_policy *wait = &engine->wait_policy;
    for (unsigned passes = 1;; passes++) {
        bool moved = advance(engine);
        if (ddl__abort_is_pending(engine))
            ddl__abort_execute(engine);
        if (is_awaited_done(engine, work) || (deadline != DDL__NEVER && ddl__now() > deadline))
            break;
        if (moved) {
            if (wait->turns >= SHORT_WAIT_TURNS)
                streams_note_wait(engine);
            ddl__wait_policy_reset(wait);
            if (passes % LIMIT_PASSES == 0)
                check_limits(engine);
            continue;
        }
        if (ddl__wait_policy_turn(wait))
            continue;
        check_blocked(engine);
        if (is_awaited_done(engine, work))
            break;
        if (!fall_asleep(engine)) {
            if (is_awaited_done(engine, work))
                break;
            continue;
        }
        links_poll(engine, sleep_ms(engine, deadline));
        announce_sleep(engine, false);
    }
    ddl__wait_policy_reset(wait);
    streams_note_wait(engine);
}

/* Let another one drive, until it wakes all. */
static void await_driver(ddl__engine *engine, int64_t deadline)
{
    unsigned before = atomic_load_explicit(&engine->waiters, memory_order_relaxed);
    atomic_store_explicit(&engine->waiters, before + 1, memory_order_relaxed);
    if (deadline == DDL__NEVER) {
        pthread_cond_wait(&engine->changed, &engine->lock);
    } else {
        struct timespec until = {deadline / 1000000000, deadline % 1000000000};
        pthread_cond_timedwait(&engine->changed, &engine->lock, &until);
    }
    before = atomic_load_explicit(&engine->waiters, memory_order_relaxed);
    atomic_store_explicit(&engine->waiters, before - 1, memory_order_relaxed);
}

/* Drive, with the lock free meanwhile. */
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
    return ddl__stream_pending(&engine->ordered) || has_more(engine) ||
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
    /* Else every span that comes now would wake the endpoint's thread, which slept here last. */
    if (atomic_load_explicit(&engine->asleep, memory_order_relaxed))
        announce_sleep(engine, false);
    atomic_store_explicit(&engine->was_driven, true, memory_order_relaxed);
    advance(engine);
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

void ddl__engine_poll(ddl__engine *engine)
{
    pthread_mutex_lock(&engine->lock);
    if (engine->driven) { /* who drives, looks */
        pthread_mutex_unlock(&engine->lock);
        return;
    }
    ddl__driver_start(engine);
    pthread_mutex_unlock(&engine->lock);
    links_poll(engine, 0);
    check_blocked(engine);
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

    links_poll(engine, 0);
    streams_note_wait(engine);
    bool asleep = false, wanted = false;
    do {
        for (unsigned passes = 1; !asleep; passes++) {
            if (atomic_load_explicit(&engine->waiters, memory_order_relaxed))
                break;
            bool moved = advance(engine);
            if (ddl__abort_is_pending(engine))
                ddl__abort_execute(engine);
            if (moved && passes % LIMIT_PASSES == 0)
                check_limits(engine);
            if (moved)
                continue;
            check_blocked(engine);
            asleep = fall_asleep(engine);
        }
        pthread_mutex_lock(&engine->lock);
        wanted = atomic_load_explicit(&engine->waiters, memory_order_relaxed);
        /* Gave way to a waiter that has gone since: go on. */
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
