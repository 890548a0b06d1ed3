/* SPDX-License-Identifier: Apache-2.0 */
/* regions.h - memory of the caller that peers on this host can map, as returned by ddl_alloc.
 *
 * A region is one memory file with one allocation. An endpoint has up to DDL__REGIONS of them.
 * Further allocations, and short ones, are ordinary memory, which peers reach through the arena. A
 * region's number is reused after ddl_free, its serial never is. */
#ifndef DDL_NET_REGIONS_H
#define DDL_NET_REGIONS_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    DDL__REGIONS = 256,
    DDL__REGION_LEAST = 128 * 1024, /* bytes of the smallest region */
    /* The minimum length of a zero-copy span, which the peer reads in the caller's memory. A
     * shorter span costs less to copy than to wait for until the peer has read it. The minimum is
     * higher if the peer copies the span instead of reducing it. It is highest in place, where
     * results are written to cache lines that the peer has just read. */
    DDL__LEND_LEAST = 16 * 1024,
    DDL__LEND_LEAST_COPIED = 64 * 1024,
    DDL__LEND_LEAST_IN_PLACE = 256 * 1024
};

typedef struct ddl__region {
    unsigned char *base; /* NULL: none */
    size_t bytes;
    uint32_t number, serial; /* serial is never 0 */
    int fd;
    const atomic_bool *detached;
} ddl__region;

/* The regions of one endpoint. Thread-safe. */
typedef struct ddl__regions {
    atomic_uint n; /* number of regions; changed under the lock, as all fields below */
    pthread_mutex_t lock;
    size_t references; /* one for the endpoint, and one for each region */
    uint32_t serial;   /* serial of the last region */
    uint32_t used;     /* entries that have ever been used */
    atomic_bool detached[DDL__REGIONS];
    ddl__region all[DDL__REGIONS];
} ddl__regions;

/* Create an endpoint's regions. Return NULL if out of memory. */
ddl__regions *ddl__regions_create(void);

/* Release the regions of a destroyed endpoint. Allocated memory stays valid until it is freed. */
void ddl__regions_release(ddl__regions *regions);

/* Return `bytes` zeroed bytes, at least 1, aligned to a cache line; NULL with the message set on
 * failure. */
void *ddl__memory_alloc(ddl__regions *regions, size_t bytes);

/* Free memory. Its pages return to the system at once, even while peers map them. A forked child
 * frees its own copy. */
void ddl__memory_free(void *memory);

/* Detach the region because the caller abandons an operation while peers may still write to this
 * part of it. The region becomes memory of this process alone, with the same content; peers
 * continue to use the file. Atomic for other threads. */
void ddl__region_detach(ddl__regions *regions, const ddl__region *region, void *memory,
                        size_t bytes);

/* Return the region that contains the byte at `memory`; base is NULL if there is none or if it is
 * detached. It stays valid at least until the memory is freed. */
ddl__region ddl__regions_find(ddl__regions *regions, const void *memory);

/* Return true if the region is not detached: its memory is then still the memory of its file. */
static inline bool ddl__region_is_attached(const ddl__region *region)
{
    return !atomic_load_explicit(region->detached, memory_order_acquire);
}

/* Return true if there are regions. */
static inline bool ddl__regions_exist(const ddl__regions *regions)
{
    return regions && atomic_load_explicit(&regions->n, memory_order_relaxed);
}

/* Return true if all these bytes lie in the region. */
static inline bool ddl__region_has(const ddl__region *region, const void *memory, size_t bytes)
{
    size_t at = (size_t)((uintptr_t)memory - (uintptr_t)region->base);
    return region->base && at <= region->bytes && bytes <= region->bytes - at;
}

#endif
