/* SPDX-License-Identifier: Apache-2.0 */
/* Hosts: all-gather and reduce-scatter over hosts of several ranks. Their spans between hosts may
 * be packed. One after the other, the two then also make an all-reduce (packed.c).
 *
 * Each block is sent to every other host once, and distributed within a host in shared memory.
 * Every host has an agent for each rank of the other hosts. In an all-gather the agent receives the
 * rank's block and forwards it to its host. In a reduce-scatter it reduces its host's operands for
 * the rank and sends the sum there. The ranks of a host are distributed evenly over the agents on
 * another host.
 *
 * In round d every host sends to the host d after it and receives from the host d before it, modulo
 * the number of hosts. So every wire is busy both ways, and no host receives from two at once. A
 * round has as many waves as the longest block has segments, so rounds follow each other without a
 * gap.
 *
 * A block's operands are added over its own host's ranks first. The sums of the other hosts follow
 * in the order of the rounds.
 *
 * Steps: a hop in memory, h - 1 rounds that do not wait for each other, and a hop in memory.
 * Messages: h - 1 from each rank over wires. Bytes: N (1 - 1/h) each way on each host's wire. */
#include "plan/builder.h"
#include "plan/host_groups.h"

enum {
    LAG = 3, /* waves between sending over a wire and receiving */
    /* maximum number of blocks of one host that have the same agent, so that their spans fit its
     * links; and the maximum if both phases use the links */
    BLOCKS_MAX = 7,
    BLOCKS_MAX_PACKED = 3,
    WAVES_MAX = 1 << 30 /* waves of all rounds */
};

typedef struct rounds {
    ddl__builder *builder;
    ddl__host_groups groups;
    int64_t segment, waves; /* elements of a segment; number of segments of the longest block */
    bool packs;             /* spans between hosts are packed */
    bool both;              /* an all-reduce: blocks are parts of whole buffers */
} rounds;

static uint32_t ranks_on(const rounds *h, int host)
{
    return ddl__host_size(&h->groups, host);
}

/* Return the host `distance` after this one. */
static int host_at(const rounds *h, int distance)
{
    return (h->groups.self + distance + h->groups.hosts) % h->groups.hosts;
}

/* Return the agent on `host` for rank `i` of host `its`. */
static uint32_t agent_on(const rounds *h, int host, uint32_t i, int its)
{
    return h->groups
        .ranks[h->groups.first[host] + h->groups.local[i] * ranks_on(h, host) / ranks_on(h, its)];
}

static ddl__ranks own_host(const rounds *h)
{
    return ddl__listed_ranks(ddl__host_ranks(&h->groups, h->groups.self),
                             ranks_on(h, h->groups.self));
}

static ddl__ranks rest_of_host(const rounds *h)
{
    ddl__ranks all = own_host(h);
    all.first = (int)h->groups.local[h->builder->request->rank] + 1;
    all.n--;
    return all;
}

/* Return a step over the block of rank `i` in a buffer that contains all blocks. */
static ddl__step over_block(const rounds *h, uint8_t kind, uint32_t i, int64_t skew)
{
    ddl__share block = ddl__share_of(h->builder->request, (int)i);
    return (ddl__step){.kind = kind,
                       .stable = 1,
                       .skew = (uint32_t)skew,
                       .src = block.start,
                       .dst = block.start,
                       .count = block.count,
                       .piece = h->segment,
                       .stride = h->segment};
}

/* Return true if a rank's own block is at its position in a buffer of all blocks. */
static bool is_in_place(const rounds *h)
{
    return h->both || h->builder->request->in_place;
}

/* Return a step over this rank's own block, which an all-gather sends. If spans are packed, the
 * block was rounded, and the recv buffer has the result. */
static ddl__step over_own_block(const rounds *h, uint8_t kind, bool packs, int64_t skew)
{
    ddl__step step = over_block(h, kind, (uint32_t)h->builder->request->rank, skew);
    step.space = packs ? DDL__OUT : DDL__IN;
    if (!packs && !is_in_place(h))
        step.src = 0;
    return step;
}

/* All-gather: receive and forward the blocks of the host `distance` before this one. */
static void gather_from(const rounds *h, int distance, int64_t skew)
{
    ddl__builder *builder = h->builder;
    uint32_t rank = (uint32_t)builder->request->rank;
    int64_t sent = skew + (distance - 1) * h->waves;
    int to = host_at(h, distance), from = host_at(h, -distance);

    uint32_t agent = agent_on(h, to, rank, h->groups.self);
    ddl__builder_add(builder,
                     over_own_block(h, h->packs ? DDL__PACK : DDL__PUBLISH, h->packs, sent),
                     ddl__no_ranks(), ddl__one_rank(agent));
    for (uint32_t i = h->groups.first[from]; i < h->groups.first[from + 1]; i++)
        if (agent_on(h, h->groups.self, h->groups.ranks[i], from) == rank)
            ddl__builder_add(
                builder,
                over_block(h, h->packs ? DDL__UNPACK : DDL__TAKE, h->groups.ranks[i], sent + LAG),
                ddl__one_rank(h->groups.ranks[i]), rest_of_host(h));
    for (uint32_t i = h->groups.first[from]; i < h->groups.first[from + 1]; i++) {
        agent = agent_on(h, h->groups.self, h->groups.ranks[i], from);
        if (agent != rank)
            ddl__builder_add_peer(
                builder, over_block(h, DDL__TAKE, h->groups.ranks[i], sent + LAG + 1), agent);
    }
}

