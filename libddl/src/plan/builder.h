/* SPDX-License-Identifier: Apache-2.0 */
/* builder.h - the common parts of the algorithms: descriptor, steps, lists of ranks, segments. For
 * the files of this folder and its tests. */
#ifndef DDL_PLAN_BUILDER_H
#define DDL_PLAN_BUILDER_H

#include "plan/costs.h"
#include "plan/request.h"

/* Limits for the segments of plans, in bytes unless noted. */
enum {
    DDL__SEGMENT_SHARED = 256 << 10, /* fits a core's second-level cache with its operands */
    DDL__SEGMENT_WIRES = 128 << 10,
    /* the shortest segment that is divided between interfaces */
    DDL__SEGMENT_WIRES_SHORT = 64 << 10,
    DDL__SEGMENT_MAX = 1 << 30,

    /* Segments in flight on each link of a ring: enough to hide latency, and few enough for a small
     * window. */
    DDL__RING_DEPTH = 8,

    /* The longest message for one-shot in shared memory. */
    DDL__ONE_SHOT_SHARED = 8 << 10,
    /* The most ranks for the one-shot barrier. Larger comms open shared memory on first use. */
    DDL__ONE_SHOT_BARRIER = 32,
    /* The longest message for one-shot over levels that a mode string declares. */
    DDL__ONE_SHOT_DECLARED = 4 << 10,

    /* The number of waves whose spans must fit the window. Two are necessary, the others are a
     * reserve. */
    DDL__WAVES = 4
};

typedef struct ddl__builder {
    const ddl__request *request;
    ddl__plan *plan;
    uint32_t step_room, n_ranks, rank_room;
    bool failed; /* out of memory; later calls do nothing */
} ddl__builder;

typedef struct ddl__algorithm_descriptor {
    const char *name;
    unsigned kinds; /* bits of the supported operations: DDL__KIND, or several */

    /* Return true if the algorithm supports the request; NULL: always. */
    bool (*fits)(const ddl__request *request);

    /* For a request with an order: return true if the plan adds in that order; NULL: never. */
    bool (*follows)(const ddl__request *request);

    /* Add the predicted time; NULL: none. */
    void (*cost)(ddl__cost *cost);

    /* Add the steps of one rank. Returns how many segments must fit the window, unless it sets
     * plan->segment and the steps' pieces itself. */
    int64_t (*build)(ddl__builder *builder);

    /* Return true if the algorithm should be compared with others for a request that fits; NULL:
     * always. */
    bool (*competes)(const ddl__request *request);

    /* Over wires, also compare segments of DDL__SEGMENT_WIRES_SHORT. */
    bool has_short_segments;
} ddl__algorithm_descriptor;

#define DDL__ALGORITHM_DECLARE(number, descriptor)                                                 \
    extern const ddl__algorithm_descriptor ddl__##descriptor;
DDL__ALGORITHM_TABLE(DDL__ALGORITHM_DECLARE, DDL__ALGORITHM_DECLARE)

/* The operands or targets of a step: the `n` ranks from `first` on, modulo the size. If there is a
 * list, they are its `n` entries from index `first` on, modulo its length `of`. */
typedef struct ddl__ranks {
    int first, n;
    const uint32_t *list;
    int of;
} ddl__ranks;

static inline ddl__ranks ddl__no_ranks(void)
{
    return (ddl__ranks){0};
}

static inline ddl__ranks ddl__one_rank(int64_t rank)
{
    return (ddl__ranks){.first = (int)rank, .n = 1};
}

static inline ddl__ranks ddl__listed_ranks(const uint32_t *list, uint32_t n)
{
    return (ddl__ranks){.n = (int)n, .list = list, .of = (int)n};
}

/* Return all ranks in rank order, so that all ranks reduce in the same order. */
static inline ddl__ranks ddl__all_ranks(const ddl__request *request)
{
    return (ddl__ranks){.n = request->size};
}

/* Return all other ranks, from the next one on, so that not all ranks send to the same rank at
 * once. */
