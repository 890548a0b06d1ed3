/* SPDX-License-Identifier: Apache-2.0 */
/* shm_link.h - the internals of a link over shared memory, for shm.c, shm_end.c and
 * shm_first_use.c. */
#ifndef DDL_NET_SHM_LINK_H
#define DDL_NET_SHM_LINK_H

#include <pthread.h>

#include "net/shm/arena.h"
#include "net/shm/lending.h"
#include "net/shm/stores.h"

/* The arrival of the peer's arena at a link that was created unopened. */
typedef struct ddl__shm_arrival {
    void (*ask)(void *context); /* requests the arena; NULL: already requested */
    void *context;
    int64_t waits_since; /* start of a wait to receive; 0: not waiting */
    unsigned from;       /* this rank's reader number in the peer's arena */
    atomic_int state;    /* ddl__shm_arrived, published with `lapsed` */
    ddl__link_state lapsed;

    /* guards the fields below, because any thread may notice that the peer's process has exited */
    pthread_mutex_t lock;
    ddl__arena *arena; /* NULL: not arrived yet */
    bool ended;
} ddl__shm_arrival;

typedef enum ddl__shm_arrived {
    DDL__SHM_UNOPENED,
    DDL__SHM_CONNECTED,
    DDL__SHM_LAPSED
} ddl__shm_arrived;

/* The memory of a first and a second link that is not touched while they are unopened: large comms
 * have many unopened links, whose buffers then take no pages. */
struct ddl__shm_buffers {
    /* for each of the two links: measurements of stores for spans to this peer alone, and for spans
     * to several peers of which it is the first */
    ddl__stores stores[2][2 * DDL__STORES];
    ddl__arena_outlet private_own, private_peer;
    ddl__arena_reader private_reader;
    char reasons[2][DDL__LINK_REASON];
};

typedef struct ddl__shm_link {
    ddl__link link;
    /* The peer is reader `to` of this rank's arena; this rank is reader `from` of the peer's
     * arena. */
    ddl__arena_outlet *own, *peer;
    unsigned to, from;
    uint64_t position; /* spans that this rank has released */
    const ddl__fences *fences;
    atomic_uint *own_fences, *peer_fences; /* in the headers of the two arenas */
    bool light;                            /* both drivers execute heavy fences: see word_store */

    uint64_t bell; /* number of the peer's bell */

    /* For a second link: the first link of the same peer, which holds the state of the peer. */
    struct ddl__shm_link *first;

    /* For a first link. The second link follows it in memory. */
    ddl__shm_buffers *buffers; /* buffers of both links */
    ddl__arena *own_arena, *peer_arena;
    ddl__shm_arrival *arrival; /* NULL if the link was created open */
    atomic_bool closed;
    ddl__lending lending;
} ddl__shm_link;

static inline ddl__shm_link *ddl__shm_of(ddl__link *link)
{
    return (ddl__shm_link *)link;
}

/* ---- shm.c ---- */

/* Create a first and a second link, which have no peer yet. `buffers` NULL: allocate them with the
 * links. */
ddl__shm_link *ddl__shm_create(ddl__arena *own, unsigned to, ddl__shm_buffers *buffers,
                               bool inproc);

/* Connect both links to their peer, as its reader `from`. */
void ddl__shm_attach(ddl__shm_link *first, ddl__arena *peer, unsigned from);

/* ---- shm_end.c ---- */

/* Copy the final state of the link (left, aborted or lost), if the peer or a witness of its death
 * has stored one. Only the driver calls this. */
void ddl__shm_look_for_end(ddl__shm_link *first);

/* Functions for ddl__link_ops. */
void ddl__shm_close(ddl__link *link, const char *reason);
void ddl__shm_peer_ended(ddl__link *link);
void ddl__shm_probe(ddl__link *link);

/* ---- shm_first_use.c: links that were created unopened ---- */

/* Request the peer's arena, unless it has already been requested. */
void ddl__shm_ask(ddl__shm_link *link);

/* The function `want` of ddl__link_ops. */
void ddl__shm_want(ddl__link *link);

/* Adopt the arena if it has arrived, or close the link if it will not arrive. */
void ddl__shm_adopt(ddl__shm_link *link);

/* Return true if the link has its peer. Only the driver calls this. */
static inline bool ddl__shm_is_open(ddl__shm_link *link)
{
    if (link->link.fd < 0)
        ddl__shm_adopt(link);
    return link->link.fd >= 0;
}

/* Note that the peer's process has exited. Return the peer's arena if it has arrived, else NULL.
 * Any thread may call this. */
ddl__arena *ddl__shm_arrival_end(ddl__shm_arrival *arrival);

/* Free the object, and the peer's arena if it has arrived. */
void ddl__shm_arrival_destroy(ddl__shm_arrival *arrival);

#endif