/* Add the steps of an all-gather, which begins after `skew` waves. */
static void build_allgather(const rounds *h, int64_t skew)
{
    ddl__builder *builder = h->builder;
    ddl__ranks others = rest_of_host(h);
    ddl__step copy = over_own_block(h, DDL__COPY, false, skew);
    copy.rounds = h->packs;
    if (h->packs && !h->both) /* an all-reduce has rounded the block already */
        ddl__builder_add(builder, copy, ddl__no_ranks(), ddl__no_ranks());
    if (others.n)
        ddl__builder_add(builder, over_own_block(h, DDL__PUBLISH, h->packs, skew), ddl__no_ranks(),
                         others);
    if (!h->packs && !is_in_place(h))
        ddl__builder_add(builder, copy, ddl__no_ranks(), ddl__no_ranks());
    for (int i = 0; i < others.n; i++) {
        uint32_t peer = others.list[(others.first + i) % others.of];
        ddl__builder_add_peer(builder, over_block(h, DDL__TAKE, peer, skew + 1), peer);
    }
    for (int distance = 1; distance < h->groups.hosts; distance++)
        gather_from(h, distance, skew);
}

/* Reduce-scatter: send the sums of this host's operands to the host `distance` after it. No sum is
 * kept on this host. */
static void reduce_for(const rounds *h, int distance, int64_t skew)
{
    ddl__builder *builder = h->builder;
    uint32_t rank = (uint32_t)builder->request->rank;
    int to = host_at(h, distance);
    for (uint32_t i = h->groups.first[to]; i < h->groups.first[to + 1]; i++) {
        uint32_t agent = agent_on(h, h->groups.self, h->groups.ranks[i], to);
        if (agent != rank)
            ddl__builder_add_peer(builder, over_block(h, DDL__PUBLISH, h->groups.ranks[i], skew),
                                  agent);
    }
    for (uint32_t i = h->groups.first[to]; i < h->groups.first[to + 1]; i++) {
        if (agent_on(h, h->groups.self, h->groups.ranks[i], to) != rank)
            continue;
        bool single = ranks_on(h, h->groups.self) == 1;
        ddl__step_kind kind = h->packs ? single ? DDL__PACK : DDL__REDUCE_PACK
                              : single ? DDL__PUBLISH
                                       : DDL__REDUCE;
        ddl__step step = over_block(h, (uint8_t)kind, h->groups.ranks[i], skew + 1);
        step.stable = single;
        ddl__builder_add(builder, step, single ? ddl__no_ranks() : own_host(h),
                         ddl__one_rank(h->groups.ranks[i]));
    }
}

/* Reduce-scatter: for this rank's block, add the sum from the host `distance` before this one.
 * Distance 0 means its own host. */
static void add_up(const rounds *h, int distance, int64_t skew)
{
    ddl__builder *builder = h->builder;
    uint32_t rank = (uint32_t)builder->request->rank;
    ddl__step reduce = over_block(h, DDL__REDUCE, rank, skew);
    reduce.keep = 1;
    reduce.finish = distance + 1 == h->groups.hosts;
    if (!is_in_place(h))
        reduce.dst = 0;
    if (distance == 0) {
        ddl__builder_add(builder, reduce, own_host(h), ddl__no_ranks());
        return;
    }
    int from = host_at(h, -distance);
    uint32_t operands[] = {rank, agent_on(h, from, rank, h->groups.self)};
    /* If this rank is the only one on its host, its block was not reduced before. */
    bool begins = distance == 1 && ranks_on(h, h->groups.self) == 1;
    if (!begins) {
        reduce.space = DDL__OUT;
        reduce.src = reduce.dst;
    }
    if (h->packs) {
        reduce.kind = DDL__ADD_UNPACKED;
        reduce.rounds = reduce.finish && h->both;
        ddl__builder_add(builder, reduce, ddl__one_rank(operands[1]), ddl__no_ranks());
        return;
    }
    ddl__builder_add(builder, reduce, ddl__listed_ranks(operands, 2), ddl__no_ranks());
}

