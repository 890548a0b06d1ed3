/* SPDX-License-Identifier: Apache-2.0 */
/* bench.h - shared by the programs of this folder. */
#ifndef BENCH_H
#define BENCH_H

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "ddl/ddl.h"

static inline double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static inline void must(ddl_status status)
{
    if (status == DDL_OK)
        return;
    fprintf(stderr, "%s: %s\n", ddl_strerror(status), ddl_last_error());
    exit(1);
}

/* For qsort of doubles. */
static inline int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Pins the caller to core `rank`, modulo the number of cores. */
static inline void pin(int rank)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET((unsigned)rank % (unsigned)sysconf(_SC_NPROCESSORS_ONLN), &set);
    sched_setaffinity(0, sizeof set, &set);
}

/* This process's proportional set size in bytes. */
static inline double pss(void)
{
    char line[256];
    double kib = 0;
    FILE *f = fopen("/proc/self/smaps_rollup", "r");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "Pss: %lf kB", &kib) == 1)
            break;
    if (f)
        fclose(f);
    return kib * 1024;
}

#endif
