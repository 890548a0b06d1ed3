/* SPDX-License-Identifier: Apache-2.0 */
/* messages_state.h - the insides of a comm's messages, for the files that make them up: messages.c
 * (creation, submission, progress), messages_match.c, messages_send.c, messages_receive.c and
 * messages_failures.c.
 *
 * Design notes.
 *
 * A message link moves frames (frames.h) in order. A short message travels whole: its sender is
 * done at once, and the receiver keeps a copy if no receive is posted yet. Credit bounds how much
 * of a sender's data a peer keeps in this way; it comes back as receives take the messages. A
 * longer message, or one without credit, is offered, and sent in parts when a receive has accepted
 * it.
 *
 * Whatever comes can thus be taken in at once, and a message that is not wanted yet never blocks a
 * link. The link of a peer is looked at only while a work waits for that peer. Until then nothing
 * has to be sent to it, and what it has sent without being accepted fits its credit and its link.
 *
 * A receive from any rank, a named operation, and rank 0 while it waits for names wait for all
 * peers. Then the peers with an open link are looked at, in a large comm over TCP without those
 * whose link is quiet. Their list is made again when another thread has opened a link, or let one
 * lapse.
 *
 * Frames of a peer come in the order of its sends. In that order they are matched with receives in
 * the mailbox, or kept there.
 *
 * Sending hands the user's memory to the link, and hands over more only when the link has done with
 * the last part. A work is therefore known to be complete when its last part has left. Links over
 * shared memory copy, so that this is the case at once.
 *
 * A work is in the list of all pending works, and in at most one queue. A peer refers to works by
 * their number alone.
 */
#ifndef DDL_ENGINE_MESSAGES_MESSAGES_STATE_H
#define DDL_ENGINE_MESSAGES_MESSAGES_STATE_H

#include "base/dtype.h"
#include "engine/calls/frames.h"
#include "engine/messages/mailbox.h"
#include "engine/messages/messages.h"

/* ---- ids.c: numbers by which a peer refers to works ---- */

typedef struct ddl__ids {
    ddl_work **works; /* by number; NULL where it is free */
    uint32_t *after;  /* for a free number: the next free one */
    uint32_t free, capacity;
} ddl__ids;

/* Give the work a unique number; false when out of memory. */
bool ddl__ids_add(ddl__ids *ids, ddl_work *work, uint32_t *id);

/* The work with this number, or NULL. A peer may send any number. */
ddl_work *ddl__ids_get(const ddl__ids *ids, uint32_t id);
void ddl__ids_remove(ddl__ids *ids, uint32_t id);

void ddl__ids_clear(ddl__ids *ids);

/* ---- the messages ---- */

enum {
    DDL__EAGER_MAX = 8 * 1024,     /* bytes of the longest message that travels whole */
    DDL__CREDIT_MAX = 256 * 1024,  /* bytes of such messages that a peer keeps unreceived */
    DDL__CREDIT_BATCH = 64 * 1024, /* is returned at a time */
    DDL__MESSAGE_SLICE = 16        /* frames to and from one peer in one pass */
};

typedef struct ddl__message_peer {
    ddl__link *link;                  /* NULL: this rank */
    unsigned waiting;                 /* works that wait for this peer */
    bool listed;                      /* in the list of active peers */
    ddl__queue sends;                 /* not yet announced */
    ddl__queue accepted;              /* sends whose parts go out */
    ddl__queue leaving;               /* sends whose last part is with the link */
    ddl__queue accepting;             /* receives matched with an offer, to be accepted */
    int64_t credit;                   /* of this rank */
    int64_t spent;                    /* by the peer, and not returned */
    int64_t owed;                     /* of that: already received, to be returned */
    ddl__name_messages name_messages; /* to be sent */
    unsigned names_leaving;           /* with the link, which has yet to send them */
    bool unsent;                      /* the link may have frames that it has yet to send */
    size_t flight_bytes;              /* sent since the link was last seen empty */
    unsigned flight_frames;
} ddl__message_peer;

struct ddl__messages {
    pthread_mutex_t *lock;
    ddl__recorder *recorder; /* or NULL */
    ddl__queue inbox;        /* submitted; under the lock */
    atomic_bool posted;      /* the inbox is not empty */

    int rank, size;
    char *const *names;
    ddl__message_peer *peers;
    uint32_t *active, n_active;   /* peers for which works wait, or did */
    uint32_t *reached, n_reached; /* peers with an open link */
    atomic_bool links_changed;    /* that list is to be made again; set by any thread */
    bool by_events;               /* events tell which of them to look at */
    unsigned n_anywhere;          /* receives from any rank, not yet matched */
    ddl__mailbox *mailbox;
    ddl__ids ids;
    ddl_work *pending; /* all works, in no order */
    ddl__queue finished;
    bool named, runs;                 /* named operations are under way; one of them runs */
    ddl__name_messages name_messages; /* that have come */
    atomic_uint *names_unsent;        /* to others; any thread may read it */
    int64_t deadline;                 /* no work has an earlier one */
    ddl_status status;
    char text[DDL__MESSAGE_MAX];
    int lost; /* the rank whose lost link is the reason, + 1; 0: another reason */
};

static inline size_t ddl__message_bytes(const ddl_work *work)
{
    return (size_t)work->call.count * ddl__dtype_size(work->call.dtype);
}

/* Credit that a message of so many bytes takes. */
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

/* There is something for this peer: look at it. */
static inline void ddl__messages_activate(ddl__messages *m, int rank)
{
    ddl__message_peer *p = &m->peers[rank];
    if (!p->listed)
        m->active[m->n_active++] = (uint32_t)rank;
    p->listed = true;
}

/* ---- messages_match.c ---- */

/* A send or receive was submitted. */
void ddl__messages_add(ddl__messages *m, ddl_work *work);

/* A message or an offer has come. */
void ddl__messages_arrive(ddl__messages *m, int source, const ddl__frame *f, const void *payload,
                          size_t bytes);

/* The work has succeeded. */
void ddl__messages_finish(ddl__messages *m, ddl_work *work);

/* ---- messages_send.c, messages_receive.c: false when nothing could be done ---- */

bool ddl__messages_send(ddl__messages *m, ddl__message_peer *p);
bool ddl__messages_receive(ddl__messages *m, int rank);

/* ---- messages_failures.c ---- */

/* End the comm; the first failure counts. */
void ddl__messages_fail(ddl__messages *m, ddl_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
void ddl__messages_fail_for_memory(ddl__messages *m);

#endif
