/* SPDX-License-Identifier: Apache-2.0 */
/* Hierarchical: the all-reduce over the levels of a machine: the ranks of a host, the hosts of a
 * rack, racks and aisles.
 *
 * The buffer is cut into chunks. At each level, the members of an exchange (exchanges.h) send each
 * other their parts of a chunk, and each reduces its own part over all members in their order. The
 * next level divides that part further. After the last level every element is reduced at its one
 * owner. Then the results return level by level, from each owner to the others.
 *
 * Chunks follow each other through the levels, so that all kinds of links are busy at once.
 *
 * The order of additions follows the levels, whichever rank owns an element.
 *
 * Steps: 2 for each level, however many groups it joins. Messages: 2 (c - 1) from each rank at a
 * level that joins c groups. Bytes: 2 N (1 - 1/p) from each rank; 2 N (1 - 1/h) on each host's wire
 * each way, because the X ranks of a host share it. */
#include <stdlib.h>

#include "plan/algorithms/exchanges.h"
#include "plan/builder.h"

_Static_assert((int)DDL__FOLDS >= (int)DDL__LEVELS_MAX, "a fold for each level");

enum {
    /* Waves between publishing a span and reading it, if there is enough memory. The spans in
     * flight hide the latency of a wire and the delays of peers. */
    WIRE_LAG = 3
};

/* A run of `n` chunks of one length that begins at element `start`; the first is in wave `skew`. */
typedef struct chunks {
    ddl__exchanges exchanges;
    int64_t start, length, n;
    uint32_t skew;
} chunks;

typedef struct context {
    ddl__builder *builder;
    ddl__hierarchy hierarchy;
    chunks *now;
    bool halves;
    int wire_lag;
    int *number; /* with an order: the result of number_children for the current level */
} context;

static ddl__ranks members_of(const context *b, const ddl__exchange *x, int first, int n)
{
    return (ddl__ranks){
        .first = first, .n = n, .list = b->now->exchanges.members + x->member, .of = x->members};
}

static ddl__ranks others(const context *b, const ddl__exchange *x)
{
    return members_of(b, x, x->self + 1, x->members - 1);
}

static int member_after(const ddl__exchange *x, int i)
{
    return (x->self + i) % x->members;
}

/* Return a step over part `i` of an exchange in each chunk. It is empty for a member without a
 * part. */
static ddl__step over_part(const context *b, const ddl__exchange *x, int i, uint32_t skew)
{
    const chunks *now = b->now;
    int64_t start = i < x->parts ? ddl__part_start(&now->exchanges, x, i) : x->start;
    int64_t end = i < x->parts ? ddl__part_start(&now->exchanges, x, i + 1) : x->start;
    return (ddl__step){.stable = 1,
                       .skew = now->skew + skew,
                       .src = now->start + start,
                       .dst = now->start + start,
                       .count = (end - start) * now->n,
                       .piece = end - start,
                       .stride = now->length};
}

/* Return the number of waves that an exchange at this level takes in each direction. */
static uint32_t lag_of(const context *b, int level)
{
    return level < b->hierarchy.inside ? 1 : (uint32_t)b->wire_lag;
}

/* In this rank's group of a level, number the children. Set number[r] to the number of the child
 * that contains rank r, or to -1 if no child does. The ranks of a child are consecutive
 * (ddl__hierarchical_follows). */
static void number_children(const context *b, int level, int *number)
{
    const int *below = ddl__hierarchy_groups(&b->hierarchy, level);
    const int *above = ddl__hierarchy_groups(&b->hierarchy, level + 1);
    int own = above[b->builder->request->rank], last = -1, n = 0;
    for (int r = 0; r < b->hierarchy.size; r++) {
        if (above[r] == own && below[r] > last) {
            last = below[r];
            n++;
        }
        number[r] = above[r] == own ? n - 1 : -1;
    }
}

/* Add the steps that reduce at a level. Data that is sent from the recv buffer is overwritten only
 * by a result that was computed from it. */
