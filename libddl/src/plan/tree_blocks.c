/* Gather and scatter of small blocks over wires, along the tree of tree.c: each leader collects the
 * blocks of its host and of the hosts below it, and sends them up as one message; or gets those and
 * sends each child its part. The fewest messages that there can be, and log2(hosts) at the root
 * instead of one from each rank.
 *
 * Blocks lie in the order of the positions, and at a position in that of the ranks, so that those
 * of a child and all below it are one run. The messages of one distance between parent and child go
 * after each other in the waves: up, the shortest distance first; down, the longest. */
#include <stdlib.h>

#include "plan/host_groups.h"

enum {
    LAG = 1,  /* waves between sending and taking */
    SPANS = 8 /* of a segment that one rank may have under way, twice what it needs */
};

typedef struct tree {
    ddl__builder *builder;
    ddl__host_groups groups;
    int position, root_host;
    uint32_t *start; /* of position q in order; the last position's end at start[hosts] */
    uint32_t *order; /* the ranks, position by position */
    int64_t segment;
    uint32_t wiring; /* waves of a message at most */
    int doublings;   /* of the distance 1 up to all hosts */
} tree;

/* ----------------------------------------------------------------------------------- the positions
 */

static int host_at(const tree *t, int position)
{
    return (t->root_host + position) % t->groups.hosts;
}

static uint32_t leader_at(const tree *t, int position)
{
    return position ? ddl__host_ranks(&t->groups, host_at(t, position))[0]
                    : (uint32_t)t->builder->request->root;
}

/* All blocks of a host must fit a segment, and those of all hosts a message. */
static bool cut(tree *t)
{
    const ddl__request *request = t->builder->request;
    uint32_t most, least;
    ddl__host_groups_range(&t->groups, &most, &least);
    if (request->count > DDL__SEGMENT_MAX / (int64_t)request->element / request->size)
        return false;
    int64_t all = request->count * request->size;
    t->segment = ddl__choose_segment(request, all, SPANS);
    t->wiring = (uint32_t)(all / t->segment + (all % t->segment != 0));
    return most * request->count <= t->segment;
}

static bool tree_create(tree *t, ddl__builder *builder)
{
    const ddl__request *request = builder->request;
    *t = (tree){.builder = builder};
    if (!ddl__host_groups_create(&t->groups, request))
        return false;
    int hosts = t->groups.hosts;
    t->start = calloc((size_t)hosts + 1 + (size_t)request->size, sizeof *t->start);
    if (!t->start)
        return false;
    t->order = t->start + hosts + 1;
    t->root_host = ddl__host_of(request, request->root);
    t->position = (t->groups.self - t->root_host + hosts) % hosts;
    while (1 << t->doublings < hosts)
        t->doublings++;
    for (int q = 0; q < hosts; q++) {
        uint32_t n = ddl__host_size(&t->groups, host_at(t, q));
        for (uint32_t i = 0; i < n; i++)
            t->order[t->start[q] + i] = ddl__host_ranks(&t->groups, host_at(t, q))[i];
        t->start[q + 1] = t->start[q] + n;
    }
    return true;
}

static void tree_destroy(tree *t)
{
    ddl__host_groups_destroy(&t->groups);
    free(t->start);
}

/* Places from q on that lie below it, itself among them: where they end. */
static int end_below(const tree *t, int q)
{
    int end = q ? q + (q & -q) : t->groups.hosts;
    return end < t->groups.hosts ? end : t->groups.hosts;
}

static int64_t blocks_below(const tree *t, int q)
{
    return (int64_t)t->start[end_below(t, q)] - t->start[q];
}

/* Whether this position has a child so far away. */
static bool has_child(const tree *t, int distance)
{
    return !(t->position & distance) && (t->position & (distance - 1)) == 0 &&
           t->position + distance < t->groups.hosts;
}

/* ---------------------------------------------------------------------------------------- steps */

