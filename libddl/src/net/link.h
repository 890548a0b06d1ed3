/* SPDX-License-Identifier: Apache-2.0 */
/* link.h - a link joins this rank to one peer of a comm and moves spans, in order, both ways.
 *
 * A span is a run of bytes, possibly empty, with a signature. The sender reserves memory, fills it
 * and publishes it, or sends user memory as it is. The receiver peeks at a span in place and
 * releases it, or receives it into memory of its own. One published span may have several readers.
 *
 * Links know no ranks and no reductions. No call blocks. One thread at a time uses a link (the
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

/* Up to so many bytes of a span may lie among the words of a link: no non-temporal stores there.
 * From DDL__COPY_MINIMUM bytes on, memcpy is not for shared memory (reduce.h). */
enum { DDL__LINK_SHORT = 608, DDL__COPY_MINIMUM = 2 * 1024 };

/* As memcpy. */
typedef void ddl__link_copy_fn(void *dst, const void *src, size_t bytes);

/* Equal on both ends of a correct program. Links only compare it. */
typedef struct ddl__signature {
    uint64_t words[2];
} ddl__signature;

typedef enum ddl__link_state {
    DDL__LINK_OPEN,
    DDL__LINK_MISMATCH, /* the next span has another signature or length: see `found` */
    DDL__LINK_LEFT,     /* the peer left */
    DDL__LINK_ABORTED,  /* the peer ended the comm: see `reason` */
    DDL__LINK_LOST      /* the connection broke: the peer died, or the network */
} ddl__link_state;

typedef enum ddl__link_pending {
    DDL__LINK_SENDING, /* user memory may be in use */
    DDL__LINK_UNREAD,  /* the peer has yet to release spans, in memory of the link */
    DDL__LINK_DRAINED
} ddl__link_pending;

typedef struct ddl__link ddl__link;
typedef struct ddl__stores ddl__stores;
struct ddl__region;

typedef struct ddl__link_ops {
    const char *kind; /* "shm", ... */
    bool zero_copy;   /* send_user does not copy: prefer it to reserve and publish */
    bool shared;      /* readers read the memory of the sender in place */

    /* Memory for one span to all of `to` (links of one kind and comm), or NULL while there is no
     * room. Reserved spans are published in the order of reservation. Several may be reserved at
     * once where memory is shared, except short spans for several peers. */
    void *(*reserve)(ddl__link *const *to, unsigned n, size_t bytes);
    /* Publish the oldest reserved span. Cannot fail. */
    void (*publish)(ddl__link *const *to, unsigned n, void *span, size_t bytes,
                    const ddl__signature *signature);
    /* Publish user memory, which must not change while flush says DDL__LINK_SENDING. False while
     * there is no room. */
    bool (*send_user)(ddl__link *const *to, unsigned n, const void *memory, size_t bytes,
                      const ddl__signature *signature);
    /* Publish memory of one of the caller's regions, which the peer then reads in place; it must
     * not change while flush says DDL__LINK_SENDING. With `returns`, the peer may store the
     * result there, for a later span of as many bytes. False while there is no room, and when the
     * peer does not map the region: send it otherwise. NULL where it never does. */
    bool (*lend)(ddl__link *to, const struct ddl__region *region, const void *memory, size_t bytes,
                 const ddl__signature *signature, bool returns);
    /* The memory of the next span, which was peeked at, if its sender wants the result there: store
     * it before the release, then give it back. Else NULL. */
    void *(*borrow)(ddl__link *link);
    /* Publish the result that was stored there. False while there is no room. */
    bool (*give_back)(ddl__link *link, size_t bytes, const ddl__signature *signature);
    /* Send what is queued, and tell what of all that was sent is pending. */
    ddl__link_pending (*flush)(ddl__link *link);

    /* Whether a span comes next, and which one: it must be peeked at with this length and
     * signature. Its bytes may still be on their way. If there is none and the state is not open,
     * none will come. */
    bool (*next)(ddl__link *link, ddl__signature *signature, size_t *bytes);
    /* This rank waits for a span: an unopened link asks for its connection after a while. NULL
     * where links are always open. */
    void (*want)(ddl__link *link);
    /* The next span once all of it has come, else NULL. It must have this length and signature.
     * Where memory is shared, the span lies in the memory of the peer, and `ahead` skips so many
     * spans that come before it. Elsewhere ahead is 0, and the span is received into `into` unless
     * that is NULL; call it again with the same arguments. */
    const void *(*peek)(ddl__link *link, unsigned ahead, void *into, size_t bytes,
                        const ddl__signature *signature);
    /* Release the next span, which was peeked at. False if it may have changed meanwhile, because
     * the peer has given the operation up: nothing that was made of it may be used, and nothing
     * comes any more. */
    bool (*release)(ddl__link *link);
    /* Announce that the driver is going to sleep (true) or is awake. A peer that publishes to a
     * sleeper makes link->fd readable. Links of a comm that share memory have one descriptor; other
     * than those beside them, they announce it in one place: one of them is enough. After
     * announcing it on all links, pass a heavy fence if the fences of the arena (ddl__arena_fence)
     * are joined, and look for spans once more before sleeping. */
    void (*sleeping)(ddl__link *link, bool asleep);
    /* link->fd has an event: handle doorbells, leave messages and errors. */
    void (*poll)(ddl__link *link);

    /* Send the peer a leave message (reason NULL), or that the comm is dead and why. Nothing can be
     * sent afterwards. Any thread. */
    void (*close)(ddl__link *link, const char *reason);
    /* The peer's process has ended: an event of link->fd tells. NULL where the link finds that out
     * itself. Any thread. */
    void (*peer_ended)(ddl__link *link);
    /* Find out whether the peer's process has ended, if nobody tells; as peer_ended then. NULL
     * where the link finds that out itself. */
    void (*probe)(ddl__link *link);
    /* Send a leave message unless closed, and free. */
    void (*destroy)(ddl__link *link);
} ddl__link_ops;

enum { DDL__LINK_REASON = 256 };

struct ddl__link {
    const ddl__link_ops *ops;
    int fd; /* to sleep on, edge-triggered */
    ddl__link_state state;
    bool borrowed;        /* a result is to be given back */
    bool quiet;           /* an event will tell when something comes */
    bool unflushed;       /* for its user: what was sent may still be in use */
    ddl__signature found; /* MISMATCH: what came instead */
    size_t found_bytes;
    char *reason; /* ABORTED, LOST: in words; of DDL__LINK_REASON bytes */

    /* For send_user over shared memory; set by the user of the link. NULL: memcpy. */
    ddl__link_copy_fn *copy, *copy_nontemporal;
    ddl__stores *stores; /* stores.h; NULL where no memory is shared */
    bool from_memory;    /* what is sent is longer than the caches; set by the user of the link */
};

/* The next span in place, or NULL. */
static inline const void *ddl__link_peek(ddl__link *link, size_t bytes,
                                         const ddl__signature *signature)
{
    return link->ops->peek(link, 0, NULL, bytes, signature);
}

/* Take the next span into dst; false until all of it has come. */
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

/* Close the links of an array that may have holes. */
static inline void ddl__links_close(ddl__link *const *links, size_t n, const char *reason)
{
    for (size_t i = 0; i < n; i++)
        if (links[i])
            links[i]->ops->close(links[i], reason);
}

/* Destroy the links of an array that may have holes, and the array. */
static inline void ddl__links_destroy(ddl__link **links, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (links[i])
            links[i]->ops->destroy(links[i]);
    free(links);
}

#endif
