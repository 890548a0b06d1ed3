/* builder.h - what the algorithms make their plans with. For the files of this folder and its test.
 */
#ifndef DDL_PLAN_BUILDER_H
#define DDL_PLAN_BUILDER_H

#include "plan/plan.h"

/* What cuts plans up, and decides between them in shared memory. Bytes, but where it says
 * otherwise. */
enum {
    /* Up to these: everybody sends everything to everybody and reduces it all; a single hop. Among
     * many ranks less, as ddl__one_shot_beats_direct has it. */
    DDL__ONE_SHOT_SHARED = 8 << 10,
    DDL__ONE_SHOT_DECLARED = 4 << 10, /* the same for levels that a mode string declares */

    DDL__SEGMENT_SHARED = 256 << 10, /* stays in a core's second-level cache with its operands */
    DDL__SEGMENT_WIRES = 128 << 10,
    DDL__SEGMENT_WIRES_SHORT = 64 << 10, /* the least that goes over several interfaces at once */
    DDL__SEGMENT_MAX = 1 << 30,

    /* Shares begin at multiples of a cache line, so that no two ranks write to one. */
    DDL__LINE = 64,

    /* Waves whose spans fit the window. Two would do; the others are slack for ranks that run at
     * different speeds and for what a ring of memory wastes at its end. */
    DDL__WAVES = 4,

    /* Segments that a ring keeps under way on each link: enough to hide a hop's latency, few enough
     * for DDL__LINK_SPANS and for a small window. */
    DDL__RING_DEPTH = 8,

    /* Spans that a pairwise exchange keeps under way, to all peers together: the least hide a
     * wire's latency where there are few peers, the most leave room for long segments. */
    DDL__PAIRS_LEAST_WIRES = 8,
    DDL__PAIRS_MOST = 16
};

typedef struct ddl__builder {
    const ddl__request *request;
    ddl__plan *plan;
    uint32_t step_room, n_ranks, rank_room;
    bool failed; /* out of memory: later calls do nothing */
} ddl__builder;

/* Consecutive ranks, going round past the last. `first` may be out of range on either side. */
typedef struct ddl__ranks {
    int first, n;
} ddl__ranks;

static inline ddl__ranks ddl__no_ranks(void)
{
    return (ddl__ranks){0, 0};
}

static inline ddl__ranks ddl__one_rank(int rank)
{
    return (ddl__ranks){rank, 1};
}

/* In rank order: what a reduction that is the same everywhere needs. */
static inline ddl__ranks ddl__all_ranks(const ddl__request *request)
{
    return (ddl__ranks){0, request->size};
}

/* Everybody else, beginning after this rank, so that not all go to the same one at once. */
static inline ddl__ranks ddl__other_ranks(const ddl__request *request)
{
    return (ddl__ranks){request->rank + 1, request->size - 1};
}

/* The rank that lies `distance` further round, in range. */
static inline int ddl__rank_at(const ddl__request *request, int64_t distance)
{
    int64_t rank = (request->rank + distance) % request->size;
    return (int)(rank < 0 ? rank + request->size : rank);
}

/* Append a step; none if its count is 0. Its operand and target fields are filled in here. */
void ddl__builder_add(ddl__builder *builder, ddl__step step, ddl__ranks operands,
                      ddl__ranks targets);

/* What rank `i` is responsible for: an equal part of what is reduced to one result, beginning on a
 * cache line and at most one line longer than any other; its block of a reduce-scatter or an
 * all-gather. */
ddl__share ddl__share_of(const ddl__request *request, int i);

/* Some of a list of ranks, going round past its last. */
typedef struct ddl__rank_list {
    const uint32_t *ranks;
    uint32_t of, first, n;
} ddl__rank_list;
void ddl__builder_add_listed(ddl__builder *builder, ddl__step step, ddl__rank_list operands,
                             ddl__rank_list targets);

/* What of this rank's send buffer is meant for rank `i`, and where in its recv buffer lies what
 * comes from there. */
ddl__share ddl__block_to(const ddl__request *request, int i);
ddl__share ddl__block_from(const ddl__request *request, int i);

/* Rounds between a pairwise exchange's sending and taking. */
int ddl__pairs_lag(const ddl__request *request);

/* Elements of a segment where the longest share has `longest` and `spans` must fit the window. */
int64_t ddl__choose_segment(const ddl__request *request, int64_t longest, int64_t spans);

/* The algorithms. Each adds its steps and returns how many whole segments must fit the window. */
int64_t ddl__build_one_shot(ddl__builder *builder);
int64_t ddl__build_direct(ddl__builder *builder);
int64_t ddl__build_ring(ddl__builder *builder);
int64_t ddl__build_chain(ddl__builder *builder);
int64_t ddl__build_pairwise(ddl__builder *builder);
int64_t ddl__build_dissemination(ddl__builder *builder);

/* Of blocks, over hosts of several ranks; if the request is one that this can be done for. */
int64_t ddl__build_hosts(ddl__builder *builder);
bool ddl__fits_hosts(const ddl__request *request);

/* The same of an all-to-all of even and small blocks. */
int64_t ddl__build_exchange(ddl__builder *builder);
bool ddl__fits_exchange(const ddl__request *request);

/* From and to a root, over hosts of several ranks. */
int64_t ddl__build_leaders(ddl__builder *builder);

/* Over the levels of the topology. Sets pieces, strides and the plan's segment. */
int64_t ddl__build_hierarchical(ddl__builder *builder);
int64_t ddl__build_halving(ddl__builder *builder);

/* A binomial tree of the hosts' first ranks, and in each host all at its own. */
int64_t ddl__build_tree(ddl__builder *builder);

/* The same of a gather and a scatter of even and small blocks. */
int64_t ddl__build_tree_blocks(ddl__builder *builder);
bool ddl__fits_tree_blocks(const ddl__request *request);

/* ---- choice.c ---- */

int64_t ddl__build_local(ddl__builder *builder);

/* Whether the algorithm can do what is asked for; and the one that it is chosen. */
bool ddl__algorithm_fits(ddl__algorithm by, const ddl__request *request);
ddl__algorithm ddl__algorithm_choose(const ddl__request *request);
int64_t ddl__algorithm_build(ddl__algorithm by, ddl__builder *builder);

/* ---- costs.c ---- */

/* How long it is predicted to take, in seconds. */
double ddl__algorithm_cost(ddl__algorithm by, const ddl__request *request);

/* Whether a short reduction in shared memory takes no longer by one hop than by two. */
bool ddl__one_shot_beats_direct(const ddl__request *request);

/* Bytes of a segment, as asked for or chosen: the same on all ranks. */
int64_t ddl__algorithm_segment(ddl__algorithm by, const ddl__request *request);

#endif
