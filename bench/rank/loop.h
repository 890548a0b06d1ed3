/* loop.h - what loop_ddl.c and loop_mpi.c have in common. */
#ifndef BENCH_LOOP_H
#define BENCH_LOOP_H

#include <time.h>

static inline double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Seconds of `batch` in-place all-reduces of f32, the first a sum and the others maxima, which
 * leave the values as they are; -1 when one fails. `comm` is a library's own. */
double loop(void *comm, void *buffer, int count, int batch);

#endif
