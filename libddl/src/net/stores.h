/* SPDX-License-Identifier: Apache-2.0 */
/* stores.h - plain or non-temporal stores into shared memory: the kind that is measured to be
 * faster.
 *
 * A plain store first takes the cache line from the core that read it last. Between neighbouring
 * cores that is faster than memory; from a far core it is many times slower. Virtual cores move
 * between the two within seconds, so the choice has to follow. The writer sees the difference in
 * its own rate: both kinds are timed as they are used, and the better one is used. Now and then a
 * span tries the other kind, the more rarely the slower it was, so that tries cost about a 31st.
 *
 * Timing a short span would cost a tenth of it, so only every eighth is timed, or 32nd. A span that
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
    /* Bytes of a span from which the kind of stores matters, and from which each span is timed. */
    DDL__NONTEMPORAL_MINIMUM = 640,
    DDL__STORES_LONG = 128 * 1024,
    DDL__STORES_TIMED = 8, /* one of so many shorter spans is timed, and of the shortest ones: */
    DDL__STORES_SELDOM = 32,
    DDL__STORES_TRY = 31,  /* timed spans between tries of a kind that is as fast */
    DDL__STORES_RARELY = 8 /* times as many at most, for a slower kind */
};

/* What is known of spans of one class. */
struct ddl__stores {
    float rate[2];  /* bytes per ns: plain, non-temporal; 0: not known yet */
    uint32_t spans; /* timed since the last try */
    uint32_t untimed;
    bool nontemporal; /* the better kind */
};

/* How much faster non-temporal stores must seem to be chosen. The reader fetches what they stored
 * from memory, which the writer does not see: if both kinds seem about equally fast, plain stores
 * are up to twice as fast in the end. Of long spans, the writer sees a factor of five to ten far if
 * what it stores comes from a cache. If it comes from memory, which bounds both kinds, the writer
 * sees 0.6 to 1.3 near and 1.4 to 2.6 far.
 *
 * After a short span, the non-temporal stores are still under way when the writer goes on, and
 * later plain stores find their lines in other places. The writer sees a factor of 1 to 2.7 near
 * and 5 to 9 far while it stores plainly, and 3 to 6 near and 10 to 30 far while it stores
 * non-temporally. Of the shortest spans, which are timed to the end, it sees 0.5 to 0.9 near and
 * 1.6 to 2.4 far. */
static inline float ddl__stores_gain(const ddl__stores *stores, size_t bytes, bool from_memory)
{
    if (bytes < DDL__COPY_MINIMUM)
        return 1.25f;
    if (bytes >= DDL__STORES_LONG)
        return from_memory ? 1.5f : 2;
    return stores->nontemporal ? 8 : 4;
}

/* The class of a span of at least DDL__NONTEMPORAL_MINIMUM bytes: by its length, and a long one by
 * where it comes from. */
static inline unsigned ddl__stores_class(size_t bytes, bool from_memory)
{
    return bytes >= DDL__STORES_LONG ? 2 + from_memory : bytes >= DDL__COPY_MINIMUM;
}

/* Whether to time the next span, of at least DDL__NONTEMPORAL_MINIMUM bytes. */
static inline bool ddl__stores_time(ddl__stores *stores, size_t bytes)
{
    uint32_t period = bytes < DDL__COPY_MINIMUM ? DDL__STORES_SELDOM : DDL__STORES_TIMED;
    if (bytes < DDL__STORES_LONG && ++stores->untimed < period)
        return false;
    stores->untimed = 0;
    return true;
}

/* Whether to store the next span, which is timed, non-temporally. */
static inline bool ddl__stores_choose(ddl__stores *stores)
{
    bool better = stores->nontemporal;
    bool unknown = stores->rate[0] > 0 && !(stores->rate[1] > 0);
    float used = stores->rate[better], other = stores->rate[!better];
    float slower = used > other && other > 0 ? used / other : 1;
    slower =
        slower < DDL__STORES_RARELY ? slower : DDL__STORES_RARELY; /* some samples were preempted */
    if (!unknown && (float)++stores->spans < (float)DDL__STORES_TRY * slower)
        return better;
    stores->spans = 0;
    return !better;
}

/* For spans of the middle class. What the other kind gave while it was the better one says nothing
 * about now, so the change is believed until that kind is tried. 16 times is what far cores show.
 */
static inline void ddl__stores_believe(ddl__stores *stores)
{
    float *rate = stores->rate;
    stores->spans = 0;
    if (stores->nontemporal && rate[0] > rate[1] / 16)
        rate[0] = rate[1] / 16;
    if (!stores->nontemporal && rate[1] > rate[0])
        rate[1] = rate[0];
}

/* A span of so many bytes took so long. One slow sample, as a preemption gives, decides nothing. A
 * fast one of a long span is believed: nothing makes it seem faster than it was. */
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

/* What a link over shared memory knows of spans to its peer alone, or to several peers of which it
 * is the first. A far and a near peer have stores of their own. */
static inline ddl__stores *ddl__link_stores(const ddl__link *link, bool several, size_t bytes,
                                            bool from_memory)
{
    return &link->stores[several * DDL__STORES + ddl__stores_class(bytes, from_memory)];
}

/* Whether a span of at least DDL__NONTEMPORAL_MINIMUM bytes to these peers had better be stored
 * non-temporally: for a writer that computes what it stores, so that it cannot be timed. */
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
