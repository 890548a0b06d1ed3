/* Blocks from rank to rank. An all-to-all, a gather and a scatter are one plan, in which a rank has
 * blocks for all others, for one or for none.
 *
 * In round r of a wave, rank i deals with rank r - i, and so that one with rank i: in each round
 * all are busy with different peers, and what is taken comes to where the block lay that was sent
 * to the same peer, so an all-to-all in place overwrites only what it has sent. Each round is taken
 * `lag` rounds after it was sent, going on into the next waves; that bounds the spans under way,
 * however many ranks there are. */
#include "plan/builder.h"

int ddl__pairs_lag(const ddl__request *request)
{
    int lag = request->size;
    if (!request->all_shared && lag < DDL__PAIRS_LEAST_WIRES)
        lag = DDL__PAIRS_LEAST_WIRES;
    return lag < DDL__PAIRS_MOST ? lag : DDL__PAIRS_MOST;
}

/* Itself now and then. */
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
        ddl__builder_add(builder, step, ddl__no_ranks(), ddl__one_rank(peer));
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
        ddl__builder_add(builder, take, ddl__one_rank(peer), ddl__no_ranks());
}

int64_t ddl__build_pairwise(ddl__builder *builder)
{
    const ddl__request *request = builder->request;
    int size = request->size, lag = ddl__pairs_lag(request);
    for (int round = 0; round < size; round++) {
        int sent = ((round - lag) % size + size) % size; /* `lag` rounds ago */
        add_send(builder, round);
        add_take(builder, sent, (uint32_t)(sent + lag) / (uint32_t)size);
    }
    /* The ones under way and the one that is being sent; the rest is slack. */
    return lag + DDL__WAVES;
}
