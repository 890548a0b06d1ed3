/* SPDX-License-Identifier: Apache-2.0 */
/* Design notes.
 *
 * A named work is in `names` from its submission to its completion. The driver announces it to rank
 * 0 with its name and signature. Rank 0 enters it in its table. When all ranks have announced it,
 * rank 0 sends all of them the order to run it. Name messages between two ranks keep their order,
 * so every rank runs named works in the order of rank 0, as a separate stream.
 *
 * The stream shares the message links. The signature of a span shows whether it is a frame or
 * belongs to the stream. Each side takes only its own spans, and both are driven while a named work
 * is pending, so neither blocks the other for long. */
#include "engine/named.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "engine/calls/describe.h"
#include "engine/calls/frames.h"
#include "engine/state.h"

/* The message that announces an operation to rank 0. */
typedef struct announcement {
    ddl__signature signature;
    char name[DDL_NAME_MAX]; /* not terminated; the length follows from the length of the message */
} announcement;

static const char *rank_name(const ddl__engine *engine, int rank)
{
    return engine->config.names[rank];
}

static void fail_for_memory(ddl__engine *engine)
{
    ddl__fail_all(engine, DDL_ENOMEM, "%s: out of memory for a named operation",
                  rank_name(engine, engine->config.rank));
}

/* ----------------------------------------------------------------------------------- submission */

ddl_status ddl__named_admit(ddl__engine *engine, ddl_work *work)
{
    ddl__named *named = &engine->named;
    if (ddl__names_find(&named->names, work->name, strlen(work->name)))
        return ddl__fail(
            DDL_EINVAL,
            "an operation named \"%s\" is already pending on rank %d: wait for it, or choose "
            "another name",
            work->name, engine->config.rank);
    ddl__names_add(&named->names, work);
    if (!named->unannounced)
        named->unannounced_tail = &named->unannounced;
    *named->unannounced_tail = work;
    named->unannounced_tail = &work->next;
    return DDL_OK;
}

void ddl__named_remove(ddl__engine *engine, ddl_work *work)
{
    ddl__names_remove(&engine->named.names, work);
    free(work->name);
    work->name = NULL;
}

/* ------------------------------------------------------------------------------------- ordering */

/* Queue a work that rank 0 has ordered to run. */
static void run_next(ddl__engine *engine, const char *name, size_t length)
{
    pthread_mutex_lock(&engine->lock);
    ddl_work *work = ddl__names_find(&engine->named.names, name, length);
    if (work && (!work->announced || work->ordered))
        work = NULL; /* rank 0's order is invalid: this rank has not announced the operation */
    if (work) {
        work->ordered = true;
        if (work->whole_of)
            ddl__push_parts(engine, &engine->named.stream, work);
        else
            ddl__stream_push(&engine->named.stream, work);
    }
    pthread_mutex_unlock(&engine->lock);
    if (!work)
        ddl__fail_all(
            engine, DDL_EINTERNAL,
            "%s received an order to run \"%.*s\", which it has not called, or is already running",
            rank_name(engine, engine->config.rank), (int)length, name);
}

static void order(ddl__engine *engine, const char *name, size_t length)
{
    for (int rank = 1; rank < engine->config.size; rank++)
        if (!ddl__messages_send_name(engine->messages, rank, DDL__ORDER, name, length)) {
            fail_for_memory(engine);
            return;
        }
    run_next(engine, name, length);
}

static void fail_by_difference(ddl__engine *engine, int rank, ddl__signature signature, int first,
                               ddl__signature theirs, const char *name, size_t length)
{
    char one[DDL__CALL_MAX], other[DDL__CALL_MAX];
    ddl__name_wires(&theirs, &signature);
    ddl__describe_operation(one, sizeof one, &theirs);
    ddl__describe_operation(other, sizeof other, &signature);
    ddl__fail_all(engine, DDL_EMISMATCH, "%s called %s by the name \"%.*s\"; %s called %s",
                  rank_name(engine, first), one, (int)length, name, rank_name(engine, rank), other);
}

