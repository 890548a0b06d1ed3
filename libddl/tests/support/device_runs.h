/* SPDX-License-Identifier: Apache-2.0 */
/* device_runs.h - runs a test of operations on buffers of a GPU in all configurations. */
#ifndef DDL_TESTS_DEVICE_RUNS_H
#define DDL_TESTS_DEVICE_RUNS_H

#include "device_buffers.h"
#include "processes.h"

enum { RANKS = 3 };

static unsigned n_runs;

static inline void run_once(const char *name, process_fn *fn, uint32_t links)
{
    run_process_test(&(process_test){name, fn, .links = links}, RANKS);
    n_runs++;
}

/* Run over both kinds of links. The steps between the copies are the same over TCP. Buffers are
 * mapped in one of the runs. */
static inline void run_both(const char *name, process_fn *fn, bool in_any_case)
{
    run_once(name, fn, DDL_LINK_SHM);
    device_maps = true;
    if (!SANITIZED || in_any_case)
        run_once(name, fn, DDL_LINK_TCP);
    device_maps = false;
}

/* Run with all streams of a GPU in one queue, in which nothing runs before what was queued earlier.
 * Freeing an allocation would wait for all of them. */
static inline void run_in_one_queue(const char *name, process_fn *fn)
{
    char text[64];
    setenv("DDL_STANDIN_ONE_QUEUE", "1", 1); /* the real driver has another variable */
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1", 1);
    snprintf(text, sizeof text, "%s, one queue", name);
    device_maps = true;
    run_once(text, fn, DDL_LINK_SHM);
    device_maps = false;
    unsetenv("DDL_STANDIN_ONE_QUEUE");
    unsetenv("CUDA_DEVICE_MAX_CONNECTIONS");
}

typedef struct device_test {
    const char *name;
    process_fn *fn;
    bool one_queue;   /* an additional run, but not under sanitizers */
    bool in_any_case; /* over TCP even under sanitizers */
} device_test;

/* Run all tests, or the one that argv[1] names. */
static inline void run_device_tests(const device_test *tests, size_t n, int argc, char **argv)
{
    for (const device_test *t = tests; t < tests + n; t++) {
        if (argc > 1 && strcmp(argv[1], t->name))
            continue;
        run_both(t->name, t->fn, t->in_any_case);
        if (t->one_queue && !SANITIZED)
            run_in_one_queue(t->name, t->fn);
    }
}

#endif
