/* stores.h - plain or streaming stores: into shared memory by what they are measured to give, into
 * the caller's buffers by the length of what comes.
 *
 * Into shared memory. A plain store first takes the cache line from the core that read it last.
 * Next door that is quicker than memory, from a far core many times slower; virtual cores move
 * between the two within seconds, so nothing that is asked once will do. The writer sees it in its
 * own rate: both kinds are timed as they are used, the better one is used, and now and then a span
 * tries the other: the more rarely the slower that was, so that tries cost about a 31st. A span's
 * kind changes no result.
 */
#ifndef DDL_ENGINE_STORES_H
#define DDL_ENGINE_STORES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    DDL__COPY_MINIMUM = 2 * 1024, /* bytes from which memcpy is not for shared memory: reduce.h */
    DDL__STREAM_MINIMUM = 32 * 1024, /* bytes of a span for which the kind of stores matters */
    DDL__STREAM_GAIN = 2,            /* see ddl__stores_better */
    DDL__STORES_TRY = 31,            /* spans between tries of a kind that is as good */
    DDL__STORES_RARELY = 8,          /* times as many at most, for one that is slower */
    /* What is moved, not reduced, and this long is not in a cache before, nor wholly after: a plain
     * store would fetch each line from memory first. From 16 MiB down plain ones were faster. */
    DDL__FAR_MINIMUM = 32 * 1024 * 1024
};

typedef struct ddl__stores {
    float rate[2];  /* bytes per ns: plain, streamed; 0: not yet known */
    uint32_t spans; /* since the last try */
} ddl__stores;

/* Whether streaming is better. For spans of at least DDL__STREAM_MINIMUM, as the rest. What was
 * streamed the reader fetches from memory, which the writer does not see: where the two store about
 * equally fast, plain stores are up to twice as fast in the end. From a far core they are five to
 * ten times slower, so the exact factor does not matter. */
static inline bool ddl__stores_better(const ddl__stores *stores)
{
    return stores->rate[1] > DDL__STREAM_GAIN * stores->rate[0];
}

/* Whether to stream the next span, which will be learnt from. */
static inline bool ddl__stores_choose(ddl__stores *stores)
{
    bool better = ddl__stores_better(stores);
    bool unknown = stores->rate[0] > 0 && !(stores->rate[1] > 0);
    float used = stores->rate[better], other = stores->rate[!better];
    float slower = used > other && other > 0 ? used / other : 1;
    slower = slower < DDL__STORES_RARELY ? slower : DDL__STORES_RARELY; /* some were preempted */
    if (!unknown && (float)++stores->spans < (float)DDL__STORES_TRY * slower)
        return better;
    stores->spans = 0;
    return !better;
}

/* A span of so many bytes was stored in so much time. One slow sample, which a preemption gives,
 * decides nothing. */
static inline void ddl__stores_learn(ddl__stores *stores, bool streamed, size_t bytes, int64_t ns)
{
    float sample = (float)bytes / (float)(ns + 1), *rate = &stores->rate[streamed];
    float weight = sample < *rate / 2 ? 0.125f : 0.25f;
    *rate = *rate > 0 ? *rate + weight * (sample - *rate) : sample;
}

#endif