static void reduce_level(const context *b, int level, uint32_t skew)
{
    const ddl__exchanges *exchanges = &b->now->exchanges;
    const ddl__exchange *first = exchanges->list + exchanges->first[level];
    const ddl__exchange *end = exchanges->list + exchanges->first[level + 1];
    uint8_t space = exchanges->first[level] ? DDL__OUT : DDL__IN; /* partial results or input */
    for (const ddl__exchange *x = first; x < end; x++)
        for (int i = 1; i < x->members; i++) {
            ddl__step publish = over_part(b, x, member_after(x, i), skew);
            publish.kind = DDL__PUBLISH;
            publish.space = space;
            ddl__builder_add(b->builder, publish, ddl__no_ranks(),
                             members_of(b, x, member_after(x, i), 1));
        }
    bool last = level + 1 == exchanges->n;
    if (b->number)
        number_children(b, level, b->number);
    for (const ddl__exchange *x = first; x < end; x++) {
        ddl__step reduce = over_part(b, x, x->self, skew + lag_of(b, level));
        reduce.space = space;
        reduce.keep = 1;
        reduce.finish = last;
        ddl__builder_add_sum(b->builder, reduce, (uint8_t)level, b->number,
                             members_of(b, x, 0, x->members),
                             last ? others(b, x) : ddl__no_ranks());
    }
}

/* Add the steps that gather at a level. The step that makes the last level's results has already
 * sent them. */
static void gather_level(const context *b, int level, uint32_t skew)
{
    const ddl__exchanges *exchanges = &b->now->exchanges;
    const ddl__exchange *first = exchanges->list + exchanges->first[level];
    const ddl__exchange *end = exchanges->list + exchanges->first[level + 1];
    for (const ddl__exchange *x = first; x < end && level + 1 < exchanges->n; x++) {
        ddl__step publish = over_part(b, x, x->self, skew);
        publish.kind = DDL__PUBLISH;
        publish.space = DDL__OUT;
        ddl__builder_add(b->builder, publish, ddl__no_ranks(), others(b, x));
    }
    for (const ddl__exchange *x = first; x < end; x++)
        for (int i = 1; i < x->members; i++) {
            ddl__step take = over_part(b, x, member_after(x, i), skew + lag_of(b, level));
            take.kind = DDL__TAKE;
            ddl__builder_add(b->builder, take, members_of(b, x, member_after(x, i), 1),
                             ddl__no_ranks());
        }
}

static void add_steps(context *b, chunks *now)
{
    uint32_t skew = 0;
    b->now = now;
    for (int level = 0; level < b->hierarchy.n; level++) {
        reduce_level(b, level, skew);
        skew += lag_of(b, level);
    }
    for (int level = b->hierarchy.n - 1; level >= 0; level--) {
        gather_level(b, level, skew);
        skew += lag_of(b, level);
    }
}

/* Return the maximum number of elements in a chunk, which the segment size and the window limit. */
static int64_t longest_chunk(const ddl__request *request)
{
    int64_t element = (int64_t)request->element, line = DDL__LINE / element;
    int64_t bytes = DDL__SEGMENT_WIRES * (int64_t)request->size;
    if (request->segment_bytes > 0)
        bytes = request->segment_bytes;
    if (bytes > DDL__SEGMENT_MAX)
        bytes = DDL__SEGMENT_MAX;
    /* The window of a host's shared memory must hold two waves, and the rings waste some memory at
     * their ends: DDL__WAVES allows for both. Usually only one level uses the window. If hosts have
     * nodes, or a mode string declares the levels, it may have to hold the chunks that all levels
     * send in a wave. These are less than three chunks, so allow twice as much. */
    bool by_several = request->topology->declared || request->topology->node;
    int64_t fit = request->window / (by_several ? 2 * DDL__WAVES : DDL__WAVES);
    if (request->window > 0 && bytes > fit)
        bytes = fit;
    int64_t chunk = bytes / element;
    if (chunk > line)
        chunk -= chunk % line;
    return chunk > 0 ? chunk : 1;
}

/* Cut the buffer into chunks of about the same length. The first chunk may be shorter. */
static void cut(const ddl__request *request, chunks *first, chunks *rest)
{
    int64_t line = DDL__LINE / (int64_t)request->element, longest = longest_chunk(request);
    int64_t n = ddl__quotient(request->count, longest);
    int64_t length = ddl__quotient(request->count, n);
    if (length > line)
        length += (line - length % line) % line;
    *first = (chunks){.length = request->count % length, .n = 1};
    *rest = (chunks){.start = first->length,
                     .length = length,
                     .n = request->count / length,
                     .skew = first->length > 0};
}

static bool divide(const context *b, chunks *some)
{
    const ddl__request *request = b->builder->request;
    int64_t line = DDL__LINE / (int64_t)request->element;
    return ddl__exchanges_create(&some->exchanges, &b->hierarchy, request->rank, some->length,
                                 some->length > line ? line : 1);
}

static void drop(chunks *first, chunks *rest)
{
    ddl__exchanges_destroy(&first->exchanges);
    ddl__exchanges_destroy(&rest->exchanges);
}

