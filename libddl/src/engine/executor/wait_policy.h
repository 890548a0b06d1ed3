/* SPDX-License-Identifier: Apache-2.0 */
/* wait_policy.h - how to wait for a peer: spin while a core is to spare, then yield the core a
 * bounded number of times, then sleep.
 *
 * Oversubscription is observed, not computed. If sched_yield returns late because another thread
 * ran on this core, the next waits do not spin. If that thread computes and keeps the core, the
 * next waits do not yield either. The first backoff lasts few waits, since one late yield proves
 * little; each further one lasts twice as long. Where ranks share cores, the first one lasts long.
 * A yield that is late because of an interrupt or a stolen virtual core says nothing about the next
 * one.
 */
#ifndef DDL_ENGINE_EXECUTOR_WAIT_POLICY_H
#define DDL_ENGINE_EXECUTOR_WAIT_POLICY_H

#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/resource.h>

#include "base/clock.h"

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
    DDL__YIELDS = 2000, /* about a millisecond where nobody else wants the core, else ... */
    DDL__OVERSUBSCRIBED_YIELDS =
        200,                 /* ... at least 100 microseconds, more when others run meanwhile */
    DDL__LATE_NS = 4000,     /* a longer yield may have let another thread run */
    DDL__TAKEN_NS = 1000000, /* a longer one: that thread computes until it is preempted */
    DDL__OVERSUBSCRIBED_WAITS = 4, /* at first */
    DDL__TAKEN_WAITS = 2, /* at first: it may have been a peer on its way to the same call */
    DDL__BACKOFF_MAX = 256
};

/* For how many waits to skip spinning, or yielding. */
typedef struct ddl__backoff {
    uint32_t left;   /* waits still to go */
    uint32_t length; /* waits in all; the next backoff is longer */
} ddl__backoff;

typedef struct ddl__wait_policy {
    ddl__backoff oversubscribed; /* do not spin */
    ddl__backoff core_taken;     /* do not yield */
    uint32_t turns;              /* of the current wait */
    bool sharing;                /* more ranks than cores, for good */
    long switches;               /* involuntary switches, as last read */
} ddl__wait_policy;

/* A wait is over. `tried`: it ran without backoff and saw no reason for one. */
static inline void ddl__backoff_pass(ddl__backoff *c, bool tried)
{
    if (c->left)
        c->left--;
    else if (tried && c->length)
        c->length--;
}

/* Something happened: the current wait is over. */
static inline void ddl__wait_policy_reset(ddl__wait_policy *p)
{
    if (!p->turns)
        return;
    ddl__backoff_pass(&p->oversubscribed, true);
    ddl__backoff_pass(&p->core_taken, p->turns > DDL__SPINS);
    p->turns = 0;
}

/* Whether the scheduler has run another thread on this core since the last call. True where the
 * kernel does not count switches. */
static inline bool ddl__others_ran(ddl__wait_policy *p)
{
    struct rusage usage;
    getrusage(RUSAGE_THREAD, &usage);
    bool changed = usage.ru_nivcsw != p->switches;
    p->switches = usage.ru_nivcsw;
    return changed || (!usage.ru_nivcsw && !usage.ru_nvcsw);
}

/* Begin a backoff, or start the present one again. `first`: the length of a first one. */
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

/* The turns after spinning; false when it is time to sleep. */
static inline bool ddl__wait_policy_yield(ddl__wait_policy *p)
{
    if (p->turns > DDL__SPINS + (p->oversubscribed.left ? DDL__OVERSUBSCRIBED_YIELDS : DDL__YIELDS))
        return false;
    if (p->turns == DDL__SPINS + 1 && !p->oversubscribed.left)
        ddl__others_ran(p);
    int64_t start = ddl__now();
    sched_yield();
    int64_t took = ddl__now() - start;
    bool confirms = p->oversubscribed.left &&
                    took < DDL__TAKEN_NS; /* getrusage costs time: the delay is evidence enough */
    if (took <= DDL__LATE_NS || !(confirms || ddl__others_ran(p)))
        return true;
    ddl__backoff_extend(&p->oversubscribed,
                        p->sharing ? DDL__BACKOFF_MAX : DDL__OVERSUBSCRIBED_WAITS);
    if (took > DDL__TAKEN_NS) {
        ddl__backoff_extend(&p->core_taken, DDL__TAKEN_WAITS);
        p->turns = DDL__SPINS + DDL__YIELDS;
    }
    return true;
}

/* One turn of waiting; false when it is time to sleep. */
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
