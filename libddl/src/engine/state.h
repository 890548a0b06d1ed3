/* SPDX-License-Identifier: Apache-2.0 */
/* state.h - the insides of an engine, for the files of this folder that make it up: engine.c
 * (creation and end), submission.c (how works begin), drive.c (who drives, and waiting), progress.c
 * (one pass of the driver), completion.c (how works end), failures.c (how failures are found, and
 * end the comm).
 *
 * Design notes.
 *
 * The works of a stream run one after the other, in the order of submission. Messages have their
 * own links and complete as they are matched. The thread that holds `driven` is the driver: it
 * alone touches links, plans and current works. A waiter becomes the driver if there is none, and
 * drives until what it waits for is complete; other waiters sleep on `changed`. While nobody waits,
 * the thread of the endpoint drives through ddl__engine_background, and gives way to any waiter
 * (`waiters`).
 *
 * `lock` guards the queues, the posted messages, the completed list, `driven`, `waiters`, `failure`
 * and the completion of every work. It is never held while a plan runs or a thread sleeps on the
 * links.
 *
 * A work is completed exactly once, by ddl__finish under the lock. The driver calls it when the
 * plan has ended, or through ddl__fail_all when the comm dies; a thread that aborts a comm without
 * a driver becomes the driver first. The driver completes its own awaited work when it retakes the
 * lock (ddl__settle), and keeps it in `ended` until then. A blocking call thus takes the lock
 * twice, when it enters and when it leaves. After completion, only the completed list points to the
 * work, and no link uses its buffers: a plan ends only when all user memory is sent, and closing a
 * link drops what it had borrowed. The parts of a group belong to the group, and its last part
 * completes the work of the group.
 *
 * News that the comm is dead, from a link or from the failure detector, may overtake spans that
 * were sent before. These have arrived by then, so the driver first runs what can run, and fails
 * only what is blocked.
 *
 * A caller's work keeps the engine's memory and lock (`references`), since a thread may come to
 * wait for it while another one destroys the comm. ddl__engine_destroy completes all works, and
 * waits until the driver and all waiters have left.
 *
 * A sleeping driver is woken by the descriptors of its links, and by `wake` for aborts and
 * takeovers; all are in `epoll`. A thread that queues something looks at `asleep` afterwards. The
 * driver sets `asleep` before its last look at the queues. */
#ifndef DDL_ENGINE_STATE_H
#define DDL_ENGINE_STATE_H

#include <pthread.h>

#include "base/fp_mode.h"
#include "engine/engine.h"
#include "engine/executor/stream.h"
#include "engine/executor/wait_policy.h"
#include "engine/messages/messages.h"
#include "engine/named.h"
#include "engine/recorder/recorder.h"

/* What is known of the death of a member. */
typedef struct ddl__loss {
    atomic_bool ended; /* its process has ended: confirmed by the system */
    int64_t noticed;   /* when a link to it was found lost; 0: none was */
    atomic_int found;  /* ddl__finding */
} ddl__loss;

struct ddl__engine {
    ddl__engine_config config;
    atomic_uint references; /* the comm's, and one for each work that a caller has */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    ddl_work *completed, **last; /* queued works that are complete and not yet taken */
    uint32_t queued;             /* works that are in the completed list, or will be */
    int report;                  /* readable while `completed` has works; -1: not asked for */
    atomic_uint n_messages;      /* pending works that are messages */
    atomic_uint names_unsent;    /* name messages to others */
    bool driven;
    ddl__fp_mode drivers_mode; /* of the thread that drives, to be restored */
    atomic_bool asleep;        /* the driver sleeps on `epoll`, or looks once more before it does */
    atomic_uint waiters;
    atomic_bool was_driven; /* see ddl__engine_was_driven */
    atomic_int failure;     /* ddl_status; DDL_OK while alive */
    atomic_bool told;       /* a call has returned the failure, or a work has ended with it */
    char message[DDL__MESSAGE_MAX];
    atomic_bool abort_asked; /* by a caller or the failure detector */
    bool abort_after_spans;  /* by the latter: spans sent before count */
    ddl_status abort_status;
    char abort_text[DDL__MESSAGE_MAX];
    uint64_t admitted, finished; /* works, ever */

    /* Used by the driver only, except for the queues. */
    const ddl_work *awaited; /* what the driver itself waits for, or NULL */
    ddl_work *ended;         /* the same when its plan has ended but it is not complete */
    ddl__stream ordered;     /* ordered operations */
    ddl__named named;        /* named operations */
    ddl__messages *messages;
    ddl__wait_policy wait_policy;
    ddl__recorder recorder;    /* read by any thread, like the next three */
    atomic_ullong moves;       /* how often an operation moved without ending */
    atomic_ullong passes;      /* passes in which messages moved */
    atomic_bool created;       /* see ddl__engine_created */
    ddl__loss *losses;         /* by rank */
    int64_t unconfirmed_until; /* when to believe a lost link; 0: none is in doubt */
    int64_t probed_at;         /* when links last probed their peers */
    int epoll, wake;

    pthread_mutex_t explaining; /* held during a call of `explain`; before the detector's lock */
    ddl__explain_fn *explain;   /* or NULL */
    void *explain_context;
};

/* ---- engine.c ---- */

/* Drop a reference. The last one frees the lock, which a thread that waits for a work may still
 * want when the comm is destroyed. */
void ddl__engine_release(ddl__engine *engine);

/* ---- completion.c ---- */

