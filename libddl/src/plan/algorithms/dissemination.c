/* SPDX-License-Identifier: Apache-2.0 */
/* Dissemination: the barrier.
 *
 * In round k every rank sends an empty message to the rank 2^k after it, modulo p, and receives one
 * from the rank 2^k before it. After round k, a rank has been reached, directly or indirectly, by
 * messages from the 2^(k + 1) ranks up to itself. After ceil(log2 p) rounds, it has been reached by
 * messages from all ranks.
 *
 * Steps: ceil(log2 p). Messages: one from each rank in each round. Bytes: none. */
#include "plan/builder.h"

static void cost(ddl__cost *c)
{
    double rounds = ddl__cost_log2(c->request->size);
    if (c->h > 1) {
        ddl__cost_add_chain(c, rounds, rounds, 0, 0);
        ddl__cost_add_work(c, rounds, 0);
    } else {
        c->path += rounds * DDL__SHARED_LATENCY;
    }
}

/* Each round is one wave, so a round starts only when the message of the previous one has been
 * received. */
static int64_t build(ddl__builder *builder)
{
    const ddl__request *request = builder->request;
    uint32_t round = 0;
    for (int64_t distance = 1; distance < request->size; distance *= 2, round++) {
        ddl__step publish = {.kind = DDL__PUBLISH, .skew = round, .count = 1};
        ddl__step take = {.kind = DDL__TAKE, .skew = round, .count = 1};
        ddl__builder_add_peer(builder, publish, ddl__rank_at(request, distance));
        ddl__builder_add_peer(builder, take, ddl__rank_at(request, -distance));
    }
    return DDL__WAVES;
}

const ddl__algorithm_descriptor ddl__dissemination = {
    .name = "dissemination", .kinds = DDL__KIND(BARRIER), .cost = cost, .build = build};
