/* SPDX-License-Identifier: Apache-2.0 */
/* tcp_link.h - the internals of a TCP link, for the files of this folder that implement it: tcp.c
 * (creation and end), tcp_send.c, tcp_receive.c, and lanes.c (long spans over several connections).
 *
 * Design notes.
 *
 * Wire format. A frame is a 24-byte header (type, length, signature) and its payload: a span,
 * nothing (leave) or a text (the reason of an abort). Bytes are in host order. The handshake
 * ensures that both ends agree on byte order and version; the magic number in the type detects a
 * stream that is out of step.
 *
 * Lanes. A link has one connection that alone determines the order of spans, and optionally lanes.
 * Only the header of a long span is sent over the first connection; its payload is sent over the
 * lanes in chunks that contain the number of the long span and their offset in it. Both ends know
 * from the length alone whether a span is long. A chunk of a later long span waits in the socket of
 * its lane, and blocks only that lane.
 *
 * Unopened links. A link of a large comm has no connection until one of its ends has something to
 * send: tcp_first_use.c. Such a link looks full to the sender and empty to the receiver. This costs
 * an open link nothing: the system rejects the descriptor -1, and only the error paths check for a
 * connection.
 *
 * Locks. `lock` guards the sending half, because any thread may close. It is held for non-blocking
 * system calls only. The receiving half belongs to the driver alone. */
#ifndef DDL_NET_TCP_LINK_H
#define DDL_NET_TCP_LINK_H

#include <pthread.h>
#include <sys/uio.h>

#include "net/tcp/slots.h"
#include "net/tcp/tcp.h"

enum {
    DDL__TCP_QUEUE = 64, /* frames that wait on one link, including the farewell */
    DDL__TCP_PAGE = 4096,
    DDL__LONG_SPAN = 64 << 10, /* minimum bytes of a span that is sent over lanes */
    DDL__CHUNK = 64 << 10,     /* bytes of a long span in one chunk */
    DDL__LANE_NAME = 96
};

/* The type of a frame: "ddl" and a number. */
typedef enum ddl__tcp_type {
    DDL__TCP_SPAN = 0x6c646401,
    DDL__TCP_LEAVE,
    DDL__TCP_ABORT,
    DDL__TCP_CHUNK /* on lanes only */
} ddl__tcp_type;

typedef struct ddl__tcp_header {
    uint32_t type;
    uint32_t bytes;           /* bytes of payload */
    ddl__signature signature; /* in a chunk: the number of the long span, and the offset in it */
} ddl__tcp_header;
_Static_assert(sizeof(ddl__tcp_header) == 24, "the wire format");

typedef struct ddl__tcp_frame {
    ddl__tcp_header head;
    const void *payload; /* NULL: no payload, or sent over lanes */
    atomic_uint *users;  /* users of the slot with the payload; NULL: user memory */
} ddl__tcp_frame;

/* A long span that is being sent. */
typedef struct ddl__long_span {
    const char *payload;
    size_t bytes;
    size_t cut;    /* bytes assigned to lanes */
    size_t unsent; /* bytes that the kernel has not accepted */
    uint64_t number;
    atomic_uint *users;
} ddl__long_span;

typedef struct ddl__lane {
    int fd;
    ddl__seal *seal; /* NULL: not encrypted */
    char name[DDL__LANE_NAME];

    /* Sending: the current chunk. */
    ddl__tcp_header out;
    const char *payload;
    ddl__long_span *span; /* NULL: none */
    size_t sent;          /* bytes of the chunk that are sent, including its header */

    /* The rate in bytes per second, measured from acknowledgements; 0: unknown. */
    double rate;
    uint64_t given;        /* bytes accepted by the kernel so far */
    uint64_t acknowledged; /* bytes acknowledged at the start of the measurement */
    int64_t looked;        /* start of the measurement */
    bool busy;             /* data was unacknowledged at the start of the measurement */

    /* Receiving: the rest of a chunk, and the header of the next one. */
    char *place;
    size_t left;
    ddl__tcp_header in;
    size_t got;
    bool event; /* an event was received since the last EAGAIN */
    bool ended;
} ddl__lane;

/* The arrival of the connection of an unopened link. */
typedef struct ddl__arrival {
    void (*ask)(void *context); /* requests the connection; NULL: already requested */
    void *context;
    int64_t waits_since; /* start of a wait to receive; 0: not waiting */
    atomic_int state;    /* DDL__ARRIVAL_*, published with the fields below */
    int fd;
    ddl__seal *seal;
    ddl__link_state lapsed;
} ddl__arrival;

enum { DDL__ARRIVAL_NONE, DDL__ARRIVAL_CONNECTED, DDL__ARRIVAL_LAPSED };

/* The part of a link that an unopened link does not touch before it is closed. Large comms have
 * many unopened links. */
struct ddl__tcp_buffers {
    ddl__tcp_frame frames[DDL__TCP_QUEUE]; /* waiting to be sent */
    ddl__long_span long_spans[DDL__TCP_QUEUE];
    char name[DDL__LANE_NAME]; /* published with arrival.state if the link was unopened */
    char reason[DDL__LINK_REASON], farewell[DDL__LINK_REASON];
    char lost_why[160];
};

