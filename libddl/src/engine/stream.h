/* stream.h - operations that run one after the other over one set of links. */
#ifndef DDL_ENGINE_STREAM_H
#define DDL_ENGINE_STREAM_H

#include <stdatomic.h>

#include "engine/plans.h"
#include "engine/run.h"
#include "engine/tuning.h"

typedef struct ddl__stream {
    /* Under the engine's lock. */
    ddl_work *head, **tail;       /* submitted, not yet current */
    uint32_t sequence, sequences; /* of the next one, modulo so many (0: 2^32) */

    /* The driver's. */
    ddl_work *next; /* taken from the queue, to become the current one */
    ddl_work *current;
    bool busy;   /* the next one has waited for the last */
    bool waited; /* the current one, for longer than a moment: its time is measured */
    ddl__runner runner;
    ddl__plans plans;
    int64_t segment_bytes, window; /* see ddl__request */
    bool all_shared;
    const ddl__topology *topology;
    ddl__tuning *tuning; /* or NULL; borrowed */
    unsigned char barrier_in, barrier_out;
    unsigned char *scratch;      /* of the current plan; kept for the next one */
    atomic_size_t scratch_bytes; /* any thread may read it */
} ddl__stream;

/* Over these links, by rank, which stay the caller's. False when out of memory. */
bool ddl__stream_open(ddl__stream *stream, int rank, int size, ddl__link **links);
void ddl__stream_close(ddl__stream *stream);

/* Under the engine's lock: queue a work, and take the oldest one, or NULL. */
void ddl__stream_push(ddl__stream *stream, ddl_work *work);
ddl_work *ddl__stream_pop(ddl__stream *stream);

/* The driver's, under the lock: have the next work at hand, unless one is under way. */
static inline void ddl__stream_prepare(ddl__stream *stream)
{
    if (!stream->current && !stream->next)
        stream->next = ddl__stream_pop(stream);
}

/* Whether this work is not a caller's: see tuning.h. */
static inline bool ddl__stream_is_own(const ddl__stream *stream, const ddl_work *work)
{
    return stream->tuning && work == &stream->tuning->own;
}

static inline bool ddl__stream_pending(const ddl__stream *stream)
{
    return stream->current || stream->next || stream->head;
}

/* Make this work the current one, or one of our own that has to run before it; false when out of
 * memory. */
bool ddl__stream_start(ddl__stream *stream, ddl_work *work);

/* Get on with the current work. When it is finished, its result lies where the caller wants it. */
ddl__progress ddl__stream_run(ddl__stream *stream);

/* The current work is finished. If it was one of our own: the one to start now, else NULL. */
ddl_work *ddl__stream_held(ddl__stream *stream);

/* Bytes of memory that it keeps for plans. Any thread. */
static inline uint64_t ddl__stream_scratch(const ddl__stream *stream)
{
    return atomic_load_explicit(&stream->scratch_bytes, memory_order_relaxed);
}

#endif
