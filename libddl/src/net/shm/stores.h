/* SPDX-License-Identifier: Apache-2.0 */
/* stores.h - chooses plain or non-temporal stores into shared memory, by measuring which kind is
 * faster.
 *
 * Before a plain store, the core has to get the cache line from the core that read it last. Between
 * neighbouring cores that is faster than a store to memory; from a far core it is many times
 * slower. Virtual cores can become near or far within seconds, so the choice is made again and
 * again. The writer times both kinds as it uses them, and uses the faster one. From time to time it
 * tries the other kind for one span. The slower that kind was, the more rarely it is tried, so that
 * trials take about 3 % of the time.
 *
 * Timing a short span would cost a tenth of it, so only one of 8 or 32 spans is timed. If a span
 * fits into a core's store queue, the time until it has left the queue is measured; its publisher
 * waits for that anyway. Results do not depend on the kind of stores. */
#ifndef DDL_NET_STORES_H
#define DDL_NET_STORES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "net/link.h"

enum {
    DDL__STORES = 4, /* classes of spans */
    /* Bytes of the shortest span for which the kind of stores matters. */
    DDL__NONTEMPORAL_MINIMUM = 640,
    /* Every span of at least this many bytes is timed. */
    DDL__STORES_LONG = 128 * 1024,
    /* Of shorter spans, one of this many is timed; below DDL__COPY_MINIMUM, one of
     * DDL__STORES_SELDOM. */
    DDL__STORES_TIMED = 8,
    DDL__STORES_SELDOM = 32,
    /* timed spans between two trials of the slower kind, if it is hardly slower */
    DDL__STORES_TRY = 31,
    DDL__STORES_RARELY = 8 /* the limit of the factor by which a slower kind is tried more rarely */
};

/* The measurements for spans of one class. */
struct ddl__stores {
    float rate[2];  /* bytes per ns: plain, non-temporal; 0: not known yet */
    uint32_t spans; /* timed spans since the last trial */
    uint32_t untimed;
    bool nontemporal; /* the better kind */
};

/* Return the factor by which non-temporal stores must be faster in the writer's measurements to be
 * chosen. The reader has to fetch their data from memory, which the writer does not measure: if
 * both kinds are about equally fast for the writer, plain stores are up to twice as fast overall.
 * For long spans whose source is in a cache, the writer measures a factor of 5 to 10 if the
 * reader's core is far. If the source is in memory, whose bandwidth limits both kinds, it measures
 * 0.6 to 1.3 near and 1.4 to 2.6 far.
 *
 * When the writer continues after a short span, its non-temporal stores are still in progress, and
 * they change where later plain stores find their cache lines. So the measured factor depends on
 * the kind in use: 1 to 2.7 near and 5 to 9 far with plain stores, and 3 to 6 near and 10 to 30 far
 * with non-temporal stores. For the shortest spans, which are timed until their stores are
 * complete, the factor is 0.5 to 0.9 near and 1.6 to 2.4 far. */
static inline float ddl__stores_gain(const ddl__stores *stores, size_t bytes, bool from_memory)
{
    if (bytes < DDL__COPY_MINIMUM)
        return 1.25f;
    if (bytes >= DDL__STORES_LONG)
        return from_memory ? 1.5f : 2;
    return stores->nontemporal ? 8 : 4;
}

/* Return the class of a span of at least DDL__NONTEMPORAL_MINIMUM bytes: by its length, and for a
 * long one by its source. */
static inline unsigned ddl__stores_class(size_t bytes, bool from_memory)
{
    return bytes >= DDL__STORES_LONG ? 2 + from_memory : bytes >= DDL__COPY_MINIMUM;
}

/* Return true if the next span, of at least DDL__NONTEMPORAL_MINIMUM bytes, must be timed. */
static inline bool ddl__stores_time(ddl__stores *stores, size_t bytes)
{
    uint32_t period = bytes < DDL__COPY_MINIMUM ? DDL__STORES_SELDOM : DDL__STORES_TIMED;
    if (bytes < DDL__STORES_LONG && ++stores->untimed < period)
        return false;
    stores->untimed = 0;
    return true;
}

/* Return true if the next span, which is timed, should be stored non-temporally. */
static inline bool ddl__stores_choose(ddl__stores *stores)
{
    bool better = stores->nontemporal;
    bool unknown = stores->rate[0] > 0 && !(stores->rate[1] > 0);
    float used = stores->rate[better], other = stores->rate[!better];
    float slower = used > other && other > 0 ? used / other : 1;
    slower =
        /* limited, because preemption makes some samples too slow */
        slower < DDL__STORES_RARELY ? slower : DDL__STORES_RARELY;
    if (!unknown && (float)++stores->spans < (float)DDL__STORES_TRY * slower)
        return better;
    stores->spans = 0;
    return !better;
}

/* Limit the rate of the kind that is no longer used, after a change of the better kind for spans of
 * the middle class. That rate is outdated, so assume until the next trial that the change was
 * right: between far cores the factor is up to 16. */
static inline void ddl__stores_believe(ddl__stores *stores)
{
    float *rate = stores->rate;
    stores->spans = 0;
    if (stores->nontemporal && rate[0] > rate[1] / 16)
        rate[0] = rate[1] / 16;
    if (!stores->nontemporal && rate[1] > rate[0])
        rate[1] = rate[0];
}

/* Update the rate with the measurement of one span: `bytes` bytes were stored in `ns` nanoseconds.
 * A single slow sample, such as one during a preemption, changes little. A fast sample of a long
 * span is used at once, because no disturbance makes a span seem faster than it was. */
static inline void ddl__stores_learn(ddl__stores *stores, bool nontemporal, size_t bytes,
                                     bool from_memory, int64_t ns)
{
    float sample = (float)bytes / (float)(ns + 1), *rate = &stores->rate[nontemporal];
    bool fast = sample > *rate * 2 && bytes >= DDL__STORES_LONG;
    float weight = fast ? 1 : sample < *rate / 2 ? 0.125f : 0.25f;
    *rate = *rate > 0 ? *rate + weight * (sample - *rate) : sample;
    bool before = stores->nontemporal;
    stores->nontemporal =
        stores->rate[1] > ddl__stores_gain(stores, bytes, from_memory) * stores->rate[0];
    if (stores->nontemporal != before && ddl__stores_class(bytes, from_memory) == 1)
        ddl__stores_believe(stores);
}

/* Return the measurements of a shared-memory link for spans to its peer alone, or to several peers
 * of which it is the first. Far and near peers have separate measurements. */
static inline ddl__stores *ddl__link_stores(const ddl__link *link, bool several, size_t bytes,
                                            bool from_memory)
{
    return &link->stores[several * DDL__STORES + ddl__stores_class(bytes, from_memory)];
}

/* Return true if a span of at least DDL__NONTEMPORAL_MINIMUM bytes to these peers should be stored
 * non-temporally. Used by writers that compute the data while they store it, and therefore cannot
 * time the stores. */
static inline bool ddl__links_nontemporal(ddl__link *const *to, unsigned n, size_t bytes)
{
    const bool from_memory = to[0]->from_memory;
    bool any =
        to[0]->stores && n > 1 && ddl__link_stores(to[0], true, bytes, from_memory)->nontemporal;
    for (unsigned i = 0; to[0]->stores && i < n; i++)
        any = any || ddl__link_stores(to[i], false, bytes, from_memory)->nontemporal;
    return any;
}

#endif
