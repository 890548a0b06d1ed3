/* patience.h - how to wait for a peer: spin while a core is to spare, then give the core away a
 * bounded number of times, then sleep.
 *
 * Whether a core is to spare is observed, not computed: when sched_yield comes back late, somebody
 * else ran on this core, and the next waits do not spin.
 */
#ifndef DDL_ENGINE_PATIENCE_H
#define DDL_ENGINE_PATIENCE_H

#include <sched.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/clock.h"
#include "base/pause.h"

enum {
    DDL__SPINS = 2000,        /* some tens of microseconds */
    DDL__YIELDS = 200,        /* at least 100 microseconds, more when others run meanwhile */
    DDL__CROWDED_NS = 4000,   /* a yield that takes longer let somebody else run */
    DDL__HOGGED_NS = 1000000, /* .. somebody who computes, and leaves the core when it must */
    DDL__CROWDED_WAITS = 256, /* waits without spinning after that, or without yielding ... */
    DDL__HOGGED_WAITS = 8     /* ... at first: it may have been a peer, before it called as well */
};

typedef struct ddl__patience {
    uint32_t crowded; /* waits still to go without spinning */
    uint32_t hogged;  /* waits still to go without yielding, of ... */
    uint32_t avoided; /* ... so many; twice as many the next time */
    uint32_t turns;   /* of the present wait */
} ddl__patience;

/* Something happened: the present wait is over. */
static inline void ddl__patience_renew(ddl__patience *p)
{
    if (p->turns && p->crowded)
        p->crowded--;
    if (p->turns && p->hogged)
        p->hogged--;
    else if (p->turns > DDL__SPINS && p->avoided)
        p->avoided--;
    p->turns = 0;
}

/* One turn of waiting; false when it is time to sleep. */
static inline bool ddl__patience_turn(ddl__patience *p)
{
    if (p->turns == 0 && p->crowded)
        p->turns = p->hogged ? DDL__SPINS + DDL__YIELDS : DDL__SPINS;
    if (p->turns++ < DDL__SPINS) {
        ddl__pause();
        return true;
    }
    if (p->turns > DDL__SPINS + DDL__YIELDS)
        return false;
    int64_t start = ddl__now();
    sched_yield();
    int64_t took = ddl__now() - start;
    if (took > DDL__CROWDED_NS)
        p->crowded = DDL__CROWDED_WAITS;
    if (took > DDL__HOGGED_NS) {
        p->avoided = p->avoided < DDL__HOGGED_WAITS    ? DDL__HOGGED_WAITS
                     : p->avoided < DDL__CROWDED_WAITS ? 2 * p->avoided
                                                       : DDL__CROWDED_WAITS;
        p->hogged = p->avoided;
        p->turns = DDL__SPINS + DDL__YIELDS;
    }
    return true;
}

#endif
