/* Gather and scatter of small blocks over wires, along the tree of tree.c: each leader collects the
 * blocks of its host and of the hosts below it, and sends them up as one message; or gets those and
 * sends each child its part. The fewest messages that there can be, and log2(hosts) at the root
 * instead of one from each rank.
 *
 * Blocks lie in the order of the places, and at a place in that of the ranks, so that those of a
 * child and all below it are one run. The messages of one distance between parent and child go
 * after each other in the waves: up, the shortest distance first; down, the longest. */
#include <stdlib.h>

#include "plan/host_groups.h"

enum {
    LAG = 1,  /* waves between sending and taking */
    SPANS = 8 /* of a segment that one rank may have under way, twice what it needs */
};

typedef struct grove {
    ddl__builder *builder;
    ddl__host_groups groups;
    int place, root_host;
    uint32_t *start; /* of place q in order; the last place's end at start[hosts] */
    uint32_t *order; /* the ranks, place by place */
    int64_t segment;
    uint32_t wiring; /* waves of a message at most */
    int doublings;   /* of the distance 1 up to all hosts */
} grove;

/* ----------------------------------------------------------------------------------- the places */

static int host_at(const grove *g, int place)
{
    return (g->root_host + place) % g->groups.hosts;
}

static uint32_t leader_at(const grove *g, int place)
{
    return place ? ddl__host_ranks(&g->groups, host_at(g, place))[0]
                 : (uint32_t)g->builder->request->root;
}

/* All blocks of a host must fit a segment, and those of all hosts a message. */
static bool cut(grove *g)
{
    const ddl__request *request = g->builder->request;
    uint32_t most, least;
    ddl__host_groups_range(&g->groups, &most, &least);
    if (request->count > DDL__SEGMENT_MAX / (int64_t)request->element / request->size)
        return false;
    int64_t all = request->count * request->size;
    g->segment = ddl__choose_segment(request, all, SPANS);
    g->wiring = (uint32_t)(all / g->segment + (all % g->segment != 0));
    return most * request->count <= g->segment;
}

static bool open_grove(grove *g, ddl__builder *builder)
{
    const ddl__request *request = builder->request;
    *g = (grove){.builder = builder};
    if (!ddl__host_groups_create(&g->groups, request))
        return false;
    int hosts = g->groups.hosts;
    g->start = calloc((size_t)hosts + 1 + (size_t)request->size, sizeof *g->start);
    if (!g->start)
        return false;
    g->order = g->start + hosts + 1;
    g->root_host = ddl__host_of(request, request->root);
    g->place = (g->groups.self - g->root_host + hosts) % hosts;
    while (1 << g->doublings < hosts)
        g->doublings++;
    for (int q = 0; q < hosts; q++) {
        uint32_t n = ddl__host_size(&g->groups, host_at(g, q));
        for (uint32_t i = 0; i < n; i++)
            g->order[g->start[q] + i] = ddl__host_ranks(&g->groups, host_at(g, q))[i];
        g->start[q + 1] = g->start[q] + n;
    }
    return true;
}

static void close_grove(grove *g)
{
    ddl__host_groups_destroy(&g->groups);
    free(g->start);
}

/* Places from q on that lie below it, itself among them: where they end. */
static int end_below(const grove *g, int q)
{
    int end = q ? q + (q & -q) : g->groups.hosts;
    return end < g->groups.hosts ? end : g->groups.hosts;
}

static int64_t blocks_below(const grove *g, int q)
{
    return (int64_t)g->start[end_below(g, q)] - g->start[q];
}

/* Whether this place has a child so far away. */
static bool has_child(const grove *g, int distance)
{
    return !(g->place & distance) && (g->place & (distance - 1)) == 0 &&
           g->place + distance < g->groups.hosts;
}

/* ---------------------------------------------------------------------------------------- steps */

static void add(const grove *g, ddl__step step, int64_t blocks, uint32_t skew, uint32_t peer)
{
    bool comes = step.kind == DDL__TAKE, goes = step.kind == DDL__PUBLISH;
    step.stable = 1;
    step.skew = skew;
    step.count = blocks * g->builder->request->count;
    step.piece = step.stride = g->segment;
    ddl__add(g->builder, step, comes ? ddl__one((int)peer) : ddl__nobody(),
             goes ? ddl__one((int)peer) : ddl__nobody());
}

