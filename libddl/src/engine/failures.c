/* SPDX-License-Identifier: Apache-2.0 */
/* Detects failures, and ends the comm. If a link is lost, the peer may have ended the comm without
 * room to send the reason, so the loss is not reported at once. Spans that peers sent before the
 * end of the comm are still valid and are received first. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/time_limits.h"
#include "engine/calls/describe.h"
#include "engine/state.h"
#include "net/close_reason.h"

/* -------------------------------------------------------------------------- the end of the comm */

/* Under the lock: fail all works of the stream. */
static void fail_stream(ddl__engine *engine, ddl__stream *stream, ddl_status status)
{
    ddl_work *current = stream->current;
    if (current) {
        ddl__record_end(&engine->recorder, current, status, ddl__now());
        ddl__loans_abandon(&stream->runner, current);
        ddl__finish(engine, current, status);
    }
    stream->current = NULL;
    for (ddl__stream_prepare(stream); stream->next; ddl__stream_prepare(stream)) {
        ddl_work *work = stream->next;
        stream->next = NULL;
        ddl__finish(engine, work, status);
    }
}

void ddl__engine_close_links(ddl__engine *engine, ddl_status status, const char *text)
{
    char said[DDL__REASON_MAX];
    ddl__reason reason = {.status = status, .from = -1, .text = text};
    ddl__reason_write(&reason, said);
    ddl__links_close(engine->config.links, (size_t)engine->config.size, said);
    ddl__links_close(engine->config.messages, (size_t)engine->config.size, said);
    for (int i = 0; i < engine->config.size; i++) {
        ddl__link *link = engine->config.links[i];
        if (link && link->ops->settle) {
            link->ops->settle(link);
            break;
        }
    }
}

void ddl__fail_all(ddl__engine *engine, ddl_status status, const char *format, ...)
{
    pthread_mutex_lock(&engine->lock);
    if (atomic_load_explicit(&engine->failure, memory_order_relaxed) == DDL_OK) {
        va_list args;
        va_start(args, format);
        vsnprintf(engine->message, sizeof engine->message, format, args);
        va_end(args);
        atomic_store_explicit(&engine->failure, status, memory_order_release);
        ddl__engine_close_links(engine, status, engine->message);
        bool is_meant = status == DDL_EABORTED || status == DDL__SUPERSEDED;
        ddl__log(is_meant ? DDL__INFO : DDL__WARN, "%s: the comm is dead: %s",
                 engine->config.names[engine->config.rank], engine->message);
    }
    status = atomic_load_explicit(&engine->failure, memory_order_relaxed);
    ddl__settle(engine);
    fail_stream(engine, &engine->ordered, status);
    fail_stream(engine, &engine->named.stream, status);
    ddl__named_fail(engine, status);
    ddl_work *messages = ddl__messages_drop(engine->messages);
    for (ddl_work *work = messages; work; work = work->next)
        ddl__record_end(&engine->recorder, work, status, ddl__now());
    ddl__finish_list(engine, messages, status);
    pthread_mutex_unlock(&engine->lock);
}

/* ------------------------------------------------------------------------------- links that end */

static const char *own_name(const ddl__engine *engine)
{
    return engine->config.names[engine->config.rank];
}

void ddl__find_peer_lost(ddl__engine *engine, int rank)
{
    if (atomic_load_explicit(&engine->failure, memory_order_relaxed) == DDL_OK)
        atomic_store_explicit(&engine->losses[rank].found, DDL__PEER_LOST, memory_order_release);
}

ddl__finding ddl__engine_find_peer(const ddl__engine *engine, int peer)
{
    return (ddl__finding)atomic_load_explicit(&engine->losses[peer].found, memory_order_acquire);
}

/* End the comm because of the state of a link. `called` is the operation of this rank that waits
 * for it, or NULL. */
