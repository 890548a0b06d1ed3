/* run.h - executing a work's plan: resumable, never blocks. */
#ifndef DDL_ENGINE_RUN_H
#define DDL_ENGINE_RUN_H

#include "engine/stores.h"
#include "engine/wait_policy.h"
#include "engine/work.h"
#include "reduce/reduce.h"

/* Where an operation's time goes, by the outermost level that a step reaches; nanoseconds. */
typedef struct ddl__meter {
    unsigned char *levels; /* by rank: 0 in the same host, 1 in the same rack, ... */
    int64_t mark;          /* until when all is accounted for */
    int64_t spent[DDL__DIMENSIONS], waited; /* waited: without anything to do */
} ddl__meter;

/* What running needs of an engine. */
typedef struct ddl__runner {
    int rank, size;
    ddl__link **links; /* by rank */
    bool among_frames; /* messages share the links: see frames.h */
    const ddl__kernels *kernels;
    ddl__link **zero_copy; /* the links that send user memory, to be flushed */
    unsigned n_zero_copy;
    ddl__link **targets; /* room for size links */
    const void **operands;
    ddl__stores (*stores)[DDL__STORES]; /* by target, that of size is several; by length */
    ddl__backoff claim_backoff;         /* interleave.c: calls that do not wait */
    ddl__meter *meter;                  /* or NULL */
} ddl__runner;

typedef enum ddl__progress {
    DDL__BLOCKED, /* nothing could be done */
    DDL__MOVED,   /* something was done, then it blocked */
    DDL__FINISHED /* complete: the work's buffers are no longer used */
} ddl__progress;

/* `scratch`: as much memory as the plan wants, until it ends. */
void ddl__run_start(ddl_work *work, const ddl__plan *plan, unsigned char *scratch);
ddl__progress ddl__run(ddl__runner *runner, ddl_work *work);

/* The link whose state keeps the blocked work from ever going on, or NULL. */
ddl__link *ddl__run_blocking_peer(ddl__runner *runner, const ddl_work *work, int *rank);

#endif
