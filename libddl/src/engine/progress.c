/* SPDX-License-Identifier: Apache-2.0 */
/* One pass of the driver: messages, then named operations, then ordered ones. After a pass that
 * moved nothing, it decides whether to continue to wait. */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/time_limits.h"
#include "engine/calls/describe.h"
#include "engine/state.h"

void ddl__settle_messages(ddl__engine *engine)
{
    ddl_work *finished = ddl__messages_finished(engine->messages);
    if (finished) {
        pthread_mutex_lock(&engine->lock);
        ddl__finish_list(engine, finished, DDL_OK);
        pthread_mutex_unlock(&engine->lock);
    }
    const char *text;
    ddl_status status = ddl__messages_failure(engine->messages, &text);
    if (status == DDL_OK)
        return;
    int lost = ddl__messages_lost(engine->messages);
    if (lost >= 0)
        ddl__find_peer_lost(engine, lost);
    ddl__fail_all(engine, status, "%s", text);
}

/* Only the driver increments counters. */
static void counter_increment(atomic_ullong *counter)
{
    atomic_store_explicit(counter, atomic_load_explicit(counter, memory_order_relaxed) + 1,
                          memory_order_relaxed);
}

/* Advance messages, including those of named operations. */
static bool advance_messages(ddl__engine *engine)
{
    /* An event that is handled here cannot wake the driver later, so the driver must not fall
     * asleep now. */
    bool event = ddl__messages_go_by_events(engine->messages) && ddl__links_poll(engine, 0);
    bool moved = ddl__messages_run(engine->messages);
    if (moved)
        counter_increment(&engine->passes);
    ddl__settle_messages(engine);
    return moved || event;
}

static ddl__matching stream_matching(const ddl__engine *engine, const ddl__stream *stream)
{
    return stream == &engine->ordered ? DDL__MATCH_ORDER : DDL__MATCH_NAME;
}

/* Return true if the operation was so short that the clock need not be read (recorder.h). */
static bool stream_was_short(const ddl__engine *engine, const ddl__stream *stream)
{
    const ddl_work *work = stream->current;
    return work->plan->waves == 1 && !stream->waited &&
           engine->wait_policy.turns < DDL__SHORT_WAIT_TURNS && work->record % DDL__MEASURED;
}

static bool stream_start(ddl__engine *engine, ddl__stream *stream, ddl_work *work)
{
    if (!ddl__stream_start(stream, work)) {
        ddl__fail_all(engine, DDL_ENOMEM,
                      "%s: out of memory for a plan and the scaling of %lld elements",
                      engine->config.names[engine->config.rank], (long long)work->call.count);
        return false;
    }
    stream->waited = false;
    return true;
}

/* Record the start of the current work. Its first spans are already sent, so there is time to read
 * the clock. Its start time is the current time if it was queued behind another work, and otherwise
 * the time of its submission. */
static void stream_record(ddl__engine *engine, ddl__stream *stream)
{
    ddl_work *work = stream->current;
    if (!work->submitted)
        ddl__work_stamp(work);
    if (!work->call.uncounted)
        ddl__record_start(&engine->recorder, work, stream_matching(engine, stream),
                          &work->signature, stream->busy ? ddl__now() : work->submitted);
}

/* Return the next work, unless a device still copies its buffers. */
static ddl_work *stream_take_next(ddl__engine *engine, ddl__stream *stream)
{
    if (!stream->next) {
        pthread_mutex_lock(&engine->lock);
        ddl__stream_prepare(stream);
        pthread_mutex_unlock(&engine->lock);
    }
    ddl_work *work = stream->next;
    if (work && ddl__is_held(work)) {
        stream->busy = true; /* the work was queued behind another one, so it starts later than it
                                was submitted */
        return NULL;
    }
    stream->next = NULL;
    return work;
}

/* Handle the end of the current work's plan. See `ended` in state.h. */
static void stream_end(ddl__engine *engine, ddl__stream *stream)
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

/* Advance the stream. Returns false if it is blocked or has no works. */
static bool advance_stream(ddl__engine *engine, ddl__stream *stream)
{
    if (!stream->current) {
        ddl_work *work = stream_take_next(engine, stream);
        if (!work || !stream_start(engine, stream, work))
            return false;
    }
    ddl__progress progress = ddl__stream_run(stream);
    if (!stream->current->record)
        stream_record(engine, stream);
    if (progress == DDL__MOVED)
        counter_increment(&engine->moves);
    if (progress != DDL__FINISHED)
        return progress == DDL__MOVED;
    ddl__record_end(&engine->recorder, stream->current, DDL_OK,
                    stream_was_short(engine, stream) ? DDL__SHORT : ddl__now());
    stream_end(engine, stream);
    return true;
}

