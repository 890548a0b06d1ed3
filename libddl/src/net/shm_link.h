/* SPDX-License-Identifier: Apache-2.0 */
/* shm_link.h - the insides of a link over shared memory, for shm.c, shm_end.c and
 * shm_first_use.c. */
#ifndef DDL_NET_SHM_LINK_H
#define DDL_NET_SHM_LINK_H

#include <pthread.h>

#include "net/arena.h"
#include "net/lending.h"
#include "net/stores.h"

/* How a link that was created unopened gets the peer's arena. */
typedef struct ddl__shm_arrival {
    void (*ask)(void *context); /* for the arena; NULL: it was asked for */
    void *context;
    int64_t waits_since; /* to receive; 0: not yet */
    unsigned from;       /* as which reader of the peer's arena */
    atomic_int state;    /* ddl__shm_arrived, published with `lapsed` */
    ddl__link_state lapsed;

    pthread_mutex_t lock; /* guards the rest, since any thread may find that the peer has ended */
    ddl__arena *arena;    /* NULL: none yet */
    bool ended;
} ddl__shm_arrival;

typedef enum ddl__shm_arrived {
    DDL__SHM_UNOPENED,
    DDL__SHM_CONNECTED,
    DDL__SHM_LAPSED
} ddl__shm_arrived;

/* The part of two links, beside each other, that unopened ones do not touch before they are closed:
 * large comms have many of those. */
struct ddl__shm_buffers {
    ddl__stores stores[2][2 * DDL__STORES]; /* to this peer; to several, this one first */
    ddl__arena_outlet private_own, private_peer;
    ddl__arena_reader private_reader;
    char reasons[2][DDL__LINK_REASON];
};

typedef struct ddl__shm_link {
    ddl__link link;
    ddl__arena_outlet *own, *peer; /* reader `to` of our own, reader `from` of the peer */
    unsigned to, from;
    uint64_t position; /* spans that we have released */
    const ddl__fences *fences;
    atomic_uint *own_fences, *peer_fences; /* in the headers of the two arenas */
    bool light;                            /* both pass heavy fences: see word_store */

    uint64_t bell; /* the peer's */

    /* Of a link beside the first one of its peer: it has the state of the peer. */
    struct ddl__shm_link *first;

    /* A first link. The link beside it follows it in memory. */
    ddl__shm_buffers *buffers; /* of both */
    ddl__arena *own_arena, *peer_arena;
    ddl__shm_arrival *arrival; /* NULL: it was opened when it was created */
    atomic_bool closed;
    ddl__lending lending;
} ddl__shm_link;

static inline ddl__shm_link *ddl__shm_of(ddl__link *link)
{
    return (ddl__shm_link *)link;
}

/* ---- shm.c ---- */

/* A link and the one beside it, which have no peer yet. `buffers`: NULL: behind them. */
ddl__shm_link *ddl__shm_create(ddl__arena *own, unsigned to, ddl__shm_buffers *buffers,
                               bool inproc);

/* Give both their peer, whose reader `from` they are. */
void ddl__shm_attach(ddl__shm_link *first, ddl__arena *peer, unsigned from);

/* ---- shm_end.c ---- */

/* Take note of what the peer, or a witness of its end, has stored. The driver only. */
void ddl__shm_look_for_end(ddl__shm_link *first);

/* For ddl__link_ops. */
void ddl__shm_close(ddl__link *link, const char *reason);
void ddl__shm_peer_ended(ddl__link *link);
void ddl__shm_probe(ddl__link *link);

/* ---- shm_first_use.c; of links that were created unopened ---- */

/* Ask for the peer's arena, unless that was done. */
void ddl__shm_ask(ddl__shm_link *link);

/* For ddl__link_ops.want. */
void ddl__shm_want(ddl__link *link);

/* If it has come, or will not come, take note of that. */
void ddl__shm_adopt(ddl__shm_link *link);

/* Whether the link has its peer. Only the driver may ask. */
static inline bool ddl__shm_is_open(ddl__shm_link *link)
{
    if (link->link.fd < 0)
        ddl__shm_adopt(link);
    return link->link.fd >= 0;
}

/* The peer's process has ended. Returns the peer's arena, if that has come. Any thread. */
ddl__arena *ddl__shm_arrival_end(ddl__shm_arrival *arrival);

/* Free it, with the peer's arena if there is. */
void ddl__shm_arrival_destroy(ddl__shm_arrival *arrival);

#endif
