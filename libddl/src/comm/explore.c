/* SPDX-License-Identifier: Apache-2.0 */
/* Design notes.
 *
 * A barrier starts all ranks together before each sample. The time of a candidate on one rank is
 * the median of its samples. An all-reduce computes the maximum over the ranks, so all ranks make
 * the same choice. The ranks agree in the same way on the duration and on whether to continue.
 *
 * Two adjacent size classes share one measurement, at the size between them. When the measurements
 * of one kind of operation have taken long enough, larger sizes are no longer measured, but use the
 * last choice. */
#include "comm/comm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/dtype.h"
#include "base/log.h"
#include "base/time_limits.h"
#include "comm/plan_file.h"
#include "engine/calls/describe.h"

enum {
    SAMPLES = 5,             /* samples of each candidate */
    FIRST_CLASS = 2,         /* the class of 4 to 7 bytes, measured with 8 bytes */
    BUFFER = 8 * 1024 * 1024 /* bytes; no larger operation is measured */
};

/* Seconds that the exploration of one kind of operation may take. */
static const double LONG_ENOUGH = 0.2;

typedef struct explorer {
    ddl_comm *comm;
    int64_t deadline;
    float *from, *to; /* buffers of BUFFER bytes */
    ddl__choices found;
    int compared; /* number of kinds and sizes with several candidates */
} explorer;

static ddl_status explorer_run(const explorer *x, ddl__call *call)
{
    int64_t left = (x->deadline - ddl__now()) / DDL__MS;
    call->timeout_ms = left > 1 ? left : 1;
    call->uncounted = true; /* this is not one of the user's operations */
    return ddl__engine_submit(x->comm->engine, call, NULL);
}

static bool has_blocks(ddl__kind kind)
{
    return kind == DDL__REDUCE_SCATTER || kind == DDL__ALLGATHER || kind == DDL__GATHER ||
           kind == DDL__SCATTER || kind == DDL__ALLTOALL;
}

static bool reduces(ddl__kind kind)
{
    return kind == DDL__ALLREDUCE || kind == DDL__REDUCE_SCATTER || kind == DDL__REDUCE_TO_ROOT;
}

