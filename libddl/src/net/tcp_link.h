/* tcp_link.h - a TCP link's insides, for the files of this folder that make it up: tcp.c (from its
 * creation to its end), tcp_send.c, tcp_receive.c, and lanes.c (long spans over several
 * connections).
 *
 * Design notes
 *
 * Wire. A frame is a 24-byte header (type, length, signature) and its payload: a span, nothing
 * (goodbye) or a reason in words (abort). Bytes are in the host's order; that both ends agree on it
 * and on the version is settled by the handshake before there is a link, and a stream that is out
 * of step is found by the magic in the type.
 *
 * Lanes. A link is one connection, which alone tells the order of things, and perhaps further ones,
 * its lanes, on which long spans travel: then only their headers go over the first, and their
 * payload over whichever lanes have room, in chunks that say of which long span and which place in
 * it they are. Both ends know from the length alone whether a span is long. A lane's chunk that
 * belongs to a later span waits in the lane's socket, which holds up nothing but this lane.
 *
 * Locks. `lock` guards the sending half, because any thread may close; it is held for non-blocking
 * system calls only. The receiving half belongs to the driver alone. */
#ifndef DDL_NET_TCP_LINK_H
#define DDL_NET_TCP_LINK_H

#include <pthread.h>
#include <sys/uio.h>

#include "net/slots.h"
#include "net/tcp.h"

enum {
    DDL__TCP_QUEUE = 64, /* frames waiting on one link, the farewell included */
    DDL__TCP_PAGE = 4096,
    DDL__LONG_SPAN = 64 << 10, /* bytes from which a span goes by lanes */
    DDL__CHUNK = 64 << 10,     /* bytes of a long span to one lane at a time */
    DDL__LANE_NAME = 96
};

/* "ddl" and a number. */
typedef enum ddl__tcp_type {
    DDL__TCP_SPAN = 0x6c646401,
    DDL__TCP_GOODBYE,
    DDL__TCP_ABORT,
    DDL__TCP_CHUNK /* on lanes, and nothing else there */
} ddl__tcp_type;

typedef struct ddl__tcp_header {
    uint32_t type;
    uint32_t bytes;           /* of payload */
    ddl__signature signature; /* of a chunk: the long span's number and the place in it */
} ddl__tcp_header;
_Static_assert(sizeof(ddl__tcp_header) == 24, "the wire format");

typedef struct ddl__tcp_frame {
    ddl__tcp_header head;
    const void *payload; /* NULL: goes by lanes, or there is none */
    atomic_uint *users;  /* of the slot in which the payload lies; NULL: user memory */
} ddl__tcp_frame;

/* A long span on its way out. */
typedef struct ddl__long_span {
    const char *payload;
    size_t bytes;
    size_t cut;    /* given to lanes */
    size_t unsent; /* not taken by the kernel yet */
    uint64_t number;
    atomic_uint *users;
} ddl__long_span;

typedef struct ddl__lane {
    int fd;
    ddl__seal *seal; /* NULL: not encrypted */
    char name[DDL__LANE_NAME];

    /* Sending: the chunk that is under way. */
    ddl__tcp_header out;
    const char *payload;
    ddl__long_span *span; /* NULL: none */
    size_t sent;          /* bytes of it, header included */

    /* How fast it goes: bytes per second, 0 while unknown, from what the peer has acknowledged. */
    double rate;
    uint64_t given;        /* bytes to the kernel, ever */
    uint64_t acknowledged; /* of these, when the present stretch began */
    int64_t looked;        /* when that was */
    bool busy;             /* something was under way then */

    /* Receiving: what is left of a chunk, and the header of the next one. */
    char *place;
    size_t left;
    ddl__tcp_header in;
    size_t got;
    bool event; /* has come since the last EAGAIN */
    bool ended;
} ddl__lane;

typedef struct ddl__tcp_link {
    ddl__link base; /* base.fd: the socket, or with lanes an epoll descriptor of all of them */
    int fd;
    ddl__seal *seal; /* its sending half is the lock's */
    char name[DDL__LANE_NAME];
    ddl__slots *slots;
    unsigned n_lanes;
    ddl__lane *lanes; /* [DDL__LANES_MAX], made with the first */

    pthread_mutex_t lock;    /* from here to `farewell`, and the lanes' sending halves */
    bool closed;             /* nothing more is accepted */
    bool shut;               /* nothing more is sent */
    int error;               /* that ended sending, an errno */
    const char *failed_lane; /* the lane that it was: then only the farewell is sent; or NULL */
    unsigned oldest, queued;
    size_t sent; /* bytes of the oldest frame */
    ddl__tcp_frame queue[DDL__TCP_QUEUE];
    unsigned first_long, n_long;
    uint64_t long_sent; /* their numbers so far */
    ddl__long_span long_spans[DDL__TCP_QUEUE];
    char farewell[256];

    ddl__tcp_header head; /* of the frame that is coming */
    size_t got;           /* bytes of it that have come */
    bool event;           /* has come since the last EAGAIN */
    void *buffer;
    size_t capacity;

    /* The long span that is coming. */
    bool assembling;
    bool broken;              /* it will never be whole */
    size_t unplaced, missing; /* bytes of it: not announced by chunks, not here */
    uint64_t long_received;   /* those before it */
    int64_t lost_at;          /* a lane has failed, which is believed then; 0: none has */
    char lost_why[160];
    int64_t examined; /* when the sockets' health was last looked at */
} ddl__tcp_link;

