/* SPDX-License-Identifier: Apache-2.0 */
/* device_runs.h - runs a test of operations on buffers of a GPU on the ways that they may go. */
#ifndef DDL_TESTS_DEVICE_RUNS_H
#define DDL_TESTS_DEVICE_RUNS_H

#include <stdio.h>
#include <string.h>

#include "device_buffers.h"
#include "processes.h"

enum { RANKS = 3 };

static unsigned n_runs;

static inline void run_once(const char *name, process_fn *fn, uint32_t links)
{
    process_test test = {name, fn, 0, false};
    run_process_test(&test, RANKS, links);
    n_runs++;
}

/* What runs between the copies is the same over TCP. */
static inline void run_both(const char *name, process_fn *fn, bool in_any_case)
{
    setenv("DDL_GPU_DIRECT_BYTES", "0", 1);
    run_once(name, fn, DDL_LINK_SHM);
    if (!SANITIZED || in_any_case)
        run_once(name, fn, DDL_LINK_TCP);
}

/* From buffer to buffer, since all ranks are on one GPU. Over TCP the host's results of small
 * floats are rounded more often. */
static inline void run_shared(const char *name, process_fn *fn, bool all_sources)
{
    static const char *const names[] = {"own", "pool", "no IPC"};
    char text[64];
    setenv("DDL_GPU_DIRECT_BYTES", "1", 1);
    for (int source = OF_THEIR_OWN; source <= NOT_TO_BE_SHARED; source++) {
        /* The first starts as the second, and goes on as the third. */
        if (SANITIZED && (source == OF_THEIR_OWN || (source != OF_ONE_POOL && !all_sources)))
            continue;
        snprintf(text, sizeof text, "%s, %s", name, names[source]);
        device_buffers_are = (device_source)source;
        run_once(text, fn, DDL_LINK_SHM);
    }
    device_buffers_are = OF_THEIR_OWN;
}

/* The same where ranks have several GPUs, which can access each other's memory. */
static inline void run_on_several_gpus(const char *name, process_fn *fn)
{
    char text[64];
    setenv("DDL_GPU_DIRECT_BYTES", "1", 1);
    setenv("DDL_GPU_NCCL", "0", 1);
    setenv("DDL_STANDIN_DEVICES", "3", 1);
    for (device_gpus = 2; device_gpus <= (SANITIZED ? 2 : 3); device_gpus++) {
        snprintf(text, sizeof text, "%s, %d GPUs", name, device_gpus);
        device_buffers_are = device_gpus == 2 ? OF_ONE_POOL : NOT_TO_BE_SHARED;
        run_once(text, fn, DDL_LINK_SHM);
    }
    device_gpus = 1;
    device_buffers_are = OF_THEIR_OWN;
    unsetenv("DDL_STANDIN_DEVICES");
    unsetenv("DDL_GPU_NCCL");
}

/* Streams of a GPU may share a queue, where nothing runs before what was queued earlier. */
static inline void run_in_one_queue(const char *name, process_fn *fn)
{
    char text[64];
    setenv("DDL_STANDIN_ONE_QUEUE", "1", 1); /* the real driver has another variable */
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1", 1);
    for (int shared = 0; shared < 2; shared++) {
        snprintf(text, sizeof text, "%s, one queue, %s", name, shared ? "shared" : "host");
        setenv("DDL_GPU_DIRECT_BYTES", shared ? "1" : "0", 1);
        device_buffers_are = OF_ONE_POOL;
        run_once(text, fn, DDL_LINK_SHM);
    }
    device_buffers_are = OF_THEIR_OWN;
    unsetenv("DDL_STANDIN_ONE_QUEUE");
    unsetenv("CUDA_DEVICE_MAX_CONNECTIONS");
}

typedef struct device_test {
    const char *name;
    process_fn *fn;
    bool by_host, shared, one_queue; /* the ways; the last not under sanitizers */
    bool in_any_case, all_sources;   /* also under sanitizers: over TCP, from each kind of memory */
} device_test;

/* All, or the one that argv[1] names. */
static inline void run_device_tests(const device_test *tests, size_t n, int argc, char **argv)
{
    for (const device_test *t = tests; t < tests + n; t++) {
        if (argc > 1 && strcmp(argv[1], t->name))
            continue;
        if (t->by_host)
            run_both(t->name, t->fn, t->in_any_case);
        if (t->shared)
            run_shared(t->name, t->fn, t->all_sources);
        if (t->shared)
            run_on_several_gpus(t->name, t->fn);
        if (t->one_queue && !SANITIZED)
            run_in_one_queue(t->name, t->fn);
    }
}

#endif
