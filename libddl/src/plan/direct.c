/* Exchange between ranks that read each other's memory: every rank hands each other one its part,
 * and reduces its own share over all of them in one pass. Everything moves once. */
#include "plan/builder.h"

static void take_from_others(ddl__builder *builder, uint32_t skew)
{
    const ddl__request *request = builder->request;
    for (int i = 1; i < request->size; i++) {
        int peer = ddl__rank_at(request, i);
        ddl__share share = ddl__share_of(request, peer);
        ddl__step take = {
            .kind = DDL__TAKE, .skew = skew, .dst = share.start, .count = share.count};
        ddl__builder_add(builder, take, ddl__one_rank(peer), ddl__no_ranks());
    }
}

/* Hand out the others' shares; one wave later reduce the own one, and give it to `targets`. */
static void reduce_own_share(ddl__builder *builder, bool keep, int64_t dst, ddl__ranks targets)
{
    const ddl__request *request = builder->request;
    for (int i = 1; i < request->size; i++) {
        int peer = ddl__rank_at(request, i);
        ddl__share share = ddl__share_of(request, peer);
        ddl__step publish = {
            .kind = DDL__PUBLISH, .stable = 1, .src = share.start, .count = share.count};
        ddl__builder_add(builder, publish, ddl__no_ranks(), ddl__one_rank(peer));
    }
    ddl__share own = ddl__share_of(request, request->rank);
    ddl__step reduce = {.kind = DDL__REDUCE,
                        .keep = keep,
                        .finish = 1,
                        .stable = keep,
                        .skew = 1,
                        .src = own.start,
                        .dst = dst,
                        .count = own.count};
    ddl__builder_add(builder, reduce, ddl__all_ranks(request), targets);
}

/* In place, a share that was handed out is overwritten by its result: made from it, so received. */
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

/* As an all-reduce, but only the root gets the results, and only its buffer is written. */
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
        ddl__builder_add(builder, take, ddl__one_rank(request->root), ddl__no_ranks());
    return DDL__WAVES;
}

int64_t ddl__build_direct(ddl__builder *builder)
{
    switch (builder->request->kind) {
    case DDL__ALLREDUCE: return build_allreduce(builder);
    case DDL__REDUCE_SCATTER: return build_reduce_scatter(builder);
    case DDL__ALLGATHER: return build_allgather(builder);
    case DDL__BROADCAST: return build_broadcast(builder);
    case DDL__REDUCE_TO_ROOT: return build_reduce_to_root(builder);
    case DDL__BARRIER: /* needs no buffers: see dissemination.c */
    case DDL__GATHER:  /* see pairwise.c */
    case DDL__SCATTER:
    case DDL__ALLTOALL:
    case DDL__SEND: /* are not planned */
    case DDL__RECV: break;
    }
    return 1;
}
