/* crowd.h - whether strangers come in numbers: counted by who was heard and let in by nobody. */
#ifndef DDL_COMM_CROWD_H
#define DDL_COMM_CROWD_H

#include <stdbool.h>
#include <stdint.h>

/* So many a second, and so many at once, are none. */
enum { DDL__CROWD_RATE = 50, DDL__CROWD_BURST = 64 };

/* Each stranger is remembered for as long as its share of a second, one after the other; zeros to
 * begin with. What is remembered is bounded, so a long flood is not for longer than a short one. */
typedef struct ddl__crowd {
    int64_t until; /* the last one is forgotten then */
} ddl__crowd;

static inline void ddl__crowd_count(ddl__crowd *crowd, int64_t now)
{
    const int64_t share = 1000000000 / DDL__CROWD_RATE, most = 2 * DDL__CROWD_BURST * share;
    crowd->until = (crowd->until > now ? crowd->until : now) + share;
    if (crowd->until > now + most)
        crowd->until = now + most;
}

static inline bool ddl__crowd_is_there(const ddl__crowd *crowd, int64_t now)
{
    return crowd->until - now > (int64_t)DDL__CROWD_BURST * (1000000000 / DDL__CROWD_RATE);
}

#endif
