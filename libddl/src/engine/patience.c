#include "engine/patience.h"

#include <sched.h>
#include <sys/resource.h>

#include "base/clock.h"

enum {
    LATE_NS = 4000,           /* a yield that takes longer may have let somebody else run */
    HOGGED_NS = 1000000,      /* .. somebody who computes, and leaves the core when it must */
    OVERSUBSCRIBED_WAITS = 4, /* at first */
    HOGGED_WAITS = 2,         /* at first: it may have been a peer, before it called as well */
    CAUTION_MAX = 256
};

/* Whether the scheduler has given the calling thread's core to another since this was last asked.
 * Yes where nobody counts that. */
static bool others_ran(ddl__patience *p)
{
    struct rusage usage;
    getrusage(RUSAGE_THREAD, &usage);
    bool changed = usage.ru_nivcsw != p->switches;
    p->switches = usage.ru_nivcsw;
    return changed || (!usage.ru_nivcsw && !usage.ru_nvcsw);
}

/* There is cause; `first`: for how many waits when there was none lately. */
static void take_care(ddl__caution *c, uint32_t first)
{
    if (c->left == 0) {
        c->length *= 2;
        c->length = c->length < first ? first : c->length > CAUTION_MAX ? CAUTION_MAX : c->length;
    }
    c->left = c->length;
}

bool ddl__patience_yield(ddl__patience *p)
{
    if (p->turns > DDL__SPINS + (p->oversubscribed.left ? DDL__OVERSUBSCRIBED_YIELDS : DDL__YIELDS))
        return false;
    if (p->turns == DDL__SPINS + 1 && !p->oversubscribed.left)
        others_ran(p);
    int64_t start = ddl__now();
    sched_yield();
    int64_t took = ddl__now() - start;
    bool confirms =
        p->oversubscribed.left && took < HOGGED_NS; /* enough said, and asking takes time */
    if (took <= LATE_NS || !(confirms || others_ran(p)))
        return true;
    take_care(&p->oversubscribed, p->sharing ? CAUTION_MAX : OVERSUBSCRIBED_WAITS);
    if (took > HOGGED_NS) {
        take_care(&p->hogged, HOGGED_WAITS);
        p->turns = DDL__SPINS + DDL__YIELDS;
    }
    return true;
}
