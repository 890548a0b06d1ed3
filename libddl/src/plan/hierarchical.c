/* An all-reduce over the levels of a machine: ranks of a host, hosts of a rack, racks, aisles.
 *
 * The buffer is cut into chunks. Level by level, in each of a chunk's exchanges (exchanges.h) every
 * member sends the others their parts and reduces its own over all members, in their order; each
 * level is left with a part of what the one before had. After the last level every element is
 * reduced at its one owner, and goes back level by level: each member sends what it knows by now of
 * its part to the others. So a wire carries 1/X of the data, when X ranks of each host share it.
 *
 * The chunks go through the levels as a pipeline: while one is in the last level, later ones are in
 * those before, so that all kinds of links are busy at once.
 *
 * The order in which an element's contributions are added is that of the levels, whoever owns it.
 */
#include "plan/builder.h"
#include "plan/exchanges.h"

enum {
    /* Waves between a span's publishing and its reading, where memory is not short: what is under
     * way meanwhile hides a wire's latency and its peers' delays. */
    WIRE_LAG = 3
};

/* All chunks of one length: `n` of them from `start` on, the first in wave `skew`. */
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
} context;

/* ---------------------------------------------------------------------------------------- steps */

static ddl__rank_list members_of(const context *b, const ddl__exchange *x, int first, int n)
{
    return (ddl__rank_list){.ranks = b->now->exchanges.members + x->member,
                            .of = (uint32_t)x->members,
                            .first = (uint32_t)first,
                            .n = (uint32_t)n};
}

static ddl__rank_list others(const context *b, const ddl__exchange *x)
{
    return members_of(b, x, x->self + 1, x->members - 1);
}

static int member_after(const ddl__exchange *x, int i)
{
    return (x->self + i) % x->members;
}

/* A step over part `i` of an exchange in each chunk; empty for members without a part. */
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

/* Waves that an exchange of this level takes each way. */
static uint32_t lag_of(const context *b, int level)
{
    return level < b->hierarchy.inside ? 1 : (uint32_t)b->wire_lag;
}

/* Partial results replace in the recv buffer what was sent, or nothing; and what is sent from there
 * is overwritten only by the result that was made from it, so after it was received. */
static void reduce_level(const context *b, int level, uint32_t skew)
{
    const ddl__exchanges *exchanges = &b->now->exchanges;
    const ddl__exchange *first = exchanges->list + exchanges->first[level];
    const ddl__exchange *end = exchanges->list + exchanges->first[level + 1];
    uint8_t space = exchanges->first[level] ? DDL__OUT : DDL__IN; /* partial results or the input */
    for (const ddl__exchange *x = first; x < end; x++)
        for (int i = 1; i < x->members; i++) {
            ddl__step publish = over_part(b, x, member_after(x, i), skew);
            publish.kind = DDL__PUBLISH;
            publish.space = space;
            ddl__builder_add_listed(b->builder, publish, members_of(b, x, 0, 0),
                                    members_of(b, x, member_after(x, i), 1));
        }
    bool last = level + 1 == exchanges->n;
    for (const ddl__exchange *x = first; x < end; x++) {
        ddl__step reduce = over_part(b, x, x->self, skew + lag_of(b, level));
        reduce.kind = DDL__REDUCE;
        reduce.space = space;
        reduce.keep = 1;
        reduce.finish = last;
        ddl__builder_add_listed(b->builder, reduce, members_of(b, x, 0, x->members),
                                last ? others(b, x) : members_of(b, x, 0, 0));
    }
}

/* The last level's results are sent by the step that makes them. */
static void gather_level(const context *b, int level, uint32_t skew)
{
    const ddl__exchanges *exchanges = &b->now->exchanges;
    const ddl__exchange *first = exchanges->list + exchanges->first[level];
    const ddl__exchange *end = exchanges->list + exchanges->first[level + 1];
    for (const ddl__exchange *x = first; x < end && level + 1 < exchanges->n; x++) {
        ddl__step publish = over_part(b, x, x->self, skew);
        publish.kind = DDL__PUBLISH;
        publish.space = DDL__OUT;
        ddl__builder_add_listed(b->builder, publish, members_of(b, x, 0, 0), others(b, x));
    }
    for (const ddl__exchange *x = first; x < end; x++)
        for (int i = 1; i < x->members; i++) {
            ddl__step take = over_part(b, x, member_after(x, i), skew + lag_of(b, level));
            take.kind = DDL__TAKE;
            ddl__builder_add_listed(b->builder, take, members_of(b, x, member_after(x, i), 1),
                                    members_of(b, x, 0, 0));
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

/* --------------------------------------------------------------------------------------- chunks */

/* Elements of a chunk that the window and the segments allow. */
static int64_t longest_chunk(const ddl__request *request)
{
    int64_t element = (int64_t)request->element, line = DDL__LINE / element;
    int64_t bytes = DDL__SEGMENT_WIRES * (int64_t)request->size;
    if (request->segment_bytes > 0)
        bytes = request->segment_bytes;
    if (bytes > DDL__SEGMENT_MAX)
        bytes = DDL__SEGMENT_MAX;
    /* Two waves are under way in a host's shared memory, whose rings waste some at their ends. Its
     * window is used by one level only, unless hosts have nodes or the levels are not the real
     * ones: then it may have to hold what all levels send, which is less than three chunks. */
    bool by_several = request->topology->declared || request->topology->node;
    int64_t fit = request->window / (by_several ? 2 * DDL__WAVES : DDL__WAVES);
    if (request->window > 0 && bytes > fit)
        bytes = fit;
    int64_t chunk = bytes / element;
    if (chunk > line)
        chunk -= chunk % line;
    return chunk > 0 ? chunk : 1;
}

/* Chunks about as long as each other; what is left over goes first. */
static void cut(const ddl__request *request, chunks *first, chunks *rest)
{
    int64_t line = DDL__LINE / (int64_t)request->element, longest = longest_chunk(request);
    int64_t n = request->count / longest + (request->count % longest != 0);
    int64_t length = request->count / n + (request->count % n != 0);
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

/* The finest levels at which no two ranks exchange too many ranges. */
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
            /* Spans both ways, in every wave under way and the present one. */
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

static int64_t build(ddl__builder *builder, bool halves)
{
    context b = {.builder = builder, .halves = halves};
    chunks first, rest;
    if (builder->request->count == 0)
        return 1;
    if (!choose_levels(&b, &first, &rest)) {
        builder->failed = true;
        return 1;
    }
    add_steps(&b, &first);
    add_steps(&b, &rest);
    builder->plan->segment = longest_piece(builder->plan);
    drop(&first, &rest);
    ddl__hierarchy_destroy(&b.hierarchy);
    return 1;
}

int64_t ddl__build_hierarchical(ddl__builder *builder)
{
    return build(builder, false);
}

int64_t ddl__build_halving(ddl__builder *builder)
{
    return build(builder, true);
}
