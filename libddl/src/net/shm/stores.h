/* SPDX-License-Identifier: Apache-2.0 */
/* stores.h - chooses plain or non-temporal stores into shared memory, by measuring which kind is
 * faster.
 *
 * A plain store first takes the cache line from the core that read it last. Between neighbouring
 * cores that is faster than memory; from a far core it is many times slower. Virtual cores can
 * become near or far within seconds, so the choice has to follow. The writer sees the difference in
 * its own rate: both kinds are timed as they are used, and the better one is used. Now and then a
 * span tries the other kind. The slower that kind was, the more rarely it is tried, so that tries
 * cost about 3 % of the time.
 *
 * Timing a short span would cost a tenth of it, so only one of 8 or 32 spans is timed. A span that
 * fits into the store queue of a core is timed until it has left the queue, which its publisher
 * waits for anyway. Results do not depend on the kind of stores. */
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
    /* One of this many shorter spans is timed; below DDL__COPY_MINIMUM, one of SELDOM. */
    DDL__STORES_TIMED = 8,
    DDL__STORES_SELDOM = 32,
    /* timed spans between two trials of the other kind, if both are equally fast */
    DDL__STORES_TRY = 31,
    DDL__STORES_RARELY = 8 /* a slower kind is tried up to this many times more rarely */
};

/* The measurements for spans of one class. */
struct ddl__stores {
    float rate[2];  /* bytes per ns: plain, non-temporal; 0: not known yet */
    uint32_t spans; /* timed spans since the last try */
    uint32_t untimed;
    bool nontemporal; /* the better kind */
};

/* Return the factor by which non-temporal stores must seem faster to be chosen. The reader fetches
 * their data from memory, which the writer does not see: if both kinds seem about equally fast to
 * the writer, plain stores are up to twice as fast overall. For long spans from a cache, the writer
 * sees a factor of five to ten to a far core. If the data comes from memory, which bounds both
 * kinds, the writer sees 0.6 to 1.3 near and 1.4 to 2.6 far.
 *
 * After a short span, the non-temporal stores are still in progress when the writer continues, and
 * later plain stores find their lines in other places. The writer sees a factor of 1 to 2.7 near
 * and 5 to 9 far while it stores plainly, and 3 to 6 near and 10 to 30 far while it stores
 * non-temporally. For the shortest spans, which are timed to the end, it sees 0.5 to 0.9 near and
 * 1.6 to 2.4 far. */
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

/* Limit the rate of the other kind, for spans of the middle class after the better kind has
 * changed. The old rate is outdated, so assume that the change is right until that kind is tried:
 * between far cores the factor is up to 16. */
static inline void ddl__stores_believe(ddl__stores *stores)
{
    float *rate = stores->rate;
    stores->spans = 0;
    if (stores->nontemporal && rate[0] > rate[1] / 16)
        rate[0] = rate[1] / 16;
    if (!stores->nontemporal && rate[1] > rate[0])
        rate[1] = rate[0];
}

/* Learn from a span of this many bytes and nanoseconds. One slow sample, as after a preemption,
 * decides nothing. A fast sample of a long span is always valid, because nothing makes it seem
 * faster than it was. */
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
 * non-temporally. For a writer that computes the data, and therefore cannot time the stores. */
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
