/* SPDX-License-Identifier: Apache-2.0 */
/* shm_link.h - the insides of a link over shared memory, for shm.c and shm_first_use.c. */
#ifndef DDL_NET_SHM_LINK_H
#define DDL_NET_SHM_LINK_H

#include <pthread.h>
#include <sys/socket.h>

#include "net/arena.h"
#include "net/lending.h"
#include "net/stores.h"

enum { DDL__SHM_FAREWELL = 2 + DDL__LINK_REASON };

/* How a link that was created unopened gets its connection. */
typedef struct ddl__shm_arrival {
    void (*ask)(void *context); /* for the connection; NULL: it was asked for */
    void *context;
    int64_t waits_since; /* to receive; 0: not yet */
    unsigned from;       /* as which reader of the peer's arena */
    atomic_int state;    /* ddl__shm_arrived, published with `lapsed` */
    ddl__link_state lapsed;

    pthread_mutex_t lock; /* guards the rest, since any thread may close a link */
    int fd;               /* -1: none yet */
    ddl__arena *arena;
    size_t farewell_bytes;
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
    char farewell[DDL__SHM_FAREWELL]; /* to be sent when the link opens */
};

typedef struct ddl__shm_link {
    ddl__link link;
    ddl__arena_outlet *own, *peer; /* reader `to` of our own, reader `from` of the peer */
    unsigned to, from;
    uint64_t position; /* spans that we have released */
    const ddl__fences *fences;
    atomic_uint *own_fences, *peer_fences; /* in the headers of the two arenas */
    bool light;                            /* both pass heavy fences: see word_store */

    /* Of a link beside the first one of its peer: it has the doorbell and the state of the peer. */
    struct ddl__shm_link *first;

    /* A first link. The link beside it follows it in memory. */
    ddl__shm_buffers *buffers; /* of both */
    ddl__arena *own_arena, *peer_arena;
    ddl__shm_arrival *arrival; /* NULL: it was opened when it was created */
    atomic_bool closed;
    size_t reason_length;
    bool reason_whole;
    ddl__lending lending;
} ddl__shm_link;

static inline ddl__shm_link *ddl__shm_of(ddl__link *link)
{
    return (ddl__shm_link *)link;
}

/* Send the leave message, or an abort. Nothing is sent afterwards. */
static inline void ddl__shm_say_farewell(int fd, const char *text, size_t n)
{
    send(fd, text, n, MSG_DONTWAIT | MSG_NOSIGNAL);
    shutdown(fd, SHUT_WR);
}

/* ---- shm.c ---- */

/* A link and the one beside it, which have no peer yet. `buffers`: NULL: behind them. */
ddl__shm_link *ddl__shm_create(ddl__arena *own, unsigned to, ddl__shm_buffers *buffers,
                               bool inproc);

/* Give both their peer, whose reader `from` they are, and their descriptor. */
void ddl__shm_attach(ddl__shm_link *first, ddl__arena *peer, unsigned from, int fd);

/* ---- shm_first_use.c; of links that were created unopened ---- */

/* Ask for the connection, unless that was done. */
void ddl__shm_ask(ddl__shm_link *link);

/* For ddl__link_ops.want. */
void ddl__shm_want(ddl__link *link);

/* If the connection has come, or will not come, take note of that. */
void ddl__shm_adopt(ddl__shm_link *link);

/* Whether the link has its connection. Only the driver may ask. */
static inline bool ddl__shm_is_open(ddl__shm_link *link)
{
    if (link->link.fd < 0)
        ddl__shm_adopt(link);
    return link->link.fd >= 0;
}

/* Send this farewell, once there is a connection. Any thread. */
void ddl__shm_arrival_close(ddl__shm_link *first, const char *text, size_t n);

/* Free it, with its connection and the peer's arena if there are. */
void ddl__shm_arrival_destroy(ddl__shm_arrival *arrival);

#endif