/* Choose the finest hierarchy in which no two ranks exchange too many ranges. */
static bool choose_levels(context *b, chunks *first, chunks *rest)
{
    const ddl__request *request = b->builder->request;
    for (int coarseness = 0;; coarseness++) {
        if (!ddl__hierarchy_create(&b->hierarchy, request->topology, b->halves, coarseness))
            return false;
        cut(request, first, rest);
        if (!divide(b, first) || !divide(b, rest)) {
            drop(first, rest);
            ddl__hierarchy_destroy(&b->hierarchy);
            return false;
        }
        int ranges = first->exchanges.pair_ranges;
        if (ranges < rest->exchanges.pair_ranges)
            ranges = rest->exchanges.pair_ranges;
        if (ranges <= DDL__PAIR_RANGES) {
            /* Half of a link's spans in both directions together may be used, by the current wave
             * and the waves in flight. */
            b->wire_lag = DDL__LINK_SPANS / 4 / ranges - 1;
            if (b->wire_lag > WIRE_LAG)
                b->wire_lag = WIRE_LAG;
            if (request->topology->declared)
                b->wire_lag = 1;
            return true;
        }
        drop(first, rest);
        ddl__hierarchy_destroy(&b->hierarchy);
    }
}

static int64_t longest_piece(const ddl__plan *plan)
{
    int64_t longest = 1;
    for (uint32_t i = 0; i < plan->n_steps; i++)
        if (plan->steps[i].piece > longest)
            longest = plan->steps[i].piece;
    return longest;
}

int64_t ddl__hierarchical_build(ddl__builder *builder, bool halves)
{
    context b = {.builder = builder, .halves = halves};
    chunks first, rest;
    if (builder->request->count == 0)
        return 1;
    if (!choose_levels(&b, &first, &rest)) {
        builder->failed = true;
        return 1;
    }
    if (builder->request->order)
        b.number = calloc((size_t)builder->request->size, sizeof *b.number);
    builder->failed = builder->request->order && !b.number;
    add_steps(&b, &first);
    add_steps(&b, &rest);
    free(b.number);
    builder->plan->segment = longest_piece(builder->plan);
    drop(&first, &rest);
    ddl__hierarchy_destroy(&b.hierarchy);
    return 1;
}

bool ddl__hierarchical_follows(const ddl__request *request, bool halves)
{
    bool follows = ddl__ranks_are_in_order(request);
    for (int coarseness = 0; follows && coarseness <= DDL__COARSEST; coarseness++) {
        ddl__hierarchy hierarchy;
        if (!ddl__hierarchy_create(&hierarchy, request->topology, halves, coarseness))
            return false;
        for (int level = 1; follows && level < hierarchy.n; level++)
            follows = ddl__groups_are_subtrees(request, ddl__hierarchy_groups(&hierarchy, level),
                                               hierarchy.n_groups[level]);
        ddl__hierarchy_destroy(&hierarchy);
    }
    return follows;
}

/* Add the cost of a level: its `c` groups exchange `n` bytes, in `pieces` pieces, both on the way
 * up and on the way down. `level` is 0 for the first level of wires. */
static void add_level(ddl__cost *m, int c, double n, double pieces, int level)
{
    ddl__cost_add_exchange(m, 2, c, n, pieces);
    if (level)
        m->wires += DDL__WIRE_LEVEL * 2 * m->n / m->wire.bandwidth;
}

void ddl__hierarchical_cost(ddl__cost *m, bool halves)
{
    double left = m->n, pieces = ddl__cost_segments(m, m->n / m->p);
    if (m->x > 1)
        for (int way = 0; way < 2; way++)
            ddl__cost_add_memory(m, (m->x - 1) * pieces, 2 * left / m->x * (m->x - 1));
    left /= m->x;
    for (int groups = m->h, level = 0; groups > 1; level++) {
        int joined = ddl__hierarchy_radix(groups), c = halves ? 2 : joined > 1 ? joined : groups;
        add_level(m, c, left, pieces, level);
        left /= c;
        groups = (groups + c - 1) / c;
    }
}

static bool follows(const ddl__request *request)
{
    return ddl__hierarchical_follows(request, false);
}

static void cost(ddl__cost *c)
{
    ddl__hierarchical_cost(c, false);
}

static int64_t build(ddl__builder *builder)
{
    return ddl__hierarchical_build(builder, false);
}

const ddl__algorithm_descriptor ddl__hierarchical = {.name = "hierarchical",
                                                     .kinds = DDL__KIND(ALLREDUCE),
                                                     .fits = ddl__request_has_levels,
                                                     .follows = follows,
                                                     .cost = cost,
                                                     .build = build};