static void add(const tree *t, ddl__step step, int64_t blocks, uint32_t skew, uint32_t peer)
{
    bool comes = step.kind == DDL__TAKE, goes = step.kind == DDL__PUBLISH;
    step.stable = 1;
    step.skew = skew;
    step.count = blocks * t->builder->request->count;
    step.piece = step.stride = t->segment;
    ddl__builder_add(t->builder, step, comes ? ddl__one_rank((int)peer) : ddl__no_ranks(),
                     goes ? ddl__one_rank((int)peer) : ddl__no_ranks());
}

/* Where the blocks of a position and all below it lie in the scratch memory. */
static int64_t region(const tree *t, int q)
{
    uint32_t first = t->position ? t->start[t->position] : t->start[1];
    return ((int64_t)t->start[q] - first) * t->builder->request->count;
}

/* The first wave of the messages over so many doublings of the distance 1. */
static uint32_t wave_of(const tree *t, int doublings)
{
    return (uint32_t)doublings * (t->wiring + LAG);
}

/* At the root, blocks of a child and all below it: between the caller's buffer, where they lie by
 * rank, and the scratch memory, where they follow each other. One run is sent from the buffer
 * itself. */
static bool is_run(const tree *t, int q)
{
    uint32_t n = (uint32_t)blocks_below(t, q);
    return ddl__run_length(t->order + t->start[q], n) == n;
}

static void bring(const tree *t, int q, uint32_t skew, bool in)
{
    const ddl__request *request = t->builder->request;
    uint32_t end = t->start[end_below(t, q)];
    int64_t scratch = region(t, q);
    for (uint32_t at = t->start[q], run; at < end; at += run, scratch += run * request->count) {
        run = ddl__run_length(t->order + at, end - at);
        int rank = (int)t->order[at];
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
        ddl__builder_add(t->builder, copy, ddl__no_ranks(), ddl__no_ranks());
    }
}

/* Of a gather: from the others of the host, and to whom it is led. */
static void gather_host(const tree *t, bool keeps)
{
    const ddl__request *request = t->builder->request;
    const uint32_t *ranks = ddl__host_ranks(&t->groups, t->groups.self);
    bool is_root = t->position == 0;
    for (uint32_t i = 0; i < ddl__host_size(&t->groups, t->groups.self) && keeps; i++) {
        bool own = ranks[i] == (uint32_t)request->rank;
        ddl__step step = {.kind = own ? DDL__COPY : DDL__TAKE,
                          .to_scratch = !is_root,
                          .src = ddl__block_to(request, request->root).start,
                          .dst = is_root ? ddl__block_from(request, (int)ranks[i]).start
                                         : (int64_t)i * request->count};
        if (!own || !is_root || !request->in_place)
            add(t, step, 1, !own, ranks[i]);
    }
}

static void gather(const tree *t)
{
    const ddl__request *request = t->builder->request;
    uint32_t leader = leader_at(t, t->position), begin = 2;
    int64_t blocks = blocks_below(t, t->position);
    ddl__step send = {.kind = DDL__PUBLISH, .src = ddl__block_to(request, request->root).start};
    if ((uint32_t)request->rank != leader) {
        add(t, send, 1, 0, leader);
        return;
    }
    gather_host(t, blocks > 1 || t->position == 0);
    int k = 0;
    for (; k < t->doublings && (t->position & 1 << k) == 0; k++) {
        if (!has_child(t, 1 << k))
            continue;
        int q = t->position + (1 << k);
        uint32_t skew = begin + wave_of(t, k) + LAG;
        bool straight = t->position == 0 && is_run(t, q);
        ddl__step take = {.kind = DDL__TAKE, .to_scratch = !straight};
        take.dst =
            straight ? ddl__block_from(request, (int)t->order[t->start[q]]).start : region(t, q);
        add(t, take, blocks_below(t, q), skew, leader_at(t, q));
        if (t->position == 0 && !straight)
            bring(t, q, skew + t->wiring - 1, false);
    }
    if (t->position == 0)
        return;
    send.space = blocks > 1 ? DDL__SCRATCH : DDL__IN;
    add(t, send, blocks, begin + wave_of(t, k), leader_at(t, t->position & (t->position - 1)));
}

