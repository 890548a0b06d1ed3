/* SPDX-License-Identifier: Apache-2.0 */
/* Ordered: reductions whose order of additions is a tree over logical workers (order.h), so their
 * bits do not depend on the ranks.
 *
 * Every rank owns one share of the buffer; the hosts own equal shares. On every other host, one
 * rank is the share's agent: it adds the parts of its host's ranks as far as the tree allows, and
 * sends the resulting sums to the owner, in one span. The owner adds them and the parts of its own
 * host's ranks. In an all-reduce the result returns the same way: from the owner to its host and to
 * the agents, and from each agent to its host. In a reduction to a root, the owners send their
 * results to the root.
 *
 * The ranks of a host are the agents of the other hosts' shares in turn. In each round every rank
 * of the host is the agent of one share, so few spans are in flight in its memory. Spans between
 * the ranks of a host are read in the wave in which they are sent, and so in the order of sending.
 * If all ranks share memory, each rank is treated as a host, and there are no agents.
 *
 * If an all-reduce without an order would use one-shot, this plan is similar: every rank sends its
 * parts to all others, and each rank adds the whole buffer.
 *
 * Steps: 2 over wires and 2 within hosts; half of that in a reduce-scatter. Bytes: a host whose
 * ranks together have F parts sends (F + 1) N (1 - 1/h) over its wire; without the results, F N (1
 * - 1/h). */
#include <stdlib.h>

#include "plan/builder.h"
#include "plan/host_groups.h"

/* The folds of a plan. ALL adds all parts to the result; PACK stores this rank's parts in one span;
 * HOST adds the parts of this host's ranks. */
enum { ALL, PACK, HOST };

/* Waves between sending over a wire and receiving: they hide its latency. */
enum { WIRE_LAG = 3 };

/* An addition. */
typedef struct sum {
    int *number;     /* by rank: the operand that contains its parts; -1: none */
    uint32_t *ranks; /* the ranks that send the operands */
    int n;
} sum;

typedef struct context {
    ddl__builder *builder;
    const ddl__request *request;
    ddl__request hosts; /* the request, with a host for each rank if all share memory */
    ddl__host_groups groups;
    uint32_t *peers; /* the ranks of the other hosts, in the order in which their shares are sent */
    int n_peers;
    uint32_t *mates;    /* the other ranks of the host, from the next one on */
    int n_mates, local; /* local: the index of this rank on its host */
    uint32_t *targets;  /* the ranks that receive a result */
    sum all, host;
    int *parts; /* by rank: the number of its parts */
    int most_parts;
    int64_t piece;
    uint32_t lag; /* waves between sending to another host and receiving */
} context;

static void cost(ddl__cost *c)
{
    double ways = c->request->kind == DDL__REDUCE_SCATTER ? 1 : 2;
    double pieces = ddl__cost_segments(c, c->n / c->p);
    double mates = c->request->all_shared ? c->p : c->x;
    for (int way = 0; way < ways && mates > 1; way++)
        ddl__cost_add_memory(c, (mates - 1) * pieces, 2 * c->n / mates * (mates - 1));
    if (!c->request->all_shared)
        ddl__cost_add_exchange(c, ways, c->h, c->n / c->x, pieces);
}

static bool follows(const ddl__request *request)
{
    return request->order;
}

/* ------------------------------------------------------------------------------- shares, agents */

static int host_of(const context *o, uint32_t rank)
{
    return ddl__host_of(&o->hosts, (int)rank);
}

/* Return the number of ranks on a host. */
static int size_of(const context *o, int host)
{
    return (int)ddl__host_size(&o->groups, host);
}

/* Return the share of a rank: its block, or its part of its host's share. */
static ddl__share share_of(const context *o, uint32_t rank)
{
    const ddl__request *request = o->request;
    if (request->kind == DDL__REDUCE_SCATTER)
        return ddl__share_of(request, (int)rank);
    int host = host_of(o, rank);
    ddl__share whole = {0, request->count};
    ddl__share its = ddl__part_of(request, whole, o->groups.hosts, host);
    return ddl__part_of(request, its, size_of(o, host), (int)o->groups.local[rank]);
}

/* Return the agent of this rank's share on another host, which handles shares in the order that
 * list_peers describes. */
static uint32_t agent_of(const context *o, int host)
{
    int before = o->local, hosts = o->groups.hosts;
    for (int h = (host + 1) % hosts; h != o->groups.self; h = (h + 1) % hosts)
        before += size_of(o, h);
    return ddl__host_ranks(&o->groups, host)[before % size_of(o, host)];
}

