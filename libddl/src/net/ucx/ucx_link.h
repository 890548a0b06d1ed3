/* SPDX-License-Identifier: Apache-2.0 */
/* ucx_link.h - the internals of links over UCX: ucx.c (creation, events and end), ucx_send.c,
 * ucx_receive.c, ucx_probe.c, ucp_library.c (the system's library).
 *
 * Design notes.
 *
 * Spans. A comm has one worker, and one endpoint for each peer, which is connected when it is first
 * used. A span is an active message: its header has the link, the span's number and its signature.
 * UCX may deliver messages out of order, so the number alone determines the order. The receiver
 * sees the header before it chooses the place of the payload. A payload that has arrived with its
 * header is read in place; UCX transfers a longer one (by rendezvous) directly from the sender's
 * memory to the place that the receiver names. Tag matching can do neither: it would write a span
 * of another operation into the receive buffer, or need a second message for each header.
 *
 * Probes. Before a comm uses UCX, each member sends a probe to the members to which its creation
 * has opened connections, and receives theirs, within DDL__UCX_PROBE_LIMIT. Without probes, the
 * members would learn too late that an address is not reachable: UCX itself reports that after 30
 * s, and may then abort the process. All members then agree on whether to use UCX (comm/fabric.c).
 * Until then they let UCX work, because a peer may need this to connect. UCX 1.13 aborts the
 * process if an endpoint is closed while it connects. So if a peer was not reached, the worker is
 * never used again, and not freed. The same holds for an endpoint of a later first use that has not
 * connected when the comm ends.
 *
 * Room. A sender may have DDL__UCX_WINDOW spans on a link that the receiver has not released. The
 * receiver returns the room in credits, which are messages without payload.
 *
 * End. The TCP link below remains the link for everything but spans. A leave message follows a span
 * over TCP that contains the number of spans sent over UCX, and takes effect when these have
 * arrived. An abort takes effect at once. An error of the endpoint does not prove that the peer is
 * dead: as with a lane of a TCP link, the link counts as lost if no reason arrives over TCP in
 * time. While the TCP link is unopened, nothing can be sent over UCX: a peer without a TCP link
 * could leave unnoticed. A span over TCP, like the one before a leave message, opens the TCP link.
 *
 * User memory. Requests refer to user memory until they are complete. An abort closes the endpoint
 * by force, which completes its requests with an error. When all aborts are sent, the thread that
 * ends the comm waits for this completion, at most DDL__UCX_FLUSH_LIMIT.
 *
 * Threads. `lock` guards the worker and all links of the comm, because any thread may close. UCX
 * calls back only while the lock is held. UCX has one more thread of its own, which never calls
 * libddl except to log. The lock is taken before the lock of the TCP link.
 *
 * Sleep. The worker reports events on its descriptor after it was armed. Arming fails while there
 * is something to receive, so no event is lost. */
#ifndef DDL_NET_UCX_LINK_H
#define DDL_NET_UCX_LINK_H

#include <pthread.h>

#include "net/tcp/tcp_link.h"
#include "net/ucx/ucp_api.h"
#include "net/ucx/ucx.h"

enum { DDL__UCX_WINDOW = 64, DDL__UCX_SPAN = 1, DDL__UCX_CREDIT = 2, DDL__UCX_PROBE = 3 };

/* The header of an active message. In a credit, `number` counts the released spans. */
typedef struct ddl__ucx_head {
    uint32_t from;
    uint32_t second; /* 1: the link for messages */
    uint64_t number; /* number of the span on its link, from 0 */
    ddl__signature signature;
    uint64_t bytes;
} ddl__ucx_head;
_Static_assert(sizeof(ddl__ucx_head) == 40, "the wire format");

typedef struct ddl__ucx_link ddl__ucx_link;

typedef struct ddl__ucx_sent {
    ddl__ucx_head head;
    ddl__ucx_link *link;
    atomic_uint *users; /* users of the payload's slot; NULL: user memory */
    bool pending;
} ddl__ucx_sent;

typedef struct ddl__ucx_arrival {
    ddl__ucx_head head;
    bool here;
    bool rendezvous; /* the payload is still with the sender */
    bool receiving, received;
    void *data;  /* the payload, or UCX's handle to fetch it; NULL: none */
    void *place; /* the payload, after it was fetched or copied; else NULL */
} ddl__ucx_arrival;

struct ddl__ucx_link {
    struct ddl__ucx *ucx;
    ddl__tcp_link *tcp;           /* NULL before ddl__ucx_carry and after the end */
    const ddl__link_ops *tcp_ops; /* its operations */
    int peer;

