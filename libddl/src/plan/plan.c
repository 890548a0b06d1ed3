#include "plan/plan.h"

#include <stdlib.h>

#include "plan/builder.h"

static int64_t pieces_of(int64_t count, int64_t segment)
{
    return count / segment + (count % segment != 0);
}

/* Every rank's plan has a step over the longest share, so all ranks choose the same segment. Where
 * ranks know only their own blocks, they choose it as for an endless one. */
static int64_t longest_step(const ddl__request *request, const ddl__plan *plan)
{
    bool pairwise = request->kind == DDL__GATHER || request->kind == DDL__SCATTER ||
                    request->kind == DDL__ALLTOALL;
    if (request->sent && pairwise)
        return INT64_MAX;
    int64_t longest = 0;
    for (uint32_t i = 0; i < plan->n_steps; i++)
        if (plan->steps[i].count > longest)
            longest = plan->steps[i].count;
    return longest;
}

/* As large as is asked for and as the window allows; whole cache lines, if it is that large; and
 * then all pieces of a share about as long as each other, since a short last one costs as many
 * messages as a long one. */
int64_t ddl__choose_segment(const ddl__request *request, int64_t longest, int64_t spans)
{
    int64_t bytes = request->segment_bytes;
    if (bytes <= 0)
        bytes = request->all_shared ? DDL__SEGMENT_SHARED : DDL__SEGMENT_WIRES;
    if (bytes > DDL__SEGMENT_MAX)
        bytes = DDL__SEGMENT_MAX;
    if (request->window > 0 && bytes > request->window / spans)
        bytes = request->window / spans;

    int64_t segment = bytes / (int64_t)request->element;
    if (segment < 1)
        segment = 1;
    if (longest <= segment)
        return longest > 0 ? longest : 1;
    int64_t line = DDL__LINE / (int64_t)request->element;
    if (segment < line)
        return segment;
    segment -= segment % line;
    int64_t even = pieces_of(longest, pieces_of(longest, segment));
    return pieces_of(even, line) * line;
}

/* Where an algorithm has not cut up the steps itself, all are cut alike. */
static void cut_steps(const ddl__request *request, ddl__plan *plan, int64_t spans)
{
    if (plan->segment)
        return;
    ddl__request cut = *request;
    cut.segment_bytes = ddl__algorithm_segment(plan->by, request);
    plan->segment = ddl__choose_segment(&cut, longest_step(request, plan), spans);
    for (uint32_t i = 0; i < plan->n_steps; i++)
        plan->steps[i].piece = plan->steps[i].stride = plan->segment;
}

static int64_t count_waves(const ddl__plan *plan)
{
    int64_t waves = 0;
    for (uint32_t i = 0; i < plan->n_steps; i++) {
        const ddl__step *step = &plan->steps[i];
        int64_t last = step->skew + pieces_of(step->count, step->piece);
        waves = last > waves ? last : waves;
    }
    return waves;
}

/* In a reduction's buffers the operands were read just before, and results wait to be read. */
static int64_t count_landing(const ddl__plan *plan)
{
    int64_t landing = 0;
    for (uint32_t i = 0; i < plan->n_steps; i++) {
        const ddl__step *step = &plan->steps[i];
        if (step->kind == DDL__REDUCE)
            return 0;
        bool arrives = step->kind == DDL__COPY || (step->kind == DDL__TAKE && !step->targets);
        landing += arrives && !step->to_scratch ? step->count : 0;
    }
    return landing;
}

static ddl__plan *create(const ddl__request *request, ddl__algorithm by)
{
    ddl__plan *plan = calloc(1, sizeof *plan);
    if (!plan)
        return NULL;
    ddl__builder builder = {.request = request, .plan = plan};
    int64_t spans = ddl__algorithm_build(by, &builder);
    if (builder.failed) {
        ddl__plan_destroy(plan);
        return NULL;
    }
    plan->by = by;
    plan->name = ddl__algorithm_name(by);
    cut_steps(request, plan, spans);
    plan->waves = count_waves(plan);
    plan->landing = count_landing(plan);
    return plan;
}

ddl__plan *ddl__plan_create(const ddl__request *request)
{
    return create(request, ddl__algorithm_choose(request));
}

ddl__plan *ddl__plan_create_as(const ddl__request *request, const char *name)
{
    ddl__algorithm by = ddl__algorithm_named(name);
    return by && ddl__algorithm_fits(by, request) ? create(request, by) : NULL;
}

void ddl__plan_destroy(ddl__plan *plan)
{
    if (!plan)
        return;
    free(plan->steps);
    free(plan->ranks);
    free(plan);
}