/* Add the steps of a reduce-scatter. Return the number of waves after which every segment of the
 * result is complete. */
static int64_t build_reduce_scatter(const rounds *h)
{
    ddl__ranks others = rest_of_host(h);
    for (int i = 0; i < others.n; i++) {
        uint32_t peer = others.list[(others.first + i) % others.of];
        ddl__builder_add_peer(h->builder, over_block(h, DDL__PUBLISH, peer, 0), peer);
    }
    if (others.n)
        add_up(h, 0, 1);
    for (int distance = 1; distance < h->groups.hosts; distance++) {
        int64_t skew = (distance - 1) * h->waves;
        reduce_for(h, distance, skew);
        add_up(h, distance, skew + 1 + LAG);
    }
    return (h->groups.hosts - 2) * h->waves + LAG + 2;
}

/* Return the largest number of spans that one rank publishes in a wave. */
static int64_t spans_in_wave(const ddl__request *request, uint32_t most, uint32_t for_agent)
{
    int64_t gathers = 1 + (int64_t)for_agent, scatters = 2 * (int64_t)most;
    return request->kind == DDL__ALLGATHER        ? gathers
           : request->kind == DDL__REDUCE_SCATTER ? scatters
                                                  : gathers + scatters;
}

/* Find the number of ranks of the largest host, and the largest number of ranks of one host that
 * have the same agent on another host of several ranks. */
static void largest(const rounds *h, uint32_t *most, uint32_t *for_agent)
{
    uint32_t least = UINT32_MAX;
    *most = 0;
    for (int i = 0; i < h->groups.hosts; i++) {
        uint32_t n = ranks_on(h, i);
        *most = n > *most ? n : *most;
        least = n > 1 && n < least ? n : least;
    }
    *for_agent = (*most + least - 1) / least;
}

/* Cut blocks into segments. Return false if the spans do not fit the links, or the rounds do not
 * fit the waves. */
static bool cut_blocks(rounds *h)
{
    const ddl__request *request = h->builder->request;
    uint32_t most, for_agent;
    largest(h, &most, &for_agent);
    int64_t spans = DDL__WAVES * spans_in_wave(request, most, for_agent);
    if (request->topology->declared) /* spans between hosts may also use the window */
        spans *= 2;
    int64_t longest = 0;
    for (int i = 0; i < request->size; i++) {
        int64_t count = ddl__share_of(request, i).count;
        longest = count > longest ? count : longest;
    }
    h->segment = ddl__choose_segment(request, longest, spans);
    h->waves = ddl__quotient(longest, h->segment);
    bool both = request->kind == DDL__ALLREDUCE;
    return for_agent <= (both ? BLOCKS_MAX_PACKED : BLOCKS_MAX) &&
           h->waves < WAVES_MAX / 2 / h->groups.hosts;
}

bool ddl__hosts_fit(const ddl__request *request)
{
    ddl__builder builder = {.request = request};
    rounds h = {.builder = &builder};
    /* If memory is short here, building the plan fails, too. */
    bool fitting = !ddl__host_groups_create(&h.groups, request) || cut_blocks(&h);
    ddl__host_groups_destroy(&h.groups);
    return fitting;
}

static bool fits(const ddl__request *request)
{
    return ddl__request_has_hosts(request) && ddl__hosts_fit(request);
}

static void cost(ddl__cost *c)
{
    ddl__hosts_cost(c, 1);
}

void ddl__hosts_cost(ddl__cost *c, double sent)
{
    double block = c->n / c->p, segments = ddl__cost_segments(c, block), others = c->h - 1;
    ddl__cost_add_memory(c, c->x * segments, c->n);
    ddl__cost_add_chain(c, 1, others * segments, others * block * sent,
                        others * block * sent * c->x);
    ddl__cost_add_work(c, others * segments, others * block * sent);
    ddl__cost_add_memory(c, c->x * segments, c->n);
}

int64_t ddl__hosts_build(ddl__builder *builder)
{
    ddl__kind kind = builder->request->kind;
    rounds h = {
        .builder = builder, .packs = builder->request->wire, .both = kind == DDL__ALLREDUCE};
    if (ddl__host_groups_create(&h.groups, builder->request)) {
        cut_blocks(&h);
        builder->plan->segment = h.segment;
        int64_t done = kind == DDL__ALLGATHER ? 0 : build_reduce_scatter(&h);
        if (kind != DDL__REDUCE_SCATTER)
            build_allgather(&h, done);
    } else {
        builder->failed = true;
    }
    ddl__host_groups_destroy(&h.groups);
    return 1;
}

const ddl__algorithm_descriptor ddl__hosts = {.name = "hosts",
                                              .kinds = DDL__BLOCK_KINDS,
                                              .fits = fits,
                                              .cost = cost,
                                              .build = ddl__hosts_build};
