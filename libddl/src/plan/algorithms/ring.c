/* SPDX-License-Identifier: Apache-2.0 */
/* Ring: all-reduce, reduce-scatter and all-gather over wires between single ranks.
 *
 * The buffer has one share for each rank. In stage 0 rank r sends share r - 1, modulo p (in an
 * all-gather share r). In each later stage it receives the share before the share that it has just
 * sent. In the first p - 1 stages it adds its own operand and forwards the sum; the last of these
 * sums is the complete sum of share r. In the next p - 1 stages it keeps the reduced share that it
 * receives and forwards it. Several segments of each share are in flight at once.
 *
 * Steps: 2 (p - 1); p - 1 for reduce-scatter and all-gather. Messages: one from each rank in each
 * step. Bytes: 2 N (1 - 1/p) on each wire each way, or half of that: the fewest possible. */
#include "plan/builder.h"

static void cost(ddl__cost *c)
{
    const ddl__topology *t = c->request->topology;
    double ways = c->request->kind == DDL__ALLREDUCE ? 2 : 1, steps = ways * (c->p - 1);
    double share = c->n / c->p, messages = steps * ddl__cost_segments(c, share);
    double crossing = t ? ddl__cost_most_on_a_host(t, true) : 1;
    if (c->h <= 1) {
        for (double i = 0; i < steps; i++)
            ddl__cost_add_memory(c, 1, 2 * share);
        return;
    }
    ddl__cost_add_chain(c, steps, messages, steps * share, steps * share * crossing);
    ddl__cost_add_work(c, messages, steps * share);
}

typedef struct ring {
    bool reduces, gathers;
    int stages;
} ring;

static ring ring_of(const ddl__request *request)
{
    ring r = {request->kind != DDL__ALLGATHER, request->kind != DDL__REDUCE_SCATTER, 1};
    r.stages += (r.reduces + r.gathers) * (request->size - 1);
    return r;
}

/* Add the steps of a stage. Partial sums are stored at the result's place in the recv buffer, if
 * the result is kept there. A share may be sent without a copy, because it returns to this rank
 * only after its receiver has read it. */
static void add_stage(ddl__builder *builder, const ring *r, int stage, uint32_t skew)
{
    const ddl__request *request = builder->request;
    ddl__share share = ddl__share_of(request, ddl__rank_at(request, -stage - r->reduces));
    ddl__ranks targets = stage + 1 < r->stages ? ddl__one_rank(request->rank + 1) : ddl__no_ranks();
    ddl__step step = {
        .skew = skew, .stable = 1, .src = share.start, .dst = share.start, .count = share.count};

    if (stage == 0) {
        step.kind = DDL__PUBLISH;
        if (!r->reduces && !request->in_place)
            step.src = 0;
        ddl__builder_add(builder, step, ddl__no_ranks(), targets);
    } else if (r->reduces && stage < request->size) {
        step.kind = DDL__REDUCE;
        step.finish = stage == request->size - 1;
        step.keep = step.stable = step.finish || r->gathers;
        if (!r->gathers && !request->in_place)
            step.dst = 0;
        ddl__ranks incoming_then_own = {.first = request->rank - 1, .n = 2};
        ddl__builder_add(builder, step, incoming_then_own, targets);
    } else {
        step.kind = DDL__TAKE;
        ddl__builder_add(builder, step, ddl__one_rank(request->rank - 1), targets);
    }
}

/* DDL__RING_DEPTH segments should be in flight. With few stages, each stage follows the previous
 * one by several waves. With many, a segment passes `hops` stages in one wave. The steps of all
 * first hops come first in the list, then the steps of all second hops and so on, so that the next
 * rank consumes spans in the order in which this rank publishes them. */
static int64_t build(ddl__builder *builder)
{
    const ddl__request *request = builder->request;
    ring r = ring_of(request);
    int hops = (r.stages + DDL__RING_DEPTH - 1) / DDL__RING_DEPTH;
    int waves = r.stages < DDL__RING_DEPTH ? DDL__RING_DEPTH / r.stages : 1;
    for (int first = 0; first < hops; first++)
        for (int stage = first; stage < r.stages; stage += hops)
            add_stage(builder, &r, stage, (uint32_t)(stage / hops * waves));

    if (request->kind == DDL__ALLGATHER && !request->in_place) {
        ddl__share own = ddl__share_of(request, request->rank);
        ddl__step copy = {.kind = DDL__COPY, .dst = own.start, .count = own.count};
        ddl__builder_add(builder, copy, ddl__no_ranks(), ddl__no_ranks());
    }
    /* The ring needs at most DDL__RING_DEPTH + 1 spans in flight; the rest is slack. */
    return DDL__RING_DEPTH + DDL__WAVES;
}

const ddl__algorithm_descriptor ddl__ring = {
    .name = "ring", .kinds = DDL__KIND(ALLREDUCE) | DDL__BLOCK_KINDS, .cost = cost, .build = build};