/* List the ranks of the next host, then the ranks of the host after it, and so on. */
static void list_peers(context *o)
{
    int hosts = o->groups.hosts, own = o->groups.self;
    for (int h = (own + 1) % hosts; h != own; h = (h + 1) % hosts)
        for (int i = 0; i < size_of(o, h); i++)
            o->peers[o->n_peers++] = ddl__host_ranks(&o->groups, h)[i];
    o->local = (int)o->groups.local[o->request->rank];
    for (int i = 1; i < size_of(o, own); i++)
        o->mates[o->n_mates++] = ddl__host_ranks(&o->groups, own)[(o->local + i) % size_of(o, own)];
}

/* ---------------------------------------------------------------------------------------- sums */

/* Number the operands in the order of their first workers, and create the fold. The operands are
 * those of the ranks on this host and, with `agents`, of the agents on the other hosts. */
static void number_operands(context *o, sum *s, int fold, bool agents)
{
    const ddl__order *order = o->request->order;
    int own = o->groups.self, *of_host = calloc((size_t)o->groups.hosts, sizeof *of_host);
    for (int r = 0; r < o->request->size; r++)
        s->number[r] = -1;
    for (int v = 0; of_host && v < order->workers; v++) {
        uint32_t rank = (uint32_t)order->members[v];
        int host = host_of(o, rank);
        if (s->number[rank] >= 0 || (host != own && !agents))
            continue;
        if (host == own || !of_host[host]) {
            s->ranks[s->n++] = host == own ? rank : agent_of(o, host);
            of_host[host] = s->n;
        }
        s->number[rank] = of_host[host] - 1;
    }
    ddl__fold **made = &o->builder->plan->folds[fold];
    if (of_host && s->n)
        *made = ddl__sum_create(o->request, s->number, s->n);
    o->builder->failed = o->builder->failed || !of_host || (s->n && !*made);
    free(of_host);
}

static int most_parts(const ddl__fold *fold, int most)
{
    for (int i = 0; fold && i < fold->spans; i++) {
        int parts = fold->first[i + 1] - fold->first[i];
        most = parts > most ? parts : most;
    }
    return most;
}

/* Count the parts of each rank, and find the largest number of parts of a rank or a host. */
static void count_parts(context *o)
{
    const ddl__order *order = o->request->order;
    ddl__fold *ranks = ddl__order_fold(order, o->request->size);
    int *host = calloc((size_t)o->request->size, sizeof *host);
    for (int r = 0; host && r < o->request->size; r++)
        host[r] = host_of(o, (uint32_t)r);
    ddl__fold *hosts = host ? ddl__sum_create(o->request, host, o->groups.hosts) : NULL;
    o->most_parts = most_parts(hosts, most_parts(ranks, 1));
    for (int r = 0; ranks && r < o->request->size; r++)
        o->parts[r] = ranks->first[r + 1] - ranks->first[r];
    o->builder->failed = o->builder->failed || !ranks || !hosts;
    free(ranks);
    free(hosts);
    free(host);
}

static void make_folds(context *o)
{
    int own = o->parts[o->request->rank];
    ddl__fold **pack = &o->builder->plan->folds[PACK];
    number_operands(o, &o->all, ALL, true);
    if (o->n_mates)
        number_operands(o, &o->host, HOST, false);
    if (own > 1 && !(*pack = ddl__order_pack(own)))
        o->builder->failed = true;
}

/* Return the number of elements in a piece. Its longest span contains all parts of a rank or of a
 * host. */
static int64_t choose_piece(const context *o, int64_t longest, int64_t spans)
{
    ddl__request cut = *o->request;
    int64_t values = (int64_t)o->most_parts * cut.wide;
    int64_t bytes = ddl__cost_segment(&ddl__ordered, &cut) / values;
    cut.segment_bytes = bytes > 0 ? bytes : 1;
    return ddl__choose_segment(&cut, longest, spans * values);
}

/* --------------------------------------------------------------------------------------- steps */

static ddl__step step_over(const context *o, ddl__share share, uint32_t skew)
{
    return (ddl__step){.skew = skew,
                       .src = share.start,
                       .dst = share.start,
                       .count = share.count,
                       .piece = o->piece,
                       .stride = o->piece};
}

