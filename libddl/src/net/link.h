/* SPDX-License-Identifier: Apache-2.0 */
/* link.h - a link joins this rank to one peer of a comm and moves spans, in order, both ways.
 *
 * A span is a run of bytes, possibly empty, with a signature. The sender reserves memory, fills it
 * and publishes it, or publishes user memory without a copy. The receiver reads ("peeks at") a span
 * in place and then releases it, or receives it into its own memory. One published span may have
 * several readers.
 *
 * Links do not know ranks or reductions. No call blocks. One thread at a time uses a link (the
 * driver of the comm), except for close, which any thread may call. Links never call up: the driver
 * reads `state`. */
#ifndef DDL_NET_LINK_H
#define DDL_NET_LINK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"

/* DDL__LINK_SHORT is the maximum length of a span that is stored next to a link's control words,
 * where non-temporal stores are not allowed. From the length DDL__COPY_MINIMUM on, memcpy must not
 * be used for shared memory (reduce.h). */
enum { DDL__LINK_SHORT = 608, DDL__COPY_MINIMUM = 2 * 1024 };

/* The type of copy functions such as memcpy. */
typedef void ddl__link_copy_fn(void *dst, const void *src, size_t bytes);

/* The signature of a span, equal on both ends in a correct program. Links only compare
 * signatures. */
typedef struct ddl__signature {
    uint64_t words[2];
} ddl__signature;

typedef enum ddl__link_state {
    DDL__LINK_OPEN,
    DDL__LINK_MISMATCH, /* the next span has another signature or length: see `found` */
    DDL__LINK_LEFT,     /* the peer left */
    DDL__LINK_ABORTED,  /* the peer ended the comm: see `reason` */
    DDL__LINK_LOST      /* the connection broke: the peer died, or the network failed */
} ddl__link_state;

typedef enum ddl__link_pending {
    DDL__LINK_SENDING, /* the link may still use user memory */
    DDL__LINK_UNREAD,  /* the peer still has to release spans in memory of the link */
    DDL__LINK_DRAINED
} ddl__link_pending;

typedef struct ddl__link ddl__link;
typedef struct ddl__stores ddl__stores;
struct ddl__region;

typedef struct ddl__link_ops {
    const char *kind; /* "shm", ... */
    bool zero_copy;   /* send_user does not copy; prefer it to reserve and publish */

    /* Reserve memory for one span to all of `to` (links of one kind and comm). Return NULL while
     * there is no room. Reserved spans are published in the order of reservation. If memory is
     * shared, several may be reserved at once, except short spans for several peers. */
    void *(*reserve)(ddl__link *const *to, unsigned n, size_t bytes);
    /* Publish the oldest reserved span. Cannot fail. */
    void (*publish)(ddl__link *const *to, unsigned n, void *span, size_t bytes,
                    const ddl__signature *signature);
    /* Publish user memory, which must not change while flush returns DDL__LINK_SENDING. Return
     * false while there is no room. */
    bool (*send_user)(ddl__link *const *to, unsigned n, const void *memory, size_t bytes,
                      const ddl__signature *signature);
    /* Publish memory of one of the caller's regions, which the peer then reads in place. It must
     * not change while flush returns DDL__LINK_SENDING. With `returns`, the peer may store the
     * result there, for a later span of as many bytes. Return false while there is no room, and if
     * the peer does not map the region; the caller then uses another function. NULL if the link
     * does not have this function. */
    bool (*lend)(ddl__link *to, const struct ddl__region *region, const void *memory, size_t bytes,
                 const ddl__signature *signature, bool returns);
    /* If the sender of the next span, which was peeked at, wants the result in the memory of that
     * span, return this memory; else NULL. The caller stores the result before it releases the
     * span, then calls give_back. */
    void *(*borrow)(ddl__link *link);
    /* Publish the result that was stored in borrowed memory. Return false while there is no room.
     */
    bool (*give_back)(ddl__link *link, size_t bytes, const ddl__signature *signature);
    /* Send the queued data. Return the state of all data sent so far. */
    ddl__link_pending (*flush)(ddl__link *link);

    /* Return true if there is a next span. It must be peeked at with the returned length and
     * signature; its bytes may not have arrived yet. If there is none and the state is not open, no
     * more spans will arrive. */
    bool (*next)(ddl__link *link, ddl__signature *signature, size_t *bytes);
    /* Record that this rank waits for a span. If the wait lasts, an unopened link requests its
     * connection. NULL if links of this kind are always open. */
    void (*want)(ddl__link *link);
    /* Return the next span once it has arrived completely, else NULL. It must have this length and
     * signature. If memory is shared, the span lies in the memory of the peer, and `ahead` skips
     * the spans before it. Otherwise ahead is 0, and the span is received into `into` unless that
     * is NULL; call again with the same arguments. */
    const void *(*peek)(ddl__link *link, unsigned ahead, void *into, size_t bytes,
                        const ddl__signature *signature);
    /* Release the next span, which was peeked at. Return false if it may have changed meanwhile,
     * because the peer has abandoned the operation: results made from it must not be used, and no
     * more spans arrive. */
    bool (*release)(ddl__link *link);
    /* Announce that the driver is going to sleep (true) or is awake. If a peer publishes a span to
     * a sleeping driver, link->fd becomes readable. It also becomes readable if a peer releases a
     * span and the driver, while it was last awake, found no room or received another result than
     * DDL__LINK_DRAINED from flush. All first links of a comm over shared memory have the same
     * descriptor and the same flag, so a call for one of them is enough. After announcing on all
     * links, execute a heavy fence if the fences of the arena (ddl__arena_fence) are joined, and
     * check for spans once more before sleeping. */
    void (*sleeping)(ddl__link *link, bool asleep);
    /* Announce to all peers that share memory that this rank has computed between two operations:
     * `number` differs in each call. One call for a comm is enough. NULL if memory is not
     * shared. */
    void (*tell_computed)(ddl__link *link, uint64_t number);
    /* Return the last number that the peer announced with tell_computed; 0: none yet. NULL if
     * tell_computed is NULL. */
    uint64_t (*computed_of)(const ddl__link *link);
    /* Handle an event of link->fd: doorbells, leave messages and errors. */
    void (*poll)(ddl__link *link);

    /* Send the peer a leave message (reason NULL), or the reason why the comm is dead. Nothing can
     * be sent afterwards. Any thread may call this. */
    void (*close)(ddl__link *link, const char *reason);
    /* Wait, for a bounded time, until no link of the comm uses user memory. Call this after all
     * links were closed with a reason; one call for a comm is enough. NULL if close ensures this.
     * Any thread may call this. */
    void (*settle)(ddl__link *link);
    /* Record that the peer's process has exited; link->fd then has an event. NULL if the link
     * detects an exit itself. Any thread may call this. */
    void (*peer_ended)(ddl__link *link);
    /* If the peer's process has exited, do the same as peer_ended. NULL if the link detects an exit
     * itself. */
    void (*probe)(ddl__link *link);
    /* Send a leave message unless the link is closed, and free the link. */
    void (*destroy)(ddl__link *link);
} ddl__link_ops;

