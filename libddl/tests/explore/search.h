/* SPDX-License-Identifier: Apache-2.0 */
/* search.h - the definitions that the explorer's searches share. */
#ifndef DDL_TESTS_EXPLORE_SEARCH_H
#define DDL_TESTS_EXPLORE_SEARCH_H

#include <stdio.h>
#include <time.h>

#include "explore/model.h"

enum { STEPS = 200000 };

static const unsigned ALL_KINDS =
    1u << KILL | 1u << CUT | 1u << STOP | 1u << ABORT | 1u << EXPEL | 1u << LEAVE | 1u << LATE;

typedef struct trace {
    event events[STEPS];
    int n;
    bool is_normal; /* the states are in normal form: the steps of reduce.c are not listed */
} trace;

/* Print the shortest part of the schedule that breaks this invariant. Returns 1. */
int report(const model *m, world *w, trace *t, const char *broken);

/* Explore all schedules, in all layouts of the hosts (-1) or in one. Returns 0, or 1 if an
 * invariant is broken. */
int explore_all(int n, unsigned faults, size_t most_states, int layout);

/* The processor time of this process. Other processes may use the processor, too. */
static inline double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* True once a minute: a long search then prints its progress. */
static inline bool is_progress_due(void)
{
    static double last;
    if (seconds() < last + 60)
        return false;
    last = seconds();
    return true;
}

#endif