static inline bool ddl__is_complete(const ddl_work *work)
{
    return atomic_load_explicit(&work->status, memory_order_acquire) != DDL_INPROGRESS;
}

/* Whether the work is in the list of completed ones. Leaving the list is the last thing that the
 * engine does to a work; the caller may then free it without the lock. */
static inline bool ddl__in_list(const ddl_work *work)
{
    return atomic_load_explicit(&work->reported, memory_order_acquire);
}

static inline void ddl__leave_list(ddl_work *work)
{
    atomic_store_explicit(&work->reported, false, memory_order_release);
}

static inline bool ddl__is_message(const ddl_work *work)
{
    return work->call.kind == DDL__SEND || work->call.kind == DDL__RECV;
}

/* Under the lock, when the list of completed works has become empty or non-empty. */
void ddl__report(ddl__engine *engine);

/* Under the lock: give the work its result. */
void ddl__finish(ddl__engine *engine, ddl_work *work, ddl_status status);

/* Under the lock: the same for a list along `next`. */
void ddl__finish_list(ddl__engine *engine, ddl_work *list, ddl_status status);

/* Called by the driver under the lock: complete its awaited work if that has ended. */
void ddl__settle(ddl__engine *engine);

/* ---- submission.c ---- */

/* Under the lock: queue all parts of the group that `whole` completes. */
void ddl__push_parts(ddl__engine *engine, ddl__stream *stream, ddl_work *whole);

/* ---- progress.c, called by the driver ---- */

/* Waits of fewer turns are not measured. */
enum { DDL__SHORT_WAIT_TURNS = 64 };

/* One pass over all that is pending. False when all of it is blocked or there is nothing. */
bool ddl__advance(ddl__engine *engine);

/* Complete messages that have ended. A message that has failed ends the comm. */
void ddl__settle_messages(ddl__engine *engine);

/* Whether any named operation is under way here. Any thread. */
static inline bool ddl__named_pending(const ddl__engine *engine)
{
    return atomic_load_explicit(&engine->named.names.n, memory_order_relaxed);
}

/* Whether name messages wait to be sent. Any thread. */
static inline bool ddl__names_unsent(const ddl__engine *engine)
{
    return atomic_load_explicit(&engine->names_unsent, memory_order_relaxed);
}

/* Whether anything but ordered operations is pending. Any thread. */
static inline bool ddl__has_more(const ddl__engine *engine)
{
    return atomic_load_explicit(&engine->n_messages, memory_order_relaxed) ||
           ddl__named_pending(engine) || ddl__names_unsent(engine);
}

/* End the comm if what blocks this rank can no longer come. Only after a pass that moved nothing.
 */
void ddl__check_blocked(ddl__engine *engine);

/* End the comm if anything has run past its own limit. */
void ddl__check_limits(ddl__engine *engine);

/* How many links have ended, for whatever cause. */
unsigned ddl__links_ended(const ddl__engine *engine);

/* ---- failures.c, called by the driver ---- */

/* End the comm. The first failure wins. */
void ddl__fail_all(ddl__engine *engine, ddl_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* As ddl__check_blocked, when a link has ended. */
void ddl__check_ended(ddl__engine *engine);

/* Call the explainer, if there is one. */
void ddl__engine_explain(ddl__engine *engine, const ddl__signature *operation, const char *name,
                         char *text, size_t size);

/* Carry out a requested abort. */
void ddl__abort_execute(ddl__engine *engine);

/* The comm is about to end because this rank's link is lost. */
void ddl__find_peer_lost(ddl__engine *engine, int rank);

/* Whether an abort was requested and not yet carried out. Any thread. */
static inline bool ddl__abort_is_pending(const ddl__engine *engine)
{
    return atomic_load_explicit(&engine->abort_asked, memory_order_acquire) &&
           atomic_load_explicit(&engine->failure, memory_order_relaxed) == DDL_OK;
}

/* ---- drive.c ---- */

/* Under the lock: this thread becomes the driver, or ceases to be. The driver runs all kernels and
 * makes all plans in the floating-point mode of the library. */
static inline void ddl__driver_start(ddl__engine *engine)
{
    engine->driven = true;
    engine->drivers_mode = ddl__fp_enter();
}

static inline void ddl__driver_stop(ddl__engine *engine)
{
    ddl__fp_leave(engine->drivers_mode);
    engine->driven = false;
}

/* Wait for this work, or (NULL) for any completed work, by driving or by waiting for the driver.
 * The lock is held on entry and on return. */
void ddl__wait_locked(ddl__engine *engine, const ddl_work *work, int64_t deadline);

/* Under the lock: whether somebody must drive. */
bool ddl__pending(const ddl__engine *engine);

/* Release the lock. If works are pending and nobody waits, ask for the thread of the endpoint: at
 * once for a new submission, soon after a wait, since a thread that has waited mostly waits again.
 */
void ddl__unlock_and_hand_over(ddl__engine *engine, ddl__urgency urgency);

/* Release the lock, with nobody driving: do what can be done at once, and leave the rest to the
 * next waiter or to the thread of the endpoint. */
void ddl__advance_and_unlock(ddl__engine *engine);

/* Wake the driver if it sleeps, after something was queued under the lock; or in any case. */
void ddl__wake_sleeper(ddl__engine *engine);
void ddl__wake_driver(ddl__engine *engine);

/* Handle events of the links and of `wake`, waiting at most timeout_ms. */
void ddl__links_poll(ddl__engine *engine, int timeout_ms);

#endif
