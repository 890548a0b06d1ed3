/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/operation_times.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/log.h"
#include "comm/comm.h"

enum { LINE = 512 };

static const char *const levels[DDL__DIMENSIONS] = {"within hosts", "between hosts",
                                                    "between racks", "between aisles"};

/* The times of one rank, in seconds, since the comm was created or since the last report. */
typedef struct sums {
    double operations, waited, spent[DDL__DIMENSIONS];
} sums;

/* A report. Its times are exchanged while later operations are already submitted. */
typedef struct report {
    struct report *next;
    ddl_work *work;
    sums ranks[];
} report;

struct ddl__operation_times {
    ddl_comm *comm;
    int iter;
    pthread_mutex_t lock;
    int submitted; /* operations since the last report */
    ddl__meter meter;
    sums before; /* the sums of the times when the last report was made */
    report *reports, **last;
    unsigned char levels[]; /* the level of each rank: 0 same host, 1 same rack and so on */
};

static int level_of(const ddl__topology *t, int a, int b)
{
    int level = 0;
    while (level < DDL__GROUPINGS &&
           ddl__topology_group(t, level, a) != ddl__topology_group(t, level, b))
        level++;
    return level;
}

ddl__operation_times *ddl__operation_times_create(ddl_comm *comm, int iter)
{
    ddl__operation_times *t = calloc(1, sizeof *t + (size_t)comm->size);
    if (!t)
        return NULL;
    t->comm = comm;
    t->iter = iter;
    t->last = &t->reports;
    pthread_mutex_init(&t->lock, NULL);
    for (int r = 0; r < comm->size; r++)
        t->levels[r] = (unsigned char)level_of(comm->topology, comm->rank, r);
    t->meter.levels = t->levels;
    ddl__engine_set_meter(comm->engine, &t->meter);
    return t;
}

void ddl__operation_times_destroy(ddl__operation_times *t)
{
    if (!t)
        return;
    for (report *r = t->reports, *next; r; r = next) {
        next = r->next;
        free(r);
    }
    pthread_mutex_destroy(&t->lock);
    free(t);
}

static double seconds(const atomic_llong *ns)
{
    return 1e-9 * (double)atomic_load_explicit(ns, memory_order_relaxed);
}

/* Return the times that this rank has measured since the last report. */
static sums take_sums(ddl__operation_times *t)
{
    sums now = {.operations =
                    (double)atomic_load_explicit(&t->meter.operations, memory_order_relaxed),
                .waited = seconds(&t->meter.waited)};
    sums since = {now.operations - t->before.operations, now.waited - t->before.waited, {0}};
    for (int l = 0; l < DDL__DIMENSIONS; l++) {
        now.spent[l] = seconds(&t->meter.spent[l]);
        since.spent[l] = now.spent[l] - t->before.spent[l];
    }
    t->before = now;
    return since;
}

/* Log a report. The slowest rank is the rank that has waited least, because the others have waited
 * for it. */
static void report_log(const ddl_comm *comm, const report *r)
{
    double all = 0, by_level[DDL__DIMENSIONS] = {0}, operations = r->ranks[0].operations;
    double each = operations > 0 ? 1e3 / operations : 0;
    int slowest = 0, n = 0;
    char line[LINE];
    for (int rank = 0; rank < comm->size; rank++) {
        const sums *its = &r->ranks[rank];
        double busy = 0;
        for (int l = 0; l < DDL__DIMENSIONS; l++) {
            busy += its->spent[l];
            by_level[l] += its->spent[l] / comm->size;
        }
        all = busy > all ? busy : all;
        slowest = its->waited < r->ranks[slowest].waited ? rank : slowest;
    }
    for (int l = 0; l < DDL__DIMENSIONS && n < LINE; l++)
        if (by_level[l] > 0)
            n += snprintf(line + n, sizeof line - (size_t)n, "%s%.3g ms %s", n ? ", " : "",
                          by_level[l] * each, levels[l]);
    ddl__log(DDL__WARN,
             "%.0f operations: on average %.3g ms from start to end (%s); the slowest is "
             "%s, which waited least for other ranks, %.3g ms",
             operations, all * each, n ? line : "no step", comm->names[slowest],
             r->ranks[slowest].waited * each);
}

/* Log and free the reports that have been exchanged. */
static void collect(ddl__operation_times *t)
{
    for (report *r; (r = t->reports);) {
        ddl_status status = ddl__work_test(r->work);
        if (status == DDL_INPROGRESS)
            return;
        if (status == DDL_OK && t->comm->rank == 0)
            report_log(t->comm, r);
        ddl__work_destroy(r->work);
        t->reports = r->next;
        if (!t->reports)
            t->last = &t->reports;
        free(r);
    }
}

/* Start the exchange of a report. If memory is short or the comm is dead, the next operation fails
 * anyway. */
static void exchange(ddl__operation_times *t)
{
    ddl_comm *comm = t->comm;
    report *r = calloc(1, sizeof *r + (size_t)comm->size * sizeof *r->ranks);
    if (!r)
        return;
    r->ranks[comm->rank] = take_sums(t);
    ddl__call call = {.kind = DDL__ALLGATHER,
                      .dtype = DDL_F64,
                      .count = sizeof(sums) / sizeof(double),
                      .send = r->ranks,
                      .recv = r->ranks,
                      .uncounted = true, /* this is not one of the user's operations */
                      .timeout_ms = comm->operation_timeout_ms};
    if (ddl__engine_submit(comm->engine, &call, &r->work) != DDL_OK) {
        free(r);
        return;
    }
    *t->last = r;
    t->last = &r->next;
}

void ddl__operation_times_next(ddl__operation_times *t)
{
    pthread_mutex_lock(&t->lock);
    collect(t);
    if (t->submitted == t->iter) {
        exchange(t);
        t->submitted = 0;
    }
    t->submitted++;
    pthread_mutex_unlock(&t->lock);
}

void ddl__operation_times_close(ddl__operation_times *t)
{
    if (!t)
        return;
    collect(t);
    for (report *r = t->reports; r; r = r->next)
        ddl__work_destroy(r->work);
}
