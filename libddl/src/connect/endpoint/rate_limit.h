/* SPDX-License-Identifier: Apache-2.0 */
/* rate_limit.h - measures the rate of connections from clients that are refused. */
#ifndef DDL_CONNECT_RATE_LIMIT_H
#define DDL_CONNECT_RATE_LIMIT_H

#include <stdbool.h>
#include <stdint.h>

/* The limit: this many refused clients per second on average, and this many at once. */
enum { DDL__RATE_LIMIT_PER_SECOND = 50, DDL__RATE_LIMIT_BURST = 64 };

/* A leaky bucket: each refused client delays `until` by the inverse of the average rate. The level
 * is bounded, so after a long flood the bucket is empty as soon as after a short one.
 * Zero-initialized. */
typedef struct ddl__rate_limit {
    int64_t until; /* the time when the bucket is empty */
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
