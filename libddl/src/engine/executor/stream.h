/* SPDX-License-Identifier: Apache-2.0 */
/* stream.h - a queue of operations that run one after another over one set of links. */
#ifndef DDL_ENGINE_EXECUTOR_STREAM_H
#define DDL_ENGINE_EXECUTOR_STREAM_H

#include <stdatomic.h>

#include "base/dtype.h"
#include "engine/executor/choices.h"
#include "engine/executor/meter.h"

/* A cache of plans: a training step repeats the same few operations. */
enum { DDL__PLANS = 64 };

typedef struct ddl__plans {
    struct {
        ddl__request request;
        ddl__plan *plan;
        /* or NULL; the entry holds a reference, so that this address is not reused while the entry
         * exists */
        ddl_order *order;
    } entries[DDL__PLANS];
    uint64_t explained[DDL__ALLTOALL + 1]; /* bits of the logged size classes, by kind */
    uint64_t warned;   /* bits of the size classes of sums that cannot be packed */
    ddl__plan *uneven; /* the last plan of uneven blocks; only one is kept, because uneven counts
                          seldom repeat */
} ddl__plans;

typedef struct ddl__stream {
    /* These fields are guarded by the engine's lock. */
    ddl_work *head, **tail;       /* submitted, not started */
    uint32_t sequence, sequences; /* number of the next work, modulo `sequences` (0: 2^32) */
    /* lower bound of the queued works' deadlines; read without the lock */
    atomic_llong queue_limit;

    /* Used by the driver only. */
    ddl_work *next; /* taken from the queue, to start next */
    ddl_work *current;
    bool busy;   /* the next work was queued while this one ran */
    bool waited; /* the current work has waited so long that it is timed */
    ddl__runner runner;
    ddl__plans plans;
    int64_t segment_bytes, window; /* values of the fields of that name in each ddl__request */
    bool all_shared;
    const ddl__topology *topology;
    const ddl_order *order;      /* the order of the ranks' floats; NULL: any; borrowed */
    int64_t packs_from;          /* minimum number of elements that are packed */
    ddl__algorithm by;           /* the algorithm if `choices` have none; 0: the costs choose */
    const ddl__choices *choices; /* measured choices, or NULL; borrowed, like the meter */
    ddl__meter *meter;           /* or NULL */
    unsigned char barrier_in[DDL__ELEMENT_MAX], barrier_out[DDL__ELEMENT_MAX];
    unsigned char *scratch;      /* memory of the current plan; kept for the next one */
    atomic_size_t scratch_bytes; /* any thread may read it */
} ddl__stream;

/* Open a stream over these links, by rank; the caller keeps them. Return false if out of memory. */
bool ddl__stream_open(ddl__stream *stream, int rank, int size, ddl__link **links);
void ddl__stream_close(ddl__stream *stream);

/* Under the engine's lock: queue a work; take the oldest one, or NULL. */
void ddl__stream_push(ddl__stream *stream, ddl_work *work);
ddl_work *ddl__stream_pop(ddl__stream *stream);

/* Under the engine's lock: return the queued work with the nearest deadline, or NULL. Updates
 * queue_limit. */
const ddl_work *ddl__stream_most_urgent(ddl__stream *stream);

/* Called by the driver under the lock: take the next work from the queue unless one is running. */
static inline void ddl__stream_prepare(ddl__stream *stream)
{
    if (!stream->current && !stream->next)
        stream->next = ddl__stream_pop(stream);
}

/* Return true if a device still copies the work's buffers. */
static inline bool ddl__is_held(const ddl_work *work)
{
    return work->call.hold && !ddl__hold_is_ready(work->call.hold);
}

/* Called by the driver: return the running work, else the next one if it is held, else NULL. */
static inline const ddl_work *ddl__stream_first(const ddl__stream *stream)
{
    if (stream->current)
        return stream->current;
    return stream->next && ddl__is_held(stream->next) ? stream->next : NULL;
}

static inline bool ddl__stream_pending(const ddl__stream *stream)
{
    return stream->current || stream->next || stream->head;
}

/* Start this work. Returns false if out of memory. */
bool ddl__stream_start(ddl__stream *stream, ddl_work *work);

/* Advance the current work. When it is finished, its result is in the caller's buffer. */
ddl__progress ddl__stream_run(ddl__stream *stream);

/* Return the candidates for a call, as ddl__plan_candidates does for a request. */
int ddl__stream_candidates(const ddl__stream *stream, const ddl__call *call,
                           ddl__candidate found[DDL__ALGORITHMS]);

/* Return the bytes of memory that the stream keeps for plans. Any thread may call this. */
static inline uint64_t ddl__stream_scratch(const ddl__stream *stream)
{
    return atomic_load_explicit(&stream->scratch_bytes, memory_order_relaxed);
}

/* Return the bytes that peers have read or stored in place (net/shm/lending.h). Any thread may call
 * this. */
static inline uint64_t ddl__stream_lent(const ddl__stream *stream)
{
    return atomic_load_explicit(&stream->runner.lent, memory_order_relaxed);
}

#endif
