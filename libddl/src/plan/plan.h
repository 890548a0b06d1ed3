/* plan.h - an operation as data: what one rank publishes, reduces and takes, in which order.
 *
 * PURE: no I/O, no clock, no threads, no getenv. A plan is a function of its request alone, so the
 * plans of all ranks can be made and checked in one process.
 *
 * A plan is a short list of steps, each over one share of the buffers, applied to the share's
 * segments as a software pipeline: in wave w the steps run in list order, step s on segment
 * w - s.skew, when the share has that segment. Ranks execute their waves in order and block only
 * on a missing span or a full link. Links between two ranks keep order, so a span needs no label:
 * the receiver's plan consumes in the order in which the sender's plan published.
 *
 * Why no plan can deadlock: call (operation, wave, place in the list) the time of a step. Every
 * span is consumed at a later time than it is published, and what is published before a step and
 * consumed at its time or after it fits the link together with the step's own span. So whatever
 * step has the earliest time of all that are left can run.
 */
#ifndef DDL_PLAN_PLAN_H
#define DDL_PLAN_PLAN_H

#include <stdbool.h>
#include <stdint.h>

#include "ddl/ddl.h"
#include "topo/topology.h"

/* So many spans must fit a link from one rank to another, whatever their lengths; with more it may
 * say that it has no room. No plan needs more than half of them. */
enum { DDL__LINK_SPANS = 32 };

typedef enum ddl__kind {
    DDL__ALLREDUCE = 1,
    DDL__REDUCE_SCATTER,
    DDL__ALLGATHER,
    DDL__BROADCAST,
    DDL__BARRIER,
    DDL__REDUCE_TO_ROOT,
    DDL__GATHER,
    DDL__SCATTER,
    DDL__ALLTOALL,
    DDL__SEND, /* messages are matched, not planned */
    DDL__RECV
} ddl__kind;

/* The ways to carry out an operation; docs/algorithms.md has each. */
typedef enum ddl__algorithm {
    DDL__ALGORITHM_NONE,
    DDL__ALGORITHM_LOCAL,
    DDL__ALGORITHM_DISSEMINATION,
    DDL__ALGORITHM_PAIRWISE,
    DDL__ALGORITHM_ONE_SHOT,
    DDL__ALGORITHM_DIRECT,
    DDL__ALGORITHM_HIERARCHICAL,
    DDL__ALGORITHM_HALVING,
    DDL__ALGORITHM_TREE,
    DDL__ALGORITHM_RING,
    DDL__ALGORITHM_HOSTS,
    DDL__ALGORITHM_LEADERS,
    DDL__ALGORITHM_CHAIN,
    DDL__ALGORITHMS
} ddl__algorithm;

typedef enum ddl__step_kind {
    DDL__PUBLISH, /* send `in` at src to the targets */
    DDL__REDUCE,  /* reduce the operands in order (own: `in` at src; others: their next span); store
                     at dst if `keep`; send the result to the targets, if any */
    DDL__TAKE, /* receive operand 0's next span into dst; then send it on to the targets, if any */
    DDL__COPY  /* in at src to dst, locally */
} ddl__step_kind;

/* The caller's send and recv buffer. In place, and in a broadcast, both are the recv buffer. In a
 * barrier each is one element of any content. And scratch memory, for what a rank passes on for
 * others: as much as the plan says, of any content at first, and the plan's alone until it ends. */
typedef enum ddl__space { DDL__IN, DDL__OUT, DDL__SCRATCH } ddl__space;

