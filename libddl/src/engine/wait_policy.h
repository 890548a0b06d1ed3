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
#ifndef DDL_ENGINE_WAIT_POLICY_H
#define DDL_ENGINE_WAIT_POLICY_H

#include <stdbool.h>
#include <stdint.h>

#include "base/pause.h"

enum {
    DDL__SPINS = 2000,  /* some tens of microseconds */
    DDL__YIELDS = 2000, /* about a millisecond where nobody else wants the core, else ... */
    DDL__OVERSUBSCRIBED_YIELDS =
        200 /* ... at least 100 microseconds, more when others run meanwhile */
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

/* The turns after spinning; false when it is time to sleep. */
bool ddl__wait_policy_yield(ddl__wait_policy *p);

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
