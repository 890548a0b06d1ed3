#include "engine/tuning.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/dtype.h"
#include "base/log.h"
#include "engine/describe.h"

enum {
    LINE = 512,
    TIMES = 2 + DDL__DIMENSIONS /* per rank in a report: total, waited, by level; in seconds */
};

static const char *const levels[DDL__DIMENSIONS] = {"within hosts", "between hosts",
                                                    "between racks", "between aisles"};

/* --------------------------------------------------------------------------------- creation, end
 */

static int level_of(const ddl__topology *t, int a, int b)
{
    int level = 0;
    while (level < DDL__GROUPINGS &&
           ddl__topology_group(t, level, a) != ddl__topology_group(t, level, b))
        level++;
    return level;
}

ddl__tuning *ddl__tuning_create(int rank, int size, char mode, int dump_iter,
                                const ddl__choices *choices, const ddl__topology *topology)
{
    static const ddl__choices none;
    ddl__tuning *t = calloc(1, sizeof *t);
    size_t values = dump_iter ? (size_t)size * TIMES : 0;
    if (values < DDL__ALGORITHMS)
        values = DDL__ALGORITHMS;
    if (t) {
        t->values = calloc(values, sizeof *t->values);
        t->meter.levels = calloc((size_t)size, 1);
    }
    if (!t || !t->values || !t->meter.levels) {
        ddl__tuning_destroy(t);
        return NULL;
    }
    t->rank = rank;
    t->size = size;
    t->by = mode == 'r'   ? DDL__ALGORITHM_RING
            : mode == 't' ? DDL__ALGORITHM_TREE
            : mode == 'h' ? DDL__ALGORITHM_HALVING
                          : DDL__ALGORITHM_NONE;
    t->choices = *choices;
    t->explores = mode == 'p' && memcmp(choices, &none, sizeof none) == 0;
    t->dump_iter = dump_iter;
    for (int r = 0; topology && r < size; r++)
        t->meter.levels[r] = (unsigned char)level_of(topology, rank, r);
    return t;
}

void ddl__tuning_destroy(ddl__tuning *t)
{
    if (!t)
        return;
    for (int kind = 0; kind < DDL__CHOICE_KINDS; kind++)
        for (int class = 0; class < DDL__CLASSES; class ++)
            free(t->explorations[kind][class]);
    free(t->own.message);
    free(t->meter.levels);
    free(t->values);
    free(t);
}

/* ---------------------------------------------------------------------------------- exploring */

/* The size class of a request, by the size of one block where there are several; -1: not explored.
 */
static int class_of(ddl__kind kind, int64_t count, size_t element, bool uneven)
{
    return uneven || (int)kind >= DDL__CHOICE_KINDS || kind == DDL__BARRIER
               ? -1
               : ddl__class_of(count * (int64_t)element);
}

static bool is_sampled(const ddl__exploration *e)
{
    return e && e->n && e->calls == e->n * DDL__SAMPLES;
}

