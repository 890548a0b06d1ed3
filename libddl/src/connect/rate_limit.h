/* rate_limit.h - limits the rate of connections from clients that nobody accepts. */
#ifndef DDL_CONNECT_RATE_LIMIT_H
#define DDL_CONNECT_RATE_LIMIT_H

#include <stdbool.h>
#include <stdint.h>

/* So many a second, and so many at once, are none. */
enum { DDL__RATE_LIMIT_PER_SECOND = 50, DDL__RATE_LIMIT_BURST = 64 };

/* Each stranger is remembered for as long as its share of a second, one after the other; zeros to
 * begin with. What is remembered is bounded, so a long flood is not for longer than a short one. */
typedef struct ddl__rate_limit {
    int64_t until; /* the last one is forgotten then */
} ddl__rate_limit;

static inline void ddl__rate_limit_count(ddl__rate_limit *rate_limit, int64_t now)
{
    const int64_t share = 1000000000 / DDL__RATE_LIMIT_PER_SECOND,
                  most = 2 * DDL__RATE_LIMIT_BURST * share;
    rate_limit->until = (rate_limit->until > now ? rate_limit->until : now) + share;
    if (rate_limit->until > now + most)
        rate_limit->until = now + most;
}

static inline bool ddl__rate_limit_is_exceeded(const ddl__rate_limit *rate_limit, int64_t now)
{
    return rate_limit->until - now >
           (int64_t)DDL__RATE_LIMIT_BURST * (1000000000 / DDL__RATE_LIMIT_PER_SECOND);
}

#endif
