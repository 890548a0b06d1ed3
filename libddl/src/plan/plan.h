/* SPDX-License-Identifier: Apache-2.0 */
/* plan.h - an operation as data: what one rank publishes, reduces and takes, in which order.
 *
 * PURE: no I/O, no clock, no threads, no getenv. A plan depends only on its request, so the plans
 * of all ranks can be made and checked in one process.
 *
 * A plan is a short list of steps. Each step covers one share of the buffers, cut into segments,
 * and the segments pass through the steps as a software pipeline: in wave w the steps run in list
 * order, step s on segment w - s.skew, if its share has that segment. A rank executes its waves in
 * order. It blocks only on a missing span or a full link. A link keeps order, so spans need no
 * label: the receiver's plan consumes them in the order in which the sender's plan publishes them.
 *
 * No plan can deadlock. Let the time of a step be (operation, wave, index in the list). Every span
 * is consumed at a later time than it is published. All spans that are published before a step and
 * consumed at its time or later fit the link together with the step's own span. So of all steps
 * that are left, the one with the earliest time can run.
 */
#ifndef DDL_PLAN_PLAN_H
#define DDL_PLAN_PLAN_H

#include <stdbool.h>
#include <stdint.h>

#include "ddl/ddl.h"
#include "plan/algorithms.h"
#include "plan/order.h"
#include "topo/topology.h"

/* The spans that a link must have room for, of any length. No plan needs more than half of them. */
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
    DDL__RECV,
    DDL__ORDERED_ALLREDUCE
} ddl__kind;

typedef enum ddl__step_kind {
    DDL__PUBLISH, /* send src to the targets */
    DDL__REDUCE, /* reduce the operands in order: of this rank src, of others their next span. Store
                    the result at dst if `keep`, and send it to the targets */
    DDL__TAKE,   /* receive operand 0's next span into dst, and send it on to the targets */
    DDL__COPY,   /* copy src to dst */
    DDL__FOLD /* as REDUCE, by the additions of a fold: each operand brings several values, packed
                 into one span, or of this rank its parts. Results are packed likewise */
} ddl__step_kind;

/* The caller's send and recv buffer (of an ordered sum, part k is the k-th send buffer, of `wide` *
 * count elements; a step of another kind than FOLD sees the first only), and scratch memory for
 * data that a rank forwards. In place, and in a broadcast, the send buffer is the recv buffer. In a
 * barrier each is one element of any content. The plan says how much scratch memory it needs, of
 * any content. */
typedef enum ddl__space { DDL__IN, DDL__OUT, DDL__SCRATCH } ddl__space;

typedef struct ddl__step {
    uint8_t kind;       /* ddl__step_kind */
    uint8_t space;      /* ddl__space in which src lies */
    uint8_t keep;       /* REDUCE, FOLD: store the result at dst */
    uint8_t finish;     /* REDUCE, FOLD: the last one of this share; average divides here */
    uint8_t to_scratch; /* dst lies in the scratch memory, else in the recv buffer */
    uint8_t stable;     /* no step overwrites what is sent before the targets have received it, so a
                           link may send it from there. Else it must copy it */
    uint8_t fold;       /* FOLD: index in plan->folds */
    uint8_t returns;    /* PUBLISH: once the target has reduced what is sent, no rank needs it, and
                           this one takes the result to where it lies: the target may store it there.
                           REDUCE: the targets are such ranks. TAKE: this one is */
    uint32_t skew;      /* waves by which this step follows the first */
    uint32_t operand;   /* index of the first in plan->ranks */
    uint32_t operands;
    uint32_t target; /* index of the first in plan->ranks */
    uint32_t targets;
    int64_t src; /* elements from the start of the buffer in `space` */
    int64_t dst; /* elements from the start of the recv buffer, or of the scratch memory */
    int64_t count;
    /* Segment k is the share's elements from k * piece on, `piece` of them. In the buffers it
     * begins `stride` elements after segment k - 1. */
    int64_t piece, stride;
} ddl__step;

enum { DDL__FOLDS = 32 }; /* as many as a hierarchy may have levels */

typedef struct ddl__plan {
    ddl__algorithm by;
    const char *name; /* of the algorithm; static */
    int64_t segment;  /* elements of the longest piece; at most 1 GiB */
    int64_t waves;
    int64_t landing; /* elements received into the recv buffer; 0 if the plan reduces any */
    int64_t scratch; /* elements */
    uint32_t n_steps;
    ddl__step *steps;
    uint32_t *ranks; /* operands and targets of all steps */
    int divisor;     /* of an average */
    bool returns;    /* a step does */
    ddl__fold *folds[DDL__FOLDS];
    int operands; /* the most that a fold has */
} ddl__plan;

/* Part of a buffer, in elements. */
typedef struct ddl__share {
    int64_t start, count;
} ddl__share;

/* Some of the ranks. */
typedef struct ddl__among {
    int rank, n;      /* which of them this one is; how many */
    const int *ranks; /* in ascending order */
} ddl__among;

/* What is asked for. */
typedef struct ddl__request {
    ddl__kind kind;
    int rank, size, root;
    int64_t count; /* as in the public call: of a block where buffers hold one for each rank, which
                      together are less than 2^63 bytes; barrier, uneven blocks: ignored */
    /* Uneven blocks, by rank: the part of the send buffer that goes there, the part of the recv
       buffer that comes from there. All ranks know the counts of an all-gather and a
       reduce-scatter; of other operations, sender and receiver know theirs. NULL: even. Borrowed
       until the plan is made. */
    const ddl__share *sent, *received;
    /* An ordered sum: order->members are ranks. Borrowed until the plan is made. NULL: none. */
    const ddl__order *order;
    /* An all-reduce among these ranks, none of which share memory if not all ranks do. The other
       ranks make plans among ranks of their own. Borrowed. NULL: all */
    const ddl__among *among;
    size_t element;
    bool in_place;   /* send and recv are one buffer */
    bool all_shared; /* all ranks share memory */
    bool normalizes; /* the reduction changes even a single operand: any truth becomes 1 */
    uint8_t wide;    /* of an ordered sum: the length of an element of a part, in elements of the
                        result */
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

/* The same with the algorithm of that name. NULL also if it does not fit the request. */
ddl__plan *ddl__plan_create_as(const ddl__request *request, const char *name);

const char *ddl__algorithm_name(ddl__algorithm by);
/* DDL__ALGORITHM_NONE if there is none. */
ddl__algorithm ddl__algorithm_named(const char *name);

/* Whether it fits the request; the seconds that it is predicted to take, 0 if it does not fit. */
bool ddl__algorithm_fits(ddl__algorithm algorithm, const ddl__request *request);
double ddl__algorithm_cost(ddl__algorithm algorithm, const ddl__request *request);

/* The algorithms that are worth a comparison for a request, with their predicted times. The chosen
 * one is the first. All members of a comm get the same list. Returns the number. */
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