    uint64_t sent, released_there; /* spans sent; spans that the peer has released */
    unsigned pending;              /* requests that UCX has not completed, to send or receive */
    uint64_t farewell;             /* the number of spans sent, as the peer receives it */
    bool opening;                  /* the connection of the TCP link was requested */
    bool closed;
    ddl__ucx_sent credit; /* a credit or a probe that is being sent */
    bool probed, reached; /* a probe was sent; the peer's has arrived */
    bool connected; /* first link of a pair only: UCX has connected the endpoint, or has given up */
    bool abandoned; /* first link of a pair only: an abort closes the endpoint by force once it is
                       connected */

    uint64_t arrived, released, credited;
    uint64_t announced; /* number of spans that the peer has sent, once it leaves */
    bool leaving;       /* the peer has left, and spans are on their way */
    int64_t leaves_at;  /* time to report that these spans have not arrived */
    ddl__ucs_status failure;
    int64_t lost_at; /* time to report the failure; 0: none */
    void *buffer;
    size_t capacity;

    ddl__ucx_sent spans[DDL__UCX_WINDOW];       /* by number */
    ddl__ucx_arrival arrivals[DDL__UCX_WINDOW]; /* by number */
};

struct ddl__ucx {
    ddl__ucp ucp;
    char version[24];
    ddl__ucp_context *context;
    ddl__ucp_worker *worker;
    ddl__slots *slots;
    pthread_mutex_t lock;
    int rank, size, fd;
    bool armed;
    bool unusable; /* an endpoint is still connecting, so it cannot be closed: do not use the worker
                      again */
    void *address;
    size_t address_bytes;
    char *rows; /* the addresses of the members */
    size_t row_bytes;
    ddl__ucp_ep **endpoints; /* by rank; NULL: none yet */
    ddl__ucx_link links[];   /* by 2 * rank, + 1 for messages */
};

static inline ddl__ucx_link *ddl__ucx_of(ddl__link *link)
{
    return ddl__tcp_of(link)->carrier;
}

/* ---- ucp_library.c ---- */

/* Load the library. Returns DDL_EUNSUPPORTED, with the reason as message, on failure. */
ddl_status ddl__ucp_load(ddl__ucp *ucp, char *version, size_t size);

/* ---- ucx.c; all but the link operations are called with the lock held ---- */

/* Return the endpoint to the peer, or NULL if it cannot be created. */
ddl__ucp_ep *ddl__ucx_endpoint(ddl__ucx_link *l);

/* Note that spans can no longer be sent or received. */
void ddl__ucx_fail(ddl__ucx_link *l, ddl__ucs_status status);

/* Let UCX work, which may open a connection that is not armed. */
static inline unsigned ddl__ucx_progress(ddl__ucx *ucx)
{
    unsigned n = ucx->unusable ? 0 : ucx->ucp.worker_progress(ucx->worker);
    ucx->armed = ucx->armed && !n;
    return n;
}

/* Receive all that has arrived, so that the descriptor reports the next arrival. */
void ddl__ucx_arm(ddl__ucx *ucx);

/* Without the lock: return true if a probe has neither arrived nor failed. */
bool ddl__ucx_is_probing(ddl__ucx *ucx);

/* Receive from the TCP link. End the link if its peer has left and all transfers are complete, or
 * if the time limit after a failure or a leave message has passed. */
void ddl__ucx_check(ddl__ucx_link *l);

/* ---- ucx_send.c ---- */

void *ddl__ucx_reserve(ddl__link *const *to, unsigned n, size_t bytes);
void ddl__ucx_publish(ddl__link *const *to, unsigned n, void *span, size_t bytes,
                      const ddl__signature *signature);
bool ddl__ucx_send_user(ddl__link *const *to, unsigned n, const void *memory, size_t bytes,
                        const ddl__signature *signature);
ddl__link_pending ddl__ucx_flush(ddl__link *link);

/* With the lock held: send the peer a credit if enough of its spans were released. */
void ddl__ucx_return_room(ddl__ucx_link *l);

/* Send a probe. Called with the lock held, before the link has sent a credit. */
void ddl__ucx_send_probe(ddl__ucx_link *l);

/* ---- ucx_receive.c ---- */

/* Handle active messages. Return false if UCX does not accept the handlers. */
bool ddl__ucx_handle_messages(ddl__ucx *ucx);

/* With the lock held: release the spans that have arrived and were not received. */
void ddl__ucx_drop_arrivals(ddl__ucx_link *l);

bool ddl__ucx_next(ddl__link *link, ddl__signature *signature, size_t *bytes);
const void *ddl__ucx_peek(ddl__link *link, unsigned ahead, void *into, size_t bytes,
                          const ddl__signature *signature);
bool ddl__ucx_release(ddl__link *link);

#endif
