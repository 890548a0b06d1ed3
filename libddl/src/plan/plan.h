/* SPDX-License-Identifier: Apache-2.0 */
/* plan.h - an operation as data: the spans that one rank publishes, reduces and takes, in order.
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
 * consumed at its time or later fit the link together with the step's own span. So of all remaining
 * steps, the one with the earliest time can run. */
#ifndef DDL_PLAN_PLAN_H
#define DDL_PLAN_PLAN_H

#include <stdbool.h>
#include <stdint.h>

#include "ddl/ddl.h"
#include "plan/algorithms.h"
#include "plan/order.h"
#include "topo/topology.h"

/* The number of spans, of any length, for which a link must have room. No plan needs more than half
 * of this number. */
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
    DDL__ORDERED_ALLREDUCE, /* planned as an all-reduce with an order */
    DDL__ORDERED_REDUCE_SCATTER
} ddl__kind;

typedef enum ddl__step_kind {
    DDL__PUBLISH, /* send src to the targets */
    /* reduce the operands in order: this rank's src, the others' next span; store the result at dst
     * if `keep`, and send it to the targets */
    DDL__REDUCE,
    DDL__TAKE, /* receive the next span of operand 0 into dst, and forward it to the targets */
    DDL__COPY, /* copy src to dst */
    /* like REDUCE, with the additions of a fold. An operand is one span that contains several
     * values, or is this rank's parts. Several results also share a span */
    DDL__FOLD,
    /* The same in the request's wire format. PACK and REDUCE_PACK: the targets receive packed
     * spans; the sum is not kept. UNPACK: as TAKE; operand 0 is packed, the targets get elements.
     * ADD_UNPACKED: store src plus operand 0, which is packed, at dst; with `finish`, divide an
     * average */
    DDL__PACK,
    DDL__REDUCE_PACK,
    DDL__UNPACK,
    DDL__ADD_UNPACKED
} ddl__step_kind;

/* The memory of a step: the caller's send and recv buffer, and scratch memory for data that a rank
 * forwards. In place, and in a broadcast, the send buffer is the recv buffer. In an ordered sum,
 * part k is the k-th send buffer, of `wide` * count elements; only FOLD steps see more than the
 * first. In a barrier each buffer is one element of any content. The plan contains the size of its
 * scratch memory, whose initial content does not matter. */
typedef enum ddl__space { DDL__IN, DDL__OUT, DDL__SCRATCH } ddl__space;

typedef struct ddl__step {
    uint8_t kind;       /* ddl__step_kind */
    uint8_t space;      /* ddl__space of src */
    uint8_t keep;       /* REDUCE, FOLD: store the result at dst */
    uint8_t finish;     /* REDUCE, FOLD: the last reduction of this share; average divides here */
    uint8_t to_scratch; /* dst is in the scratch memory, else in the recv buffer */
    /* no step overwrites the sent data before the targets have received it, so a link may send it
     * in place; otherwise the link must copy it */
    uint8_t stable;
    uint8_t fold; /* FOLD: index in plan->folds */
    /* the target may store its result where this rank's operand is. PUBLISH: this rank sends such
     * an operand, which no rank needs once the target has reduced it. REDUCE: the targets have sent
     * such operands. TAKE: this rank takes such a result */
    uint8_t returns;
    uint8_t rounds;   /* COPY, ADD_UNPACKED: round the result as packing does */
    uint32_t skew;    /* waves by which this step follows the first */
    uint32_t operand; /* index of the first operand in plan->ranks */
    uint32_t operands;
    uint32_t target; /* index of the first target in plan->ranks */
    uint32_t targets;
    int64_t src; /* elements from the start of the buffer in `space` */
    int64_t dst; /* elements from the start of the recv buffer, or of the scratch memory */
    int64_t count;
    /* Segment k has `piece` elements of the share, from element k * piece on. In the buffers it
     * begins `stride` elements after segment k - 1. */
    int64_t piece, stride;
} ddl__step;

enum { DDL__FOLDS = 32 }; /* as many as a hierarchy may have levels */

typedef struct ddl__plan {
    ddl__algorithm by;
    const char *name; /* the algorithm's name; static */
    int64_t segment;  /* elements of the longest piece; at most 1 GiB */
    int64_t waves;
    int64_t landing; /* elements received into the recv buffer; 0 if the plan reduces any */
    int64_t scratch; /* elements of scratch memory */
    uint32_t n_steps;
    ddl__step *steps;
    uint32_t *ranks; /* operands and targets of all steps */
    int divisor;     /* divisor of an average */
    unsigned bits;   /* bits of a packed element; 0: nothing is packed */
    bool returns;    /* some step has `returns` */
    ddl__fold *folds[DDL__FOLDS];
    int operands; /* largest number of operands of a fold */
} ddl__plan;

