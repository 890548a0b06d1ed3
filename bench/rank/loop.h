/* SPDX-License-Identifier: Apache-2.0 */
/* loop.h - shared by loop_ddl.c and loop_mpi.c. */
#ifndef BENCH_LOOP_H
#define BENCH_LOOP_H

#include <time.h>

static inline double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Seconds of `batch` in-place all-reduces of f32: the first takes the sum, the others the maximum,
 * which leaves the values unchanged. Returns -1 if one fails. `comm` is the library's type. */
double loop(void *comm, void *buffer, int count, int batch);

#endif