/* Where the blocks of a place and all below it lie in the scratch memory. */
static int64_t region(const grove *g, int q)
{
    uint32_t first = g->place ? g->start[g->place] : g->start[1];
    return ((int64_t)g->start[q] - first) * g->builder->request->count;
}

/* The first wave of the messages over so many doublings of the distance 1. */
static uint32_t wave_of(const grove *g, int doublings)
{
    return (uint32_t)doublings * (g->wiring + LAG);
}

/* At the root, blocks of a child and all below it: between the caller's buffer, where they lie by
 * rank, and the scratch memory, where they follow each other. One run needs no such place. */
static bool is_run(const grove *g, int q)
{
    uint32_t n = (uint32_t)blocks_below(g, q);
    return ddl__run_length(g->order + g->start[q], n) == n;
}

static void bring(const grove *g, int q, uint32_t skew, bool in)
{
    const ddl__request *request = g->builder->request;
    uint32_t end = g->start[end_below(g, q)];
    int64_t scratch = region(g, q);
    for (uint32_t at = g->start[q], run; at < end; at += run, scratch += run * request->count) {
        run = ddl__run_length(g->order + at, end - at);
        int rank = (int)g->order[at];
        ddl__step copy = {.kind = DDL__COPY, .dst = scratch, .to_scratch = 1};
        copy.src = ddl__block_to(request, rank).start;
        if (!in) {
            copy.dst = ddl__block_from(request, rank).start;
            copy.space = DDL__SCRATCH;
            copy.src = scratch;
            copy.to_scratch = 0;
        }
        copy.skew = skew;
        copy.count = copy.piece = copy.stride = run * request->count;
        ddl__add(g->builder, copy, ddl__nobody(), ddl__nobody());
    }
}

/* Of a gather: from the others of the host, and to whom it is led. */
static void gather_host(const grove *g, bool keeps)
{
    const ddl__request *request = g->builder->request;
    const uint32_t *ranks = ddl__host_ranks(&g->groups, g->groups.self);
    bool is_root = g->place == 0;
    for (uint32_t i = 0; i < ddl__host_size(&g->groups, g->groups.self) && keeps; i++) {
        bool own = ranks[i] == (uint32_t)request->rank;
        ddl__step step = {.kind = own ? DDL__COPY : DDL__TAKE,
                          .to_scratch = !is_root,
                          .src = ddl__block_to(request, request->root).start,
                          .dst = is_root ? ddl__block_from(request, (int)ranks[i]).start
                                         : (int64_t)i * request->count};
        if (!own || !is_root || !request->in_place)
            add(g, step, 1, !own, ranks[i]);
    }
}

static void gather(const grove *g)
{
    const ddl__request *request = g->builder->request;
    uint32_t leader = leader_at(g, g->place), begin = 2;
    int64_t blocks = blocks_below(g, g->place);
    ddl__step send = {.kind = DDL__PUBLISH, .src = ddl__block_to(request, request->root).start};
    if ((uint32_t)request->rank != leader) {
        add(g, send, 1, 0, leader);
        return;
    }
    gather_host(g, blocks > 1 || g->place == 0);
    int k = 0;
    for (; k < g->doublings && (g->place & 1 << k) == 0; k++) {
        if (!has_child(g, 1 << k))
            continue;
        int q = g->place + (1 << k);
        uint32_t skew = begin + wave_of(g, k) + LAG;
        bool straight = g->place == 0 && is_run(g, q);
        ddl__step take = {.kind = DDL__TAKE, .to_scratch = !straight};
        take.dst =
            straight ? ddl__block_from(request, (int)g->order[g->start[q]]).start : region(g, q);
        add(g, take, blocks_below(g, q), skew, leader_at(g, q));
        if (g->place == 0 && !straight)
            bring(g, q, skew + g->wiring - 1, false);
    }
    if (g->place == 0)
        return;
    send.space = blocks > 1 ? DDL__SCRATCH : DDL__IN;
    add(g, send, blocks, begin + wave_of(g, k), leader_at(g, g->place & (g->place - 1)));
}

