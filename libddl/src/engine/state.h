/* SPDX-License-Identifier: Apache-2.0 */
/* state.h - the internals of an engine, for the files of this folder: engine.c (creation and end),
 * submission.c (start of works), drive.c (choice of the driver, and waiting), progress.c (one pass
 * of the driver), completion.c (completion of works), failures.c (detection of failures, and the
 * end of the comm).
 *
 * Design notes.
 *
 * The works of a stream run one after another, in the order of submission. Messages have their own
 * links and complete as they are matched. The thread that holds `driven` is the driver: only the
 * driver touches links, plans and current works. A waiter becomes the driver if there is none, and
 * drives until its work is complete; other waiters sleep on `changed`. While no caller waits, the
 * endpoint's thread drives through ddl__engine_background, and stops for any waiter (`waiters`).
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
 * link drops the memory that it had borrowed. The parts of a group belong to the group, and its
 * last part completes the work of the group.
 *
 * The notice that the comm is dead, from a link or from the failure detector, may overtake spans
 * that were sent before it. These spans have arrived, but are not read yet. So the driver first
 * runs the works that can run, and fails only the works that are still blocked.
 *
 * A caller's work keeps the engine's memory and lock alive (`references`), because a thread may
 * start to wait for the work while another thread destroys the comm. ddl__engine_destroy completes
 * all works, and waits until the driver and all waiters have left.
 *
 * A sleeping driver is woken by the descriptors of its links, and by `wake` for aborts and
 * takeovers; all are in `epoll`. A thread that queues something checks `asleep` afterwards. The
 * driver sets `asleep` before it checks the queues for the last time. */
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

/* This rank's knowledge about the death of a member. */
typedef struct ddl__loss {
    atomic_bool ended; /* the operating system has confirmed that its process has exited */
    int64_t noticed;   /* time when a link to it was found lost; 0: none */
    atomic_int found;  /* ddl__finding */
} ddl__loss;

struct ddl__engine {
    ddl__engine_config config;
    atomic_uint references; /* number of references: one of the comm, and one of each work that a
                               caller has */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    ddl_work *completed, **last; /* queued works that are complete and not returned yet */
    uint32_t queued;             /* queued works that were not returned yet, complete or not */
    int report; /* descriptor that is readable while `completed` has works; -1: not requested */
    atomic_uint n_messages;   /* pending works that are messages */
    atomic_uint names_unsent; /* name messages to other ranks that are not sent */
    bool driven;
    ddl__fp_mode drivers_mode; /* the driver thread's own mode, to be restored */
    atomic_bool asleep; /* the driver sleeps on `epoll`, or polls once more before it sleeps */
    atomic_uint waiters;
    atomic_bool was_driven; /* a caller has driven since the last check (ddl__engine_was_driven) */
    atomic_int failure;     /* ddl_status; DDL_OK while alive */
    atomic_bool told;       /* a call or a work has returned the failure */
    char message[DDL__MESSAGE_MAX];
    atomic_bool abort_asked; /* an abort was requested, by a caller or by the failure detector */
    /* the failure detector has requested the abort: first receive the spans that peers have sent */
    bool abort_after_spans;
    ddl_status abort_status;
    char abort_text[DDL__MESSAGE_MAX];
    uint64_t admitted, finished; /* numbers of works since creation */

    /* Used by the driver only, except for the queues. */
    const ddl_work *awaited; /* the work that the driver itself waits for; or NULL */
    ddl_work *ended;         /* the awaited work if its plan has ended and it is not complete */
    ddl__stream ordered;     /* ordered operations */
    ddl__named named;        /* named operations */
    ddl__messages *messages;
    ddl__wait_policy wait_policy;
    ddl__link *neighbour;   /* a link that shares memory; or NULL */
    uint64_t computations;  /* number of calls of tell_computed */
    int64_t stopped_at;     /* when the driver stopped; 0: no peer needs to know */
    ddl__recorder recorder; /* read by any thread, as are the next three */
    atomic_ullong moves;    /* passes in which an operation made progress without completing */
    atomic_ullong passes;   /* passes in which messages made progress */
    atomic_bool created;    /* the comm is created (ddl__engine_created) */
    ddl__loss *losses;      /* by rank */
    /* time until which the reason of a lost link is awaited; 0: no reason is awaited */
    int64_t unconfirmed_until;
    int64_t probed_at; /* time when the links last probed their peers */
    int epoll, wake;

    /* held during a call of `explain`; locked before the detector's lock */
    pthread_mutex_t explaining;
    ddl__explain_fn *explain; /* or NULL */
    void *explain_context;
};

/* ---- engine.c ---- */

/* Drop a reference. The last one frees the lock, which a thread that waits for a work may still
 * need when the comm is destroyed. */
void ddl__engine_release(ddl__engine *engine);

/* ---- completion.c ---- */

static inline bool ddl__is_complete(const ddl_work *work)
{
    return atomic_load_explicit(&work->status, memory_order_acquire) != DDL_INPROGRESS;
}

/* Return true if the work is in the list of completed works. Leaving the list is the last thing
 * that the engine does to a work; the caller may then free it without the lock. */
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

/* Under the lock: update the descriptor after the completed list has become empty or non-empty. */
void ddl__report(ddl__engine *engine);

/* Under the lock: complete the work with this status. */
void ddl__finish(ddl__engine *engine, ddl_work *work, ddl_status status);

/* Under the lock: complete a list of works, linked by `next`. */
void ddl__finish_list(ddl__engine *engine, ddl_work *list, ddl_status status);