/* Part of a buffer, in elements. */
typedef struct ddl__share {
    int64_t start, count;
} ddl__share;

/* A subset of the ranks. */
typedef struct ddl__among {
    int rank, n;      /* rank: this rank's index among them; n: their number */
    const int *ranks; /* in ascending order */
} ddl__among;

/* An operation for which to create a plan. */
typedef struct ddl__request {
    ddl__kind kind;
    int rank, size, root;
    /* number of elements, as in the public call. If a buffer has a block for each rank, the number
     * in one block; all blocks together have less than 2^63 bytes. Ignored for barriers and uneven
     * blocks. */
    int64_t count;
    /* Uneven blocks, by rank: the part of the send buffer for that rank, and the part of the recv
     * buffer from that rank. All ranks know the counts of an all-gather and a reduce-scatter; of
     * other operations, sender and receiver know theirs. NULL: even blocks. Borrowed until the plan
     * is made. */
    const ddl__share *sent, *received;
    /* The order of the additions of a reduction: order->members are ranks. Borrowed until the plan
     * is made. NULL: any order. With an order a rank may pass several operands, its parts. */
    const ddl__order *order;
    /* The ranks that take part in an all-reduce among some ranks. Either all ranks of the comm
     * share memory, or no two of these ranks do. The other ranks make plans among their own ranks.
     * Borrowed. NULL: all ranks. */
    const ddl__among *among;
    size_t element;
    bool in_place;   /* send and recv are one buffer */
    bool all_shared; /* all ranks share memory */
    bool normalizes; /* the reduction changes even a single operand: any nonzero value becomes 1 */
    bool rounds;     /* with an order: each pass over the operands rounds, not each addition */
    ddl_wire wire;   /* the format of spans between hosts; 0: elements */
    uint8_t wide; /* with an order: the size of an element of a part, in elements of the result */
    const ddl__topology *topology; /* NULL: one level. Borrowed until the plan is made */
    ddl__algorithm by; /* the requested algorithm; if it is none, or does not support the request,
                          one is chosen */
    int64_t segment_bytes; /* 0: chosen */
    /* maximum bytes that one rank may have published and that were not released yet, to all its
     * peers together (shared memory) or to one peer (wires); 0: no limit. There must be room for 4
     * * size elements, and for at least 12 */
    int64_t window;
} ddl__request;

/* Create the plan of one rank. Return NULL if out of memory. Free it with ddl__plan_destroy. If the
 * algorithm with packed spans does not support the request, the plan ignores the wire format. */
ddl__plan *ddl__plan_create(const ddl__request *request);
void ddl__plan_destroy(ddl__plan *plan);

/* Create the plan with the algorithm of that name. Return NULL also if the algorithm does not
 * support the request. */
ddl__plan *ddl__plan_create_as(const ddl__request *request, const char *name);

const char *ddl__algorithm_name(ddl__algorithm by);
/* Return the algorithm of that name, or DDL__ALGORITHM_NONE. */
ddl__algorithm ddl__algorithm_named(const char *name);

/* ddl__algorithm_fits returns true if the algorithm supports the request. ddl__algorithm_cost
 * returns its predicted time in seconds, or 0 if it does not support the request. */
bool ddl__algorithm_fits(ddl__algorithm algorithm, const ddl__request *request);
double ddl__algorithm_cost(ddl__algorithm algorithm, const ddl__request *request);

/* ddl__packs_from returns the minimum number of elements that should be packed.
 * ddl__request_elements returns the number of elements to compare with it: of the buffer, or of all
 * blocks. Uneven blocks are counted only if all ranks know all lengths. */
int64_t ddl__packs_from(const ddl__request *request);
int64_t ddl__request_elements(const ddl__request *request);

/* Store the algorithms worth comparing for a request in `found`, with their predicted times, and
 * return their number. The chosen algorithm is the first one. All members of a comm get the same
 * list. */
typedef struct ddl__candidate {
    ddl__algorithm by;
    double seconds;
} ddl__candidate;
int ddl__plan_candidates(const ddl__request *request, ddl__candidate found[DDL__ALGORITHMS]);

/* Return the length in elements of segment `k` of `step`; 0 outside the share. */
static inline int64_t ddl__segment_length(const ddl__step *step, int64_t k)
{
    int64_t left = step->count - k * step->piece;
    return k < 0 || left <= 0 ? 0 : left < step->piece ? left : step->piece;
}

#endif
