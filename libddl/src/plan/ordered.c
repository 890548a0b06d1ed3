/* SPDX-License-Identifier: Apache-2.0 */
/* Ordered: the all-reduce whose order of additions is a tree over logical workers (order.h), so its
 * bits do not depend on the ranks.
 *
 * The plan has the shape of `direct`: every rank owns one share. It sends each other rank its parts
 * of the share that the other rank owns, packed into one span, folds its own share over the parts
 * of all ranks, and sends the result to all. If an all-reduce of the same size would run in one
 * shot, this one does, too: every rank sends its parts to all others, and each folds the whole
 * buffer.
 *
 * Over wires an all-reduce's own plan is used if it adds in the same order. These are trees,
 * halving and hierarchical, if the number of ranks is a power of two, each rank passes one part in
 * the order of the ranks, and the ranks are divided equally between hosts. Hierarchical then folds
 * each level.
 *
 * Steps: 2; 1 in one shot. Messages: p - 1 from each rank in each step. Bytes: (F + 1) N (1 - 1/p)
 * from a rank with F parts, of which results are N (1 - 1/p); F N (p - 1) in one shot. */
#include <stdlib.h>

#include "plan/builder.h"

enum { ALL, PACK }; /* the folds: of all parts to the result; of this rank's parts to one span */

typedef struct context {
    ddl__builder *builder;
    const ddl__fold *all;
    /* the ranks with parts, in the order of their first workers: the ranks of the spans of `all` */
    uint32_t *bringers;
    int n_bringers;
    int own_parts, most_parts;
} context;

static void cost(ddl__cost *c)
{
    for (int way = 0; way < 2; way++)
        if (c->request->all_shared)
            ddl__cost_add_memory(c, c->p - 1, 2 * c->n / c->p * (c->p - 1));
        else
            ddl__cost_add_direct(c, c->n / c->p, false);
}

/* Number the ranks that pass parts. Return false if out of memory. */
static bool find_bringers(context *o)
{
    const ddl__request *request = o->builder->request;
    const ddl__order *order = request->order;
    int *number = calloc((size_t)request->size, sizeof *number); /* index + 1; 0: no parts */
    int *members = malloc((size_t)order->workers * sizeof *members);
    o->bringers = malloc((size_t)request->size * sizeof *o->bringers);
    bool whole = number && members && o->bringers;
    for (int v = 0; whole && v < order->workers; v++) {
        int owner = order->members[v];
        if (!number[owner]) {
            o->bringers[o->n_bringers] = (uint32_t)owner;
            number[owner] = ++o->n_bringers;
        }
        members[v] = number[owner] - 1;
    }
    if (whole)
        o->all = o->builder->plan->folds[ALL] =
            ddl__order_fold(&(ddl__order){order->workers, members}, o->n_bringers);
    free(members);
    free(number);
    return o->all;
}

static bool make_folds(context *o)
{
    if (!find_bringers(o))
        return false;
    for (int i = 0; i < o->n_bringers; i++) {
        int parts = o->all->first[i + 1] - o->all->first[i];
        o->most_parts = parts > o->most_parts ? parts : o->most_parts;
        if ((int)o->bringers[i] == o->builder->request->rank)
            o->own_parts = parts;
    }
    ddl__fold **pack = &o->builder->plan->folds[PACK];
    return o->own_parts < 2 || (*pack = ddl__order_pack(o->own_parts));
}

/* Return the elements of a piece. Its longest span holds all parts of a rank. */
static int64_t choose_piece(const context *o, int64_t longest, int64_t spans)
{
    ddl__request cut = *o->builder->request;
    int64_t values = (int64_t)o->most_parts * cut.wide;
    int64_t bytes = ddl__cost_segment(&ddl__ordered, &cut) / values;
    cut.segment_bytes = bytes > 0 ? bytes : 1;
    return ddl__choose_segment(&cut, longest, spans * values);
}

/* Send this rank's parts of a share. A single part is sent without a copy if possible. */
static void send_parts(const context *o, ddl__share share, int64_t piece, ddl__ranks targets)
{
    int64_t wide = o->builder->request->wide;
    ddl__step publish = {.kind = DDL__PUBLISH,
                         .stable = 1,
                         .src = share.start * wide,
                         .count = share.count * wide,
                         .piece = piece * wide,
                         .stride = piece * wide};
    ddl__step pack = {.kind = DDL__FOLD,
                      .fold = PACK,
                      .src = share.start,
                      .count = share.count,
                      .piece = piece,
                      .stride = piece};
    if (o->own_parts == 1)
        ddl__builder_add(o->builder, publish, ddl__no_ranks(), targets);
    for (int i = 0; i < targets.n && o->own_parts > 1; i++)
        ddl__builder_add(o->builder, pack, ddl__one_rank(o->builder->request->rank),
                         ddl__one_rank(targets.first + i));
}

/* Fold a share over the parts of all ranks. Two operands that are not narrowed, one of them this
 * rank's, are an ordinary reduction, which may run interleaved with other steps. */