static int ascending(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* Start exploring; NULL when out of memory. A single candidate is chosen at once. */
static ddl__exploration *explore(ddl__tuning *t, const ddl__request *request, int class)
{
    ddl__exploration *e = calloc(1, sizeof *e);
    t->explorations[request->kind][class] = e;
    if (e)
        e->n = ddl__plan_candidates(request, e->candidates);
    if (e && e->n < 2)
        t->choices.by[request->kind][class] = (uint8_t)e->candidates[0].by;
    return e;
}

bool ddl__tuning_start(ddl__tuning *t, const ddl__request *request, ddl__algorithm *by)
{
    int class = class_of(request->kind, request->count, request->element, request->sent);
    *by = t->by;
    t->sampled = NULL;
    t->started = ddl__now();
    t->meter.mark = t->started;
    if (class < 0)
        return true;
    uint8_t *choice = &t->choices.by[request->kind][class];
    if (*choice || !t->explores) {
        *by = *choice ? (ddl__algorithm)*choice : t->by;
        return true;
    }
    ddl__exploration *e = t->explorations[request->kind][class];
    if (!e && !(e = explore(t, request, class)))
        return false;
    if (*choice)
        return true;
    t->sampled = e;
    *by = e->candidates[e->calls % e->n].by;
    return true;
}

void ddl__tuning_end(ddl__tuning *t)
{
    double seconds = 1e-9 * (double)(ddl__now() - t->started);
    ddl__exploration *e = t->sampled;
    t->operations++;
    t->busy += seconds;
    if (!e)
        return;
    e->seconds[e->calls % e->n][e->calls / e->n] = (float)seconds;
    e->calls++;
    t->sampled = NULL;
}

/* Local medians; all-reduced with max. */
static void bring_medians(ddl__tuning *t, ddl__exploration *e)
{
    for (int i = 0; i < e->n; i++) {
        qsort(e->seconds[i], DDL__SAMPLES, sizeof e->seconds[i][0], ascending);
        t->values[i] = (double)e->seconds[i][DDL__SAMPLES / 2];
    }
}

static void choose(ddl__tuning *t)
{
    ddl__exploration *e = t->settled;
    char line[LINE];
    int best = 0, n = 0;
    for (int i = 1; i < e->n; i++)
        best = t->values[i] < t->values[best] ? i : best;
    t->choices.by[t->settled_kind][t->settled_class] = (uint8_t)e->candidates[best].by;
    for (int i = 0; i < e->n && n < LINE; i++)
        n += snprintf(line + n, sizeof line - (size_t)n, "%s %s %.3g us", i ? "," : "",
                      ddl__algorithm_name(e->candidates[i].by), t->values[i] * 1e6);
    if (t->rank == 0) {
        ddl__log(DDL__WARN, "explored %s of %lld bytes and more in a comm of %d ranks: %s (%s )",
                 ddl__kind_name((ddl__kind)t->settled_kind), (long long)1 << t->settled_class,
                 t->size, ddl__algorithm_name(e->candidates[best].by), line);
        t->keep_choices(t->context, &t->choices);
    }
    free(e);
    t->explorations[t->settled_kind][t->settled_class] = NULL;
}

/* ---------------------------------------------------------------------------------- reports */

static void bring_times(ddl__tuning *t)
{
    double *mine = t->values + t->rank * TIMES;
    mine[0] = t->busy;
    mine[1] = 1e-9 * (double)t->meter.waited;
    for (int l = 0; l < DDL__DIMENSIONS; l++)
        mine[2 + l] = 1e-9 * (double)t->meter.spent[l];
}

/* The rank that waited least is the one that the others waited for. */
static void report(ddl__tuning *t)
{
    double all = 0, by_level[DDL__DIMENSIONS] = {0}, each = 1e3 / (double)t->operations;
    int slowest = 0, n = 0;
    char line[LINE];
    for (int r = 0; r < t->size; r++) {
        const double *its = t->values + r * TIMES;
        all = its[0] > all ? its[0] : all;
        slowest = its[1] < t->values[slowest * TIMES + 1] ? r : slowest;
        for (int l = 0; l < DDL__DIMENSIONS; l++)
            by_level[l] += its[2 + l] / t->size;
    }
    for (int l = 0; l < DDL__DIMENSIONS && n < LINE; l++)
        if (by_level[l] > 0)
            n += snprintf(line + n, sizeof line - (size_t)n, "%s%.3g ms %s", n ? ", " : "",
                          by_level[l] * each, levels[l]);
    if (t->rank == 0)
        ddl__log(DDL__WARN,
                 "%lld operations, each on average: %.3g ms from its start to its end (%s); "
                 "slowest: %s, which waited for others least, %.3g ms",
                 (long long)t->operations, all * each, n ? line : "no step", t->names[slowest],
                 t->values[slowest * TIMES + 1] * each);
    t->operations = 0;
    t->busy = 0;
    t->meter.waited = 0;
    memset(t->meter.spent, 0, sizeof t->meter.spent);
}

/* --------------------------------------------------------------------------- our own operations */

static ddl_work *tuning_insert(ddl__tuning *t, ddl_work *next, ddl__kind kind, ddl_op op, int count)
{
    if (!next->submitted) /* it does not start at once */
        ddl__work_stamp(next);
    free(t->own.message);
    t->own = (ddl_work){.engine = next->engine,
                        .sequence = next->sequence,
                        .submitted = next->submitted,
                        .deadline = next->deadline,
                        .call = {.kind = kind,
                                 .dtype = DDL_F64,
                                 .op = op,
                                 .count = count,
                                 .send = t->values,
                                 .recv = t->values,
                                 .timeout_ms = next->call.timeout_ms}};
    t->held = next;
    return &t->own;
}

ddl_work *ddl__tuning_due(ddl__tuning *t, ddl_work *next)
{
    const ddl__call *call = &next->call;
    if (t->dump_iter && t->operations >= t->dump_iter) {
        t->settled = NULL;
        bring_times(t);
        return tuning_insert(t, next, DDL__ALLGATHER, 0, TIMES);
    }
    int class = t->explores
                    ? class_of(call->kind, call->count, ddl__dtype_size(call->dtype), call->blocks)
                    : -1;
    ddl__exploration *e = class < 0 ? NULL : t->explorations[call->kind][class];
    if (!is_sampled(e))
        return NULL;
    t->settled = e;
    t->settled_kind = (int)call->kind;
    t->settled_class = class;
    bring_medians(t, e);
    return tuning_insert(t, next, DDL__ALLREDUCE, DDL_MAX, e->n);
}

ddl_work *ddl__tuning_drop(ddl__tuning *t)
{
    ddl_work *held = t->held;
    t->held = NULL;
    return held;
}

ddl_work *ddl__tuning_settle(ddl__tuning *t)
{
    if (t->settled)
        choose(t);
    else
        report(t);
    return ddl__tuning_drop(t);
}
