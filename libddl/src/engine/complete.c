#include "engine/state.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "engine/ordered.h"
#include "engine/staging.h"
#include "net/close_reason.h"

void ddl__report(ddl__engine *engine)
{
    uint64_t count = 1;
    if (engine->report < 0)
        return;
    ssize_t n = engine->completed ? write(engine->report, &count, sizeof count)
                                  : read(engine->report, &count, sizeof count);
    (void)n; /* the descriptor is in the wanted state already */
}

/* Under the lock. A part belongs to the group. The last part completes the group, with its own
 * status: a failure ends all remaining parts. */
static void finish_part(ddl__engine *engine, ddl_group *group, ddl_status status)
{
    if (!--group->left)
        ddl__finish(engine, group->work, status);
}

/* Under the lock, before the work of the group is completed. */
static void release_group(ddl_group *group)
{
    group->work = NULL;
    if (group->destroyed)
        ddl__group_free(group);
}

void ddl__finish(ddl__engine *engine, ddl_work *work, ddl_status status)
{
    ddl__stage_drop(work);
    if (ddl__is_message(work))
        atomic_fetch_sub_explicit(&engine->n_messages, 1, memory_order_relaxed);
    if (work->group) {
        finish_part(engine, work->group, status);
        return;
    }
    engine->finished++;
    ddl__call_drop(&work->call);
    if (work->whole_of)
        release_group(work->whole_of);
    if (work->name)
        ddl__named_remove(engine, work);
    if (work->abandoned) {
        if (work->call.queued)
            engine->queued--;
        free(work);
        return;
    }
    if (status != DDL_OK) {
        work->message = strdup(engine->message);
        atomic_store_explicit(&engine->told, true, memory_order_relaxed);
    }
    if (work->call.queued) {
        work->next = NULL;
        atomic_store_explicit(&work->reported, true, memory_order_relaxed);
        bool first = !engine->completed;
        *engine->last = work;
        engine->last = &work->next;
        if (first)
            ddl__report(engine);
    }
    atomic_store_explicit(&work->status, status, memory_order_release);
    if (atomic_load_explicit(&engine->waiters, memory_order_relaxed))
        pthread_cond_broadcast(&engine->changed);
}

void ddl__finish_list(ddl__engine *engine, ddl_work *list, ddl_status status)
{
    for (ddl_work *work = list, *next; work; work = next) {
        next = work->next;
        ddl__finish(engine, work, status);
    }
}

void ddl__settle(ddl__engine *engine)
{
    ddl_work *work = engine->ended;
    if (!work)
        return;
    ddl__stream *stream = work->name ? &engine->named.stream : &engine->ordered;
    stream->busy = stream->head;
    engine->ended = NULL;
    ddl__finish(engine, work, DDL_OK);
}

/* Under the lock. */
static void fail_stream(ddl__engine *engine, ddl__stream *stream, ddl_status status)
{
    ddl_work *held = stream->tuning ? ddl__tuning_drop(stream->tuning) : NULL;
    ddl_work *current = held ? held : stream->current;
    if (current) {
        ddl__record_end(&engine->recorder, current, status, ddl__now());
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
        ddl__log(status == DDL_EABORTED ? DDL__INFO : DDL__WARN, "%s: the comm is dead: %s",
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
