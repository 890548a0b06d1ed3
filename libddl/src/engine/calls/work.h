/* SPDX-License-Identifier: Apache-2.0 */
/* work.h - one operation from its submission to its result. */
#ifndef DDL_ENGINE_CALLS_WORK_H
#define DDL_ENGINE_CALLS_WORK_H

#include <stdatomic.h>
#include <stdbool.h>

#include "base/clock.h"
#include "base/status.h"
#include "net/link.h"
#include "net/regions.h"
#include "plan/plan.h"

typedef struct ddl__engine ddl__engine;
typedef struct ddl__bundle ddl__bundle; /* see group.h */
typedef struct ddl_order ddl_order;     /* see ordered.h */

/* Ties an operation to a device that copies its buffers: the operation starts when they are there,
 * and a word tells the device when it has ended. */
typedef struct ddl__hold {
    atomic_bool ready;
    atomic_uint *word; /* gets `value` when the operation has ended, or failed */
    uint32_t value;
} ddl__hold;

/* The driver looks at it after it has announced its sleep, and whoever sets it looks for a sleeping
 * driver afterwards. So both are sequentially consistent. */
static inline bool ddl__hold_is_ready(const ddl__hold *hold)
{
    return atomic_load_explicit(&hold->ready, memory_order_seq_cst);
}

/* Its buffers are written by now. The hold may be gone when the word is set. */
static inline void ddl__hold_end(const ddl__hold *hold)
{
    atomic_store_explicit(hold->word, hold->value, memory_order_release);
}

/* What the caller asked for, checked. */
typedef struct ddl__call {
    ddl__kind kind;
    ddl_dtype dtype;
    ddl_op op; /* 0 where the kind has none */
    int root;  /* of a message: its destination or source */
    int64_t count;
    /* Uneven blocks: `size` shares of the send buffer, then `size` of the receive buffer, as in
     * ddl__request. NULL: even blocks. On the heap; freed when the work is complete. */
    ddl__share *blocks;
    uint16_t counts_digest; /* of counts, or owners, that must be equal on all ranks; root is then 0
                             */
    const void *send;       /* == recv: in place */
    void *recv;
    ddl_order *order;   /* an ordered sum: a reference; else NULL */
    const void **parts; /* its parts, on the heap; NULL: the one part is `send` */
    int64_t timeout_ms; /* the limit of this operation */
    ddl__algorithm by;  /* asked for; none: one is chosen */
    uint8_t wide;       /* the length of an element of a part, in elements of the result */
    bool queued;
    bool uncounted;   /* an operation of the library: not recorded, with the number of the previous
                         one */
    uint32_t wait_ms; /* how long the submitter waits before it gets a work */
    void *user;
    const char *name;           /* borrowed until submission; NULL: matched by order */
    double prescale, postscale; /* 0: none */
    ddl__bundle *bundle;        /* several calls that travel as one; or NULL */
    bool only_agrees;        /* the ranks find out whether all have called this: a barrier with the
                                signature of this call, whose buffers are not used */
    const ddl__among *among; /* an all-reduce of these ranks; borrowed for as long as the engine
                                lives; NULL: of all */
    ddl__hold *hold;         /* it starts when this is ready; borrowed; NULL: at once */
    int tag;                 /* messages only, like `sender` */
    int *sender;
} ddl__call;

/* The state of a message; used by the driver. */
typedef struct ddl__transfer {
    ddl_work *before, *after; /* in the list of pending messages */
    uint64_t order;           /* in the mailbox */
    int peer;                 /* or DDL_ANY_SOURCE until one is found */
    uint32_t partner;         /* the number of the work at the peer */
    size_t moved;             /* bytes sent or received in parts */
} ddl__transfer;

/* When the steps of a work run interleaved (interleave.c). */
typedef enum ddl__interleaving {
    DDL__INTERLEAVE_NEVER,
    DDL__INTERLEAVE_UNDECIDED,   /* at first */
    DDL__INTERLEAVE_NONTEMPORAL, /* while spans are stored past the caches */
    DDL__INTERLEAVE_PLAIN,       /* while they are not */
    DDL__INTERLEAVE_ALWAYS
} ddl__interleaving;

struct ddl_work {
    ddl__engine *engine;
    unsigned generation; /* of the process that submitted it */
    uint32_t sequence;   /* once it is queued */
    ddl__call call;
    int64_t submitted, deadline; /* 0: it begins at once, and is stamped soon after */

    /* All zero at first. */
    ddl_group *group;     /* the group that owns this part; or NULL */
    ddl_group *whole_of;  /* the group that this completes; or NULL */
    bool announced;       /* named: rank 0 has been told */
    bool ordered;         /* named: rank 0 has ordered it */
    bool abandoned;       /* destroyed while pending: freed by the engine */
    atomic_bool reported; /* in the list of completed works */
    ddl_work *next;       /* in a queue of submitted works, or in the completed list */
    char *name;           /* owned; NULL: matched by order */
    ddl_work *next_named;
    uint64_t record; /* its number in the flight recorder + 1; 0: not started */
    void *staged;  /* memory of the library that the plan reads instead of the caller's; or NULL */
    char *message; /* of a failure; NULL when memory was short */
    ddl__transfer transfer; /* messages only */

    /* DDL_INPROGRESS until complete. Stored last, so that a thread that reads it may read the
     * message. */
    atomic_int status;

    /* The state of the plan. Used by the driver, once the work has started. */
    ddl__signature signature;
    const ddl__plan *plan;
    const unsigned char *in;
    unsigned char *out, *scratch;
    size_t element;
    int64_t wave;
    uint32_t step;
    uint32_t published;     /* targets that this step has served */
    bool received;          /* the operands of this step are consumed */
    bool lost;              /* some were consumed, but one may have been overwritten: it is over */
    bool lands_far;         /* the receive buffer is too long for the caches */
    bool lends;             /* some spans travel without a copy (run.c); then: */
    ddl__region regions[2]; /* of the send buffer and the receive buffer; base NULL: none */
    ddl__interleaving interleaving;
};

/* Set the time of submission and the limit. */
static inline void ddl__work_stamp(ddl_work *work)
{
    work->submitted = ddl__now();
    work->deadline = ddl__deadline_after(work->submitted, work->call.timeout_ms);
}

#endif