/* On rank 0: enter a rank's announcement. */
static void enter(ddl__engine *engine, int rank, const announcement *call, size_t length)
{
    int first;
    ddl__signature theirs;
    pthread_mutex_lock(&engine->lock);
    ddl__announce_result result = ddl__announcements_add(
        &engine->named.announcements, rank, call->name, length, &call->signature, &first, &theirs);
    pthread_mutex_unlock(&engine->lock);
    switch (result) {
    case DDL__ANNOUNCED: break;
    case DDL__COMPLETE: order(engine, call->name, length); break;
    case DDL__DIFFERENT:
        fail_by_difference(engine, rank, call->signature, first, theirs, call->name, length);
        break;
    case DDL__NO_MEMORY: fail_for_memory(engine); break;
    }
}

static void announce(ddl__engine *engine, const announcement *call, size_t length)
{
    size_t bytes = offsetof(announcement, name) + length;
    if (engine->config.rank == 0)
        enter(engine, 0, call, length);
    else if (!ddl__messages_send_name(engine->messages, 0, DDL__ANNOUNCE, call, bytes))
        fail_for_memory(engine);
}

/* Fill in the announcement of the oldest new work. Return the length of its name, 0 if there is
 * none. */
static size_t next_unannounced(ddl__engine *engine, announcement *call)
{
    ddl__named *named = &engine->named;
    size_t length = 0;
    pthread_mutex_lock(&engine->lock);
    ddl_work *work = named->unannounced;
    if (work) {
        named->unannounced = work->next;
        work->announced = true;
        length = strlen(work->name);
        memcpy(call->name, work->name, length);
        call->signature = work->whole_of ? ddl__signature_of_group(work->whole_of)
                                         : ddl__signature_of(&work->call, 0);
        if (work->deadline < named->deadline)
            named->deadline = work->deadline;
    }
    pthread_mutex_unlock(&engine->lock);
    return length;
}

static void handle_name_message(ddl__engine *engine, const ddl__name_message *message)
{
    announcement call;
    size_t head = offsetof(announcement, name);
    if (message->kind == DDL__ORDER && message->from == 0) {
        run_next(engine, (const char *)message->payload, message->bytes);
    } else if (message->kind == DDL__ANNOUNCE && engine->config.rank == 0 &&
               message->bytes > head && message->bytes < sizeof call) {
        memcpy(&call, message->payload, message->bytes);
        enter(engine, message->from, &call, message->bytes - head);
    } else {
        ddl__fail_all(engine, DDL_EINTERNAL,
                      "%s sent an invalid message about a named operation: its length is wrong, "
                      "or only rank 0 may send or receive this kind",
                      rank_name(engine, message->from));
    }
}

bool ddl__named_advance(ddl__engine *engine)
{
    bool moved = false;
    announcement call;
    for (size_t length; (length = next_unannounced(engine, &call)); moved = true)
        announce(engine, &call, length);
    for (ddl__name_message *message; (message = ddl__messages_take_name(engine->messages));
         moved = true) {
        handle_name_message(engine, message);
        free(message);
    }
    return moved;
}

/* -------------------------------------------------------------------------------------- waiting */

static ddl__waiting describe_waiting(const ddl_work *work)
{
    ddl__waiting w = {.submitted = work->submitted,
                      .deadline = work->deadline,
                      .signature = work->whole_of ? ddl__signature_of_group(work->whole_of)
                                                  : ddl__signature_of(&work->call, 0)};
    snprintf(w.name, sizeof w.name, "%s", work->name);
    return w;
}

/* Insert the work into the n oldest works so far, at most max. */
static int insert_oldest(const ddl_work **oldest, int n, int max, const ddl_work *work)
{
    int at = n < max ? n : max;
    while (at > 0 && oldest[at - 1]->submitted > work->submitted)
        at--;
    if (at == max)
        return n;
    int kept = n < max ? n + 1 : max;
    memmove(&oldest[at + 1], &oldest[at], (size_t)(kept - at - 1) * sizeof *oldest);
    oldest[at] = work;
    return kept;
}

