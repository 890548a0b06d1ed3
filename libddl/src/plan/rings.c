/* Ranks joined by wires, each sending only to the next: every wire carries the least bytes there
 * are, and all of them at once. */
#include "plan/builder.h"

/* Shares go round. In stage 0 rank r sends share r - 1 (of an all-gather: r); in each later stage
 * the share that comes in is the one before: first to be added to and sent on, until after size - 1
 * stages the rank holds the whole of share r; then, being whole, to be kept and sent on. */
typedef struct circuit {
    bool reduces, gathers;
    int stages;
} circuit;

static circuit circuit_of(const ddl__request *request)
{
    circuit ring = {request->kind != DDL__ALLGATHER, request->kind != DDL__REDUCE_SCATTER, 1};
    ring.stages += (ring.reduces + ring.gathers) * (request->size - 1);
    return ring;
}

/* Partial results lie in the recv buffer where their result will, if it comes there at all. All
 * that is sent stays: a share comes round again only through those to whom it was sent. */
static void add_stage(ddl__builder *builder, const circuit *ring, int stage, uint32_t skew)
{
    const ddl__request *request = builder->request;
    ddl__share share = ddl__share_of(request, ddl__rank_at(request, -stage - ring->reduces));
    ddl__ranks targets =
        stage + 1 < ring->stages ? ddl__one_rank(request->rank + 1) : ddl__no_ranks();
    ddl__step step = {
        .skew = skew, .stable = 1, .src = share.start, .dst = share.start, .count = share.count};

    if (stage == 0) {
        step.kind = DDL__PUBLISH;
        if (!ring->reduces && !request->in_place)
            step.src = 0;
        ddl__builder_add(builder, step, ddl__no_ranks(), targets);
    } else if (ring->reduces && stage < request->size) {
        step.kind = DDL__REDUCE;
        step.finish = stage == request->size - 1;
        step.keep = step.stable = step.finish || ring->gathers;
        if (!ring->gathers && !request->in_place)
            step.dst = 0;
        ddl__ranks incoming_then_own = {request->rank - 1, 2};
        ddl__builder_add(builder, step, incoming_then_own, targets);
    } else {
        step.kind = DDL__TAKE;
        ddl__builder_add(builder, step, ddl__one_rank(request->rank - 1), targets);
    }
}

/* With few stages each is some waves behind the one before, so that as many segments are under way
 * at once as with more. With many, only every `hops`-th stage is: a segment makes that many hops in
 * a wave. All first hops come first in the list, then all second ones, and so on, so that next
 * consumes in the order in which this rank publishes: hop by hop, and last hops with the next
 * wave's first. */
int64_t ddl__build_ring(ddl__builder *builder)
{
    const ddl__request *request = builder->request;
    circuit ring = circuit_of(request);
    int hops = (ring.stages + DDL__RING_DEPTH - 1) / DDL__RING_DEPTH;
    int waves = ring.stages < DDL__RING_DEPTH ? DDL__RING_DEPTH / ring.stages : 1;
    for (int first = 0; first < hops; first++)
        for (int stage = first; stage < ring.stages; stage += hops)
            add_stage(builder, &ring, stage, (uint32_t)(stage / hops * waves));

    if (request->kind == DDL__ALLGATHER && !request->in_place) {
        ddl__share own = ddl__share_of(request, request->rank);
        ddl__step copy = {.kind = DDL__COPY, .dst = own.start, .count = own.count};
        ddl__builder_add(builder, copy, ddl__no_ranks(), ddl__no_ranks());
    }
    /* At most depth + 1 spans have to be under way for the ring to move; the rest is slack. */
    return DDL__RING_DEPTH + DDL__WAVES;
}

/* A reduction to the root: from the rank behind it on, each adds its own to what it passes on. Only
 * the root's buffer is written. */
static void add_reducing_link(ddl__builder *builder)
{
    const ddl__request *request = builder->request;
    bool is_root = request->rank == request->root;
    ddl__ranks incoming_then_own = {request->rank - 1, 2}, next = ddl__one_rank(request->rank + 1);
    ddl__step step = {.kind = DDL__REDUCE, .count = request->count};
    if (ddl__rank_at(request, -1) == request->root) {
        step.kind = DDL__PUBLISH;
        step.stable = 1;
        ddl__builder_add(builder, step, ddl__no_ranks(), next);
    } else {
        step.keep = step.finish = is_root;
        ddl__builder_add(builder, step, incoming_then_own, is_root ? ddl__no_ranks() : next);
    }
}

/* A broadcast: from the root on, each rank passes on what it takes. */
static void add_passing_link(ddl__builder *builder)
{
    const ddl__request *request = builder->request;
    bool is_last = ddl__rank_at(request, 1) == request->root;
    ddl__ranks next = is_last ? ddl__no_ranks() : ddl__one_rank(request->rank + 1);
    ddl__step step = {.kind = DDL__TAKE, .space = DDL__OUT, .stable = 1, .count = request->count};
    if (request->rank == request->root) {
        step.kind = DDL__PUBLISH;
        ddl__builder_add(builder, step, ddl__no_ranks(), next);
    } else {
        ddl__builder_add(builder, step, ddl__one_rank(request->rank - 1), next);
    }
}

int64_t ddl__build_chain(ddl__builder *builder)
{
    if (builder->request->kind == DDL__BROADCAST)
        add_passing_link(builder);
    else
        add_reducing_link(builder);
    return DDL__WAVES;
}
