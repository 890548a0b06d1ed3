/* SPDX-License-Identifier: Apache-2.0 */
/* Pairwise: gather, scatter and all-to-all.
 *
 * Each block is sent directly from its sender to its receiver. The three operations use the same
 * plan, in which a rank has blocks for all ranks, for one rank or for none.
 *
 * In round r, rank i exchanges with rank r - i, modulo p. So in each round all ranks have different
 * peers. The block received in a round replaces the block sent in it, so an in-place all-to-all
 * overwrites only blocks that it has sent. A block that is sent in round r is received `lag` rounds
 * later, if necessary in a later wave. This limits the number of spans in flight for any number of
 * ranks.
 *
 * Steps: 1. Messages and bytes: every block once. */
#include "plan/builder.h"

/* The spans that a rank keeps in flight, to all peers together. The minimum hides a wire's latency
 * if there are few peers; the maximum leaves room for long segments. */
enum { LAG_LEAST_WIRES = 8, LAG_MOST = 16 };

static void cost(ddl__cost *c)
{
    ddl__cost_add_direct(c, c->n, c->request->kind != DDL__ALLTOALL);
}

int ddl__pairwise_lag(const ddl__request *request)
{
    int lag = request->size;
    if (!request->all_shared && lag < LAG_LEAST_WIRES)
        lag = LAG_LEAST_WIRES;
    return lag < LAG_MOST ? lag : LAG_MOST;
}

/* Return the peer in a round. In some rounds a rank exchanges with itself. */
static int peer_in(const ddl__request *request, int round)
{
    return ddl__rank_at(request, (int64_t)round - 2 * (int64_t)request->rank);
}

static void add_send(ddl__builder *builder, int round)
{
    const ddl__request *request = builder->request;
    int peer = peer_in(request, round);
    ddl__share block = ddl__block_to(request, peer);
    ddl__step step = {.kind = DDL__PUBLISH, .src = block.start, .count = block.count};
    if (peer != request->rank) {
        step.stable = request->kind != DDL__ALLTOALL || !request->in_place;
        ddl__builder_add_peer(builder, step, peer);
    } else if (!request->in_place) {
        step.kind = DDL__COPY;
        step.dst = ddl__block_from(request, peer).start;
        ddl__builder_add(builder, step, ddl__no_ranks(), ddl__no_ranks());
    }
}

static void add_take(ddl__builder *builder, int round, uint32_t skew)
{
    const ddl__request *request = builder->request;
    int peer = peer_in(request, round);
    ddl__share block = ddl__block_from(request, peer);
    ddl__step take = {.kind = DDL__TAKE, .skew = skew, .dst = block.start, .count = block.count};
    if (peer != request->rank)
        ddl__builder_add_peer(builder, take, peer);
}

static int64_t build(ddl__builder *builder)
{
    const ddl__request *request = builder->request;
    int size = request->size, lag = ddl__pairwise_lag(request);
    for (int round = 0; round < size; round++) {
        int sent = ((round - lag) % size + size) % size; /* the round that was `lag` rounds ago */
        add_send(builder, round);
        add_take(builder, sent, (uint32_t)(sent + lag) / (uint32_t)size);
    }
    /* The spans in flight, the span that is being sent, and some reserve. */
    return lag + DDL__WAVES;
}

const ddl__algorithm_descriptor ddl__pairwise = {
    .name = "pairwise", .kinds = DDL__PAIRWISE_KINDS, .cost = cost, .build = build};
