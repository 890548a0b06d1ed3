/* SPDX-License-Identifier: Apache-2.0 */
/* run.h - executes the plan of a work: resumable, never blocks. */
#ifndef DDL_ENGINE_EXECUTOR_RUN_H
#define DDL_ENGINE_EXECUTOR_RUN_H

#include "engine/calls/work.h"
#include "engine/executor/wait_policy.h"
#include "reduce/reduce.h"

/* From this many bytes on, data that a plan receives and does not reduce is copied with stores that
 * bypass the caches. That much data is in no cache before the copy, and fits into none afterwards.
 * A plain store would first fetch each cache line from memory. Up to 16 MiB, plain stores were
 * faster. */
enum { DDL__FAR_MINIMUM = 32 * 1024 * 1024 };

/* In at least this many waves of long spans, a rank sends at least 16 MiB, which fit into no
 * cache. */
enum { DDL__MEMORY_WAVES = 64 };

/* The state of a stream that executes plans. */
typedef struct ddl__runner {
    int rank, size;
    ddl__link **links; /* by rank */
    bool among_frames; /* messages share the links (frames.h) */
    const ddl__kernels *kernels;
    ddl__regions *regions; /* the endpoint's regions; NULL: no zero-copy spans */
    atomic_ullong lent;    /* bytes of zero-copy spans; any thread may read it */
    /* links that may still have to send memory of this stream; room for `size` */
    ddl__link **unflushed;
    unsigned n_unflushed;
    ddl__link **targets; /* room for `size` links */
    void **returns;      /* buffers of peers in which to store the result; room for `size` */
    unsigned n_returns;
    const void **operands; /* room for `n_operands` operands */
    int n_operands;
    bool rings_are_near; /* the rings stay in the second-level caches of their owners */
    unsigned ahead; /* interleave.c: number of spans that were peeked at and are not released */
    ddl__backoff claim_backoff; /* interleave.c: the calls that do not wait for missing spans */
} ddl__runner;

typedef enum ddl__progress {
    DDL__BLOCKED, /* nothing was possible */
    DDL__MOVED,   /* something was done, then the work blocked */
    DDL__FINISHED /* complete; the work no longer uses its buffers */
} ddl__progress;

/* Start a plan. `scratch` is the scratch memory that the plan needs; it must exist until the plan
 * ends. */
void ddl__run_start(const ddl__runner *runner, ddl_work *work, const ddl__plan *plan,
                    unsigned char *scratch);
ddl__progress ddl__run(ddl__runner *runner, ddl_work *work);

/* Return the link whose state blocks the work for ever, or NULL. */
ddl__link *ddl__run_blocking_peer(ddl__runner *runner, const ddl_work *work, int *rank);

/* Return true if peers have read all zero-copy spans of the stream (net/shm/lending.h). */
bool ddl__loans_flush(const ddl__runner *runner);

/* Stop using the caller's buffers, although peers may still access them: afterwards no peer writes
 * to them. */
void ddl__loans_abandon(const ddl__runner *runner, const ddl_work *work);

#endif
