#include "engine/plans.h"

#include <stddef.h>
#include <stdio.h>

#include "base/log.h"
#include "engine/choices.h"
#include "engine/describe.h"

/* Log why this plan was chosen, once per kind and size class. Rank 0 logs for all. */
static void explain(ddl__plans *plans, const ddl__request *request, const ddl__plan *plan)
{
    int64_t bytes = request->count * (int64_t)request->element;
    uint64_t class = (uint64_t)1 << ddl__class_of(bytes);
    if (request->rank || request->size == 1 || !ddl__logs(DDL__PLAN) ||
        plans->explained[request->kind] & class)
        return;
    plans->explained[request->kind] |= class;
    char line[512] = "";
    ddl__candidate found[DDL__ALGORITHMS];
    int n = ddl__plan_candidates(request, found);
    size_t at = 0;
    for (int i = 0; i < n && at < sizeof line; i++)
        at += (size_t)snprintf(line + at, sizeof line - at, "%s%s %.3g us", i ? ", " : "",
                               ddl__algorithm_name(found[i].by), found[i].seconds * 1e6);
    const char *why = request->by == plan->by ? "asked for" : n > 1 ? "chosen" : "the only one";
    ddl__log(DDL__PLAN,
             "%s of %lld bytes in a comm of %d ranks: %s, %s, in pieces of up to %lld bytes; "
             "predicted: %s",
             ddl__kind_name(request->kind), (long long)bytes, request->size, plan->name, why,
             (long long)plan->segment * (long long)request->element, line);
}

static void report(const ddl__request *request, const ddl__plan *plan)
{
    ddl__log(DDL__DEBUG,
             "rank %d: plan for kind %d, %lld elements of %zu bytes: %s, %u steps, %lld waves, "
             "pieces of up to %lld elements",
             request->rank, (int)request->kind, (long long)request->count, request->element,
             plan->name, plan->n_steps, (long long)plan->waves, (long long)plan->segment);
}

/* Within one engine, only these fields differ from call to call. */
static bool same(const ddl__request *a, const ddl__request *b)
{
    return a->kind == b->kind && a->count == b->count && a->element == b->element &&
           a->root == b->root && a->in_place == b->in_place && a->all_shared == b->all_shared &&
           a->normalizes == b->normalizes && a->by == b->by;
}

static unsigned slot(const ddl__request *r)
{
    uint64_t h = (uint64_t)r->count * 8 + (uint64_t)r->kind + r->element * 131 +
                 (uint64_t)r->root * 8191 + (uint64_t)r->by * 524287 + r->in_place;
    return (unsigned)((h * 0x9e3779b97f4a7c15u) >> 58) % DDL__PLANS;
}

const ddl__plan *ddl__plans_get(ddl__plans *plans, const ddl__request *request)
{
    if (request->sent) {
        ddl__plan_destroy(plans->uneven);
        return plans->uneven = ddl__plan_create(request);
    }
    unsigned i = slot(request);
    if (!plans->entries[i].plan || !same(&plans->entries[i].request, request)) {
        ddl__plan *plan = ddl__plan_create(request);
        if (!plan)
            return NULL;
        report(request, plan);
        explain(plans, request, plan);
        ddl__plan_destroy(plans->entries[i].plan);
        plans->entries[i].request = *request;
        plans->entries[i].plan = plan;
    }
    return plans->entries[i].plan;
}

void ddl__plans_clear(ddl__plans *plans)
{
    for (unsigned i = 0; i < DDL__PLANS; i++)
        ddl__plan_destroy(plans->entries[i].plan);
    ddl__plan_destroy(plans->uneven);
}