/* Of a scatter: to the others of the host. */
static void scatter_host(const tree *t, uint32_t skew)
{
    const ddl__request *request = t->builder->request;
    const uint32_t *ranks = ddl__host_ranks(&t->groups, t->groups.self);
    bool is_root = t->position == 0;
    for (uint32_t i = 0; i < ddl__host_size(&t->groups, t->groups.self); i++) {
        bool own = ranks[i] == (uint32_t)request->rank;
        ddl__step step = {.kind = own ? DDL__COPY : DDL__PUBLISH,
                          .space = is_root ? DDL__IN : DDL__SCRATCH,
                          .src = is_root ? ddl__block_to(request, (int)ranks[i]).start
                                         : (int64_t)i * request->count,
                          .dst = ddl__block_from(request, request->root).start};
        if (!own || !is_root || !request->in_place)
            add(t, step, 1, skew, ranks[i]);
    }
}

static void scatter(const tree *t)
{
    const ddl__request *request = t->builder->request;
    uint32_t leader = leader_at(t, t->position), last = wave_of(t, t->doublings);
    int64_t blocks = blocks_below(t, t->position);
    ddl__step take = {.kind = DDL__TAKE, .dst = ddl__block_from(request, request->root).start};
    if ((uint32_t)request->rank != leader) {
        add(t, take, 1, last + 1, leader);
        return;
    }
    int k = 0;
    while (k < t->doublings && (t->position & 1 << k) == 0)
        k++;
    if (t->position) {
        take.to_scratch = blocks > 1;
        take.dst = blocks > 1 ? 0 : take.dst;
        add(t, take, blocks, wave_of(t, t->doublings - 1 - k) + LAG,
            leader_at(t, t->position & (t->position - 1)));
    }
    while (--k >= 0) {
        if (!has_child(t, 1 << k))
            continue;
        int q = t->position + (1 << k);
        uint32_t skew = wave_of(t, t->doublings - 1 - k);
        bool straight = t->position == 0 && is_run(t, q);
        if (t->position == 0 && !straight)
            bring(t, q, skew, true);
        ddl__step send = {.kind = DDL__PUBLISH, .space = straight ? DDL__IN : DDL__SCRATCH};
        send.src =
            straight ? ddl__block_to(request, (int)t->order[t->start[q]]).start : region(t, q);
        add(t, send, blocks_below(t, q), skew, leader_at(t, q));
    }
    if (blocks > 1 || t->position == 0)
        scatter_host(t, last);
}

/* Elements of the scratch memory in use. */
static int64_t scratch_of(const tree *t)
{
    int64_t blocks = blocks_below(t, t->position), in_runs = 0;
    bool leads = (uint32_t)t->builder->request->rank == leader_at(t, t->position);
    if (!leads || blocks == 1)
        return 0;
    for (int d = 1; t->position == 0 && d < t->groups.hosts; d *= 2)
        in_runs += is_run(t, d) ? blocks_below(t, d) : 0;
    if (t->position == 0)
        blocks -= t->start[1];
    return in_runs == blocks ? 0 : blocks * t->builder->request->count;
}

/* ------------------------------------------------------------------------------------------ all */

bool ddl__fits_tree_blocks(const ddl__request *request)
{
    ddl__builder builder = {.request = request};
    tree t;
    bool fits = !tree_create(&t, &builder) || cut(&t); /* or building fails as well */
    tree_destroy(&t);
    return fits;
}

int64_t ddl__build_tree_blocks(ddl__builder *builder)
{
    tree t;
    if (tree_create(&t, builder) && cut(&t)) {
        builder->plan->segment = t.segment;
        builder->plan->scratch = scratch_of(&t);
        if (builder->request->kind == DDL__GATHER)
            gather(&t);
        else
            scatter(&t);
    } else {
        builder->failed = true;
    }
    tree_destroy(&t);
    return 1;
}
