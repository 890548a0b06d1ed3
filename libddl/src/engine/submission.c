/* SPDX-License-Identifier: Apache-2.0 */
/* Starts works: creates a work from a call, and queues it. */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/dtype.h"
#include "base/forks.h"
#include "engine/calls/ordered.h"
#include "engine/state.h"

/* Initialise a work, except for its name. */
static void work_init(ddl__engine *engine, ddl_work *work, const ddl__call *call)
{
    enum { BEGIN = offsetof(ddl_work, group), END = offsetof(ddl_work, status) };
    work->engine = engine;
    work->generation = ddl__generation();
    work->call = *call;
    memset((char *)work + BEGIN, 0, END - BEGIN);
    atomic_init(&work->status, DDL_INPROGRESS);
}

/* Under the lock: post a message, or queue another work in the stream. */
static void work_enqueue(ddl__engine *engine, ddl__stream *stream, ddl_work *work)
{
    if (ddl__is_message(work)) {
        atomic_fetch_add_explicit(&engine->n_messages, 1, memory_order_relaxed);
        ddl__messages_post(engine->messages, work);
    } else {
        ddl__stream_push(stream, work);
    }
}

void ddl__push_parts(ddl__engine *engine, ddl__stream *stream, ddl_work *whole)
{
    ddl_group *group = whole->whole_of;
    group->left = group->n_parts;
    for (uint32_t i = 0; i < group->n_parts; i++) {
        ddl_work *part = &group->parts[i].work;
        work_init(engine, part, &group->parts[i].call);
        part->submitted = whole->submitted;
        part->deadline = whole->deadline;
        part->call.timeout_ms = whole->call.timeout_ms;
        part->group = group;
        work_enqueue(engine, stream, part);
    }
    if (!group->n_parts)
        ddl__finish(engine, whole, DDL_OK);
}

/* A submission: a call, or a group described by `call`. */
typedef struct submission {
    const ddl__call *call;
    ddl_group *group;
} submission;

/* Under the lock: admit a submission and queue its works, or reject it. */
static ddl_status work_admit(ddl__engine *engine, const submission *what, ddl_work *work)
{
    if (atomic_load_explicit(&engine->failure, memory_order_relaxed) != DDL_OK)
        return ddl__engine_status(engine);
    if (what->group && what->group->work)
        return ddl__fail(DDL_ESTATE,
                         "the group is pending: submit it again after its work is complete");
    if (work->name) {
        ddl_status status = ddl__named_admit(engine, work);
        if (status != DDL_OK)
            return status;
    }
    engine->queued += work->call.queued;
    engine->admitted++;
    if (what->group) {
        what->group->work = work;
        work->whole_of = what->group;
    }
    if (work->name)
        return DDL_OK; /* it is queued when rank 0 orders it to run */
    if (what->group)
        ddl__push_parts(engine, &engine->ordered, work);
    else
        work_enqueue(engine, &engine->ordered, work);
    return DDL_OK;
}

/* Under the lock: return true if the submitter, as the driver, can run this work first. */
static bool comes_first(const ddl__engine *engine, const submission *what)
{
    const ddl__call *call = what->call;
    return !engine->driven && !ddl__stream_pending(&engine->ordered) && !what->group &&
           !call->name && call->kind != DDL__SEND && call->kind != DDL__RECV &&
           !atomic_load_explicit(&engine->waiters, memory_order_relaxed);
}

/* Prepare and admit the work. On success, return with the lock held. */
static ddl_status work_enter(ddl__engine *engine, const submission *what, ddl_work *work,
                             bool drives)
{
    work_init(engine, work, what->call);
    ddl_status status = DDL_OK;
    if (what->call->name && !(work->name = strdup(what->call->name)))
        status = ddl__fail(DDL_ENOMEM, "out of memory for a name");
    pthread_mutex_lock(&engine->lock);
    work->submitted = work->deadline = 0;
    if (!drives || !comes_first(engine, what))
        ddl__work_stamp(work);
    if (status == DDL_OK)
        status = work_admit(engine, what, work);
    if (status == DDL_OK)
        return DDL_OK;
    pthread_mutex_unlock(&engine->lock);
    free(work->name);
    ddl__call_drop(what->call);
    return status;
}

