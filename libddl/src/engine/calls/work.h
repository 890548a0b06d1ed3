/* SPDX-License-Identifier: Apache-2.0 */
/* work.h - one operation from its submission to its result. */
#ifndef DDL_ENGINE_CALLS_WORK_H
#define DDL_ENGINE_CALLS_WORK_H

#include <stdatomic.h>
#include <stdbool.h>

#include "base/clock.h"
#include "base/status.h"
#include "net/link.h"
#include "net/shm/regions.h"
#include "plan/plan.h"

typedef struct ddl__engine ddl__engine;
typedef struct ddl__bundle ddl__bundle; /* defined in group.h */
typedef struct ddl_order ddl_order;     /* defined in ordered.h */

/* The gate of an operation whose buffers a device copies. The operation starts when the copies are
 * complete. A word in memory tells the device when the operation has ended. */
typedef struct ddl__hold {
    atomic_bool ready;
    atomic_uint *word; /* set to `value` when the operation has completed or failed */
    uint32_t value;
} ddl__hold;

/* The driver announces its sleep, then checks `ready`. Another thread sets `ready`, then checks
 * whether the driver sleeps. At least one of the two must notice the other, so both accesses are
 * sequentially consistent. */
static inline bool ddl__hold_is_ready(const ddl__hold *hold)
{
    return atomic_load_explicit(&hold->ready, memory_order_seq_cst);
}

/* Report the end of the operation, after all writes to its buffers. The device may free the hold
 * once the word is set. */
static inline void ddl__hold_end(const ddl__hold *hold)
{
    atomic_store_explicit(hold->word, hold->value, memory_order_release);
}

/* A checked call. */
typedef struct ddl__call {
    ddl__kind kind;
    ddl_dtype dtype;
    ddl_op op; /* 0 if the kind has no op */
    int root;  /* for a message, its destination or source */
    int64_t count;
    /* Uneven blocks: `size` shares of the send buffer, then `size` shares of the receive buffer, as
     * in ddl__request. NULL: even blocks. On the heap; freed when the work is complete. */
    ddl__share *blocks;
    /* digest of the counts or owners, equal on all ranks; 0 if the call has a root */
    uint16_t counts_digest;
    const void *send; /* equal to recv: in place */
    void *recv;
    ddl_order *order; /* a reference to the order of an ordered sum; else NULL */
    /* the parts of an ordered sum, on the heap; NULL: `send` is the only part */
    const void **parts;
    int64_t timeout_ms; /* the limit of this operation */
    ddl__algorithm by;  /* the requested algorithm; 0: the library chooses */
    uint8_t wide;       /* size of an element of a part, in elements of the result */
    uint8_t wire;       /* ddl_wire of an operation on f32; 0: f32 */
    bool queued;
    /* an internal operation of libddl: it is not recorded, and has the number of the previous
     * operation */
    bool uncounted;
    uint32_t wait_ms; /* time that the submitter waits before it returns a work */
    void *user;
    const char *name;           /* borrowed until submission; NULL: matched by order */
    double prescale, postscale; /* 0: no scaling */
    float *residual;            /* error feedback; or NULL */
    ddl__bundle *bundle;        /* several calls that run as one; or NULL */
    /* run a barrier with this call's signature, which checks that all ranks have made the call; the
     * buffers are not used */
    bool only_agrees;
    /* the ranks that take part in an all-reduce among some ranks, borrowed for the engine's life;
     * NULL: all ranks */
    const ddl__among *among;
    ddl__hold *hold; /* borrowed; the operation starts when this is ready, or at once if NULL */
    int tag;         /* the tag of a message; not used in other calls, like `sender` */
    int *sender;
} ddl__call;

/* The state of a message. Used by the driver. */
typedef struct ddl__transfer {
    ddl_work *before, *after; /* in the list of pending messages */
    uint64_t order;           /* position in the mailbox */
    int peer;                 /* rank of the peer; DDL_ANY_SOURCE until a message matches */
    uint32_t partner;         /* the number that the peer has given its work */
    size_t moved;             /* bytes sent or received in parts */
} ddl__transfer;

/* The decision whether the steps of a work run interleaved (interleave.c). */
typedef enum ddl__interleaving {
    DDL__INTERLEAVE_NEVER,
    DDL__INTERLEAVE_UNDECIDED,   /* initial value */
    DDL__INTERLEAVE_NONTEMPORAL, /* while stores of spans bypass the caches */
    DDL__INTERLEAVE_PLAIN,       /* while stores of spans do not bypass the caches */
    DDL__INTERLEAVE_ALWAYS
} ddl__interleaving;

struct ddl_work {
    ddl__engine *engine;
    unsigned generation; /* generation of the process that submitted it */
    uint32_t sequence;   /* set when the work is queued */
    ddl__call call;
    /* 0: not set yet, because the work starts at once; set soon after its start */
    int64_t submitted, deadline;

    /* The fields down to `status` are zero at first. */
    ddl_group *group;     /* the group that owns this part; or NULL */
    ddl_group *whole_of;  /* the group whose completion completes this work; or NULL */
    bool announced;       /* named: sent to rank 0 */
    bool ordered;         /* named: ordered to run by rank 0 */
    bool abandoned;       /* destroyed while pending; the engine frees it */
    atomic_bool reported; /* in the list of completed works */
    ddl_work *next;       /* in a queue of submitted works, or in the completed list */
    char *name;           /* owned; NULL: matched by order */
    ddl_work *next_named;
    uint64_t record; /* number in the flight recorder + 1; 0: not started */
    /* memory of the library that the plan reads instead of the caller's send buffer; or NULL */
    void *staged;
    char *message;          /* message of a failure; NULL if out of memory */
    ddl__transfer transfer; /* messages only */

    /* DDL_INPROGRESS until complete. Stored last, so that a thread that reads the final status may
     * also read `message`. */
    atomic_int status;

    /* The state of the plan. Used by the driver after the work has started. */
    ddl__signature signature;
    const ddl__plan *plan;
    const unsigned char *in;
    unsigned char *out, *scratch;
    size_t element;
    int64_t wave;
    uint32_t step;
    uint32_t published; /* targets to which this step has sent */
    bool received;      /* the operands of this step are consumed */
    /* the current step can never complete: an operand may have been overwritten, and others are
     * already released */
    bool lost;
    bool lands_far; /* the receive buffer is too long for the caches */
    bool lends;     /* some spans are sent without a copy (run.c) */
    /* the shared regions of the send and the receive buffer; base NULL: none */
    ddl__region regions[2];
    ddl__interleaving interleaving;
};

/* Set the time of submission and the limit. */
static inline void ddl__work_stamp(ddl_work *work)
{
    work->submitted = ddl__now();
    work->deadline = ddl__deadline_after(work->submitted, work->call.timeout_ms);
}

#endif
