/* SPDX-License-Identifier: Apache-2.0 */
/* messages_state.h - the internals of a comm's messages, for the files that implement them:
 * messages.c (creation, submission, progress), messages_match.c, messages_send.c,
 * messages_receive.c and messages_failures.c.
 *
 * Design notes.
 *
 * A message link carries frames (frames.h) in order. A short message is sent whole: its send is
 * complete at once, and the receiver keeps a copy if no receive is posted yet. Credit limits how
 * much of a sender's data a peer keeps in this way. The peer returns credit as receives take the
 * messages. A longer message, or a message without credit, is offered, and sent in parts when a
 * receive has accepted it.
 *
 * Everything that arrives can thus be received at once, and a message without a receive never
 * blocks a link. The link of a peer is polled only while a work waits for that peer. Until then
 * nothing has to be sent to the peer, and the data that it has sent without an accept fits its
 * credit and its link.
 *
 * A receive from any rank, a named operation, and rank 0 while it waits for names wait for all
 * peers. Then all peers with an open link are polled; in a large comm over TCP, quiet links are
 * skipped. The list of these peers is rebuilt when another thread has opened a link or closed an
 * unopened one.
 *
 * Frames of a peer arrive in the order of its sends. In that order they are matched with receives
 * in the mailbox, or kept there.
 *
 * A send passes the user's memory to the link, and passes the next part only when the link has
 * finished with the previous one. A work is therefore known to be complete when its last part is
 * sent. Links over shared memory copy, so they have sent it at once.
 *
 * A work is in the list of all pending works, and in at most one queue. A peer refers to works only
 * by their number. */
#ifndef DDL_ENGINE_MESSAGES_MESSAGES_STATE_H
#define DDL_ENGINE_MESSAGES_MESSAGES_STATE_H

#include "base/dtype.h"
#include "engine/calls/frames.h"
#include "engine/messages/mailbox.h"
#include "engine/messages/messages.h"

/* ---- ids.c: the numbers by which a peer refers to works ---- */

typedef struct ddl__ids {
    ddl_work **works; /* indexed by number; NULL if the number is free */
    uint32_t *after;  /* the next free number after a free one */
    uint32_t free, capacity;
} ddl__ids;

/* Give the work a unique number. Return false if out of memory. */
bool ddl__ids_add(ddl__ids *ids, ddl_work *work, uint32_t *id);

/* Return the work with this number, or NULL. A peer may send any number. */
ddl_work *ddl__ids_get(const ddl__ids *ids, uint32_t id);
void ddl__ids_remove(ddl__ids *ids, uint32_t id);

void ddl__ids_clear(ddl__ids *ids);

/* ---- the messages ---- */

enum {
    DDL__EAGER_MAX = 8 * 1024,     /* bytes of the longest message that is sent whole */
    DDL__CREDIT_MAX = 256 * 1024,  /* bytes of unreceived eager messages that a peer keeps */
    DDL__CREDIT_BATCH = 64 * 1024, /* bytes of credit that are returned at a time */
    DDL__MESSAGE_SLICE = 16 /* maximum number of frames to one peer, and from it, in one pass */
};

typedef struct ddl__message_peer {
    ddl__link *link;      /* the link; NULL for this rank itself */
    unsigned waiting;     /* works that wait for this peer */
    bool listed;          /* the peer is in the list of active peers */
    ddl__queue sends;     /* sends that are not announced yet */
    ddl__queue accepted;  /* sends whose parts are being sent */
    ddl__queue leaving;   /* sends whose last part the link still has to send */
    ddl__queue accepting; /* receives matched with an offer, to be accepted */
    int64_t credit;       /* bytes of credit that this rank has */
    int64_t spent; /* bytes of credit that the peer has spent and this rank has not returned */
    int64_t owed;  /* part of `spent` whose messages are received: to be returned */
    ddl__name_messages name_messages; /* to be sent */
    unsigned names_leaving;           /* name messages that the link still has to send */
    bool unsent;                      /* the link may still have frames to send */
    size_t flight_bytes;              /* bytes sent since the link was last empty */
    unsigned flight_frames;
} ddl__message_peer;

struct ddl__messages {
    pthread_mutex_t *lock;
    ddl__recorder *recorder; /* or NULL */
    ddl__queue inbox;        /* the submitted works; under the lock */
    atomic_bool posted;      /* the inbox is not empty */

    int rank, size;
    char *const *names;
    ddl__message_peer *peers;
    uint32_t *active, n_active;   /* peers that works wait for or have waited for */
    uint32_t *reached, n_reached; /* peers with an open link */
    atomic_bool links_changed;    /* `reached` must be rebuilt; set by any thread */
    bool by_events;               /* events show which peers to poll */
    unsigned n_anywhere;          /* receives from any rank, not yet matched */
    ddl__mailbox *mailbox;
    ddl__ids ids;
    ddl_work *pending; /* all works, in no order */
    ddl__queue finished;
    bool named, runs;                 /* named operations are pending; one of them runs */
    ddl__name_messages name_messages; /* received */
    atomic_uint *names_unsent;        /* number of unsent name messages; any thread may read it */
    int64_t deadline;                 /* lower bound of the works' deadlines */
    ddl_status status;
    char text[DDL__MESSAGE_MAX];
    int lost; /* 1 + the rank whose lost link is the reason for the failure; 0: another reason */
};

static inline size_t ddl__message_bytes(const ddl_work *work)
{
    return (size_t)work->call.count * ddl__dtype_size(work->call.dtype);
}

/* Return the credit that a message of this many bytes uses. */
static inline int64_t ddl__message_cost(size_t bytes)
{
    enum { OVERHEAD = 64 };
    return (int64_t)bytes + OVERHEAD;
}

static inline bool ddl__message_is_eager(const ddl__message_peer *p, size_t bytes)
{
    return bytes <= DDL__EAGER_MAX && p->credit >= ddl__message_cost(bytes);
}

static inline ddl__frame ddl__message_frame(const ddl_work *work, ddl__frame_kind kind)
{
    return (ddl__frame){.kind = kind,
                        .dtype = work->call.dtype,
                        .count = work->call.count,
                        .tag = (uint32_t)work->call.tag};
}

/* Put the peer on the list of active peers. */
static inline void ddl__messages_activate(ddl__messages *m, int rank)
{
    ddl__message_peer *p = &m->peers[rank];
    if (!p->listed)
        m->active[m->n_active++] = (uint32_t)rank;
    p->listed = true;
}

/* ---- messages_match.c ---- */

/* Handle the submission of a send or receive. */
void ddl__messages_add(ddl__messages *m, ddl_work *work);

/* Handle the arrival of a message or an offer. */
void ddl__messages_arrive(ddl__messages *m, int source, const ddl__frame *f, const void *payload,
                          size_t bytes);

/* Complete a work that has succeeded. */
void ddl__messages_finish(ddl__messages *m, ddl_work *work);

/* ---- messages_send.c, messages_receive.c: return false if nothing was possible ---- */

bool ddl__messages_send(ddl__messages *m, ddl__message_peer *p);
bool ddl__messages_receive(ddl__messages *m, int rank);

/* ---- messages_failures.c ---- */

/* Record the failure that ends the comm. Only the first one is kept. */
void ddl__messages_fail(ddl__messages *m, ddl_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
void ddl__messages_fail_for_memory(ddl__messages *m);

#endif
