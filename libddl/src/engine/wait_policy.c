#include "engine/wait_policy.h"

#include <sched.h>
#include <sys/resource.h>

#include "base/clock.h"

enum {
    LATE_NS = 4000,           /* a longer yield may have let another thread run */
    TAKEN_NS = 1000000,       /* a longer one: that thread computes until it is preempted */
    OVERSUBSCRIBED_WAITS = 4, /* at first */
    TAKEN_WAITS = 2,          /* at first: it may have been a peer on its way to the same call */
    BACKOFF_MAX = 256
};

/* Whether the scheduler has run another thread on this core since the last call. True where the
 * kernel does not count switches. */
static bool others_ran(ddl__wait_policy *p)
{
    struct rusage usage;
    getrusage(RUSAGE_THREAD, &usage);
    bool changed = usage.ru_nivcsw != p->switches;
    p->switches = usage.ru_nivcsw;
    return changed || (!usage.ru_nivcsw && !usage.ru_nvcsw);
}

/* Begin a backoff, or start the present one again. `first`: the length of a first one. */
static void backoff_extend(ddl__backoff *c, uint32_t first)
{
    if (c->left == 0) {
        c->length *= 2;
        c->length = c->length < first ? first : c->length > BACKOFF_MAX ? BACKOFF_MAX : c->length;
    }
    c->left = c->length;
}

bool ddl__wait_policy_yield(ddl__wait_policy *p)
{
    if (p->turns > DDL__SPINS + (p->oversubscribed.left ? DDL__OVERSUBSCRIBED_YIELDS : DDL__YIELDS))
        return false;
    if (p->turns == DDL__SPINS + 1 && !p->oversubscribed.left)
        others_ran(p);
    int64_t start = ddl__now();
    sched_yield();
    int64_t took = ddl__now() - start;
    bool confirms = p->oversubscribed.left &&
                    took < TAKEN_NS; /* getrusage costs time: the delay is evidence enough */
    if (took <= LATE_NS || !(confirms || others_ran(p)))
        return true;
    backoff_extend(&p->oversubscribed, p->sharing ? BACKOFF_MAX : OVERSUBSCRIBED_WAITS);
    if (took > TAKEN_NS) {
        backoff_extend(&p->core_taken, TAKEN_WAITS);
        p->turns = DDL__SPINS + DDL__YIELDS;
    }
    return true;
}
