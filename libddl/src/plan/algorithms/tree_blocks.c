/* SPDX-License-Identifier: Apache-2.0 */
/* Tree, for gather and scatter: small blocks over wires, along the binomial tree of tree.c.
 *
 * In a gather each leader collects the blocks of its host and of all positions below its own in its
 * scratch memory, and sends them to its parent as one message. A scatter goes the other way: each
 * leader receives those blocks and sends each child its part.
 *
 * Blocks are ordered by position, and by rank at one position, so that the blocks of a child and
 * all positions below it are contiguous. Messages over different distances are sent one after
 * another, in different waves: in a gather the shortest distance comes first, in a scatter the
 * longest.
 *
 * Steps: ceil(log2 h) over wires and 1 in memory. Messages: h - 1 over wires, log2 h of them at the
 * root, the fewest possible. Bytes: N (1 - 1/h) on the root's wire, where N is all blocks; up to (N
 * / 2) log2 h on all wires together. */
#include <stdlib.h>

#include "plan/builder.h"
#include "plan/host_groups.h"

enum {
    LAG = 1,  /* waves between sending and receiving */
    SPANS = 8 /* segments that one rank may have in flight: twice the number that it needs */
};

typedef struct tree {
    ddl__builder *builder;
    ddl__host_groups groups;
    int position, root_host;
    uint32_t *order; /* all ranks by position */
    uint32_t *start; /* position q has order[start[q]] up to order[start[q + 1]] */
    int64_t segment;
    uint32_t sending; /* waves of the longest message */
    int doublings;    /* log2 of the number of hosts, rounded up */
} tree;

static int host_at(const tree *t, int position)
{
    return (t->root_host + position) % t->groups.hosts;
}

static uint32_t leader_at(const tree *t, int position)
{
    const ddl__request *request = t->builder->request;
    return ddl__host_leader(&t->groups, request, host_at(t, position), request->root);
}

/* Cut messages into segments. Return false if the blocks of one host do not fit a segment, or if
 * all blocks do not fit a message. */