static inline ddl__tcp_link *ddl__tcp_of(ddl__link *link)
{
    return (ddl__tcp_link *)link;
}

/* Whether a span of so many bytes goes by lanes. */
static inline bool ddl__tcp_is_long(const ddl__tcp_link *l, size_t bytes)
{
    return l->n_lanes && bytes >= DDL__LONG_SPAN;
}

/* Add what is left of a piece of memory after *skip bytes, and lower *skip by the piece. */
static inline void ddl__piece_add(struct iovec *pieces, size_t *n, const void *memory, size_t bytes,
                                  size_t *skip)
{
    size_t skipped = *skip < bytes ? *skip : bytes;
    *skip -= skipped;
    if (skipped < bytes)
        pieces[(*n)++] = (struct iovec){(char *)(uintptr_t)memory + skipped, bytes - skipped};
}

/* Whether something waits to be sent: frames, long spans, or what is encrypted already. */
static inline bool ddl__tcp_waits(const ddl__tcp_link *l)
{
    bool waits = l->queued || l->n_long || (l->seal && ddl__seal_has_unsent(l->seal));
    for (unsigned i = 0; l->seal && !waits && i < l->n_lanes; i++)
        waits = ddl__seal_has_unsent(l->lanes[i].seal);
    return waits;
}

/* ---- tcp_send.c: with the lock held, but for the link's verbs ---- */

void ddl__tcp_enqueue(ddl__tcp_link *l, ddl__tcp_type type, const void *payload, size_t bytes,
                      const ddl__signature *signature, atomic_uint *users);

/* Forget all long spans, and all frames but the `keep` oldest. */
void ddl__tcp_drop(ddl__tcp_link *l, unsigned keep);

/* Nothing more will be sent; what waits is dropped. */
void ddl__tcp_stop(ddl__tcp_link *l);

/* Send as much as the sockets take. */
void ddl__tcp_push(ddl__tcp_link *l);

void *ddl__tcp_reserve(ddl__link *const *to, unsigned n, size_t bytes);
void ddl__tcp_publish(ddl__link *const *to, unsigned n, void *span, size_t bytes,
                      const ddl__signature *signature);
bool ddl__tcp_send_user(ddl__link *const *to, unsigned n, const void *memory, size_t bytes,
                        const ddl__signature *signature);
bool ddl__tcp_flush(ddl__link *link);
bool ddl__tcp_has_unread(const ddl__link *link);

/* ---- tcp_receive.c: the driver's ---- */

void ddl__tcp_lose(ddl__tcp_link *l, const char *name, const char *reason);

/* Look for a farewell or an end. */
void ddl__tcp_look(ddl__tcp_link *l);

bool ddl__tcp_next(ddl__link *link, ddl__signature *signature, size_t *bytes);
const void *ddl__tcp_peek(ddl__link *link, size_t bytes, const ddl__signature *signature);
void ddl__tcp_release(ddl__link *link);
bool ddl__tcp_take(ddl__link *link, void *dst, size_t bytes, const ddl__signature *signature);

/* ---- lanes.c ---- */

/* With the lock: queue a long span; send as much as the lanes take; whether nothing is left; forget
 * all; end the lanes' sending. */
void ddl__lanes_append(ddl__tcp_link *l, const void *payload, size_t bytes, atomic_uint *users);
void ddl__lanes_push(ddl__tcp_link *l);
void ddl__lanes_drop(ddl__tcp_link *l);
void ddl__lanes_shut(ddl__tcp_link *l);

/* The driver's: bring what has come of the present long span to its place; true when it is whole.
 */
bool ddl__lanes_receive(ddl__tcp_link *l, void *into, size_t bytes);

/* Sending on a lane has failed: the link is lost unless the peer soon says something else. */
void ddl__lanes_fail(ddl__tcp_link *l, const char *name, int error);

#endif