enum { DDL__LINK_REASON = 256 };

struct ddl__link {
    const ddl__link_ops *ops; /* of a link to another host: only the driver may read it, because
                                 ddl__ucx_carry replaces it */
    bool shared;              /* constant: readers read the sender's memory in place */
    int fd;                   /* descriptor to sleep on, edge-triggered */
    ddl__link_state state;
    bool borrowed;        /* a result must be returned */
    bool quiet;           /* an event will report the next arrival */
    bool unflushed;       /* used by the link's user: sent memory may still be in use */
    ddl__signature found; /* MISMATCH: the signature that arrived instead */
    size_t found_bytes;
    char *reason; /* ABORTED, LOST: text of DDL__LINK_REASON bytes */

    /* Copy functions of send_user over shared memory; set by the link's user. NULL: memcpy. */
    ddl__link_copy_fn *copy, *copy_nontemporal;
    ddl__stores *stores; /* measurements of stores (stores.h); NULL if no memory is shared */
    bool from_memory;    /* the data to send is longer than the caches; set by the link's user */
};

/* Return the next span in place, or NULL. */
static inline const void *ddl__link_peek(ddl__link *link, size_t bytes,
                                         const ddl__signature *signature)
{
    return link->ops->peek(link, 0, NULL, bytes, signature);
}

/* Receive the next span into dst, and release it. Return false until it has arrived completely. */
static inline bool ddl__link_take(ddl__link *link, void *dst, size_t bytes,
                                  const ddl__signature *signature)
{
    const void *span = link->ops->peek(link, 0, dst, bytes, signature);
    if (!span)
        return false;
    if (span != dst && bytes)
        memcpy(dst, span, bytes);
    return link->ops->release(link);
}

/* Close the links of an array. Entries may be NULL. */
static inline void ddl__links_close(ddl__link *const *links, size_t n, const char *reason)
{
    for (size_t i = 0; i < n; i++)
        if (links[i])
            links[i]->ops->close(links[i], reason);
}

/* Destroy the links of an array, and the array. Entries may be NULL. */
static inline void ddl__links_destroy(ddl__link **links, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (links[i])
            links[i]->ops->destroy(links[i]);
    free(links);
}

#endif
