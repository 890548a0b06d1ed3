/* SPDX-License-Identifier: Apache-2.0 */
/* One-shot: all-reduce and reduce of short messages, and the barrier of ranks that share cores.
 *
 * Every rank sends its whole buffer to every other rank, or only to the root. Every receiver
 * reduces all p buffers in rank order. In a barrier, a message is one unused element.
 *
 * Steps: 1. Messages: p - 1 from each rank. Bytes: N (p - 1) from each rank, N to the root. That is
 * more than necessary, but no rank waits for a second hop. */
#include "plan/builder.h"

/* One-shot reads p buffers and writes one. The direct algorithm reads and writes 1/p of these
 * bytes, but in each of two hops. The second hop also costs its messages, and another turn of all
 * ranks that share a core. */
bool ddl__one_shot_beats_direct(const ddl__request *request)
{
    const ddl__topology *t = request->topology;
    double n = (double)request->element * (double)request->count, p = request->size;
    double saved = DDL__SHARED_LATENCY + (p - 1) * DDL__SHARED_MESSAGE +
                   (t && t->oversubscription > 1 ? DDL__SHARED_SWITCH : 0);
    return n * (p + 1 - 4 * (p - 1) / p) * DDL__CACHED_BYTE <= saved;
}

/* Each round of the dissemination takes a turn of all ranks that share a core. */
bool ddl__one_shot_beats_dissemination(const ddl__request *request)
{
    const ddl__topology *t = request->topology;
    return request->all_shared && t && t->oversubscription > 1 &&
           request->size <= DDL__ONE_SHOT_BARRIER;
}

static void cost(ddl__cost *c)
{
    bool to_root = c->request->kind == DDL__REDUCE_TO_ROOT;
    ddl__cost_add_direct(c, c->n, to_root);
    /* the passes of a copy, and of the reduction */
    ddl__cost_add_passes(c, c->n + (to_root ? 1 : c->p) * c->n);
}

static int64_t build(ddl__builder *builder)
{
    const ddl__request *request = builder->request;
    /* In place, the result may overwrite the sent buffer before the last peer has read it. */
    ddl__step publish = {
        .kind = DDL__PUBLISH, .stable = !request->in_place, .count = request->count};
    ddl__step reduce = {.keep = 1, .finish = 1, .count = request->count};
    if (request->kind == DDL__BARRIER) {
        publish.count = 1;
        ddl__builder_add(builder, publish, ddl__no_ranks(), ddl__other_ranks(request));
        for (int distance = 1; distance < request->size; distance++) {
            ddl__step take = {.kind = DDL__TAKE, .count = 1};
            ddl__builder_add_peer(builder, take, ddl__rank_at(request, -distance));
        }
        return DDL__WAVES;
    }
    bool rooted = request->kind == DDL__REDUCE_TO_ROOT, is_root = request->rank == request->root;
    if (!rooted || !is_root)
        ddl__builder_add(builder, publish, ddl__no_ranks(),
                         rooted ? ddl__one_rank(request->root) : ddl__other_ranks(request));
    if (!rooted || is_root)
        ddl__builder_add_sum(builder, reduce, 0, NULL, ddl__all_ranks(request), ddl__no_ranks());
    return DDL__WAVES;
}

const ddl__algorithm_descriptor ddl__one_shot = {
    .name = "one-shot",
    .kinds = DDL__KIND(ALLREDUCE) | DDL__KIND(REDUCE_TO_ROOT) | DDL__KIND(BARRIER),
    .follows = ddl__ranks_are_in_order,
    .cost = cost,
    .build = build};
