/* patience.h - how to wait for a peer: spin while a core is to spare, then give the core away a
 * bounded number of times, then sleep.
 *
 * Whether a core is to spare is observed, not computed: when sched_yield comes back late because
 * somebody else ran on this core, the next waits do not spin, and when that one computes and keeps
 * the core, they do not yield either. Few waits at first, since it may happen once to anybody, and
 * twice as many each time that it happens again; where ranks share cores, many at once. An
 * interrupt, or a host that takes the core of a virtual machine, makes a yield late too, but says
 * nothing about the next one.
 */
#ifndef DDL_ENGINE_PATIENCE_H
#define DDL_ENGINE_PATIENCE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/pause.h"

enum {
    DDL__SPINS = 2000,  /* some tens of microseconds */
    DDL__YIELDS = 2000, /* about a millisecond where nobody else wants the core, else ... */
    DDL__OVERSUBSCRIBED_YIELDS =
        200 /* ... at least 100 microseconds, more when others run meanwhile */
};

/* Waiting otherwise than is best with a core to spare. */
typedef struct ddl__caution {
    uint32_t left;   /* waits still to go so, of ... */
    uint32_t length; /* ... so many; more the next time */
} ddl__caution;

typedef struct ddl__patience {
    ddl__caution oversubscribed; /* without spinning */
    ddl__caution hogged;         /* without yielding */
    uint32_t turns;              /* of the present wait */
    bool sharing;                /* more ranks than cores: that does not pass */
    long switches;               /* how often another thread got this one's core, as last read */
} ddl__patience;

/* A wait is over: one less to go, or one more in which there was no cause. */
static inline void ddl__caution_pass(ddl__caution *c, bool tried)
{
    if (c->left)
        c->left--;
    else if (tried && c->length)
        c->length--;
}

/* Something happened: the present wait is over. */
static inline void ddl__patience_renew(ddl__patience *p)
{
    if (!p->turns)
        return;
    ddl__caution_pass(&p->oversubscribed, true);
    ddl__caution_pass(&p->hogged, p->turns > DDL__SPINS);
    p->turns = 0;
}

/* The turns after those that spin; false when it is time to sleep. */
bool ddl__patience_yield(ddl__patience *p);

/* One turn of waiting; false when it is time to sleep. */
static inline bool ddl__patience_turn(ddl__patience *p)
{
    if (p->turns == 0 && p->hogged.left)
        p->turns = DDL__SPINS + DDL__YIELDS;
    else if (p->turns == 0 && p->oversubscribed.left)
        p->turns = DDL__SPINS;
    if (p->turns++ < DDL__SPINS) {
        ddl__pause();
        return true;
    }
    return ddl__patience_yield(p);
}

#endif