static bool cut(tree *t)
{
    const ddl__request *request = t->builder->request;
    uint32_t most, least;
    ddl__host_groups_range(&t->groups, &most, &least);
    if (request->count > DDL__SEGMENT_MAX / (int64_t)request->element / request->size)
        return false;
    int64_t all = request->count * request->size;
    t->segment = ddl__choose_segment(request, all, SPANS);
    t->sending = (uint32_t)ddl__quotient(all, t->segment);
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

/* Return the end of the range of positions that consists of q and the positions below it. */
static int end_below(const tree *t, int q)
{
    int end = q ? q + (q & -q) : t->groups.hosts;
    return end < t->groups.hosts ? end : t->groups.hosts;
}

static int64_t blocks_below(const tree *t, int q)
{
    return (int64_t)t->start[end_below(t, q)] - t->start[q];
}

/* Return true if this position has a child at that distance. */
static bool has_child(const tree *t, int distance)
{
    return !(t->position & distance) && (t->position & (distance - 1)) == 0 &&
           t->position + distance < t->groups.hosts;
}

static void add(const tree *t, ddl__step step, int64_t blocks, uint32_t skew, uint32_t peer)
{
    step.stable = 1;
    step.skew = skew;
    step.count = blocks * t->builder->request->count;
    step.piece = step.stride = t->segment;
    ddl__builder_add_peer(t->builder, step, peer);
}

/* Return the offset in scratch memory of the blocks of a position and all below it. */
static int64_t region(const tree *t, int q)
{
    uint32_t first = t->position ? t->start[t->position] : t->start[1];
    return ((int64_t)t->start[q] - first) * t->builder->request->count;
}

/* Return the first wave of the messages over the k-th distance, in the order of sending. */
static uint32_t wave_of(const tree *t, int k)
{
    return (uint32_t)k * (t->sending + LAG);
}

/* Return true if the blocks of a position and all below it are contiguous in the root's buffer. */
static bool is_run(const tree *t, int q)
{
    uint32_t n = (uint32_t)blocks_below(t, q);
    return ddl__run_length(t->order + t->start[q], n) == n;
}

/* At the root, copy the blocks of a child and all below it to the scratch memory or from it. */
static void copy_blocks(const tree *t, int q, uint32_t skew, bool in)
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

/* In a gather, collect the blocks of this rank's host; in a scatter, distribute them. */
static void add_host(const tree *t, uint32_t skew)
{
    const ddl__request *request = t->builder->request;
    const uint32_t *ranks = ddl__host_ranks(&t->groups, t->groups.self);
    bool is_root = t->position == 0, gathers = request->kind == DDL__GATHER;
    for (uint32_t i = 0; i < ddl__host_size(&t->groups, t->groups.self); i++) {
        bool own = ranks[i] == (uint32_t)request->rank;
        int64_t scratch = (int64_t)i * request->count;
        ddl__step step = {.kind = own       ? DDL__COPY
                                  : gathers ? DDL__TAKE
                                            : DDL__PUBLISH,
                          .src = ddl__block_to(request, request->root).start,
                          .dst = ddl__block_from(request, request->root).start};
        if (gathers) {
            step.to_scratch = !is_root;
            step.dst = is_root ? ddl__block_from(request, (int)ranks[i]).start : scratch;
        } else {
            step.space = is_root ? DDL__IN : DDL__SCRATCH;
            step.src = is_root ? ddl__block_to(request, (int)ranks[i]).start : scratch;
        }
        if (!own || !is_root || !request->in_place)
            add(t, step, 1, gathers ? !own : skew, ranks[i]);
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
    if (blocks > 1 || t->position == 0)
        add_host(t, 0);
    int k = 0;
    for (; k < t->doublings && (t->position & 1 << k) == 0; k++) {
        if (!has_child(t, 1 << k))
            continue;
        int q = t->position + (1 << k);
        uint32_t skew = begin + wave_of(t, k) + LAG;
        bool in_place = t->position == 0 && is_run(t, q);
        ddl__step take = {.kind = DDL__TAKE, .to_scratch = !in_place};
        take.dst =
            in_place ? ddl__block_from(request, (int)t->order[t->start[q]]).start : region(t, q);
        add(t, take, blocks_below(t, q), skew, leader_at(t, q));
        if (t->position == 0 && !in_place)
            copy_blocks(t, q, skew + t->sending - 1, false);
    }
    if (t->position == 0)
        return;
    send.space = blocks > 1 ? DDL__SCRATCH : DDL__IN;
    add(t, send, blocks, begin + wave_of(t, k), leader_at(t, t->position & (t->position - 1)));
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
        bool in_place = t->position == 0 && is_run(t, q);
        if (t->position == 0 && !in_place)
            copy_blocks(t, q, skew, true);
        ddl__step send = {.kind = DDL__PUBLISH, .space = in_place ? DDL__IN : DDL__SCRATCH};
        send.src =
            in_place ? ddl__block_to(request, (int)t->order[t->start[q]]).start : region(t, q);
        add(t, send, blocks_below(t, q), skew, leader_at(t, q));
    }
    if (blocks > 1 || t->position == 0)
        add_host(t, last);
}

/* Return the number of elements of scratch memory that this rank needs. */
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

static bool fits(const ddl__request *request)
{
    if (!ddl__request_forwards_blocks(request))
        return false;
    ddl__builder builder = {.request = request};
    tree t;
    /* if memory is short here, building the plan fails, too */
    bool fitting = !tree_create(&t, &builder) || cut(&t);
    tree_destroy(&t);
    return fitting;
}

/* Add the cost. The longest message has half of all blocks. A message of a quarter precedes or
 * follows it. */
static void cost(ddl__cost *c)
{
    double levels = ddl__cost_log2(c->h), far = c->h - 1;
    double below = levels * c->h / 2 * c->x * c->n; /* bytes of all messages */
    double all = (c->p - c->x) * c->n, segments = ddl__cost_segments(c, all / 2);
    if (c->x > 1)
        ddl__cost_add_memory(c, c->x - 1, 2 * c->x * c->n);
    ddl__cost_add_chain(c, levels, levels - 1 + segments, all, all * (levels > 1 ? 1.25 : 1));
    ddl__cost_add_work(c, far / c->p, below / c->p);
    ddl__cost_add_passes(c, 2 * all);
}

static int64_t build(ddl__builder *builder)
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

const ddl__algorithm_descriptor ddl__tree_blocks = {.name = "tree",
                                                    .kinds = DDL__KIND(GATHER) | DDL__KIND(SCATTER),
                                                    .fits = fits,
                                                    .cost = cost,
                                                    .build = build};
