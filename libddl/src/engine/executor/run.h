/* SPDX-License-Identifier: Apache-2.0 */
/* run.h - executes the plan of a work: resumable, never blocks. */
#ifndef DDL_ENGINE_EXECUTOR_RUN_H
#define DDL_ENGINE_EXECUTOR_RUN_H

#include "engine/calls/work.h"
#include "engine/executor/wait_policy.h"
#include "reduce/reduce.h"

/* Spans of at least so many bytes, if moved and not reduced, are in no cache before and do not fit
 * into one after. A plain store would fetch each line from memory first. Up to 16 MiB plain stores
 * were faster. */
enum { DDL__FAR_MINIMUM = 32 * 1024 * 1024 };

/* From so many waves of long spans on, a rank sends 16 MiB or more: that is in no cache. */
enum { DDL__MEMORY_WAVES = 64 };

/* What running needs of a stream. */
typedef struct ddl__runner {
    int rank, size;
    ddl__link **links; /* by rank */
    bool among_frames; /* messages share the links: see frames.h */
    const ddl__kernels *kernels;
    ddl__regions *regions; /* of the endpoint; NULL: nothing is lent */
    atomic_ullong lent;    /* bytes of spans without bytes; any thread may read it */
    ddl__link **unflushed; /* links that may have yet to send what this sent: room for size */
    unsigned n_unflushed;
    ddl__link **targets; /* room for size links */
    void **returns;      /* where targets want a result: room for size */
    unsigned n_returns;
    const void **operands; /* room for n_operands */
    int n_operands;
    bool rings_are_near;        /* in the second-level caches of their owners */
    unsigned ahead;             /* interleave.c: spans peeked at and not yet released */
    ddl__backoff claim_backoff; /* interleave.c: calls that do not wait */
} ddl__runner;

typedef enum ddl__progress {
    DDL__BLOCKED, /* nothing could be done */
    DDL__MOVED,   /* something was done, then it blocked */
    DDL__FINISHED /* complete: the buffers of the work are no longer used */
} ddl__progress;

/* `scratch`: the memory that the plan wants, until it ends. */
void ddl__run_start(const ddl__runner *runner, ddl_work *work, const ddl__plan *plan,
                    unsigned char *scratch);
ddl__progress ddl__run(ddl__runner *runner, ddl_work *work);

/* The link whose state blocks the work for ever, or NULL. */
ddl__link *ddl__run_blocking_peer(ddl__runner *runner, const ddl_work *work, int *rank);

/* Whether peers have read all that the stream has lent to them (net/lending.h). */
bool ddl__loans_flush(const ddl__runner *runner);

/* The caller gets its buffers back although peers may still use them. */
void ddl__loans_abandon(const ddl__runner *runner, const ddl_work *work);

#endif