static inline ddl__ranks ddl__other_ranks(const ddl__request *request)
{
    return (ddl__ranks){.first = request->rank + 1, .n = request->size - 1};
}

/* Append a step with its operands and targets, unless its count is 0. */
void ddl__builder_add(ddl__builder *builder, ddl__step step, ddl__ranks operands,
                      ddl__ranks targets);

/* Append a step with one peer: the target of a publish, the operand of a take. */
void ddl__builder_add_peer(ddl__builder *builder, ddl__step step, int64_t peer);

/* Grow the array that the pointer at `items` points to, so that it has room for `needed` elements
 * of `size` bytes. `room` is its capacity in elements. Return false if out of memory. */
bool ddl__grow(void *items, uint32_t *room, uint32_t needed, size_t size);

/* Return the number of elements of a segment, if the longest step has `longest` elements and
 * `spans` segments must fit into the window. */
int64_t ddl__choose_segment(const ddl__request *request, int64_t longest, int64_t spans);

/* ---- choice.c ---- */

typedef struct ddl__algorithm_entry {
    ddl__algorithm number;
    const ddl__algorithm_descriptor *descriptor;
} ddl__algorithm_entry;

/* Return the algorithm of that number, or NULL if it does not support the request. */
const ddl__algorithm_entry *ddl__algorithm_find(ddl__algorithm number, const ddl__request *request);

/* Return the algorithm that the request names if it supports the request, else the algorithm that
 * libddl chooses. */
const ddl__algorithm_entry *ddl__algorithm_choose(const ddl__request *request);

/* ---- Functions of single algorithms. ---- */

/* Return true if one-shot is at least as fast as direct for a short reduction in shared memory. */
bool ddl__one_shot_beats_direct(const ddl__request *request);

/* Return true if one-shot is the faster barrier. */
bool ddl__one_shot_beats_dissemination(const ddl__request *request);

/* ---- sums.c: additions in the order of a request ---- */

/* Return true if each rank passes one part, in the order of the ranks. Always true without an
 * order. */
bool ddl__ranks_are_in_order(const ddl__request *request);

/* Return true if the ranks of each group together pass the workers of one subtree. group[r] is the
 * group of rank r, one of `groups` groups. */
bool ddl__groups_are_subtrees(const ddl__request *request, const int *group, int groups);

/* Return the additions of some operands. number[r] is the number of the operand that contains the
 * parts of rank r, below `operands`; -1: none does. Returns NULL if out of memory. The caller frees
 * it with free. */
ddl__fold *ddl__sum_create(const ddl__request *request, const int *number, int operands);

/* Add a reduction. With an order, it adds the operands in that order, as plan->folds[fold], which
 * is made if it is NULL. `number` is as in ddl__sum_create; NULL: the ranks themselves. */
void ddl__builder_add_sum(ddl__builder *builder, ddl__step step, uint8_t fold, const int *number,
                          ddl__ranks operands, ddl__ranks targets);

/* ---- among.c: the request in a comm of only the ranks in request->among, and the conversion of
 * its plan to ranks of the whole comm. ---- */
ddl__request ddl__among_request(const ddl__request *request);
void ddl__among_renumber(const ddl__request *request, ddl__plan *plan);

/* Return the number of rounds between sending and receiving in pairwise. */
int ddl__pairwise_lag(const ddl__request *request);

/* Hosts: an all-gather or a reduce-scatter; or both as an all-reduce. Spans between hosts are
 * packed if the request has a wire format, as an all-reduce must. ddl__hosts_fit returns true if
 * the topology is supported. */
bool ddl__hosts_fit(const ddl__request *request);
void ddl__hosts_cost(ddl__cost *cost, double bytes_sent_per_byte);
int64_t ddl__hosts_build(ddl__builder *builder);

/* Hierarchical; with `halves`, each level of wires is halved repeatedly. */
bool ddl__hierarchical_follows(const ddl__request *request, bool halves);
void ddl__hierarchical_cost(ddl__cost *cost, bool halves);
int64_t ddl__hierarchical_build(ddl__builder *builder, bool halves);

#endif