/* Advance messages and named operations. A named operation starts only after its order to run is
 * sent to all ranks. */
static bool advance_more(ddl__engine *engine)
{
    bool named = ddl__named_pending(engine);
    ddl__stream *stream = &engine->named.stream;
    ddl__messages_set_named(engine->messages, named, stream->current);
    bool moved = advance_messages(engine);
    if (!named)
        return moved;
    moved = ddl__named_advance(engine) || moved;
    if (stream->current || !ddl__names_unsent(engine))
        moved = advance_stream(engine, stream) || moved;
    return moved;
}

bool ddl__advance(ddl__engine *engine)
{
    bool moved = ddl__has_more(engine) && advance_more(engine);
    return advance_stream(engine, &engine->ordered) || moved;
}

/* Copy the call and the signature of a work that has exceeded its limit: the current work, the next
 * work if a device holds it, or a queued work, which another thread may destroy. */
static bool find_expired(ddl__engine *engine, ddl__stream *stream, ddl__call *call,
                         ddl__signature *signature)
{
    int64_t now = ddl__now();
    const ddl_work *work = ddl__stream_first(stream);
    if (work && now > work->deadline) {
        *call = work->call;
        *signature = work == stream->current ? work->signature
                                             : ddl__signature_of(&work->call, work->sequence);
        return true;
    }
    if (now <= atomic_load_explicit(&stream->queue_limit, memory_order_relaxed))
        return false;
    pthread_mutex_lock(&engine->lock);
    work = ddl__stream_most_urgent(stream);
    bool expired = work && now > work->deadline;
    if (expired) {
        *call = work->call;
        *signature = ddl__signature_of(&work->call, work->sequence);
    }
    pthread_mutex_unlock(&engine->lock);
    return expired;
}

/* Fail if a work of the stream has exceeded its limit. */
static void check_stream_limit(ddl__engine *engine, ddl__stream *stream)
{
    ddl__call call;
    ddl__signature signature;
    if (!find_expired(engine, stream, &call, &signature))
        return;
    char text[DDL__CALL_MAX], before[DDL__CALL_MAX + 32] = "", why[DDL__MESSAGE_MAX / 2] = "";
    const ddl_work *current = stream->current;
    bool runs = current && !memcmp(&signature, &current->signature, sizeof signature);
    ddl__describe_signature(text, sizeof text, &signature);
    if (current && !runs) {
        char other[DDL__CALL_MAX];
        ddl__describe_signature(other, sizeof other, &current->signature);
        snprintf(before, sizeof before, ": it waited for %s", other);
    }
    /* a named operation runs only after all ranks have called it */
    if (current && stream == &engine->ordered)
        ddl__engine_explain(engine, &current->signature, NULL, why, sizeof why);
    else if (!current)
        snprintf(why, sizeof why, ": the GPU has not reached it");
    ddl__fail_all(engine, DDL_EEXPIRED, "%s: %s ran past its limit of %lld ms%s%s",
                  engine->config.names[engine->config.rank], text, (long long)call.timeout_ms,
                  before, why);
}

void ddl__check_limits(ddl__engine *engine)
{
    check_stream_limit(engine, &engine->ordered);
    check_stream_limit(engine, &engine->named.stream);
    if (!ddl__has_more(engine))
        return;
    ddl__messages_check_limits(engine->messages);
    ddl__settle_messages(engine);
    ddl__named_check_limits(engine);
}

unsigned ddl__links_ended(const ddl__engine *engine)
{
    unsigned n = 0;
    for (int rank = 0; rank < engine->config.size; rank++) {
        const ddl__link *link = engine->config.links[rank], *other = engine->config.messages[rank];
        n += (link && link->state != DDL__LINK_OPEN) + (other && other->state != DDL__LINK_OPEN);
    }
    return n;
}

/* Check from time to time whether the peers' processes exist. If a peer has died, the ranks that
 * would report its death to this rank may be dead, too. */
static void probe_peers(ddl__engine *engine)
{
    int64_t now = ddl__now();
    if (now - engine->probed_at < DDL__PROBE_EACH)
        return;
    engine->probed_at = now;
    for (int rank = 0; rank < engine->config.size; rank++) {
        ddl__link *link = engine->config.links[rank];
        if (link && link->ops->probe)
            link->ops->probe(link);
    }
}

void ddl__check_blocked(ddl__engine *engine)
{
    probe_peers(engine);
    if (ddl__links_ended(engine))
        ddl__check_ended(engine);
    else
        ddl__check_limits(engine);
}
