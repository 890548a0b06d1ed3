/* work.h - one operation from its submission to its result. */
#ifndef DDL_ENGINE_WORK_H
#define DDL_ENGINE_WORK_H

#include <stdatomic.h>
#include <stdbool.h>

#include "base/clock.h"
#include "base/status.h"
#include "net/link.h"
#include "plan/plan.h"

typedef struct ddl__engine ddl__engine;
typedef struct ddl__bundle ddl__bundle; /* see group.h */

/* What the caller asked for; checked. */
typedef struct ddl__call {
    ddl__kind kind;
    ddl_dtype dtype;
    ddl_op op; /* 0 where the kind has none */
    int root;  /* of a message: to or from whom */
    int64_t count;
    /* Uneven blocks: size shares of the send buffer, then size of the recv buffer, as in
       ddl__request; NULL: even. On the heap; freed when the work is complete. */
    ddl__share *blocks;
    uint16_t counts_digest; /* of counts that must be equal on all ranks; root is then 0 */
    const void *send;       /* == recv: in place */
    void *recv;
    int64_t timeout_ms; /* this operation's limit */
    bool queued;
    bool uncounted;   /* the library's own: not recorded, and has the number of the one before */
    uint32_t wait_ms; /* how long who submits it waits before it gets a work */
    void *user;
    const char *name;           /* borrowed until it is submitted; NULL: matched by order */
    double prescale, postscale; /* 0: none */
    ddl__bundle *bundle;        /* several calls that travel as this one; or NULL */
    int tag;                    /* messages only, as the next */
    int *sender;
} ddl__call;

/* Where a message stands; the driver's. */
typedef struct ddl__transfer {
    ddl_work *before, *after; /* among all that are pending */
    uint64_t order;           /* in the mailbox */
    int peer;                 /* or DDL_ANY_SOURCE, until one is found */
    uint32_t partner;         /* the peer's number for it */
    size_t moved;             /* bytes sent or received in parts */
} ddl__transfer;

/* When the steps of a work run interleaved (interleave.h). */
typedef enum ddl__interleaving {
    DDL__INTERLEAVE_NEVER,
    DDL__INTERLEAVE_UNDECIDED,   /* at first */
    DDL__INTERLEAVE_NONTEMPORAL, /* while spans are stored past the caches */
    DDL__INTERLEAVE_ALWAYS
} ddl__interleaving;

struct ddl_work {
    ddl__engine *engine;
    unsigned generation; /* of the process that submitted it */
    uint32_t sequence;   /* once it is queued */
    ddl__call call;
    int64_t submitted, deadline; /* 0: it begins at once, and the clock is read a little later */

    /* All zero at first. */
    ddl_group *group;     /* of which this is a part, and which owns it; or NULL */
    ddl_group *whole_of;  /* the group that this completes; or NULL */
    bool announced;       /* by name: rank 0 is told */
    bool ordered;         /* .. and has said that it is its turn */
    bool abandoned;       /* destroyed while pending: the engine frees it */
    atomic_bool reported; /* in the list of completed works */
    ddl_work *next;       /* in the queue of submitted, or of completed works */
    char *name;           /* owned; NULL: matched by order */
    ddl_work *next_named;
    uint64_t record; /* its number in the flight recorder + 1; 0: not begun */
    void *staged;    /* memory of ours that the plan reads instead of the caller's; or NULL */
    char *message;   /* failure only; NULL when memory was short */
    ddl__transfer transfer; /* messages only */

    /* DDL_INPROGRESS until complete; stored last, so that a reader of it may read the message. */
    atomic_int status;

    /* Where the plan stands: the driver's, once it has begun. */
    ddl__signature signature;
    const ddl__plan *plan;
    const unsigned char *in;
    unsigned char *out, *scratch;
    size_t element;
    int64_t wave;
    uint32_t step;
    uint32_t published; /* targets of this step served already */
    bool received;      /* this step's operands were consumed already */
    bool lands_far;     /* what lands in the recv buffer does not stay in the caches */
    ddl__interleaving interleaving;
};

/* When it was submitted, for limits and records. */
static inline void ddl__work_stamp(ddl_work *work)
{
    work->submitted = ddl__now();
    work->deadline = ddl__deadline_after(work->submitted, work->call.timeout_ms);
}

#endif
