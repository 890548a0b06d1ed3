#include "plan/builder.h"

#include <stdlib.h>

/* Make room for `needed` items in a growing array. */
static bool grow(void **items, uint32_t *room, uint32_t needed, size_t size)
{
    if (needed <= *room)
        return true;
    uint32_t more = needed > 2 * *room ? needed : 2 * *room;
    void *moved = realloc(*items, more * size);
    if (!moved)
        return false;
    *items = moved;
    *room = more;
    return true;
}

/* Append a step, if it is not empty, with room for so many ranks behind those there are. */
static ddl__step *append(ddl__builder *builder, ddl__step step, uint32_t operands, uint32_t targets)
{
    ddl__plan *plan = builder->plan;
    uint32_t ranks = builder->n_ranks + operands + targets;
    void *steps = plan->steps, *all = plan->ranks;
    if (step.count == 0 || builder->failed)
        return NULL;
    builder->failed = !grow(&steps, &builder->step_room, plan->n_steps + 1, sizeof step) ||
                      !grow(&all, &builder->rank_room, ranks, sizeof *plan->ranks);
    plan->steps = steps;
    plan->ranks = all;
    if (builder->failed)
        return NULL;
    step.operand = builder->n_ranks;
    step.operands = operands;
    step.target = builder->n_ranks + operands;
    step.targets = targets;
    builder->n_ranks = ranks;
    plan->steps[plan->n_steps] = step;
    return &plan->steps[plan->n_steps++];
}

static void write_ranks(const ddl__builder *builder, uint32_t *to, ddl__ranks some)
{
    const ddl__request *request = builder->request;
    for (int i = 0; i < some.n; i++)
        to[i] = (uint32_t)ddl__rank_at(request, (int64_t)some.first + i - request->rank);
}

void ddl__builder_add(ddl__builder *builder, ddl__step step, ddl__ranks operands,
                      ddl__ranks targets)
{
    ddl__step *added = append(builder, step, (uint32_t)operands.n, (uint32_t)targets.n);
    if (!added)
        return;
    write_ranks(builder, builder->plan->ranks + added->operand, operands);
    write_ranks(builder, builder->plan->ranks + added->target, targets);
}

void ddl__builder_add_listed(ddl__builder *builder, ddl__step step, ddl__rank_list operands,
                             ddl__rank_list targets)
{
    ddl__step *added = append(builder, step, operands.n, targets.n);
    if (!added)
        return;
    uint32_t *to = builder->plan->ranks + added->operand;
    for (uint32_t i = 0; i < operands.n; i++)
        *to++ = operands.ranks[(operands.first + i) % operands.of];
    for (uint32_t i = 0; i < targets.n; i++)
        *to++ = targets.ranks[(targets.first + i) % targets.of];
}

/* The longer parts, and the line that `count` does not fill, go to the last ranks: so no two parts
 * differ by more than a line. */
static int64_t part_start(const ddl__request *request, int64_t line, int i)
{
    int64_t lines = request->count / line + (request->count % line != 0);
    int64_t each = lines / request->size, longer = lines % request->size;
    int64_t before = i - (request->size - longer); /* of the longer ones, if positive */
    int64_t start = (i * each + (before > 0 ? before : 0)) * line;
    return start < request->count ? start : request->count;
}

ddl__share ddl__block_to(const ddl__request *request, int i)
{
    bool one_each = request->kind == DDL__REDUCE_SCATTER || request->kind == DDL__ALLTOALL ||
                    (request->kind == DDL__SCATTER && request->rank == request->root);
    bool none = (request->kind == DDL__GATHER && i != request->root) ||
                (request->kind == DDL__SCATTER && request->rank != request->root);
    if (request->sent)
        return request->sent[i];
    return (ddl__share){one_each ? i * request->count : 0, none ? 0 : request->count};
}

ddl__share ddl__block_from(const ddl__request *request, int i)
{
    bool one_each = request->kind == DDL__ALLGATHER || request->kind == DDL__ALLTOALL ||
                    (request->kind == DDL__GATHER && request->rank == request->root);
    bool none = (request->kind == DDL__SCATTER && i != request->root) ||
                (request->kind == DDL__GATHER && request->rank != request->root);
    if (request->received)
        return request->received[i];
    return (ddl__share){one_each ? i * request->count : 0, none ? 0 : request->count};
}

ddl__share ddl__share_of(const ddl__request *request, int i)
{
    if (request->kind == DDL__REDUCE_SCATTER)
        return ddl__block_to(request, i);
    if (request->kind == DDL__ALLGATHER)
        return ddl__block_from(request, i);
    int64_t line = DDL__LINE / (int64_t)request->element;
    int64_t start = part_start(request, line, i);
    return (ddl__share){start, part_start(request, line, i + 1) - start};
}
