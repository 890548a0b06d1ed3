/* All-gather and reduce-scatter of blocks over hosts of several ranks: each block crosses to every
 * other host once, and within a host travels in shared memory.
 *
 * Every host has an agent for each rank of the others: it takes the rank's block and passes it on
 * to its host, or reduces what its host has for that rank and sends it. Ranks of a host are spread
 * over the agents of another in proportion.
 *
 * Hosts take turns: in round d every host sends to the one d further round and receives from the
 * one d before it, so that every wire is busy both ways and no host is sent to by two. A round
 * lasts as many waves as the longest block has segments, so the rounds follow each other without a
 * gap. A block is added up from its own host's contributions on, then in the order of the rounds.
 */
#include "plan/host_groups.h"

enum {
    LAG = 3,            /* waves between sending over a wire and taking */
    BLOCKS_MAX = 7,     /* of another host for one agent: their spans have to fit its links */
    WAVES_MAX = 1 << 30 /* of all rounds */
};

typedef struct rounds {
    ddl__builder *builder;
    ddl__host_groups groups;
    int64_t segment, waves; /* elements; of the longest block */
} rounds;

/* --------------------------------------------------------------------------------------- hosts */

static uint32_t ranks_on(const rounds *h, int host)
{
    return ddl__host_size(&h->groups, host);
}

/* The host that lies `distance` further round. */
static int host_at(const rounds *h, int distance)
{
    return (h->groups.self + distance + h->groups.hosts) % h->groups.hosts;
}

/* Who on `host` stands for rank `i` of host `its`. */
static uint32_t agent_on(const rounds *h, int host, uint32_t i, int its)
{
    return h->groups
        .ranks[h->groups.first[host] + h->groups.local[i] * ranks_on(h, host) / ranks_on(h, its)];
}

static ddl__rank_list one(const uint32_t *rank)
{
    return (ddl__rank_list){.ranks = rank, .of = 1, .n = 1};
}

static ddl__rank_list nobody(void)
{
    return (ddl__rank_list){0};
}

static ddl__rank_list own_host(const rounds *h)
{
    uint32_t n = ranks_on(h, h->groups.self);
    return (ddl__rank_list){
        .ranks = h->groups.ranks + h->groups.first[h->groups.self], .of = n, .n = n};
}

static ddl__rank_list rest_of_host(const rounds *h)
{
    ddl__rank_list all = own_host(h);
    all.first = h->groups.local[h->builder->request->rank] + 1;
    all.n--;
    return all;
}

/* ---------------------------------------------------------------------------------------- steps */

/* A step over the block of rank `i` in a buffer of all blocks. */
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

/* Of an all-gather: blocks of the host `distance` before this one. */
static void gather_from(const rounds *h, int distance)
{
    ddl__builder *builder = h->builder;
    uint32_t rank = (uint32_t)builder->request->rank;
    int64_t sent = (distance - 1) * h->waves;
    int to = host_at(h, distance), from = host_at(h, -distance);

    ddl__step publish = over_block(h, DDL__PUBLISH, rank, sent);
    if (!builder->request->in_place)
        publish.src = 0;
    uint32_t agent = agent_on(h, to, rank, h->groups.self);
    ddl__builder_add_listed(builder, publish, nobody(), one(&agent));
    for (uint32_t i = h->groups.first[from]; i < h->groups.first[from + 1]; i++)
        if (agent_on(h, h->groups.self, h->groups.ranks[i], from) == rank)
            ddl__builder_add_listed(builder,
                                    over_block(h, DDL__TAKE, h->groups.ranks[i], sent + LAG),
                                    one(&h->groups.ranks[i]), rest_of_host(h));
    for (uint32_t i = h->groups.first[from]; i < h->groups.first[from + 1]; i++) {
        agent = agent_on(h, h->groups.self, h->groups.ranks[i], from);
        if (agent != rank)
            ddl__builder_add_listed(builder,
                                    over_block(h, DDL__TAKE, h->groups.ranks[i], sent + LAG + 1),
                                    one(&agent), nobody());
    }
}

static void build_allgather(const rounds *h)
{
    ddl__builder *builder = h->builder;
    uint32_t rank = (uint32_t)builder->request->rank;
    ddl__step publish = over_block(h, DDL__PUBLISH, rank, 0);
    ddl__step copy = over_block(h, DDL__COPY, rank, 0);
    if (!builder->request->in_place)
        publish.src = copy.src = 0;
    ddl__rank_list others = rest_of_host(h);
    if (others.n)
        ddl__builder_add_listed(builder, publish, nobody(), others);
    if (!builder->request->in_place)
        ddl__builder_add_listed(builder, copy, nobody(), nobody());
    for (uint32_t i = 0; i < others.n; i++) {
        const uint32_t *peer = &others.ranks[(others.first + i) % others.of];
        ddl__builder_add_listed(builder, over_block(h, DDL__TAKE, *peer, 1), one(peer), nobody());
    }
    for (int distance = 1; distance < h->groups.hosts; distance++)
        gather_from(h, distance);
}

/* Of a reduce-scatter: what this host has for the one `distance` further round. Blocks of others
 * may lie in a buffer that has to stay as it is, so what is reduced for them is not kept. */