/* Send this rank's parts of a share. A single part is sent without a copy if possible. */
static void send_parts(const context *o, ddl__share share, uint32_t skew, ddl__ranks targets)
{
    int64_t wide = o->request->wide;
    int parts = o->parts[o->request->rank];
    ddl__step publish = {.kind = DDL__PUBLISH,
                         .stable = 1,
                         .skew = skew,
                         .src = share.start * wide,
                         .count = share.count * wide,
                         .piece = o->piece * wide,
                         .stride = o->piece * wide};
    ddl__step pack = step_over(o, share, skew);
    pack.kind = DDL__FOLD;
    pack.fold = PACK;
    if (parts == 1)
        ddl__builder_add(o->builder, publish, ddl__no_ranks(), targets);
    for (int i = 0; i < targets.n && parts > 1; i++)
        ddl__builder_add(o->builder, pack, ddl__one_rank(o->request->rank),
                         ddl__one_rank(targets.first + i));
}

static void add_parts(const context *o, const sum *s, uint8_t fold, ddl__step step,
                      ddl__ranks targets)
{
    ddl__builder_add_sum(o->builder, step, fold, s->number,
                         ddl__listed_ranks(s->ranks, (uint32_t)s->n), targets);
}

/* Send each peer on another host the sum of this host's parts of its share. */
static void send_to_peers(const context *o)
{
    int all = o->n_mates + 1;
    for (int i = 0; i < o->n_peers && !o->n_mates; i++)
        send_parts(o, share_of(o, o->peers[i]), 0, ddl__one_rank(o->peers[i]));
    for (int at = 0; at < o->n_peers + all && o->host.n; at += all) {
        for (int i = 1; i < all; i++) {
            int other = at + (o->local + i) % all;
            if (other < o->n_peers)
                send_parts(o, share_of(o, o->peers[other]), 0, ddl__one_rank(o->mates[i - 1]));
        }
        /* the share of the previous round: the other ranks of this host have sent their parts of
         * it */
        int own = at - all + o->local;
        if (own >= 0 && own < o->n_peers && at)
            add_parts(o, &o->host, HOST, step_over(o, share_of(o, o->peers[own]), 0),
                      ddl__one_rank(o->peers[own]));
    }
}

/* List the ranks to which this rank sends its result. */
static ddl__ranks list_targets(context *o)
{
    const ddl__request *request = o->request;
    uint32_t n = 0;
    if (request->kind == DDL__REDUCE_SCATTER)
        return ddl__no_ranks();
    if (request->kind == DDL__REDUCE_TO_ROOT)
        return request->rank == request->root ? ddl__no_ranks() : ddl__one_rank(request->root);
    for (int i = 0; i < o->n_mates; i++)
        o->targets[n++] = o->mates[i];
    for (int i = 1, hosts = o->groups.hosts; i < hosts; i++)
        o->targets[n++] = agent_of(o, (o->groups.self + i) % hosts);
    return ddl__listed_ranks(o->targets, n);
}

/* Add up this rank's share. */
static void add_own_share(context *o)
{
    const ddl__request *request = o->request;
    ddl__step step = step_over(o, share_of(o, (uint32_t)request->rank), o->lag);
    for (int i = 0; i < o->n_mates; i++)
        send_parts(o, share_of(o, o->mates[i]), o->lag, ddl__one_rank(o->mates[i]));
    step.finish = 1;
    step.keep = step.stable =
        request->kind != DDL__REDUCE_TO_ROOT || request->rank == request->root;
    if (request->kind == DDL__REDUCE_SCATTER && !request->in_place)
        step.dst = 0;
    add_parts(o, &o->all, ALL, step, list_targets(o));
}

static void take_share(const context *o, uint32_t owner, uint32_t from, uint32_t skew,
                       ddl__ranks targets)
{
    ddl__step take = step_over(o, share_of(o, owner), skew);
    take.kind = DDL__TAKE;
    take.stable = 1;
    ddl__builder_add(o->builder, take, ddl__one_rank(from), targets);
}

/* Receive the results: from the owners on this host, as an agent, and from the other agents. */
static void take_results(const context *o)
{
    int all = o->n_mates + 1;
    ddl__ranks mates =
        o->n_mates ? ddl__listed_ranks(o->mates, (uint32_t)o->n_mates) : ddl__no_ranks();
    for (int i = 0; i < o->n_mates; i++)
        take_share(o, o->mates[i], o->mates[i], o->lag, ddl__no_ranks());
    for (int at = 0; at < o->n_peers + all; at += all) {
        int own = at + o->local;
        if (own < o->n_peers)
            take_share(o, o->peers[own], o->peers[own], 2 * o->lag, mates);
        /* the results that the other ranks of the host received one round before */
        for (int i = 1; i < all && at; i++) {
            int other = at - all + (o->local + i) % all;
            if (other < o->n_peers)
                take_share(o, o->peers[other], o->mates[i - 1], 2 * o->lag, ddl__no_ranks());
        }
    }
}

