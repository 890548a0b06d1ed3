/* SPDX-License-Identifier: Apache-2.0 */
/* regions.h - memory of the caller that peers on this host can map: what ddl_alloc returns.
 *
 * A region is one memory file with one allocation. An endpoint has up to DDL__REGIONS of them; what
 * is allocated beyond that, and what is short, is ordinary memory, which peers reach by way of the
 * arena. Its number is used again after ddl_free, its serial never is. */
#ifndef DDL_NET_REGIONS_H
#define DDL_NET_REGIONS_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    DDL__REGIONS = 256,
    DDL__REGION_LEAST = 128 * 1024, /* bytes of one */
    /* Bytes of a span from which the peer reads the caller's memory: below, copying costs less than
     * waiting until the peer has read. More where the peer copies it, instead of reducing it, and
     * most where it does so in place: there results go to lines that the peer has just read. */
    DDL__LEND_LEAST = 16 * 1024,
    DDL__LEND_LEAST_COPIED = 64 * 1024,
    DDL__LEND_LEAST_IN_PLACE = 256 * 1024
};

typedef struct ddl__region {
    unsigned char *base; /* NULL: none */
    size_t bytes;
    uint32_t number, serial; /* serial: not 0 */
    int fd;
    const atomic_bool *detached;
} ddl__region;

/* The regions of one endpoint. Thread-safe. */
typedef struct ddl__regions {
    atomic_uint n; /* changed under the lock, like all that follows */
    pthread_mutex_t lock;
    size_t references; /* the endpoint's, and one for each region */
    uint32_t serial;   /* of the last one */
    uint32_t used;     /* entries that have ever been used */
    atomic_bool detached[DDL__REGIONS];
    ddl__region all[DDL__REGIONS];
} ddl__regions;

/* NULL when out of memory. */
ddl__regions *ddl__regions_create(void);

/* The endpoint is destroyed. Memory that is still allocated lives on until it is freed. */
void ddl__regions_release(ddl__regions *regions);

/* Zeroed memory of so many bytes, at least 1; NULL with the message set. Aligned to a cache line.
 */
void *ddl__memory_alloc(ddl__regions *regions, size_t bytes);

/* Its pages are returned to the system at once, even while peers map them. A forked child, which
 * has a copy of the memory, frees that. */
void ddl__memory_free(void *memory);

/* The caller gives up an operation while peers may still write to this part of the region. From now
 * on the region is memory of this process alone, with the same content; peers go on with the file.
 * Atomic for other threads. */
void ddl__region_detach(ddl__regions *regions, const ddl__region *region, void *memory,
                        size_t bytes);

/* The region that the byte at `memory` belongs to; base NULL if there is none. It lives on at least
 * until the memory is freed. Detached ones do not count. */
ddl__region ddl__regions_find(ddl__regions *regions, const void *memory);

/* Whether its memory is still that of its file. */
static inline bool ddl__region_is_attached(const ddl__region *region)
{
    return !atomic_load_explicit(region->detached, memory_order_acquire);
}

/* Whether there are any. */
static inline bool ddl__regions_exist(const ddl__regions *regions)
{
    return regions && atomic_load_explicit(&regions->n, memory_order_relaxed);
}

/* Whether all these bytes lie in the region. */
static inline bool ddl__region_has(const ddl__region *region, const void *memory, size_t bytes)
{
    size_t at = (size_t)((uintptr_t)memory - (uintptr_t)region->base);
    return region->base && at <= region->bytes && bytes <= region->bytes - at;
}

#endif