typedef struct ddl__step {
    uint8_t kind;       /* ddl__step_kind */
    uint8_t space;      /* ddl__space in which src lies */
    uint8_t keep;       /* REDUCE: store the result at dst */
    uint8_t finish;     /* REDUCE: the last reduction of this share; average divides here */
    uint8_t to_scratch; /* dst lies in the scratch memory, not in the recv buffer */
    uint8_t stable;   /* what is sent lies in a buffer and no step overwrites it before the targets
                         have received it: a link may lend it. Else it must be copied */
    uint32_t skew;    /* waves by which this step follows the first */
    uint32_t operand; /* index of the first in plan->ranks */
    uint32_t operands;
    uint32_t target; /* index of the first in plan->ranks */
    uint32_t targets;
    int64_t src; /* elements from the start of the buffer in `space` */
    int64_t dst; /* elements from the start of the recv buffer, or of the scratch memory */
    int64_t count;
    /* Segment k is `piece` elements from k * piece on in the share; in the buffers they begin
     * `stride` elements behind those of segment k - 1. */
    int64_t piece, stride;
} ddl__step;

typedef struct ddl__plan {
    ddl__algorithm by;
    const char *name; /* its own: "one-shot", "direct", "ring", ... static */
    int64_t segment;  /* elements of the longest piece; at most 1 GiB */
    int64_t waves;
    int64_t landing; /* elements that come into the recv buffer for good; 0 where any are reduced */
    int64_t scratch; /* elements; 0: none */
    uint32_t n_steps;
    ddl__step *steps;
    uint32_t *ranks; /* operands and targets of all steps */
} ddl__plan;

/* Part of a buffer, in elements. */
typedef struct ddl__share {
    int64_t start, count;
} ddl__share;

/* What is asked for. */
typedef struct ddl__request {
    ddl__kind kind;
    int rank, size, root;
    int64_t count; /* as in the public call: of a block where buffers hold one for each rank, which
                      together are less than 2^63 bytes; barrier, uneven blocks: ignored */
    /* Uneven blocks, by rank: those of the send buffer that go to it, those of the recv buffer that
       come from it. Equal on all ranks are the counts of an all-gather and a reduce-scatter; of the
       other kinds, those of the two ends. NULL: even. Borrowed until the plan is made. */
    const ddl__share *sent, *received;
    size_t element;
    bool in_place;   /* send and recv are one buffer */
    bool all_shared; /* all ranks share memory */
    bool normalizes; /* the reduction changes even a single operand: any truth becomes 1 */
    const ddl__topology *topology; /* NULL: one level. Borrowed until the plan is made */
    ddl__algorithm by;             /* asked for; one is chosen if it is none or does not fit */
    int64_t segment_bytes;         /* 0: chosen */
    int64_t window; /* bytes that one rank may have published and not yet seen released, to all its
                       peers together (shared memory) or to one (wires); 0: no limit. Must hold
                       4 * size elements, but at least 12 */
} ddl__request;

/* Make the plan of one rank. NULL when out of memory. Freed with ddl__plan_destroy. */
ddl__plan *ddl__plan_create(const ddl__request *request);
void ddl__plan_destroy(ddl__plan *plan);

/* The same by another algorithm than the chosen one, by its name, to compare them (`ddl plan`).
 * NULL also when it cannot do what is asked for. */
ddl__plan *ddl__plan_create_as(const ddl__request *request, const char *name);

const char *ddl__algorithm_name(ddl__algorithm by);
/* DDL__ALGORITHM_NONE if there is no such name. The name "nested" of earlier versions means
 * hierarchical. */
ddl__algorithm ddl__algorithm_named(const char *name);

/* The algorithms that are worth a comparison for a request, the chosen one first, with what each is
 * predicted to take. All members of a comm get the same list. Returns their number. */
typedef struct ddl__candidate {
    ddl__algorithm by;
    double seconds;
} ddl__candidate;
int ddl__plan_candidates(const ddl__request *request, ddl__candidate found[DDL__ALGORITHMS]);

/* Length in elements of segment `k` of `step`; 0 outside. */
static inline int64_t ddl__segment_length(const ddl__step *step, int64_t k)
{
    int64_t left = step->count - k * step->piece;
    return k < 0 || left <= 0 ? 0 : left < step->piece ? left : step->piece;
}

#endif