static void reduce_for(const rounds *h, int distance, int64_t skew)
{
    ddl__builder *builder = h->builder;
    uint32_t rank = (uint32_t)builder->request->rank;
    int to = host_at(h, distance);
    for (uint32_t i = h->groups.first[to]; i < h->groups.first[to + 1]; i++) {
        uint32_t agent = agent_on(h, h->groups.self, h->groups.ranks[i], to);
        if (agent != rank)
            ddl__builder_add_listed(builder, over_block(h, DDL__PUBLISH, h->groups.ranks[i], skew),
                                    nobody(), one(&agent));
    }
    for (uint32_t i = h->groups.first[to]; i < h->groups.first[to + 1]; i++) {
        if (agent_on(h, h->groups.self, h->groups.ranks[i], to) != rank)
            continue;
        bool alone = ranks_on(h, h->groups.self) == 1;
        ddl__step step =
            over_block(h, alone ? DDL__PUBLISH : DDL__REDUCE, h->groups.ranks[i], skew + 1);
        step.stable = alone;
        ddl__builder_add_listed(builder, step, alone ? nobody() : own_host(h),
                                one(&h->groups.ranks[i]));
    }
}

/* Of a reduce-scatter: add what the host `distance` before this one has for this rank to what there
 * is; with distance 0, begin with what this one has. */
static void add_up(const rounds *h, int distance, int64_t skew)
{
    ddl__builder *builder = h->builder;
    uint32_t rank = (uint32_t)builder->request->rank;
    ddl__step reduce = over_block(h, DDL__REDUCE, rank, skew);
    reduce.keep = 1;
    reduce.finish = distance + 1 == h->groups.hosts;
    if (!builder->request->in_place)
        reduce.dst = 0;
    if (distance == 0) {
        ddl__builder_add_listed(builder, reduce, own_host(h), nobody());
        return;
    }
    int from = host_at(h, -distance);
    uint32_t operands[] = {rank, agent_on(h, from, rank, h->groups.self)};
    /* A rank that is alone has not copied its own. */
    bool begins = distance == 1 && ranks_on(h, h->groups.self) == 1;
    if (!begins) {
        reduce.space = DDL__OUT;
        reduce.src = reduce.dst;
    }
    ddl__builder_add_listed(builder, reduce, (ddl__rank_list){.ranks = operands, .of = 2, .n = 2},
                            nobody());
}

static void build_reduce_scatter(const rounds *h)
{
    ddl__rank_list others = rest_of_host(h);
    for (uint32_t i = 0; i < others.n; i++) {
        const uint32_t *peer = &others.ranks[(others.first + i) % others.of];
        ddl__builder_add_listed(h->builder, over_block(h, DDL__PUBLISH, *peer, 0), nobody(),
                                one(peer));
    }
    if (others.n)
        add_up(h, 0, 1);
    for (int distance = 1; distance < h->groups.hosts; distance++) {
        int64_t skew = (distance - 1) * h->waves;
        reduce_for(h, distance, skew);
        add_up(h, distance, skew + 1 + LAG);
    }
}

/* ------------------------------------------------------------------------------------------ all */

/* Of one rank's spans in a wave: blocks of the largest host, for an all-gather those of it that one
 * agent passes on; and the first exchange within the host. */
static int64_t spans_in_wave(const ddl__request *request, uint32_t most, uint32_t for_agent)
{
    return request->kind == DDL__ALLGATHER ? 1 + (int64_t)for_agent : 2 * (int64_t)most;
}

/* The largest host, and how many ranks of one host may have the same agent on another of several
 * ranks. */
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

/* Divide blocks into segments. False where spans do not fit the links, or the rounds the waves. */
static bool cut_blocks(rounds *h)
{
    const ddl__request *request = h->builder->request;
    uint32_t most, for_agent;
    largest(h, &most, &for_agent);
    int64_t spans = DDL__WAVES * spans_in_wave(request, most, for_agent);
    if (request->topology->declared) /* what should go over wires may have to fit as well */
        spans *= 2;
    int64_t longest = 0;
    for (int i = 0; i < request->size; i++) {
        int64_t count = ddl__share_of(request, i).count;
        longest = count > longest ? count : longest;
    }
    h->segment = ddl__choose_segment(request, longest, spans);
    h->waves = longest / h->segment + (longest % h->segment != 0);
    return for_agent <= BLOCKS_MAX && h->waves < WAVES_MAX / h->groups.hosts;
}

bool ddl__fits_hosts(const ddl__request *request)
{
    ddl__builder builder = {.request = request};
    rounds h = {.builder = &builder};
    bool fits = !ddl__host_groups_create(&h.groups, request) ||
                cut_blocks(&h); /* or building fails as well */
    ddl__host_groups_destroy(&h.groups);
    return fits;
}

int64_t ddl__build_hosts(ddl__builder *builder)
{
    if (builder->request->kind == DDL__ALLTOALL)
        return ddl__build_exchange(builder);
    rounds h = {.builder = builder};
    if (ddl__host_groups_create(&h.groups, builder->request)) {
        cut_blocks(&h);
        builder->plan->segment = h.segment;
        if (builder->request->kind == DDL__ALLGATHER)
            build_allgather(&h);
        else
            build_reduce_scatter(&h);
    } else {
        builder->failed = true;
    }
    ddl__host_groups_destroy(&h.groups);
    return 1;
}