/* Of a scatter: to the others of the host. */
static void scatter_host(const grove *g, uint32_t skew)
{
    const ddl__request *request = g->builder->request;
    const uint32_t *ranks = ddl__host_ranks(&g->groups, g->groups.self);
    bool is_root = g->place == 0;
    for (uint32_t i = 0; i < ddl__host_size(&g->groups, g->groups.self); i++) {
        bool own = ranks[i] == (uint32_t)request->rank;
        ddl__step step = {.kind = own ? DDL__COPY : DDL__PUBLISH,
                          .space = is_root ? DDL__IN : DDL__SCRATCH,
                          .src = is_root ? ddl__block_to(request, (int)ranks[i]).start
                                         : (int64_t)i * request->count,
                          .dst = ddl__block_from(request, request->root).start};
        if (!own || !is_root || !request->in_place)
            add(g, step, 1, skew, ranks[i]);
    }
}

static void scatter(const grove *g)
{
    const ddl__request *request = g->builder->request;
    uint32_t leader = leader_at(g, g->place), last = wave_of(g, g->doublings);
    int64_t blocks = blocks_below(g, g->place);
    ddl__step take = {.kind = DDL__TAKE, .dst = ddl__block_from(request, request->root).start};
    if ((uint32_t)request->rank != leader) {
        add(g, take, 1, last + 1, leader);
        return;
    }
    int k = 0;
    while (k < g->doublings && (g->place & 1 << k) == 0)
        k++;
    if (g->place) {
        take.to_scratch = blocks > 1;
        take.dst = blocks > 1 ? 0 : take.dst;
        add(g, take, blocks, wave_of(g, g->doublings - 1 - k) + LAG,
            leader_at(g, g->place & (g->place - 1)));
    }
    while (--k >= 0) {
        if (!has_child(g, 1 << k))
            continue;
        int q = g->place + (1 << k);
        uint32_t skew = wave_of(g, g->doublings - 1 - k);
        bool straight = g->place == 0 && is_run(g, q);
        if (g->place == 0 && !straight)
            bring(g, q, skew, true);
        ddl__step send = {.kind = DDL__PUBLISH, .space = straight ? DDL__IN : DDL__SCRATCH};
        send.src =
            straight ? ddl__block_to(request, (int)g->order[g->start[q]]).start : region(g, q);
        add(g, send, blocks_below(g, q), skew, leader_at(g, q));
    }
    if (blocks > 1 || g->place == 0)
        scatter_host(g, last);
}

/* Elements of the scratch memory in use. */
static int64_t scratch_of(const grove *g)
{
    int64_t blocks = blocks_below(g, g->place), in_runs = 0;
    bool leads = (uint32_t)g->builder->request->rank == leader_at(g, g->place);
    if (!leads || blocks == 1)
        return 0;
    for (int d = 1; g->place == 0 && d < g->groups.hosts; d *= 2)
        in_runs += is_run(g, d) ? blocks_below(g, d) : 0;
    if (g->place == 0)
        blocks -= g->start[1];
    return in_runs == blocks ? 0 : blocks * g->builder->request->count;
}

/* ------------------------------------------------------------------------------------------ all */

bool ddl__fits_tree_blocks(const ddl__request *request)
{
    ddl__builder builder = {.request = request};
    grove g;
    bool fits = !open_grove(&g, &builder) || cut(&g); /* or building fails as well */
    close_grove(&g);
    return fits;
}

int64_t ddl__build_tree_blocks(ddl__builder *builder)
{
    grove g;
    if (open_grove(&g, builder) && cut(&g)) {
        builder->plan->segment = g.segment;
        builder->plan->scratch = scratch_of(&g);
        if (builder->request->kind == DDL__GATHER)
            gather(&g);
        else
            scatter(&g);
    } else {
        builder->failed = true;
    }
    close_grove(&g);
    return 1;
}
