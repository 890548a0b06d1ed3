/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/builder.h"

#include <stdlib.h>
#include <string.h>

bool ddl__grow(void *items, uint32_t *room, uint32_t needed, size_t size)
{
    if (needed <= *room)
        return true;
    uint32_t more = needed > 2 * *room ? needed : 2 * *room;
    void *moved;
    memcpy(&moved, items, sizeof moved);
    moved = realloc(moved, more * size);
    if (!moved)
        return false;
    memcpy(items, &moved, sizeof moved);
    *room = more;
    return true;
}

static uint32_t *write_ranks(const ddl__builder *builder, uint32_t *to, ddl__ranks ranks)
{
    for (int i = 0; i < ranks.n; i++)
        *to++ = ranks.list ? ranks.list[(ranks.first + i) % ranks.of]
                           : (uint32_t)ddl__rank_at(builder->request, (int64_t)ranks.first + i -
                                                                          builder->request->rank);
    return to;
}

void ddl__builder_add(ddl__builder *builder, ddl__step step, ddl__ranks operands,
                      ddl__ranks targets)
{
    ddl__plan *plan = builder->plan;
    uint32_t ranks = builder->n_ranks + (uint32_t)operands.n + (uint32_t)targets.n;
    if (step.count == 0 || builder->failed)
        return;
    builder->failed =
        !ddl__grow(&plan->steps, &builder->step_room, plan->n_steps + 1, sizeof step) ||
        !ddl__grow(&plan->ranks, &builder->rank_room, ranks, sizeof *plan->ranks);
    if (builder->failed)
        return;
    step.operand = builder->n_ranks;
    step.operands = (uint32_t)operands.n;
    step.target = step.operand + step.operands;
    step.targets = (uint32_t)targets.n;
    uint32_t *to = write_ranks(builder, plan->ranks + step.operand, operands);
    write_ranks(builder, to, targets);
    builder->n_ranks = ranks;
    plan->returns = plan->returns || step.returns;
    plan->steps[plan->n_steps++] = step;
}

void ddl__builder_add_peer(ddl__builder *builder, ddl__step step, int64_t peer)
{
    bool takes = step.kind == DDL__TAKE, publishes = step.kind == DDL__PUBLISH;
    ddl__builder_add(builder, step, takes ? ddl__one_rank(peer) : ddl__no_ranks(),
                     publishes ? ddl__one_rank(peer) : ddl__no_ranks());
}

/* Return the length of a segment: at most the requested length, and at most the length that the
 * window allows. It is rounded to whole cache lines if it is long enough. All segments of the
 * longest step get about the same length, because a short segment costs as much as a long one. */
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
    int64_t even = ddl__quotient(longest, ddl__quotient(longest, segment));
    return ddl__quotient(even, line) * line;
}