static ddl__call sample_call(const explorer *x, ddl__kind kind, int64_t bytes)
{
    return (ddl__call){.kind = kind,
                       .dtype = DDL_F32,
                       .op = reduces(kind) ? DDL_SUM : 0,
                       .count = bytes / (int64_t)sizeof(float),
                       .send = kind == DDL__BROADCAST ? x->to : x->from,
                       .recv = x->to};
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Measure the median time of this call on this rank, in seconds. */
static ddl_status explorer_time(const explorer *x, ddl__call *call, double *median)
{
    double seconds[SAMPLES];
    ddl_status status = DDL_OK;
    for (int i = 0; status == DDL_OK && i < SAMPLES; i++) {
        ddl__call barrier = {.kind = DDL__BARRIER, .dtype = DDL_U8};
        status = explorer_run(x, &barrier);
        int64_t start = ddl__now();
        if (status == DDL_OK)
            status = explorer_run(x, call);
        seconds[i] = 1e-9 * (double)(ddl__now() - start);
    }
    if (status != DDL_OK)
        return status;
    qsort(seconds, SAMPLES, sizeof *seconds, ascending);
    *median = seconds[SAMPLES / 2];
    return DDL_OK;
}

/* Log a comparison. Rank 0 logs for all. */
static void log_comparison(const explorer *x, const ddl__call *call, int class,
                           const ddl__candidate *found, const double *seconds, int n, int best)
{
    char line[512] = "";
    size_t at = 0;
    if (x->comm->rank || !ddl__logs(DDL__PLAN))
        return;
    for (int i = 0; i < n && at < sizeof line; i++)
        at += (size_t)snprintf(line + at, sizeof line - at, "%s%s %.3g us", i ? ", " : "",
                               ddl__algorithm_name(found[i].by), seconds[i] * 1e6);
    ddl__log(
        DDL__PLAN,
        "explored %s of %lld bytes and more in a comm of %d ranks: the fastest plan is %s (%s)",
        ddl__kind_name(call->kind), 1LL << class, x->comm->size,
        ddl__algorithm_name(found[best].by), line);
}

/* Compare the candidates in the middle of this size class and the next one. *fastest is
 * DDL__ALGORITHM_NONE if there is only one candidate. Adds the time of the slowest rank to
 * `spent`. */
static ddl_status explorer_compare(explorer *x, ddl__kind kind, int class, ddl__algorithm *fastest,
                                   double *spent)
{
    double seconds[DDL__ALGORITHMS + 1];
    ddl__candidate found[DDL__ALGORITHMS];
    ddl__call call = sample_call(x, kind, (int64_t)2 << class);
    int best = 0, n = ddl__engine_candidates(x->comm->engine, &call, found);
    int64_t start = ddl__now();
    *fastest = DDL__ALGORITHM_NONE;
    if (n < 2)
        return DDL_OK;
    for (int i = 0; i < n; i++) {
        call.by = found[i].by;
        ddl_status status = explorer_time(x, &call, &seconds[i]);
        if (status != DDL_OK)
            return status;
    }
    seconds[n] = 1e-9 * (double)(ddl__now() - start);
    ddl__call agree = {.kind = DDL__ALLREDUCE,
                       .dtype = DDL_F64,
                       .op = DDL_MAX,
                       .count = n + 1,
                       .send = seconds,
                       .recv = seconds};
    ddl_status status = explorer_run(x, &agree);
    if (status != DDL_OK)
        return status;
    for (int i = 1; i < n; i++)
        best = seconds[i] < seconds[best] ? i : best;
    *fastest = found[best].by;
    *spent += seconds[n];
    x->compared++;
    log_comparison(x, &call, class, found, seconds, n, best);
    return DDL_OK;
}

static ddl_status explorer_find(explorer *x, ddl__kind kind)
{
    uint8_t *by = x->found.by[kind];
    int64_t most = BUFFER / (has_blocks(kind) ? x->comm->size : 1);
    double spent = 0;
    ddl__algorithm fastest = DDL__ALGORITHM_NONE;
    int class = FIRST_CLASS;
    for (; (int64_t)2 << class <= most && spent < LONG_ENOUGH; class += 2) {
        ddl_status status = explorer_compare(x, kind, class, &fastest, &spent);
        if (status != DDL_OK)
            return status;
        by[class] = by[class + 1] = (uint8_t)fastest;
    }
    memset(by, by[FIRST_CLASS], FIRST_CLASS);
    memset(by + class, fastest, (size_t)(DDL__CLASSES - class));
    return DDL_OK;
}

/* Use the choices on which the members have agreed, and store them. */
static void explorer_settle(const explorer *x, int64_t start)
{
    ddl_comm *comm = x->comm;
    comm->layout.choices = x->found;
    ddl__engine_set_choices(comm->engine, &comm->layout.choices, DDL__ALGORITHM_NONE);
    if (comm->rank)
        return;
    ddl__log(DDL__WARN,
             "explored %d operations and sizes in a comm of %d ranks in %.2f s (DDL_LOG=plan logs "
             "the choices)",
             x->compared, comm->size, 1e-9 * (double)(ddl__now() - start));
    if (comm->plan_file && ddl__plan_file_write(comm->plan_file, comm->size, &x->found) != DDL_OK)
        ddl__log(DDL__WARN, "%s: %s", comm->names[0], ddl__message());
}

ddl_status ddl__explore(ddl_comm *comm, int64_t deadline)
{
    explorer x = {.comm = comm, .deadline = deadline};
    int64_t start = ddl__now();
    ddl_status status = DDL_OK;
    x.from = malloc(BUFFER);
    x.to = malloc(BUFFER);
    if (x.from && x.to) {
        memset(x.from, 0, BUFFER); /* write all pages, so that no sample includes a page fault */
        memset(x.to, 0, BUFFER);
    } else {
        status = ddl__fail(DDL_ENOMEM, "out of memory for two buffers of %d bytes to explore plans",
                           BUFFER);
    }
    for (int kind = DDL__ALLREDUCE; status == DDL_OK && kind < DDL__CHOICE_KINDS; kind++)
        if (kind != DDL__BARRIER)
            status = explorer_find(&x, (ddl__kind)kind);
    if (status == DDL_OK)
        explorer_settle(&x, start);
    free(x.from);
    free(x.to);
    return status;
}
