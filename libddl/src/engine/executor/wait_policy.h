/* SPDX-License-Identifier: Apache-2.0 */
/* wait_policy.h - how to wait for a peer: spin while a core is free, then yield the core a bounded
 * number of times, then sleep.
 *
 * Oversubscription is observed, not computed. If sched_yield returns late because another thread
 * has run on this core, the next waits do not spin. If that thread has computed until it was
 * preempted, the next waits do not yield either, but sleep. However, that thread may be the awaited
 * peer. Then yielding was the fastest way to wait, and a sleep would only add a wakeup. So a yield
 * during which a peer on this core ended a long computation is no reason to sleep. A start of the
 * peer's driver alone proves nothing: another thread may have computed before it. Where ranks share
 * cores, several peers may have computed for a short time each, so only a longer yield counts.
 *
 * Beside another program that computes, the waiting thread also asks for shorter time slices
 * (base/time_slice.h). Otherwise each wakeup and each late yield takes several milliseconds. It
 * does not where ranks share cores: a rank whose slices are shorter than those of others would get
 * its core back too soon after it yields to them.
 *
 * The first backoff lasts few waits, since one late yield proves little; each further backoff lasts
 * twice as long. If ranks share cores, the first backoff is long. A yield that is late because of
 * an interrupt or a stolen virtual core predicts nothing. */
#ifndef DDL_ENGINE_EXECUTOR_WAIT_POLICY_H
#define DDL_ENGINE_EXECUTOR_WAIT_POLICY_H

#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/resource.h>

#include "base/clock.h"
#include "base/time_slice.h"

/* The CPU's hint for a spin loop. */
static inline void ddl__pause(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb");
#endif
}

enum {
    DDL__SPINS = 2000,  /* some tens of microseconds */
    DDL__YIELDS = 2000, /* about a millisecond if no other thread wants the core */
    DDL__OVERSUBSCRIBED_YIELDS =
        200,             /* at least 100 microseconds, more if other threads run meanwhile */
    DDL__LATE_NS = 4000, /* a yield that takes longer may have let another thread run */
    /* a yield that takes longer let a thread compute until it was preempted */
    DDL__TAKEN_NS = 1000000,
    DDL__COMPUTED_NS = DDL__TAKEN_NS / 2, /* a computation that explains such a yield */
    /* where ranks share cores: several peers may have run, each for less than DDL__COMPUTED_NS */
    DDL__TAKEN_SHARED_NS = 3 * DDL__TAKEN_NS,
    DDL__OVERSUBSCRIBED_WAITS = 4, /* length of the first backoff */
    /* length of the first backoff after a yield that may have run a peer */
    DDL__TAKEN_WAITS = 2,
    DDL__BACKOFF_MAX = 256
};

/* A backoff: the next waits skip spinning, or yielding. */
typedef struct ddl__backoff {
    uint32_t left;   /* remaining waits */
    uint32_t length; /* waits in total; the next backoff is longer */
} ddl__backoff;

typedef struct ddl__wait_policy {
    ddl__backoff oversubscribed; /* the waits that do not spin */
    ddl__backoff core_taken;     /* the waits that do not yield */
    uint32_t turns;              /* turns of the current wait */
    bool sharing;  /* this host has more ranks than cores: the first backoff is long */
    long switches; /* involuntary context switches, as last read */
    /* Return a number that changes when a peer on the core of this thread has computed for
     * DDL__COMPUTED_NS and calls libddl again. */
    uint64_t (*computed_here)(const void *context);
    const void *context;
} ddl__wait_policy;

/* Count the end of a wait. `tried`: the wait ran without backoff and found no reason for one. */
static inline void ddl__backoff_pass(ddl__backoff *c, bool tried)
{
    if (c->left)
        c->left--;
    else if (tried && c->length)
        c->length--;
}

/* End the current wait, because something happened. */
static inline void ddl__wait_policy_reset(ddl__wait_policy *p)
{
    if (!p->turns)
        return;
    ddl__backoff_pass(&p->oversubscribed, true);
    ddl__backoff_pass(&p->core_taken, p->turns > DDL__SPINS);
    p->turns = 0;
}

/* Return true if the scheduler has run another thread on this core since the last call, or if the
 * kernel does not count switches. */
static inline bool ddl__others_ran(ddl__wait_policy *p)
{
    struct rusage usage;
    getrusage(RUSAGE_THREAD, &usage);
    bool changed = usage.ru_nivcsw != p->switches;
    p->switches = usage.ru_nivcsw;
    return changed || (!usage.ru_nivcsw && !usage.ru_nvcsw);
}

/* Start a backoff, or restart the current one. `first` is the length of the first backoff. */
static inline void ddl__backoff_extend(ddl__backoff *c, uint32_t first)
{
    if (c->left == 0) {
        c->length *= 2;
        c->length = c->length < first              ? first
                    : c->length > DDL__BACKOFF_MAX ? DDL__BACKOFF_MAX
                                                   : c->length;
    }
    c->left = c->length;
}

/* Yield, after the spins. Return false if it is time to sleep. */
static inline bool ddl__wait_policy_yield(ddl__wait_policy *p)
{
    if (p->turns > DDL__SPINS + (p->oversubscribed.left ? DDL__OVERSUBSCRIBED_YIELDS : DDL__YIELDS))
        return false;
    if (p->turns == DDL__SPINS + 1 && !p->oversubscribed.left)
        ddl__others_ran(p);
    uint64_t computed = p->computed_here(p->context);
    int64_t start = ddl__now();
    sched_yield();
    int64_t took = ddl__now() - start;
    bool confirms = p->oversubscribed.left &&
                    /* getrusage costs time, and the delay is enough evidence */
                    took < DDL__TAKEN_NS;
    if (took <= DDL__LATE_NS || !(confirms || ddl__others_ran(p)))
        return true;
    ddl__backoff_extend(&p->oversubscribed,
                        p->sharing ? DDL__BACKOFF_MAX : DDL__OVERSUBSCRIBED_WAITS);
    if (took > (p->sharing ? DDL__TAKEN_SHARED_NS : DDL__TAKEN_NS) &&
        p->computed_here(p->context) == computed) {
        ddl__backoff_extend(&p->core_taken, DDL__TAKEN_WAITS);
        if (!p->sharing)
            ddl__time_slice_shorten();
        p->turns = DDL__SPINS + DDL__YIELDS;
    }
    return true;
}

/* Wait for one turn. Return false if it is time to sleep. */
static inline bool ddl__wait_policy_turn(ddl__wait_policy *p)
{
    if (p->turns == 0 && p->core_taken.left)
        p->turns = DDL__SPINS + DDL__YIELDS;
    else if (p->turns == 0 && p->oversubscribed.left)
        p->turns = DDL__SPINS;
    if (p->turns++ < DDL__SPINS) {
        ddl__pause();
        return true;
    }
    return ddl__wait_policy_yield(p);
}

#endif
