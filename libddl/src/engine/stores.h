/* stores.h - plain or streaming stores: into shared memory by what they are measured to give, into
 * the caller's buffers by the length of what comes.
 *
 * Into shared memory. A plain store first takes the cache line from the core that read it last.
 * Between neighbouring cores that is quicker than memory, from a far core many times slower;
 * virtual cores move between the two within seconds, so nothing that is asked once will do. The
 * writer sees it in its own rate: both kinds are timed as they are used, the better one is used,
 * and now and then a span tries the other: the more rarely the slower that was, so that tries cost
 * about a 31st. To time a short span would cost a tenth of it, so only every eighth is timed, or
 * 32nd. What fits into a core's queue of stores is timed until it has left that, which whoever
 * publishes it waits for anyhow. Nor are spans timed that are stored in turn with others
 * (interleave.h). A span's kind changes no result.
 */
#ifndef DDL_ENGINE_STORES_H
#define DDL_ENGINE_STORES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    DDL__STORES = 3, /* choices, by the length of spans */
    /* Bytes of a span from which the kind of stores matters, from which memcpy is not for shared
     * memory (reduce.h), and from which each span is timed. */
    DDL__NONTEMPORAL_MINIMUM = 640,
    DDL__COPY_MINIMUM = 2 * 1024,
    DDL__STORES_LONG = 128 * 1024,
    DDL__STORES_TIMED = 8, /* of so many shorter spans one is timed, of the shortest ones: */
    DDL__STORES_SELDOM = 32,
    DDL__STORES_TRY = 31,   /* timed spans between tries of a kind that is as good */
    DDL__STORES_RARELY = 8, /* times as many at most, for one that is slower */
    /* What is moved, not reduced, and this long is not in a cache before, nor wholly after: a plain
     * store would fetch each line from memory first. From 16 MiB down plain ones were faster. */
    DDL__FAR_MINIMUM = 32 * 1024 * 1024
};

/* Of spans of about one length. */
typedef struct ddl__stores {
    float rate[2];  /* bytes per ns: plain, nontemporal; 0: not yet known */
    uint32_t spans; /* timed, since the last try */
    uint32_t untimed;
    bool nontemporal; /* that is better */
} ddl__stores;

/* How much faster to stream must seem to be better. What was streamed the reader fetches from
 * memory, which the writer does not see: where the two store about equally fast, plain stores are
 * up to twice as fast in the end. From a far core they are five to ten times slower, so the exact
 * factor does not matter. A short span's streamed stores are still on their way when the writer
 * goes on, and its plain ones find lines in other places after them: it sees 1 to 2.7 near and 5 to
 * 9 far while it stores plainly, 3 to 6 near and 10 to 30 far while it streams. Of the shortest,
 * which are timed to the end, it sees 0.5 to 0.9 near and 1.6 to 2.4 far. */
static inline float ddl__stores_gain(const ddl__stores *stores, size_t bytes)
{
    if (bytes < DDL__COPY_MINIMUM)
        return 1.25f;
    return bytes >= DDL__STORES_LONG ? 2 : stores->nontemporal ? 8 : 4;
}

/* Which of the choices is for spans of at least DDL__NONTEMPORAL_MINIMUM that are so long. */
static inline unsigned ddl__stores_class(size_t bytes)
{
    return (bytes >= DDL__COPY_MINIMUM) + (bytes >= DDL__STORES_LONG);
}

/* Whether to time the next span, of at least DDL__NONTEMPORAL_MINIMUM. */
static inline bool ddl__stores_time(ddl__stores *stores, size_t bytes)
{
    uint32_t period = bytes < DDL__COPY_MINIMUM ? DDL__STORES_SELDOM : DDL__STORES_TIMED;
    if (bytes < DDL__STORES_LONG && ++stores->untimed < period)
        return false;
    stores->untimed = 0;
    return true;
}

/* Whether to stream the next span, which will be learnt from. */
static inline bool ddl__stores_choose(ddl__stores *stores)
{
    bool better = stores->nontemporal;
    bool unknown = stores->rate[0] > 0 && !(stores->rate[1] > 0);
    float used = stores->rate[better], other = stores->rate[!better];
    float slower = used > other && other > 0 ? used / other : 1;
    slower = slower < DDL__STORES_RARELY ? slower : DDL__STORES_RARELY; /* some were preempted */
    if (!unknown && (float)++stores->spans < (float)DDL__STORES_TRY * slower)
        return better;
    stores->spans = 0;
    return !better;
}

/* Spans of the middle class: what the other kind gave while it was the better one says nothing
 * about now, so believe in the change until that is tried: 16 times is what far cores show. */
static inline void ddl__stores_believe(ddl__stores *stores)
{
    float *rate = stores->rate;
    stores->spans = 0;
    if (stores->nontemporal && rate[0] > rate[1] / 16)
        rate[0] = rate[1] / 16;
    if (!stores->nontemporal && rate[1] > rate[0])
        rate[1] = rate[0];
}

/* A span of so many bytes was stored in so much time. One slow sample, which a preemption gives,
 * decides nothing. */
static inline void ddl__stores_learn(ddl__stores *stores, bool nontemporal, size_t bytes,
                                     int64_t ns)
{
    float sample = (float)bytes / (float)(ns + 1), *rate = &stores->rate[nontemporal];
    float weight = sample < *rate / 2 ? 0.125f : 0.25f;
    *rate = *rate > 0 ? *rate + weight * (sample - *rate) : sample;
    bool before = stores->nontemporal;
    stores->nontemporal = stores->rate[1] > ddl__stores_gain(stores, bytes) * stores->rate[0];
    if (stores->nontemporal != before && ddl__stores_class(bytes) == 1)
        ddl__stores_believe(stores);
}

#endif
