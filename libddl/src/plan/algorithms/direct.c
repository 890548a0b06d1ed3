/* SPDX-License-Identifier: Apache-2.0 */
/* Direct: each operation in the minimum number of hops, with each byte moved once.
 *
 * All-reduce in shared memory: every rank owns one share. It sends each other rank the share that
 * the other rank owns, reduces its own share over all ranks in one pass, and sends the result to
 * all. Reduce-scatter is the first half of that, all-gather the second; a reduce sends the results
 * only to the root. In a broadcast all ranks read from the root. Over wires only operations of one
 * hop are done this way.
 *
 * Steps: 2; 1 for reduce-scatter, all-gather and broadcast. Messages: p - 1 from each rank in each
 * step. Bytes: 2 N (1 - 1/p) from each rank, half of that in one step; N (p - 1) in a broadcast. */
#include "plan/builder.h"

/* Return true if all ranks read each other's memory, or if the operation has one step. */
static bool fits(const ddl__request *request)
{
    return request->all_shared || ddl__request_is(request, DDL__KIND(BROADCAST) | DDL__BLOCK_KINDS);
}

static void cost(ddl__cost *c)
{
    if (c->request->kind == DDL__BROADCAST)
        ddl__cost_add_direct(c, c->n, true);
    else if (ddl__request_is(c->request, DDL__BLOCK_KINDS))
        ddl__cost_add_direct(c, c->n / c->p, false);
    else
        for (int way = 0; way < 2; way++)
            ddl__cost_add_memory(c, c->p - 1, 2 * c->n / c->p * (c->p - 1));
}

/* Return true if each share of a buffer is read by only one other rank, which may therefore store
 * the result there. */
static bool stores_in_place(const ddl__request *request)
{
    return request->kind == DDL__ALLREDUCE && request->in_place;
}

static void take_from_others(ddl__builder *builder, uint32_t skew)
{
    const ddl__request *request = builder->request;
    for (int i = 1; i < request->size; i++) {
        int peer = ddl__rank_at(request, i);
        ddl__share share = ddl__share_of(request, peer);
        ddl__step take = {.kind = DDL__TAKE,
                          .skew = skew,
                          .returns = stores_in_place(request),
                          .dst = share.start,
                          .count = share.count};
        ddl__builder_add_peer(builder, take, peer);
    }
}

/* Send the other ranks their shares; one wave later reduce this rank's share and send it to
 * `targets`. */
static void reduce_own_share(ddl__builder *builder, bool keep, int64_t dst, ddl__ranks targets)
{
    const ddl__request *request = builder->request;
    for (int i = 1; i < request->size; i++) {
        int peer = ddl__rank_at(request, i);
        ddl__share share = ddl__share_of(request, peer);
        ddl__step publish = {.kind = DDL__PUBLISH,
                             .stable = 1,
                             .returns = stores_in_place(request),
                             .src = share.start,
                             .count = share.count};
        ddl__builder_add_peer(builder, publish, peer);
    }
    ddl__share own = ddl__share_of(request, request->rank);
    ddl__step reduce = {.keep = keep,
                        .finish = 1,
                        .stable = keep,
                        .returns = stores_in_place(request),
                        .skew = 1,
                        .src = own.start,
                        .dst = dst,
                        .count = own.count};
    ddl__builder_add_sum(builder, reduce, 0, NULL, ddl__all_ranks(request), targets);
}

/* Add the steps of an all-reduce. In place, a sent share is overwritten only by the result that was
 * computed from it. */
static int64_t build_allreduce(ddl__builder *builder)
{
    const ddl__request *request = builder->request;
    ddl__share own = ddl__share_of(request, request->rank);
    reduce_own_share(builder, true, own.start, ddl__other_ranks(request));
    take_from_others(builder, 2);
    return (int64_t)DDL__WAVES * request->size;
}

static int64_t build_reduce_scatter(ddl__builder *builder)
{
    const ddl__request *request = builder->request;
    ddl__share own = ddl__share_of(request, request->rank);
    reduce_own_share(builder, true, request->in_place ? own.start : 0, ddl__no_ranks());
    return (int64_t)DDL__WAVES * (request->size - 1);
}

/* Add the steps of a reduce: as in an all-reduce, but only the root receives the results, and only
 * its receive buffer is written. */
static int64_t build_reduce_to_root(ddl__builder *builder)
{
    const ddl__request *request = builder->request;
    ddl__share own = ddl__share_of(request, request->rank);
    bool is_root = request->rank == request->root;
    reduce_own_share(builder, is_root, own.start,
                     is_root ? ddl__no_ranks() : ddl__one_rank(request->root));
    if (is_root)
        take_from_others(builder, 2);
    return (int64_t)DDL__WAVES * request->size;
}

static int64_t build_allgather(ddl__builder *builder)
{
    const ddl__request *request = builder->request;
    ddl__share own = ddl__share_of(request, request->rank);
    ddl__step publish = {.kind = DDL__PUBLISH,
                         .stable = 1,
                         .src = request->in_place ? own.start : 0,
                         .count = own.count};
    ddl__step copy = {.kind = DDL__COPY, .dst = own.start, .count = own.count};
    ddl__builder_add(builder, publish, ddl__no_ranks(), ddl__other_ranks(request));
    if (!request->in_place)
        ddl__builder_add(builder, copy, ddl__no_ranks(), ddl__no_ranks());
    take_from_others(builder, 1);
    return DDL__WAVES;
}

static int64_t build_broadcast(ddl__builder *builder)
{
    const ddl__request *request = builder->request;
    ddl__step publish = {
        .kind = DDL__PUBLISH, .space = DDL__OUT, .stable = 1, .count = request->count};
    ddl__step take = {.kind = DDL__TAKE, .count = request->count};
    if (request->rank == request->root)
        ddl__builder_add(builder, publish, ddl__no_ranks(), ddl__other_ranks(request));
    else
        ddl__builder_add_peer(builder, take, request->root);
    return DDL__WAVES;
}

static int64_t build(ddl__builder *builder)
{
    ddl__kind kind = builder->request->kind;
    if (kind == DDL__ALLREDUCE)
        return build_allreduce(builder);
    if (kind == DDL__REDUCE_SCATTER)
        return build_reduce_scatter(builder);
    if (kind == DDL__REDUCE_TO_ROOT)
        return build_reduce_to_root(builder);
    if (kind == DDL__ALLGATHER)
        return build_allgather(builder);
    return build_broadcast(builder);
}

const ddl__algorithm_descriptor ddl__direct = {.name = "direct",
                                               .kinds = DDL__KIND(ALLREDUCE) | DDL__ROOTED_KINDS |
                                                        DDL__BLOCK_KINDS,
                                               .fits = fits,
                                               .follows = ddl__ranks_are_in_order,
                                               .cost = cost,
                                               .build = build};
