/* SPDX-License-Identifier: Apache-2.0 */
/* The completion of works, and the functions that wait for works, test them and destroy them. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/forks.h"
#include "engine/calls/ordered.h"
#include "engine/executor/staging.h"
#include "engine/state.h"

/* ---------------------------------------------------------------------------- the driver's part */

void ddl__report(ddl__engine *engine)
{
    uint64_t count = 1;
    if (engine->report < 0)
        return;
    ssize_t n = engine->completed ? write(engine->report, &count, sizeof count)
                                  : read(engine->report, &count, sizeof count);
    (void)n; /* on failure, the descriptor is already in the desired state */
}

/* Under the lock: finish a part, which the group owns. The last part's status is the group's,
 * because a failure ends all remaining parts. */
static void finish_part(ddl__engine *engine, ddl_group *group, ddl_status status)
{
    if (--group->left)
        return;
    if (status == DDL_OK)
        status = group->outcome;
    if (!group->held || status != DDL_OK)
        ddl__finish(engine, group->work, status);
}

void ddl__engine_release_group(ddl__engine *engine, ddl_group *group, ddl_status status)
{
    pthread_mutex_lock(&engine->lock);
    ddl_status failure = (ddl_status)atomic_load_explicit(&engine->failure, memory_order_relaxed);
    if (status != DDL_OK && failure != DDL_OK)
        status = failure; /* status may be a consequence of the comm's failure */
    group->held = false;
    group->outcome = status;
    bool ends = group->work && !group->left;
    if (ends)
        ddl__finish(engine, group->work, status);
    pthread_mutex_unlock(&engine->lock);
    if (ends)
        ddl__wake_driver(engine); /* the driver may be waiting for this work */
}

/* Under the lock: detach the group from its work, before the work is completed. */
static void release_group(ddl_group *group)
{
    group->work = NULL;
    if (group->destroyed)
        ddl__group_free(group);
}

void ddl__finish(ddl__engine *engine, ddl_work *work, ddl_status status)
{
    ddl__stage_drop(work);
    if (work->call.hold)
        ddl__hold_end(work->call.hold);
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
        ddl__engine_release(engine); /* this is not the last reference, because the comm has one */
        return;
    }
    if (status != DDL_OK) {
        work->message = strdup(engine->message[0] ? engine->message : engine->abort_text);
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

/* ---------------------------------------------------------------------------- the caller's part */

ddl_status ddl__work_test(const ddl_work *work)
{
    ddl_status status = (ddl_status)atomic_load_explicit(&work->status, memory_order_acquire);
    if (status != DDL_OK && status != DDL_INPROGRESS)
        ddl__fail(status, "%s", work->message ? work->message : ddl__strerror(status));
    return status;
}

ddl_status ddl__work_wait(ddl_work *work, int64_t deadline)
{
    if (!ddl__is_complete(work)) {
        ddl__engine *engine = work->engine;
        pthread_mutex_lock(&engine->lock);
        ddl__wait_locked(engine, work, deadline);
        ddl__unlock_and_hand_over(engine, DDL__SOON);
    }
    return ddl__work_test(work);
}

static void work_free(ddl_work *work)
{
    ddl__engine *engine = work->engine;
    free(work->message);
    free(work);
    ddl__engine_release(engine);
}

void ddl__work_destroy(ddl_work *work)
{
    if (ddl__is_complete(work) && !ddl__in_list(work)) {
        work_free(work);
        return;
    }
    ddl__engine *engine = work->engine;
    pthread_mutex_lock(&engine->lock);
    if (!ddl__is_complete(work)) {
        work->abandoned = true;
        pthread_mutex_unlock(&engine->lock);
        return;
    }
    for (ddl_work **at = &engine->completed; ddl__in_list(work) && *at; at = &(*at)->next)
        if (*at == work) {
            *at = work->next;
            if (!*at)
                engine->last = at;
            engine->queued--;
            if (!engine->completed)
                ddl__report(engine);
            break;
        }
    pthread_mutex_unlock(&engine->lock);
    work_free(work);
}

ddl_status ddl__engine_completed(ddl__engine *engine, ddl_work **works, void **users, int max,
                                 int64_t deadline, int *taken)
{
    pthread_mutex_lock(&engine->lock);
    ddl__wait_locked(engine, NULL, deadline);
    int n = 0;
    for (; n < max && engine->completed; n++) {
        ddl_work *work = engine->completed;
        engine->completed = work->next;
        if (!engine->completed)
            engine->last = &engine->completed;
        engine->queued--;
        if (works)
            works[n] = work;
        if (users)
            users[n] = work->call.user;
        ddl__leave_list(work);
    }
    if (n && !engine->completed)
        ddl__report(engine);
    bool none = !engine->queued;
    ddl__unlock_and_hand_over(engine, DDL__SOON);
    if (n == 0)
        return none ? ddl__fail(DDL_ESTATE,
                                "no queued work exists: submit one with options.queued first")
                    : ddl__fail(DDL_ETIMEDOUT, "no queued work completed within the time limit");
    *taken = n;
    return DDL_OK;
}

ddl_status ddl__engine_report_fd(ddl__engine *engine, int *fd)
{
    pthread_mutex_lock(&engine->lock);
    if (engine->report < 0) {
        engine->report = ddl__guard(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
        if (engine->report >= 0 && engine->completed)
            ddl__report(engine);
    }
    int made = engine->report, error = errno;
    pthread_mutex_unlock(&engine->lock);
    if (made < 0)
        return ddl__fail(DDL_ESYSTEM, "cannot open a descriptor for completed works: %s",
                         strerror(error));
    *fd = made;
    return DDL_OK;
}