static void take_as_root(const context *o)
{
    for (int i = 0; i < o->n_mates; i++)
        take_share(o, o->mates[i], o->mates[i], o->lag, ddl__no_ranks());
    for (int i = 0; i < o->n_peers; i++)
        take_share(o, o->peers[i], o->peers[i], 2 * o->lag, ddl__no_ranks());
}

static void add_shares(context *o)
{
    const ddl__request *request = o->request;
    int64_t longest = 0;
    for (int r = 0; r < request->size; r++) {
        ddl__share share = share_of(o, (uint32_t)r);
        longest = share.count > longest ? share.count : longest;
    }
    o->piece = choose_piece(o, longest, (int64_t)DDL__WAVES * request->size);
    send_to_peers(o);
    add_own_share(o);
    if (request->kind == DDL__ALLREDUCE)
        take_results(o);
    if (request->kind == DDL__REDUCE_TO_ROOT && request->rank == request->root)
        take_as_root(o);
}

static void add_one_shot(context *o)
{
    const ddl__request *request = o->request;
    ddl__share whole = {0, request->count};
    int spans = o->most_parts > 1 ? request->size : 1; /* several parts are packed for each peer */
    o->piece = choose_piece(o, request->count, (int64_t)DDL__WAVES * spans);
    ddl__step step = step_over(o, whole, 0);
    step.finish = step.keep = 1;
    send_parts(o, whole, 0, ddl__other_ranks(request));
    add_parts(o, &o->all, ALL, step, ddl__no_ranks());
}

/* Return true if an unordered all-reduce with the bytes of all parts would use one-shot. Return
 * false if each rank passes one part in rank order, because one-shot is then among the
 * candidates. */
static bool is_short(const context *o)
{
    ddl__request plain = *o->request;
    if (plain.kind != DDL__ALLREDUCE || ddl__ranks_are_in_order(&plain))
        return false;
    plain.order = NULL;
    plain.by = DDL__ALGORITHM_NONE;
    plain.count *= o->most_parts * plain.wide;
    return ddl__algorithm_choose(&plain)->number == DDL__ALGORITHM_ONE_SHOT;
}

static bool allocate(context *o)
{
    size_t size = (size_t)o->request->size;
    o->parts = calloc(3 * size, sizeof *o->parts);
    o->peers = calloc(5 * size, sizeof *o->peers);
    if (!o->parts || !o->peers || !ddl__host_groups_create(&o->groups, &o->hosts))
        return false;
    o->all.number = o->parts + size;
    o->host.number = o->all.number + size;
    o->mates = o->peers + size;
    o->targets = o->mates + size;
    o->all.ranks = o->targets + size;
    o->host.ranks = o->all.ranks + size;
    return true;
}

static int64_t build(ddl__builder *builder)
{
    const ddl__request *request = builder->request;
    const ddl__topology *t = request->topology;
    context o = {.builder = builder, .request = request, .hosts = *request};
    bool is_flat = request->all_shared, one_shot;
    o.lag = is_flat || (t && t->declared) ? 1 : WIRE_LAG;
    o.hosts.topology = is_flat ? NULL : t;
    builder->failed = !allocate(&o);
    if (!builder->failed)
        count_parts(&o);
    one_shot = !builder->failed && is_short(&o);
    if (one_shot) {
        ddl__host_groups_destroy(&o.groups);
        o.hosts.topology = NULL;
        builder->failed = !ddl__host_groups_create(&o.groups, &o.hosts);
    }
    if (!builder->failed) {
        list_peers(&o);
        make_folds(&o);
    }
    if (!builder->failed)
        one_shot ? add_one_shot(&o) : add_shares(&o);
    builder->plan->segment = o.piece;
    ddl__host_groups_destroy(&o.groups);
    free(o.parts);
    free(o.peers);
    return 1;
}

const ddl__algorithm_descriptor ddl__ordered = {
    .name = "ordered",
    .kinds = DDL__KIND(ALLREDUCE) | DDL__KIND(REDUCE_SCATTER) | DDL__KIND(REDUCE_TO_ROOT),
    .follows = follows,
    .fits = follows,
    .cost = cost,
    .build = build};
