#include "plan/plan.h"

#include <stdlib.h>

#include "plan/builder.h"

typedef struct algorithm {
    const char *name;
    int64_t (*build)(ddl__builder *builder);
} algorithm;

static int64_t build_alone(ddl__builder *builder)
{
    const ddl__request *request = builder->request;
    bool two_buffers = request->kind != DDL__BROADCAST && request->kind != DDL__BARRIER;
    ddl__share from = ddl__block_to(request, 0), to = ddl__block_from(request, 0);
    ddl__step copy = {.kind = DDL__COPY, .src = from.start, .dst = to.start, .count = from.count};
    ddl__step reduce = {.kind = DDL__REDUCE,
                        .keep = 1,
                        .finish = 1,
                        .src = from.start,
                        .dst = request->in_place ? from.start : to.start,
                        .count = from.count};
    if (request->normalizes)
        ddl__add(builder, reduce, ddl__one(0), ddl__nobody());
    else if (two_buffers && !request->in_place)
        ddl__add(builder, copy, ddl__nobody(), ddl__nobody());
    return 1;
}

static bool fits_one_shot(const ddl__request *request)
{
    int64_t bytes = request->count * (int64_t)request->element;
    if (request->all_shared)
        return bytes <= DDL__ONE_SHOT_SHARED;
    if (request->kind == DDL__REDUCE_TO_ROOT) /* only the root's wire carries more than needed */
        return bytes <= DDL__ONE_SHOT_WIRES &&
               bytes * request->size <= DDL__ONE_SHOT_WIRES * DDL__ONE_SHOT_WIRES_RANKS;
    return bytes <= DDL__ONE_SHOT_WIRES && request->size <= DDL__ONE_SHOT_WIRES_RANKS;
}

static bool is_pairwise(const ddl__request *request)
{
    return request->kind == DDL__GATHER || request->kind == DDL__SCATTER ||
           request->kind == DDL__ALLTOALL;
}

/* Where there are several levels, or some are declared. */
static bool is_nested(const ddl__request *request)
{
    const ddl__topology *topology = request->topology;
    if (!topology)
        return false;
    int64_t line = DDL__LINE / (int64_t)request->element; /* elements; bytes might overflow */
    bool small = request->count / request->size / line < DDL__NESTED_SHARE / DDL__LINE;
    return topology->declared || ddl__topology_is_nested(topology) ||
           (small && !request->all_shared);
}

/* Data of a declared topology's hosts would be passed on in vain where all share memory. */
static bool has_hosts(const ddl__request *request)
{
    const ddl__topology *t = request->topology;
    return t && !request->all_shared && t->groups[DDL__HOSTS] > 1 &&
           t->groups[DDL__HOSTS] < t->size;
}

static bool gathers_over_hosts(const ddl__request *request)
{
    bool has_blocks = request->kind == DDL__ALLGATHER || request->kind == DDL__REDUCE_SCATTER;
    return has_blocks && !request->sent && has_hosts(request) && ddl__fits_hosts(request);
}

/* Depends on nothing that differs between ranks, and for what is reduced on nothing measured: the
 * order of additions must be the same everywhere and from run to run. */
static algorithm choose(const ddl__request *request)
{
    bool reduces = request->kind == DDL__ALLREDUCE || request->kind == DDL__REDUCE_TO_ROOT;
    if (request->size == 1)
        return (algorithm){"alone", build_alone};
    if (request->kind == DDL__BARRIER)
        return (algorithm){"dissemination", ddl__build_dissemination};
    if (is_pairwise(request))
        return (algorithm){"pairwise", ddl__build_pairwise};
    if (reduces && fits_one_shot(request))
        return (algorithm){"one-shot", ddl__build_one_shot};
    if (request->kind == DDL__ALLREDUCE && is_nested(request))
        return (algorithm){"nested", ddl__build_nested};
    if (gathers_over_hosts(request))
        return (algorithm){"hosts", ddl__build_hosts};
    if (request->all_shared)
        return (algorithm){"direct", ddl__build_direct};
    bool rooted = request->kind == DDL__BROADCAST || request->kind == DDL__REDUCE_TO_ROOT;
    if (rooted && has_hosts(request))
        return (algorithm){"leaders", ddl__build_leaders};
    if (rooted)
        return (algorithm){"chain", ddl__build_chain};
    return (algorithm){"ring", ddl__build_ring};
}

static int64_t pieces_of(int64_t count, int64_t segment)
{
    return count / segment + (count % segment != 0);
}

/* Every rank's plan has a step over the longest share, so all ranks choose the same segment. Where
 * ranks know only their own blocks, they choose it as for an endless one. */
static int64_t longest_step(const ddl__request *request, const ddl__plan *plan)
{
    if (request->sent && is_pairwise(request))
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
    plan->segment = ddl__choose_segment(request, longest_step(request, plan), spans);
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

ddl__plan *ddl__plan_create(const ddl__request *request)
{
    ddl__plan *plan = calloc(1, sizeof *plan);
    if (!plan)
        return NULL;
    ddl__builder builder = {.request = request, .plan = plan};
    algorithm chosen = choose(request);
    int64_t spans = chosen.build(&builder);
    if (builder.failed) {
        ddl__plan_destroy(plan);
        return NULL;
    }
    plan->name = chosen.name;
    cut_steps(request, plan, spans);
    plan->waves = count_waves(plan);
    return plan;
}

void ddl__plan_destroy(ddl__plan *plan)
{
    if (!plan)
        return;
    free(plan->steps);
    free(plan->ranks);
    free(plan);
}