static void fail_by_link(ddl__engine *engine, const ddl__link *link, int rank,
                         const ddl__signature *called)
{
    const char *name = engine->config.names[rank];
    char theirs[DDL__CALL_MAX], call[DDL__CALL_MAX] = "";
    ddl__signature own = called ? *called : (ddl__signature){{0, 0}}, found = link->found;
    ddl__reason reason;
    if (link->state == DDL__LINK_MISMATCH)
        ddl__name_wires(&own, &found);
    if (called)
        ddl__describe_signature(call, sizeof call, &own);
    switch (link->state) {
    case DDL__LINK_OPEN: break;
    case DDL__LINK_MISMATCH:
        ddl__describe_signature(theirs, sizeof theirs, &found);
        ddl__fail_all(engine, DDL_EMISMATCH, "%s called %s; %s called %s", name, theirs,
                      own_name(engine), call);
        break;
    case DDL__LINK_LEFT:
        ddl__fail_all(engine, DDL_EPEER, "%s left the comm while %s called %s", name,
                      own_name(engine), call);
        break;
    case DDL__LINK_ABORTED:
        ddl__reason_read(link->reason, &reason);
        if (strstr(reason.text, "(reported by ")) /* keep the rank that reported it first */
            ddl__fail_all(engine, reason.status, "%s", reason.text);
        else
            ddl__fail_all(engine, reason.status, "%s (reported by %s)", reason.text, name);
        break;
    case DDL__LINK_LOST:
        ddl__find_peer_lost(engine, rank);
        ddl__fail_all(engine, DDL_EPEER, "%s is lost: %s", name, link->reason);
        break;
    }
}

/* End the comm if the data that the stream waits for can no longer arrive. */
static void check_stream(ddl__engine *engine, ddl__stream *stream)
{
    int rank;
    if (!stream->current)
        return;
    ddl__link *blocking = ddl__run_blocking_peer(&stream->runner, stream->current, &rank);
    if (blocking)
        fail_by_link(engine, blocking, rank, &stream->current->signature);
}

/* Return the link to `rank` that the peer has aborted, or NULL. */
static ddl__link *link_aborted(const ddl__engine *engine, int rank)
{
    ddl__link *link = engine->config.links[rank], *other = engine->config.messages[rank];
    if (link && link->state == DDL__LINK_ABORTED)
        return link;
    return other && other->state == DDL__LINK_ABORTED ? other : NULL;
}

/* Receive the spans that were sent before the end of the comm. */
static void drain_last_spans(ddl__engine *engine)
{
    int64_t end = ddl__now() + DDL__DRAIN_LIMIT;
    while (ddl__advance(engine) && ddl__now() < end)
        ;
}

void ddl__engine_set_explainer(ddl__engine *engine, ddl__explain_fn *explain, void *context)
{
    pthread_mutex_lock(&engine->explaining);
    engine->explain = explain;
    engine->explain_context = context;
    pthread_mutex_unlock(&engine->explaining);
}

void ddl__engine_explain(ddl__engine *engine, const ddl__signature *operation, const char *name,
                         char *text, size_t size)
{
    pthread_mutex_lock(&engine->explaining);
    if (engine->explain)
        engine->explain(engine->explain_context, operation, name, text, size);
    pthread_mutex_unlock(&engine->explaining);
}

void ddl__abort_execute(ddl__engine *engine)
{
    if (engine->abort_after_spans)
        drain_last_spans(engine);
    ddl__fail_all(engine, engine->abort_status, "%s", engine->abort_text);
}

static bool has_link_in(const ddl__engine *engine, int rank, ddl__link_state state)
{
    const ddl__link *link = engine->config.links[rank], *other = engine->config.messages[rank];
    return (link && link->state == state) || (other && other->state == state);
}

/* Return true if the reason for the end of a link is unknown. Either the link is lost, after a
 * failure or a death, or the peer left during the creation of the comm because its own attempt
 * failed. */
static bool is_unexplained(const ddl__engine *engine, int rank)
{
    return has_link_in(engine, rank, DDL__LINK_LOST) ||
           (has_link_in(engine, rank, DDL__LINK_LEFT) &&
            !atomic_load_explicit(&engine->created, memory_order_relaxed));
}

/* Return the time during which an explanation of this link's end may still arrive. While the comm
 * is being created, that time is unlimited: it ends with ddl__engine_peer_died. */
static int64_t explanation_limit(const ddl__engine *engine, int rank)
{
    bool created = atomic_load_explicit(&engine->created, memory_order_relaxed);
    return !has_link_in(engine, rank, DDL__LINK_LOST) ? DDL__EVIDENCE_LIMIT
           : created                                  ? DDL__UNCONFIRMED_LIMIT
                                                      : DDL__NEVER;
}

