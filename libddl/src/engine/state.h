/* state.h - an engine's insides, for the files of this folder that make it up: engine.c (from its
 * creation to its end), works.c (what callers do), drive.c (what the driver does), complete.c (how
 * works end).
 *
 * Design notes.
 *
 * The works of a stream run one after the other, in the order of submission; messages, over links
 * of their own, complete as they are matched. Whoever holds `driven`
 * is the driver: it alone touches links, plans and current works. A waiter becomes the driver when
 * nobody drives, and keeps the role until what it waits for is complete; other waiters sleep on
 * `changed`. With nobody waiting, the endpoint's thread drives through ddl__engine_background, and
 * gives way at once to any waiter (`waiters`).
 *
 * `lock` guards the queues, the posted messages, the completed list, `driven`, `waiters`, `failure`
 * and every work's completion; it is never held while a plan runs or a thread sleeps on the links.
 *
 * A work is completed exactly once, by ddl__finish under the lock: by the driver when its plan has
 * ended, or by ddl__fail_all when the comm dies, which only the driver calls (an aborter without a
 * driver first becomes it). What the driver itself waits for it completes (ddl__settle) when it
 * takes the lock to leave, or to end the comm: `ended` until then. So a blocking call takes the
 * lock twice, when it enters and when it leaves. After that nothing of the engine points to the
 * work but the completed list, and no link holds its buffers: a plan ends only when all user memory
 * is sent, and closing the links drops what they had borrowed. A part of a group is the group's
 * memory, and its last part completes the group's work.
 *
 * Word that the comm is dead, over a link or from who watches the peers, may overtake what others
 * sent before. Since that has arrived by then, though nobody has looked, the driver runs once more
 * what can be run, and ends only what is blocked.
 *
 * Waking a sleeping driver: links by their fds, abort and takeover by `wake`, all in `epoll`. Who
 * queues something looks at `asleep` after it; the driver sets it before it looks at the queues for
 * the last time.
 */
#ifndef DDL_ENGINE_STATE_H
#define DDL_ENGINE_STATE_H

#include <pthread.h>

#include "base/fp_mode.h"
#include "engine/engine.h"
#include "engine/messages.h"
#include "engine/named.h"
#include "engine/recorder.h"
#include "engine/stream.h"
#include "engine/wait_policy.h"

/* What is known of a member's end. */
typedef struct ddl__loss {
    atomic_bool ended; /* the system has confirmed that its process has */
    int64_t noticed;   /* when a link to it was found to be lost; 0: none */
} ddl__loss;

struct ddl__engine {
    ddl__engine_config config;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    ddl_work *completed, **last; /* queued works that are complete and not yet taken */
    uint32_t queued;             /* works for the completed list: pending or in it */
    int report;                  /* readable while `completed` has works; -1: nobody asked */
    atomic_uint n_messages;      /* pending works that are messages */
    bool driven;
    ddl__fp_mode drivers_mode; /* of the driver's thread, but while it drives */
    atomic_bool
        asleep; /* the driver sleeps on `epoll`, or is about to look once more and then to */
    atomic_uint waiters;
    atomic_bool was_driven; /* see ddl__engine_was_driven */
    atomic_int failure;     /* ddl_status; DDL_OK while alive */
    atomic_bool told;       /* a call has returned it, or a work has ended with it */
    char message[DDL__MESSAGE_MAX];
    atomic_bool abort_asked; /* by a caller, or by who watches the peers */
    bool abort_after_spans;  /* by the latter: what was sent before counts */
    ddl_status abort_status;
    char abort_text[DDL__MESSAGE_MAX];
    uint64_t admitted, finished; /* works, ever */

    /* The driver's, but for their queues. */
    const ddl_work *awaited; /* by the driver itself, to leave with it; or NULL */
    ddl_work *ended;         /* the same once its plan has ended, and not yet complete */
    ddl__stream ordered;     /* operations in the order of submission */
    ddl__named named;        /* operations by name */
    ddl__messages *messages;
    ddl__wait_policy wait_policy;
    ddl__recorder recorder;    /* may be read by any thread, as the next */
    atomic_ullong moves;       /* how often an operation got on without coming to its end */
    atomic_ullong passes;      /* in how many passes messages got on */
    atomic_bool created;       /* all members watch each other: see ddl__engine_created */
    ddl__loss *losses;         /* by rank */
    int64_t unconfirmed_until; /* a loss is to be believed then; 0: all are */
    int epoll, wake;
};

/* ---- complete.c ---- */

static inline bool ddl__is_complete(const ddl_work *work)
{
    return atomic_load_explicit(&work->status, memory_order_acquire) != DDL_INPROGRESS;
}

/* Whether the work is in the list of completed ones. Leaving it is the last that the engine does to
 * a work: from then on the caller may free it without the lock. */
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

/* Under the lock, when the list of completed works has become empty or is no longer so. */
void ddl__report(ddl__engine *engine);

/* Under the lock: give the work its result. */
void ddl__finish(ddl__engine *engine, ddl_work *work, ddl_status status);

/* Under the lock: the same for all of a list along `next`. */
void ddl__finish_list(ddl__engine *engine, ddl_work *list, ddl_status status);

/* The driver's, under the lock: complete what has ended. */
void ddl__settle(ddl__engine *engine);

/* The driver ends the comm: the first failure wins. */
void ddl__fail_all(ddl__engine *engine, ddl_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Whether an abort was asked for, and not yet carried out. */
bool ddl__abort_is_pending(const ddl__engine *engine);

/* ---- works.c ---- */

/* Under the lock: queue all parts of the group that `whole` is; they are the whole's from then on.
 */
void ddl__push_parts(ddl__engine *engine, ddl__stream *stream, ddl_work *whole);

/* ---- drive.c ---- */

/* Under the lock: this thread becomes the driver, and later ceases to be it. The driver runs all
 * kernels and makes all plans, so it does that in the library's floating-point mode. */
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

/* Get on with a stream's works. False when it is blocked or there are none. */
bool ddl__advance_stream(ddl__engine *engine, ddl__stream *stream);

/* The driver's: do what was asked for. */
void ddl__abort_execute(ddl__engine *engine);

/* Wait for this work, or (NULL) for any completed one to take, by driving or by waiting for who
 * drives. Called and left with the lock held. */
void ddl__wait_locked(ddl__engine *engine, const ddl_work *work, int64_t deadline);

/* Under the lock: somebody must drive. */
bool ddl__pending(const ddl__engine *engine);

/* Leave the lock; when works are pending and nobody waits, ask for the endpoint's thread: at once
 * for what was just submitted, soon after a wait, since who has waited mostly waits again. */
void ddl__unlock_and_hand_over(ddl__engine *engine, ddl__urgency urgency);

/* Leave the lock, with nobody driving: do what can be done at once, and leave the rest to who waits
 * soon, or to the endpoint's thread. */
void ddl__advance_and_unlock(ddl__engine *engine);

/* Wake the driver: if it sleeps, since something was queued under the lock; in any case. */
void ddl__wake_sleeper(ddl__engine *engine);
void ddl__wake_driver(ddl__engine *engine);

#endif