int ddl__engine_waiting(ddl__engine *engine, ddl__waiting *waiting, int max)
{
    const ddl_work *oldest[DDL__WAITING_MAX];
    int n = 0;
    if (!ddl__named_pending(engine))
        return 0;
    pthread_mutex_lock(&engine->lock);
    for (unsigned i = 0; i < DDL__NAME_LISTS; i++)
        for (const ddl_work *work = engine->named.names.lists[i]; work; work = work->next_named)
            if (!work->ordered)
                n = insert_oldest(oldest, n, max, work);
    for (int i = 0; i < n; i++)
        waiting[i] = describe_waiting(oldest[i]);
    pthread_mutex_unlock(&engine->lock);
    return n;
}

bool ddl__engine_name_is_missing(ddl__engine *engine, const char *name, int rank,
                                 char last[DDL_NAME_MAX])
{
    const ddl__announcements *announcements = &engine->named.announcements;
    last[0] = 0;
    if (engine->config.rank != 0)
        return false;
    pthread_mutex_lock(&engine->lock);
    bool misses = rank ? ddl__announcements_lacks(announcements, name, rank)
                       : !ddl__names_find(&engine->named.names, name, strlen(name));
    memcpy(last, announcements->last[rank], DDL_NAME_MAX);
    pthread_mutex_unlock(&engine->lock);
    return misses;
}

/* ------------------------------------------------------------------------------------- failures */

/* Under the lock: return the waiting work with the nearest deadline, or NULL. */
static const ddl_work *most_urgent(const ddl__named *named)
{
    const ddl_work *urgent = NULL;
    for (unsigned i = 0; i < DDL__NAME_LISTS; i++)
        for (const ddl_work *work = named->names.lists[i]; work; work = work->next_named)
            if (!work->ordered && (!urgent || work->deadline < urgent->deadline))
                urgent = work;
    return urgent;
}

/* Copy the name and limit of the most urgent work. Return false if none waits. */
static bool find_urgent(ddl__engine *engine, char *name, int64_t *deadline, int64_t *limit_ms)
{
    pthread_mutex_lock(&engine->lock);
    const ddl_work *work = most_urgent(&engine->named);
    if (work) {
        snprintf(name, DDL_NAME_MAX, "%s", work->name);
        *deadline = work->deadline;
        *limit_ms = work->call.timeout_ms;
    }
    pthread_mutex_unlock(&engine->lock);
    return work;
}

void ddl__named_check_limits(ddl__engine *engine)
{
    char name[DDL_NAME_MAX], why[DDL__MESSAGE_MAX / 2] = "";
    int64_t deadline, limit_ms;
    if (engine->named.deadline == DDL__NEVER || ddl__now() <= engine->named.deadline)
        return;
    engine->named.deadline = DDL__NEVER;
    if (!find_urgent(engine, name, &deadline, &limit_ms))
        return;
    if (ddl__now() <= deadline) {
        engine->named.deadline = deadline;
        return;
    }
    ddl__engine_explain(engine, NULL, name, why, sizeof why);
    ddl__fail_all(engine, DDL_EEXPIRED,
                  "%s: the operation named \"%s\" ran past its limit of %lld ms%s",
                  rank_name(engine, engine->config.rank), name, (long long)limit_ms, why);
}

/* Fail on rank 0 if a rank has left before announcing; on other ranks if rank 0 has left. */
void ddl__named_check_peers(ddl__engine *engine)
{
    char name[DDL_NAME_MAX];
    int64_t deadline, limit_ms;
    int last = engine->config.rank == 0 ? engine->config.size : 1;
    if (!ddl__named_pending(engine) || !find_urgent(engine, name, &deadline, &limit_ms))
        return;
    for (int rank = 0; rank < last; rank++) {
        const ddl__link *link = engine->config.messages[rank];
        if (!link || link->state != DDL__LINK_LEFT ||
            ddl__announcements_has(&engine->named.announcements, name, rank))
            continue;
        ddl__fail_all(engine, DDL_EPEER, "%s left the comm while %s called \"%s\"",
                      rank_name(engine, rank), rank_name(engine, engine->config.rank), name);
        return;
    }
}

void ddl__named_fail(ddl__engine *engine, ddl_status status)
{
    ddl__named *named = &engine->named;
    named->unannounced = NULL;
    for (unsigned i = 0; i < DDL__NAME_LISTS; i++)
        while (named->names.lists[i])
            ddl__finish(engine, named->names.lists[i], status);
}
