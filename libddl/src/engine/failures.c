/* How a failure is found, and what it does. A lost link may be the work of a peer that ends the
 * comm and had no room to say why, so it is not reported at once. Spans that peers sent before the
 * end of the comm still count and are received first. */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/time_limits.h"
#include "engine/describe.h"
#include "engine/state.h"
#include "net/close_reason.h"

static const char *own_name(const ddl__engine *engine)
{
    return engine->config.names[engine->config.rank];
}

/* End the comm because of the state of a link. `call` describes what this rank called. */
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
        if (strstr(reason.text, "(told by ")) /* whoever told it */
            ddl__fail_all(engine, reason.status, "%s", reason.text);
        else
            ddl__fail_all(engine, reason.status, "%s (told by %s)", reason.text, name);
        break;
    case DDL__LINK_LOST:
        ddl__fail_all(engine, DDL_EPEER, "%s is lost: %s", name, link->reason);
        break;
    }
}

/* Fail if the current operation of the stream has run past its limit. */
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

/* Fail if what blocks the stream can no longer come. */
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

/* The link by which this rank ended the comm, or NULL. */
static ddl__link *link_aborted(const ddl__engine *engine, int rank)
{
    ddl__link *link = engine->config.links[rank], *other = engine->config.messages[rank];
    if (link && link->state == DDL__LINK_ABORTED)
        return link;
    return other && other->state == DDL__LINK_ABORTED ? other : NULL;
}

/* The comm ends: receive the spans that were sent before. */
static void drain_last_spans(ddl__engine *engine)
{
    int64_t end = ddl__now() + DDL__DRAIN_LIMIT;
    while (ddl__advance(engine) && ddl__now() < end)
        ;
}

void ddl__abort_execute(ddl__engine *engine)
{
    if (engine->abort_after_spans)
        drain_last_spans(engine);
    ddl__fail_all(engine, engine->abort_status, "%s", engine->abort_text);
}

static bool rank_is_lost(const ddl__engine *engine, int rank)
{
    const ddl__link *link = engine->config.links[rank], *other = engine->config.messages[rank];
    return (link && link->state == DDL__LINK_LOST) || (other && other->state == DDL__LINK_LOST);
}

/* Whether a link is lost and it is not yet known whether its peer has died. */
static bool has_unconfirmed_loss(ddl__engine *engine)
{
    int64_t now = ddl__now();
    engine->unconfirmed_until = 0;
    for (int rank = 0; rank < engine->config.size; rank++) {
        ddl__loss *loss = &engine->losses[rank];
        if (!rank_is_lost(engine, rank) || atomic_load_explicit(&loss->ended, memory_order_acquire))
            continue;
        if (!loss->noticed)
            loss->noticed = now;
        if (now - loss->noticed < DDL__UNCONFIRMED_LIMIT)
            engine->unconfirmed_until = loss->noticed + DDL__UNCONFIRMED_LIMIT;
    }
    return engine->unconfirmed_until;
}

/* While the comm is being created, nobody else reports a member whose process has ended, and
 * members that wait for it keep this one waiting. */
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

/* The last spans of a peer count more than its end, and may have come together with it after the
 * last look for spans. Advance until no further end is found; true if there were such spans. */
static bool advance_last_spans(ddl__engine *engine)
{
    for (unsigned ended = count_ended(engine), before = 0; ended != before;) {
        if (ddl__advance(engine))
            return true;
        before = ended;
        ended = count_ended(engine);
    }
    return false;
}

void ddl__check_blocked(ddl__engine *engine)
{
    ddl__link *link;
    if (advance_last_spans(engine))
        return;
    for (int rank = 0; rank < engine->config.size; rank++)
        if ((link = link_aborted(engine, rank))) {
            drain_last_spans(engine);
            fail_by_link(engine, link, rank, "");
            return;
        }
    if (has_unconfirmed_loss(engine)) {
        ddl__check_limits(engine);
        return;
    }
    if (!atomic_load_explicit(&engine->created, memory_order_relaxed))
        check_creation(engine);
    check_stream(engine, &engine->ordered);
    check_stream(engine, &engine->named.stream);
    if (ddl__has_more(engine))
        ddl__named_check_peers(engine);
    if (atomic_load_explicit(&engine->failure, memory_order_relaxed) != DDL_OK)
        return; /* nothing is pending now */
    if (ddl__has_more(engine))
        ddl__messages_check_peers(engine->messages);
    ddl__check_limits(engine);
}

/* Let the driver end the comm with this status. Without a driver, do it now. With `after_spans`,
 * what peers have sent is received first. */
static void request_abort(ddl__engine *engine, ddl_status status, const char *text,
                          bool after_spans)
{
    pthread_mutex_lock(&engine->lock);
    if (!atomic_load_explicit(&engine->abort_asked, memory_order_relaxed)) {
        snprintf(engine->abort_text, sizeof engine->abort_text, "%s", text);
        engine->abort_status = status;
        engine->abort_after_spans = after_spans;
        atomic_store_explicit(&engine->abort_asked, true, memory_order_release);
    }
    if (engine->driven) {
        ddl__wake_driver(engine);
        pthread_mutex_unlock(&engine->lock);
        return;
    }
    ddl__driver_start(engine);
    pthread_mutex_unlock(&engine->lock);
    if (ddl__abort_is_pending(engine))
        ddl__abort_execute(engine);
    pthread_mutex_lock(&engine->lock);
    ddl__driver_stop(engine);
    pthread_cond_broadcast(&engine->changed);
    pthread_mutex_unlock(&engine->lock);
}

void ddl__engine_abort(ddl__engine *engine, const char *reason)
{
    char text[sizeof engine->abort_text];
    snprintf(text, sizeof text, "%s aborted: %s", engine->config.names[engine->config.rank],
             reason);
    request_abort(engine, DDL_EABORTED, text, false);
}

void ddl__engine_fail(ddl__engine *engine, ddl_status status, const char *text)
{
    request_abort(engine, status, text, true);
}