typedef struct ddl__tcp_link {
    ddl__link base;  /* base.fd: the socket; with lanes, an epoll descriptor of all sockets */
    int fd;          /* -1: unopened */
    ddl__seal *seal; /* its sending half is guarded by the lock */
    ddl__tcp_buffers *buffers;
    ddl__arrival arrival;
    bool near; /* the send queue must be shortened when the link opens */
    ddl__slots *slots;
    void *carrier; /* the object that sends and receives the spans instead of this link (net/ucx),
                      or NULL */
    unsigned n_lanes;
    ddl__lane *lanes; /* DDL__LANES_MAX entries, allocated with the first lane */

    /* guards the fields down to `long_sent`, the waiting frames, and the sending halves of lanes */
    pthread_mutex_t lock;
    bool closed; /* no more frames are accepted */
    bool shut;   /* nothing more is sent */
    int error;   /* the errno that ended sending */
    /* the name of a lane that has failed, or NULL; after a failure, only the farewell is sent */
    const char *failed_lane;
    unsigned oldest, queued;
    size_t sent; /* bytes of the oldest frame that were sent */
    unsigned first_long, n_long;
    uint64_t long_sent; /* number of long spans so far */

    ddl__tcp_header head; /* header of the frame that is being received */
    size_t got;           /* received bytes of that frame */
    bool event;           /* an event was received since the last EAGAIN */
    void *buffer;
    size_t capacity;

    /* The long span that is being received. */
    bool assembling;
    bool broken;              /* the span will never be complete */
    size_t unplaced, missing; /* bytes without a chunk header; bytes not received */
    uint64_t long_received;   /* number of long spans received before it */
    int64_t lost_at;          /* time to report the failure of a lane; 0: none failed */
    int64_t examined;         /* time of the last check of the sockets */
} ddl__tcp_link;

static inline ddl__tcp_link *ddl__tcp_of(ddl__link *link)
{
    return (ddl__tcp_link *)link;
}

/* Return true if a span of this length is sent over lanes. */
static inline bool ddl__tcp_is_long(const ddl__tcp_link *l, size_t bytes)
{
    return l->n_lanes && bytes >= DDL__LONG_SPAN;
}

/* Append the rest of a piece of memory after *skip bytes, and reduce *skip by the skipped bytes. */
static inline void ddl__piece_add(struct iovec *pieces, size_t *n, const void *memory, size_t bytes,
                                  size_t *skip)
{
    size_t skipped = *skip < bytes ? *skip : bytes;
    *skip -= skipped;
    if (skipped < bytes)
        pieces[(*n)++] = (struct iovec){(char *)(uintptr_t)memory + skipped, bytes - skipped};
}

/* Return true if anything waits to be sent: frames, long spans, or encrypted bytes. */
static inline bool ddl__tcp_waits(const ddl__tcp_link *l)
{
    bool waits = l->queued || l->n_long || (l->seal && ddl__seal_has_unsent(l->seal));
    for (unsigned i = 0; l->seal && !waits && i < l->n_lanes; i++)
        waits = ddl__seal_has_unsent(l->lanes[i].seal);
    return waits;
}

/* ---- tcp.c ---- */

/* Set the options of a link's socket. */
void ddl__tcp_socket_prepare(int fd, bool lane);

/* ---- tcp_first_use.c ---- */

/* Request the connection of an unopened link that has something to send. Called with the lock
 * held. */
void ddl__tcp_ask(ddl__tcp_link *l);

/* Note that this rank waits to receive over an unopened link; requests the connection after a
 * while. */
void ddl__tcp_want(ddl__link *link);

/* Called by the driver: adopt the connection of an unopened link, or close the link if none will
 * arrive. Return false if the link is still unopened. */
bool ddl__tcp_adopt(ddl__tcp_link *l);

/* ---- tcp_send.c: called with the lock held, except for the link operations ---- */

void ddl__tcp_enqueue(ddl__tcp_link *l, ddl__tcp_type type, const void *payload, size_t bytes,
                      const ddl__signature *signature, atomic_uint *users);

/* Drop all long spans, and all frames but the `keep` oldest. */
void ddl__tcp_drop(ddl__tcp_link *l, unsigned keep);

/* Stop sending, and drop everything that waits to be sent. */
void ddl__tcp_stop(ddl__tcp_link *l);

/* Send as much as the sockets accept. */
void ddl__tcp_push(ddl__tcp_link *l);

void *ddl__tcp_reserve(ddl__link *const *to, unsigned n, size_t bytes);
void ddl__tcp_publish(ddl__link *const *to, unsigned n, void *span, size_t bytes,
                      const ddl__signature *signature);
bool ddl__tcp_send_user(ddl__link *const *to, unsigned n, const void *memory, size_t bytes,
                        const ddl__signature *signature);
ddl__link_pending ddl__tcp_flush(ddl__link *link);

/* ---- tcp_receive.c: called by the driver ---- */

void ddl__tcp_lose(ddl__tcp_link *l, const char *name, const char *reason);

/* Check for a farewell or an end of file. */
void ddl__tcp_look(ddl__link *link);

bool ddl__tcp_next(ddl__link *link, ddl__signature *signature, size_t *bytes);
const void *ddl__tcp_peek(ddl__link *link, unsigned ahead, void *into, size_t bytes,
                          const ddl__signature *signature);
bool ddl__tcp_release(ddl__link *link);

/* ---- lanes.c ---- */

/* With the lock held: queue a long span; send as much as the lanes accept; drop all long spans; end
 * sending on all lanes. */
void ddl__lanes_append(ddl__tcp_link *l, const void *payload, size_t bytes, atomic_uint *users);
void ddl__lanes_push(ddl__tcp_link *l);
void ddl__lanes_drop(ddl__tcp_link *l);
void ddl__lanes_shut(ddl__tcp_link *l);

/* Called by the driver: receive the bytes of the current long span that have arrived. Return true
 * if it is complete. */
bool ddl__lanes_receive(ddl__tcp_link *l, void *into, size_t bytes);

/* Note a send error of a lane: the link is lost unless the peer soon gives a reason. */
void ddl__lanes_fail(ddl__tcp_link *l, const char *name, int error);

#endif
