/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/plan.h"

#include <stdlib.h>

#include "base/dtype.h"
#include "plan/builder.h"

/* Return the length of the longest step. The plans of all ranks have a step over the longest share,
 * so all ranks choose the same segment. If a rank knows only its own blocks, the share counts as
 * endless. */
static int64_t longest_step(const ddl__request *request, const ddl__plan *plan)
{
    if (request->sent && ddl__request_is(request, DDL__PAIRWISE_KINDS))
        return INT64_MAX;
    int64_t longest = 0;
    for (uint32_t i = 0; i < plan->n_steps; i++)
        if (plan->steps[i].count > longest)
            longest = plan->steps[i].count;
    return longest;
}

/* Cut all steps into the same segments, unless the algorithm has cut them. */
static void cut_steps(const ddl__request *request, const ddl__algorithm_descriptor *algorithm,
                      ddl__plan *plan, int64_t spans)
{
    if (plan->segment)
        return;
    ddl__request cut = *request;
    cut.segment_bytes = ddl__cost_segment(algorithm, request);
    plan->segment = ddl__choose_segment(&cut, longest_step(request, plan), spans);
    for (uint32_t i = 0; i < plan->n_steps; i++)
        plan->steps[i].piece = plan->steps[i].stride = plan->segment;
}

static int64_t count_waves(const ddl__plan *plan)
{
    int64_t waves = 0;
    for (uint32_t i = 0; i < plan->n_steps; i++) {
        const ddl__step *step = &plan->steps[i];
        int64_t last = step->skew + ddl__quotient(step->count, step->piece);
        waves = last > waves ? last : waves;
    }
    return waves;
}

/* Return the elements that land in the recv buffer. 0 for reductions: their operands are in a
 * cache, and their results will be read soon. */
static int64_t count_landing(const ddl__plan *plan)
{
    int64_t landing = 0;
    for (uint32_t i = 0; i < plan->n_steps; i++) {
        const ddl__step *step = &plan->steps[i];
        if (step->kind == DDL__REDUCE || step->kind == DDL__FOLD || step->kind == DDL__ADD_UNPACKED)
            return 0;
        bool arrives = step->kind == DDL__COPY || (step->kind == DDL__TAKE && !step->targets);
        landing += arrives && !step->to_scratch ? step->count : 0;
    }
    return landing;
}

static ddl__plan *create(const ddl__request *request, const ddl__algorithm_entry *algorithm)
{
    ddl__plan *plan = algorithm ? calloc(1, sizeof *plan) : NULL;
    if (!plan)
        return NULL;
    ddl__builder builder = {.request = request, .plan = plan};
    int64_t spans = algorithm->descriptor->build(&builder);
    if (builder.failed) {
        ddl__plan_destroy(plan);
        return NULL;
    }
    plan->by = algorithm->number;
    plan->name = algorithm->descriptor->name;
    for (int i = 0; i < DDL__FOLDS; i++)
        if (plan->folds[i] && plan->folds[i]->operands > plan->operands)
            plan->operands = plan->folds[i]->operands;
    plan->divisor = request->order ? request->order->workers : request->size;
    plan->bits = ddl__wire_bits(request->wire);
    cut_steps(request, algorithm->descriptor, plan, spans);
    plan->waves = count_waves(plan);
    plan->landing = count_landing(plan);
    return plan;
}

static ddl__plan *create_among(const ddl__request *request)
{
    ddl__request own = ddl__among_request(request);
    ddl__plan *plan = ddl__plan_create(&own);
    if (plan)
        ddl__among_renumber(request, plan);
    return plan;
}

ddl__plan *ddl__plan_create(const ddl__request *request)
{
    ddl__request own = *request;
    if (request->among)
        return create_among(request);
    if (own.wire && own.size > 1 && !ddl__algorithm_fits(DDL__ALGORITHM_PACKED, &own))
        own.wire = 0;
    return create(&own, ddl__algorithm_choose(&own));
}

ddl__plan *ddl__plan_create_as(const ddl__request *request, const char *name)
{
    return create(request, ddl__algorithm_find(ddl__algorithm_named(name), request));
}

void ddl__plan_destroy(ddl__plan *plan)
{
    if (!plan)
        return;
    for (int i = 0; i < DDL__FOLDS; i++)
        free(plan->folds[i]);
    free(plan->steps);
    free(plan->ranks);
    free(plan);
}