static ddl_status submit_blocking(ddl__engine *engine, const submission *what)
{
    ddl_work work;
    ddl_status status = work_enter(engine, what, &work, true);
    if (status != DDL_OK)
        return status;
    if (engine->driven) /* the driver may sleep, waiting for other works */
        ddl__wake_sleeper(engine);
    ddl__wait_locked(engine, &work, DDL__NEVER);
    ddl__unlock_and_hand_over(engine, DDL__SOON);
    status = ddl__work_test(&work);
    free(work.message);
    return status;
}

/* Wait as a blocking call does, for up to wait_ms. After that the operation continues as a work. */
static ddl_status submit_waiting(ddl__engine *engine, const submission *what, ddl_work **out)
{
    *out = NULL;
    ddl_work *work = malloc(sizeof *work);
    if (!work) {
        ddl__call_drop(what->call);
        return ddl__fail(DDL_ENOMEM, "out of memory for an operation");
    }
    ddl_status status = work_enter(engine, what, work, true);
    if (status != DDL_OK) {
        free(work);
        return status;
    }
    atomic_fetch_add_explicit(&engine->references, 1, memory_order_relaxed);
    if (engine->driven)
        ddl__wake_sleeper(engine);
    ddl__wait_locked(engine, work, ddl__deadline(what->call->wait_ms));
    ddl__unlock_and_hand_over(engine, DDL__SOON);
    status = ddl__work_test(work);
    if (status == DDL_INPROGRESS) {
        *out = work;
        return DDL_OK;
    }
    ddl__work_destroy(work);
    return status;
}

/* Return true if the first steps of the operation take less time than waking a thread that would
 * run them. */
static bool is_quick(const submission *what)
{
    enum { QUICK = 1 << 20 }; /* bytes */
    const ddl__call *call = what->call;
    return !what->group && !call->blocks &&
           call->count <= QUICK / (int64_t)ddl__dtype_size(call->dtype);
}

static ddl_status submit(ddl__engine *engine, const submission *what, ddl_work **out)
{
    if (!out)
        return submit_blocking(engine, what);
    if (what->call->wait_ms)
        return submit_waiting(engine, what, out);
    ddl_work *work = malloc(sizeof *work);
    if (!work) {
        ddl__call_drop(what->call);
        return ddl__fail(DDL_ENOMEM, "out of memory for an operation");
    }
    bool quick = is_quick(what);
    ddl_status status = work_enter(engine, what, work, quick);
    if (status != DDL_OK) {
        free(work);
        return status;
    }
    atomic_fetch_add_explicit(&engine->references, 1, memory_order_relaxed);
    *out = work; /* stored before a thread can complete the work and return it */
    if (engine->driven) {
        ddl__wake_sleeper(engine);
        pthread_mutex_unlock(&engine->lock);
    } else if (quick && !atomic_load_explicit(&engine->waiters, memory_order_relaxed)) {
        ddl__advance_and_unlock(engine);
    } else {
        pthread_cond_broadcast(&engine->changed);
        ddl__unlock_and_hand_over(engine, DDL__NOW);
    }
    return DDL_OK;
}

ddl_status ddl__engine_submit(ddl__engine *engine, const ddl__call *call, ddl_work **work)
{
    return submit(engine, &(submission){call, NULL}, work);
}

ddl_status ddl__engine_submit_group(ddl__engine *engine, ddl_group *group, const ddl__call *call,
                                    ddl_work **work)
{
    ddl_status status = ddl__group_arrange(group, !engine->ordered.all_shared);
    return status == DDL_OK ? submit(engine, &(submission){call, group}, work) : status;
}

bool ddl__engine_holds_group(ddl__engine *engine, const ddl_group *group)
{
    pthread_mutex_lock(&engine->lock);
    bool held = group->work;
    pthread_mutex_unlock(&engine->lock);
    return held;
}

void ddl__engine_release_hold(ddl__engine *engine, ddl__hold *hold)
{
    atomic_store_explicit(&hold->ready, true, memory_order_seq_cst);
    ddl__wake_sleeper(engine);
}

void ddl__engine_drop_group(ddl__engine *engine, ddl_group *group)
{
    pthread_mutex_lock(&engine->lock);
    bool held = group->destroyed = group->work;
    pthread_mutex_unlock(&engine->lock);
    if (!held)
        ddl__group_free(group);
}