/* Note that the peer's link is lost, perhaps for another reason than the peer's death. */
static void find_peer_doubted(ddl__loss *loss)
{
    int fine = DDL__PEER_FINE;
    atomic_compare_exchange_strong_explicit(&loss->found, &fine, DDL__PEER_DOUBTED,
                                            memory_order_release, memory_order_relaxed);
}

static bool has_ended(const ddl__engine *engine, int rank)
{
    return atomic_load_explicit(&engine->losses[rank].ended, memory_order_acquire);
}

/* Return true if an explanation of a lost link may still arrive. If a member is known to have
 * exited during the creation, no explanation is needed. */
static bool has_unconfirmed_loss(ddl__engine *engine)
{
    int64_t now = ddl__now();
    bool created = atomic_load_explicit(&engine->created, memory_order_relaxed), is_proven = false;
    engine->unconfirmed_until = 0;
    for (int rank = 0; rank < engine->config.size; rank++) {
        ddl__loss *loss = &engine->losses[rank];
        if (!is_unexplained(engine, rank))
            continue;
        if (!loss->noticed)
            loss->noticed = now;
        if (has_ended(engine, rank)) {
            is_proven = is_proven || (!created && has_link_in(engine, rank, DDL__LINK_LOST));
            continue;
        }
        int64_t each = explanation_limit(engine, rank);
        int64_t limit = each == DDL__NEVER ? DDL__NEVER : loss->noticed + each;
        if (each == DDL__NEVER)
            find_peer_doubted(loss);
        if (now < limit && (!engine->unconfirmed_until || limit < engine->unconfirmed_until))
            engine->unconfirmed_until = limit;
    }
    if (is_proven)
        engine->unconfirmed_until = 0;
    return engine->unconfirmed_until;
}

/* Return true if the loss of member `one` explains the loss of member `other`. A member whose
 * process has ended is the cause rather than one whose process has not; otherwise the member whose
 * link was lost first is the cause. */
static bool explains(const ddl__engine *engine, int one, int other)
{
    bool ended = has_ended(engine, one);
    int64_t first = engine->losses[one].noticed, second = engine->losses[other].noticed;
    return ended != has_ended(engine, other) ? ended : first && (!second || first < second);
}

/* End the comm if a member is lost during the creation, and no explanation has arrived. No other
 * member then reports the death of the lost member, and members that wait for it keep this rank
 * waiting. */
static void check_creation(ddl__engine *engine)
{
    int first = -1;
    for (int rank = 0; rank < engine->config.size; rank++)
        if (has_link_in(engine, rank, DDL__LINK_LOST) &&
            (first < 0 || explains(engine, rank, first)))
            first = rank;
    if (first < 0)
        return;
    const ddl__link *link = engine->config.links[first];
    bool is_lost = link && link->state == DDL__LINK_LOST;
    fail_by_link(engine, is_lost ? link : engine->config.messages[first], first, NULL);
}

/* Receive the last spans of a peer before the end of its link is handled, because both may have
 * arrived since the last poll. Advance until no further link ends. Returns true if there were such
 * spans. */
static bool advance_last_spans(ddl__engine *engine)
{
    for (unsigned ended = ddl__links_ended(engine), before = 0; ended != before;) {
        if (ddl__advance(engine))
            return true;
        before = ended;
        ended = ddl__links_ended(engine);
    }
    return false;
}

void ddl__check_ended(ddl__engine *engine)
{
    ddl__link *link;
    if (advance_last_spans(engine))
        return;
    for (int rank = 0; rank < engine->config.size; rank++)
        if ((link = link_aborted(engine, rank))) {
            drain_last_spans(engine);
            fail_by_link(engine, link, rank, NULL);
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
        return; /* nothing is pending any more */
    if (ddl__has_more(engine))
        ddl__messages_check_peers(engine->messages);
    ddl__check_limits(engine);
}

/* Let the driver end the comm with this status. Without a driver, do it here. With `after_spans`,
 * first receive the data that peers have sent. */
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

void ddl__engine_peer_unreachable(ddl__engine *engine, int peer, const char *text)
{
    if (atomic_load_explicit(&engine->failure, memory_order_relaxed) == DDL_OK)
        atomic_store_explicit(&engine->losses[peer].found, DDL__PEER_UNREACHABLE,
                              memory_order_release);
    request_abort(engine, DDL_EPEER, text, true);
}