/* Called by the driver under the lock: complete its awaited work if its plan has ended. */
void ddl__settle(ddl__engine *engine);

/* ---- submission.c ---- */

/* Under the lock: queue all parts of the group that `whole` completes. */
void ddl__push_parts(ddl__engine *engine, ddl__stream *stream, ddl_work *whole);

/* ---- progress.c, called by the driver ---- */

/* Waits of fewer turns are not measured. */
enum { DDL__SHORT_WAIT_TURNS = 64 };

/* Make one pass over everything that is pending. Returns false if nothing is pending, or if all of
 * it is blocked. */
bool ddl__advance(ddl__engine *engine);

/* Complete messages that have ended. A failed message ends the comm. */
void ddl__settle_messages(ddl__engine *engine);

/* Return true if a named operation is pending on this rank. Any thread may call this. */
static inline bool ddl__named_pending(const ddl__engine *engine)
{
    return atomic_load_explicit(&engine->named.names.n, memory_order_relaxed);
}

/* Return true if name messages are not sent yet. Any thread may call this. */
static inline bool ddl__names_unsent(const ddl__engine *engine)
{
    return atomic_load_explicit(&engine->names_unsent, memory_order_relaxed);
}

/* Return true if anything but ordered operations is pending. Any thread may call this. */
static inline bool ddl__has_more(const ddl__engine *engine)
{
    return atomic_load_explicit(&engine->n_messages, memory_order_relaxed) ||
           ddl__named_pending(engine) || ddl__names_unsent(engine);
}

/* End the comm if the data that this rank waits for can no longer arrive. Call this only after a
 * pass that moved nothing. */
void ddl__check_blocked(ddl__engine *engine);

/* End the comm if an operation has exceeded its limit. */
void ddl__check_limits(ddl__engine *engine);

/* Return how many links have ended, for any reason. */
unsigned ddl__links_ended(const ddl__engine *engine);

/* ---- failures.c, called by the driver ---- */

/* End the comm. The first failure wins. */
void ddl__fail_all(ddl__engine *engine, ddl_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* End the comm like ddl__check_blocked, after a link has ended. */
void ddl__check_ended(ddl__engine *engine);

/* Call the explainer, if there is one. */
void ddl__engine_explain(ddl__engine *engine, const ddl__signature *operation, const char *name,
                         char *text, size_t size);

/* Execute a requested abort. */
void ddl__abort_execute(ddl__engine *engine);

/* Note that the comm is about to end because the link to this rank is lost. */
void ddl__find_peer_lost(ddl__engine *engine, int rank);

/* Return true if an abort was requested and not executed yet. Any thread may call this. */
static inline bool ddl__abort_is_pending(const ddl__engine *engine)
{
    return atomic_load_explicit(&engine->abort_asked, memory_order_acquire) &&
           atomic_load_explicit(&engine->failure, memory_order_relaxed) == DDL_OK;
}

/* ---- drive.c ---- */

/* For wait_policy.h; the context is the engine. */
uint64_t ddl__computed_here(const void *context);

/* The lowest bits of the number of a computation contain the number of its core. */
static const uint64_t DDL__CORES = (1 << 16) - 1;

/* The number of a computation on the core of this thread. */
static inline uint64_t ddl__number_here(uint64_t computations)
{
    return (computations * (DDL__CORES + 1)) | ((unsigned)sched_getcpu() & DDL__CORES);
}

/* Under the lock: this thread becomes the driver, or stops being it. The driver runs all kernels
 * and makes all plans in the library's floating-point mode. */
static inline void ddl__driver_start(ddl__engine *engine)
{
    engine->driven = true;
    engine->drivers_mode = ddl__fp_enter();
    if (engine->stopped_at && ddl__now() - engine->stopped_at >= DDL__COMPUTED_NS)
        engine->neighbour->ops->tell_computed(engine->neighbour,
                                              ddl__number_here(++engine->computations));
}

static inline void ddl__driver_stop(ddl__engine *engine)
{
    ddl__fp_leave(engine->drivers_mode);
    bool shares_core = engine->neighbour && engine->wait_policy.oversubscribed.length;
    engine->stopped_at = shares_core ? ddl__now() : 0;
    engine->driven = false;
}

/* Wait for this work, or if it is NULL, for any completed work, by driving or by waiting for the
 * driver. The lock is held on entry and on return. */
void ddl__wait_locked(ddl__engine *engine, const ddl_work *work, int64_t deadline);

/* Under the lock: return true if some thread must drive. */
bool ddl__pending(const ddl__engine *engine);

/* Release the lock. If works are pending and no thread waits, request the endpoint's thread: at
 * once after a new submission, but only soon after a wait, because a thread that has waited usually
 * waits again. */
void ddl__unlock_and_hand_over(ddl__engine *engine, ddl__urgency urgency);

/* Release the lock while there is no driver: do what is possible at once, and leave the rest to the
 * next waiter or to the endpoint's thread. */
void ddl__advance_and_unlock(ddl__engine *engine);

/* ddl__wake_sleeper wakes the driver if it sleeps, after something was queued under the lock.
 * ddl__wake_driver wakes it in any case. */
void ddl__wake_sleeper(ddl__engine *engine);
void ddl__wake_driver(ddl__engine *engine);

/* Handle events of the links and of `wake`, waiting at most timeout_ms. Return true if there were
 * any. */
bool ddl__links_poll(ddl__engine *engine, int timeout_ms);

#endif