static void fold_share(const context *o, ddl__share share, int64_t piece, uint32_t skew,
                       ddl__ranks targets)
{
    bool plain = o->own_parts && o->all->operands <= 2 && o->builder->request->wide == 1;
    ddl__step fold = {.kind = plain ? DDL__REDUCE : DDL__FOLD,
                      .fold = ALL,
                      .keep = 1,
                      .finish = 1,
                      .stable = 1,
                      .skew = skew,
                      .src = share.start,
                      .dst = share.start,
                      .count = share.count,
                      .piece = piece,
                      .stride = piece};
    ddl__builder_add(o->builder, fold, ddl__listed_ranks(o->bringers, (uint32_t)o->n_bringers),
                     targets);
}

static void add_one_shot(const context *o)
{
    const ddl__request *request = o->builder->request;
    ddl__share whole = {0, request->count};
    int spans = o->most_parts > 1 ? request->size : 1; /* several parts are packed for each peer */
    int64_t piece = choose_piece(o, request->count, (int64_t)DDL__WAVES * spans);
    send_parts(o, whole, piece, ddl__other_ranks(request));
    fold_share(o, whole, piece, 0, ddl__no_ranks());
    o->builder->plan->segment = piece;
}

static void add_direct(const context *o)
{
    const ddl__request *request = o->builder->request;
    ddl__share own = ddl__share_of(request, request->rank);
    ddl__share longest = ddl__share_of(request, request->size - 1);
    int64_t piece = choose_piece(o, longest.count, (int64_t)DDL__WAVES * request->size);
    for (int i = 1; i < request->size; i++) {
        int peer = ddl__rank_at(request, i);
        send_parts(o, ddl__share_of(request, peer), piece, ddl__one_rank(peer));
    }
    fold_share(o, own, piece, 1, ddl__other_ranks(request));
    for (int i = 1; i < request->size; i++) {
        int peer = ddl__rank_at(request, i);
        ddl__share share = ddl__share_of(request, peer);
        ddl__step take = {.kind = DDL__TAKE,
                          .skew = 2,
                          .dst = share.start,
                          .count = share.count,
                          .piece = piece,
                          .stride = piece};
        ddl__builder_add_peer(o->builder, take, peer);
    }
    o->builder->plan->segment = piece;
}

/* Return true if an all-reduce of the same number of bytes would run in one shot. */
static bool is_short(const context *o)
{
    ddl__request plain = *o->builder->request;
    plain.kind = DDL__ALLREDUCE;
    plain.order = NULL;
    plain.count *= o->most_parts * plain.wide;
    return ddl__algorithm_choose(&plain)->number == DDL__ALGORITHM_ONE_SHOT;
}

/* Return true if the number of hosts is a power of two, and each host has the same number of ranks,
 * a power of two, with consecutive numbers. The groups of all levels are then nodes of the tree
 * over the ranks. */
static bool has_equal_hosts(const ddl__request *request)
{
    const ddl__topology *t = request->topology;
    if (request->size & (request->size - 1))
        return false;
    if (!t)
        return true;
    int hosts = t->groups[DDL__HOSTS];
    bool equal = !(hosts & (hosts - 1)) && t->groups[DDL__RACKS] == 1 && !t->node;
    for (int r = 0; equal && r < request->size; r++)
        equal = ddl__topology_group(t, DDL__HOSTS, r) == r / (request->size / hosts);
    return equal;
}

/* Return true if each rank passes one part, all parts are equally long, and they are in the order
 * of the ranks. */
static bool has_equal_parts(const ddl__request *request)
{
    const ddl__order *order = request->order;
    int block = order->workers / request->size;
    for (int r = 0; r < request->size; r++) {
        ddl__order_part part;
        if (ddl__order_parts(order, r, &part, 1) != 1 || part.first != r * block ||
            part.size != block)
            return false;
    }
    return true;
}

const ddl__request *ddl__ordered_resolve(const ddl__request *request, ddl__request *plain)
{
    if (!request->order || request->size == 1 || request->all_shared || request->wide != 1 ||
        !has_equal_hosts(request) || !has_equal_parts(request))
        return request;
    *plain = *request;
    plain->kind = DDL__ALLREDUCE;
    ddl__algorithm chosen = ddl__algorithm_choose(plain)->number;
    bool hosts_of_one = !ddl__request_has_hosts(request);
    if (chosen == DDL__ALGORITHM_ONE_SHOT || (chosen == DDL__ALGORITHM_RING && hosts_of_one))
        return request;
    if (chosen == DDL__ALGORITHM_RING || (chosen == DDL__ALGORITHM_TREE && !hosts_of_one))
        plain->by = DDL__ALGORITHM_HIERARCHICAL;
    return plain;
}

static int64_t build(ddl__builder *builder)
{
    context o = {.builder = builder};
    if (!make_folds(&o))
        builder->failed = true;
    else if (is_short(&o))
        add_one_shot(&o);
    else
        add_direct(&o);
    free(o.bringers);
    return 1;
}

const ddl__algorithm_descriptor ddl__ordered = {
    .name = "ordered", .kinds = DDL__KIND(ORDERED_ALLREDUCE), .cost = cost, .build = build};
