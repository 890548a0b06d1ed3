/* SPDX-License-Identifier: Apache-2.0 */
/* clock.h - monotonic time in nanoseconds. */
#ifndef DDL_BASE_CLOCK_H
#define DDL_BASE_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline int64_t ddl__now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* The deadline of an unlimited wait. ddl__deadline returns it for a negative timeout_ms. */
#define DDL__NEVER INT64_MAX

static inline int64_t ddl__deadline_after(int64_t now, int64_t timeout_ms)
{
    if (timeout_ms < 0 || timeout_ms > INT64_MAX / 4000000)
        return DDL__NEVER;
    return now + timeout_ms * 1000000;
}

static inline int64_t ddl__deadline(int64_t timeout_ms)
{
    return ddl__deadline_after(ddl__now(), timeout_ms);
}

#endif
