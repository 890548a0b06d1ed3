/* Design notes.
 *
 * A message link moves frames (frames.h) in order. A short message travels whole: its sender is
 * done at once, and one that nobody has asked for yet is kept here in a copy. What a sender may
 * have lying at a peer like that is bounded by credit, which comes back when receives take it. A
 * longer message, or one without credit, is offered, and sent in parts when a receive has accepted
 * it.
 *
 * So whatever comes can be taken in at once, and links never stand still because of a message that
 * nobody wants yet. A peer's link is looked at only while a work waits for that peer: until then
 * nothing is owed to it, for what it has sent without being accepted fits its credit and its link.
 *
 * Matching. Frames of a peer come in the order of its sends, and in it the mailbox matches them
 * with receives, or keeps them.
 *
 * Sending lends the caller's memory, and lends more only when the link has done with it, so that a
 * work is known to be complete when its last part has left. Where links share memory, lending
 * copies, and that is so at once.
 *
 * A work is in the list of all that are pending, and in at most one queue. A peer refers to works
 * by their number alone. */
#include "engine/messages.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/dtype.h"
#include "engine/describe.h"
#include "engine/frames.h"
#include "engine/ids.h"
#include "engine/mailbox.h"
#include "engine/queue.h"

enum {
    EAGER_MAX = 8 * 1024,     /* bytes of a message that travels whole */
    CREDIT = 256 * 1024,      /* of such messages that nobody has received yet */
    CREDIT_BATCH = 64 * 1024, /* to be given back at a time */
    OVERHEAD = 64,            /* what the shortest message takes of it */
    SEGMENT = 256 * 1024,     /* of a longer message */
    SEGMENT_SHARED = 64 * 1024,
    SLICE = 16, /* frames to and from one peer in one pass */

    /* What may lie between the spans of a stream on the same link, that its plans must not miss. */
    FLIGHT_FRAMES = 16,
    FLIGHT_BYTES = 64 * 1024 /* and one frame more */
};

typedef struct peer {
    ddl__link *link;      /* NULL: ourselves */
    unsigned waiting;     /* works that wait for this peer */
    bool listed;          /* among the active ones */
    ddl__queue sends;     /* not yet announced */
    ddl__queue accepted;  /* sends: their parts go out */
    ddl__queue leaving;   /* sends: all parts are with the link */
    ddl__queue accepting; /* receives: matched with an offer, to be accepted */
    int64_t credit;       /* ours */
    int64_t spent;        /* by the peer, and not given back */
    int64_t owed;         /* .. though received: to be given back */
    ddl__name_messages name_messages;
    size_t flight_bytes; /* since the link was last seen empty */
    unsigned flight_frames;
} peer;

struct ddl__messages {
    pthread_mutex_t *lock;
    ddl__recorder *recorder; /* or NULL */
    ddl__queue inbox;        /* under the lock: submitted */
    atomic_bool posted;

    int rank, size;
    char *const *names;
    peer *peers;
    uint32_t *active, n_active; /* peers for which works wait; some that did are still in it */
    unsigned n_anywhere;        /* receives from any rank, not yet matched */
    ddl__mailbox *mailbox;
    ddl__ids ids;
    ddl_work *pending; /* all, in no order */
    ddl__queue finished;
    bool named;                       /* to all peers, for operations by name */
    ddl__name_messages name_messages; /* that have come */
    atomic_uint unsent;               /* name messages to others */
    int64_t deadline;                 /* not after any work's */
    ddl_status status;
    char text[DDL__MESSAGE_MAX];
};

/* -------------------------------------------------------------------------------- works' states */

static void fail(ddl__messages *m, ddl_status status, const char *format, ...)
{
    va_list args;
    if (m->status != DDL_OK)
        return;
    va_start(args, format);
    vsnprintf(m->text, sizeof m->text, format, args);
    va_end(args);
    m->status = status;
}

static void fail_for_memory(ddl__messages *m)
{
    fail(m, DDL_ENOMEM, "%s: no memory for a message", m->names[m->rank]);
}

static size_t bytes_of(const ddl_work *work)
{
    return (size_t)work->call.count * ddl__dtype_size(work->call.dtype);
}

/* The work waits for this peer. */
static void wait_for(ddl__messages *m, ddl_work *work, int rank)
{
    peer *p = &m->peers[rank];
    work->transfer.peer = rank;
    p->waiting++;
    if (!p->listed)
        m->active[m->n_active++] = (uint32_t)rank;
    p->listed = true;
}

static void record_start(ddl__messages *m, ddl_work *work)
{
    if (!m->recorder)
        return;
    ddl__signature signature = ddl__signature_of(&work->call, 0);
    work->element = ddl__dtype_size(work->call.dtype);
    ddl__record_start(m->recorder, work, DDL__MATCH_MESSAGE, &signature, work->submitted);
}

static void record_end(ddl__messages *m, const ddl_work *work)
{
    if (m->recorder)
        ddl__record_end(m->recorder, work, DDL_OK, ddl__now());
}

static void finish(ddl__messages *m, ddl_work *work)
{
    if (work->call.kind == DDL__RECV && work->call.sender)
        *work->call.sender = work->transfer.peer;
    m->peers[work->transfer.peer].waiting--;
    if (work->transfer.before)
        work->transfer.before->transfer.after = work->transfer.after;
    else
        m->pending = work->transfer.after;
    if (work->transfer.after)
        work->transfer.after->transfer.before = work->transfer.before;
    record_end(m, work);
    ddl__queue_push(&m->finished, work);
}

/* ------------------------------------------------------------------------------------- matching */

static int64_t cost(size_t bytes)
{
    return (int64_t)bytes + OVERHEAD;
}

static ddl__frame announce(const ddl_work *work, ddl__frame_kind kind)
{
    return (ddl__frame){.kind = kind,
                        .dtype = work->call.dtype,
                        .count = work->call.count,
                        .tag = (uint32_t)work->call.tag};
}

static void fail_by_mismatch(ddl__messages *m, const ddl_work *receive, int source,
                             const ddl__frame *f)
{
    ddl__call sent = {.kind = DDL__SEND,
                      .dtype = (ddl_dtype)f->dtype,
                      .count = f->count,
                      .root = m->rank,
                      .tag = (int)f->tag};
    char theirs[DDL__CALL_MAX], ours[DDL__CALL_MAX];
    ddl__describe_call(theirs, sizeof theirs, &sent);
    ddl__describe_call(ours, sizeof ours, &receive->call);
    fail(m, DDL_EMISMATCH, "%s called %s; %s called %s", m->names[source], theirs,
         m->names[m->rank], ours);
}

/* A receive and its message have met; the payload is there unless it is an offer. */
static void join(ddl__messages *m, ddl_work *receive, int source, const ddl__frame *f,
                 const void *payload)
{
    peer *p = &m->peers[source];
    if (receive->call.count != f->count || receive->call.dtype != f->dtype) {
        fail_by_mismatch(m, receive, source, f);
        return;
    }
    if (receive->call.root == DDL_ANY_SOURCE) {
        m->n_anywhere--;
        wait_for(m, receive, source);
    }
    size_t bytes = bytes_of(receive);
    if (f->kind == DDL__EAGER) {
        p->owed += cost(bytes);
    } else if (p->link) {
        receive->transfer.partner = f->id;
        ddl__queue_push(&p->accepting, receive);
        return;
    } else {
        ddl_work *send = ddl__ids_get(&m->ids, f->id);
        ddl__ids_remove(&m->ids, f->id);
        payload = send->call.send;
        finish(m, send);
    }
    if (bytes)
        memcpy(receive->call.recv, payload, bytes);
    finish(m, receive);
}

static void keep(ddl__messages *m, int source, const ddl__frame *f, const void *payload,
                 size_t bytes)
{
    if (!ddl__mailbox_keep(m->mailbox, source, f, payload, bytes))
        fail_for_memory(m);
}

static void arrive(ddl__messages *m, int source, const ddl__frame *f, const void *payload,
                   size_t bytes)
{
    ddl_work *receive = ddl__mailbox_take_receive(m->mailbox, source, f->tag);
    if (receive)
        join(m, receive, source, f, payload);
    else
        keep(m, source, f, payload, bytes);
}

static void add_receive(ddl__messages *m, ddl_work *work)
{
    if (work->call.root == DDL_ANY_SOURCE)
        m->n_anywhere++;
    else
        wait_for(m, work, work->call.root);
    ddl__arrival *a = ddl__mailbox_take_message(m->mailbox, work);
    if (a)
        join(m, work, a->source, &a->frame, a->payload);
    else
        ddl__mailbox_wait(m->mailbox, work);
    free(a);
}

static bool travels_whole(const peer *p, size_t bytes)
{
    return bytes <= EAGER_MAX && p->credit >= cost(bytes);
}

/* To ourselves: whole whenever the receive is there, else by the same rules as to others. */
static void add_to_self(ddl__messages *m, ddl_work *work)
{
    peer *self = &m->peers[m->rank];
    size_t bytes = bytes_of(work);
    self->credit += self->owed;
    self->owed = 0;
    ddl__frame f = announce(work, DDL__EAGER);
    ddl_work *receive = ddl__mailbox_take_receive(m->mailbox, m->rank, f.tag);
    if (receive || travels_whole(self, bytes)) {
        self->credit -= cost(bytes);
        if (receive)
            join(m, receive, m->rank, &f, work->call.send);
        else
            keep(m, m->rank, &f, work->call.send, bytes);
        finish(m, work);
    } else {
        f.kind = DDL__OFFER;
        if (ddl__ids_add(&m->ids, work, &f.id))
            keep(m, m->rank, &f, NULL, 0);
        else
            fail_for_memory(m);
    }
}

static void add(ddl__messages *m, ddl_work *work)
{
    record_start(m, work);
    work->transfer = (ddl__transfer){.after = m->pending, .peer = DDL_ANY_SOURCE};
    if (m->pending)
        m->pending->transfer.before = work;
    m->pending = work;
    if (work->deadline < m->deadline)
        m->deadline = work->deadline;
    if (work->call.kind == DDL__RECV) {
        add_receive(m, work);
        return;
    }
    wait_for(m, work, work->call.root);
    if (work->call.root == m->rank)
        add_to_self(m, work);
    else
        ddl__queue_push(&m->peers[work->call.root].sends, work);
}

void ddl__messages_post(ddl__messages *m, ddl_work *work)
{
    ddl__queue_push(&m->inbox, work);
    atomic_store_explicit(&m->posted, true, memory_order_relaxed);
}

/* Under the lock: what was posted. */
static ddl_work *collect(ddl__messages *m)
{
    ddl_work *list = m->inbox.head;
    m->inbox = (ddl__queue){NULL, NULL};
    atomic_store_explicit(&m->posted, false, memory_order_relaxed);
    return list;
}

/* Take up what was posted; false when that is nothing. */
static bool add_posted(ddl__messages *m)
{
    if (!atomic_load_explicit(&m->posted, memory_order_relaxed))
        return false;
    pthread_mutex_lock(m->lock);
    ddl_work *list = collect(m);
    pthread_mutex_unlock(m->lock);
    for (ddl_work *work = list, *next; work; work = next) {
        next = work->next;
        add(m, work);
    }
    return true;
}

/* -------------------------------------------------------------------------------------- sending */

static void count_flight(peer *p, size_t bytes)
{
    p->flight_bytes += bytes;
    p->flight_frames++;
}

/* Whether a stream that shares the link keeps the room its plans count on. */
static bool leaves_room(const ddl__messages *m, peer *p)
{
    if (!m->named || !p->link->ops->has_unread(p->link)) {
        p->flight_bytes = 0;
        p->flight_frames = 0;
    }
    return p->flight_bytes < FLIGHT_BYTES && p->flight_frames < FLIGHT_FRAMES;
}

static bool peer_send(peer *p, const ddl__frame *f, const void *memory, size_t bytes)
{
    ddl__signature signature = ddl__frame_encode(f);
    if (!p->link->ops->send_user(&p->link, 1, bytes ? memory : "", bytes, &signature))
        return false;
    count_flight(p, bytes);
    return true;
}

static bool peer_send_name(ddl__messages *m, peer *p)
{
    const ddl__name_message *message = p->name_messages.first;
    void *span = message ? p->link->ops->reserve(&p->link, 1, message->bytes) : NULL;
    if (!span)
        return false;
    ddl__frame f = {.kind = message->kind};
    ddl__signature signature = ddl__frame_encode(&f);
    memcpy(span, message->payload, message->bytes);
    p->link->ops->publish(&p->link, 1, span, message->bytes, &signature);
    count_flight(p, message->bytes);
    free(ddl__name_messages_take(&p->name_messages));
    atomic_fetch_sub_explicit(&m->unsent, 1, memory_order_relaxed);
    return true;
}

/* What peers wait for: our word that they may send. */
static bool send_word(ddl__messages *m, peer *p)
{
    ddl_work *work = p->accepting.head;
    if (work) {
        ddl__frame f = {.kind = DDL__ACCEPT, .your = work->transfer.partner};
        if (!ddl__ids_add(&m->ids, work, &f.id)) {
            fail_for_memory(m);
            return false;
        }
        bool sent = peer_send(p, &f, NULL, 0), empty = work->call.count == 0;
        if (!sent || empty) /* nothing will come for it */
            ddl__ids_remove(&m->ids, f.id);
        if (sent)
            ddl__queue_pop(&p->accepting);
        if (sent && empty)
            finish(m, work);
        return sent;
    }
    ddl__frame f = {.kind = DDL__CREDIT, .count = p->owed};
    if (p->owed < CREDIT_BATCH || !peer_send(p, &f, NULL, 0))
        return false;
    p->spent -= p->owed;
    p->owed = 0;
    return true;
}

/* The oldest send that the peer does not know of: whole, or as an offer. */
static bool send_announcement(ddl__messages *m, peer *p)
{
    ddl_work *work = p->sends.head;
    if (!work)
        return false;
    size_t bytes = bytes_of(work);
    if (travels_whole(p, bytes)) {
        ddl__frame f = announce(work, DDL__EAGER);
        if (!peer_send(p, &f, work->call.send, bytes))
            return false;
        p->credit -= cost(bytes);
        ddl__queue_push(&p->leaving, ddl__queue_pop(&p->sends));
        return true;
    }
    ddl__frame f = announce(work, DDL__OFFER);
    if (!ddl__ids_add(&m->ids, work, &f.id)) {
        fail_for_memory(m);
        return false;
    }
    if (!peer_send(p, &f, NULL, 0)) {
        ddl__ids_remove(&m->ids, f.id);
        return false;
    }
    ddl__queue_pop(&p->sends);
    return true;
}

static bool send_part(peer *p)
{
    ddl_work *work = p->accepted.head;
    if (!work)
        return false;
    const unsigned char *memory = work->call.send;
    size_t left = bytes_of(work) - work->transfer.moved;
    size_t part = p->link->ops->shared ? SEGMENT_SHARED : SEGMENT;
    if (part > left)
        part = left;
    ddl__frame f = {.kind = DDL__DATA, .your = work->transfer.partner};
    if (!peer_send(p, &f, memory + work->transfer.moved, part))
        return false;
    work->transfer.moved += part;
    if (part == left)
        ddl__queue_push(&p->leaving, ddl__queue_pop(&p->accepted));
    return true;
}

static bool send_some(ddl__messages *m, peer *p)
{
    bool moved = false;
    for (unsigned n = 0; n < SLICE && p->link->ops->flush(p->link); n++) {
        for (ddl_work *work; (work = ddl__queue_pop(&p->leaving)); moved = true)
            finish(m, work);
        if (!leaves_room(m, p) || (!peer_send_name(m, p) && !send_word(m, p) &&
                                   !send_announcement(m, p) && !send_part(p)))
            break;
        moved = true;
    }
    return moved;
}

/* ------------------------------------------------------------------------------------ receiving */

/* The work of this kind and peer that a frame means, or NULL. */
static ddl_work *meant(const ddl__messages *m, uint32_t id, ddl__kind kind, int rank)
{
    ddl_work *work = ddl__ids_get(&m->ids, id);
    return work && work->call.kind == kind && work->transfer.peer == rank ? work : NULL;
}

/* A part of a message goes straight to its place; false while it has not come whole. */
static bool take_part(ddl__messages *m, peer *p, ddl_work *work, uint32_t id, size_t bytes,
                      const ddl__signature *signature)
{
    unsigned char *to = (unsigned char *)work->call.recv + work->transfer.moved;
    if (!p->link->ops->take(p->link, to, bytes, signature))
        return false;
    work->transfer.moved += bytes;
    if (work->transfer.moved == bytes_of(work)) {
        ddl__ids_remove(&m->ids, id);
        finish(m, work);
    }
    return true;
}

static void be_accepted(ddl__messages *m, peer *p, ddl_work *work, const ddl__frame *f)
{
    ddl__ids_remove(&m->ids, f->your);
    work->transfer.partner = f->id;
    if (work->call.count)
        ddl__queue_push(&p->accepted, work);
    else
        finish(m, work);
}

/* Whether the frame makes sense; *work becomes the one that is meant. Nobody spends credit that it
 * does not have, nor gives back what was not spent. */
static bool is_sound(const ddl__messages *m, int rank, const ddl__frame *f, size_t bytes,
                     ddl_work **work)
{
    const peer *p = &m->peers[rank];
    size_t element = ddl__dtype_size(f->dtype);
    bool announces = element && f->tag <= INT32_MAX;
    switch ((ddl__frame_kind)f->kind) {
    case DDL__EAGER:
        return announces && bytes <= EAGER_MAX && bytes == (size_t)f->count * element &&
               cost(bytes) <= CREDIT - p->spent;
    case DDL__OFFER: return announces && bytes == 0;
    case DDL__CREDIT: return bytes == 0 && f->count <= CREDIT - p->credit;
    case DDL__ANNOUNCE:
    case DDL__ORDER: return bytes && bytes <= DDL__NAME_MESSAGE_MAX;
    case DDL__ACCEPT: *work = meant(m, f->your, DDL__SEND, rank); return bytes == 0 && *work;
    case DDL__DATA:
        *work = meant(m, f->your, DDL__RECV, rank);
        return bytes && *work && bytes <= bytes_of(*work) - (*work)->transfer.moved;
    }
    return false;
}

/* Take the frame that comes next; false while it has not come whole. */
static bool receive_frame(ddl__messages *m, int rank, const ddl__signature *signature, size_t bytes)
{
    peer *p = &m->peers[rank];
    ddl__frame f = ddl__frame_decode(signature);
    ddl_work *work = NULL;
    if (!is_sound(m, rank, &f, bytes, &work)) {
        fail(m, DDL_EINTERNAL, "%s sent a frame of kind %u and %zu bytes that makes no sense",
             m->names[rank], f.kind, bytes);
        return false;
    }
    if (f.kind == DDL__DATA)
        return take_part(m, p, work, f.your, bytes, signature);
    const void *payload = p->link->ops->peek(p->link, bytes, signature);
    if (!payload)
        return false;
    switch ((ddl__frame_kind)f.kind) {
    case DDL__EAGER: p->spent += cost(bytes); /* fall through */
    case DDL__OFFER: arrive(m, rank, &f, payload, bytes); break;
    case DDL__ACCEPT: be_accepted(m, p, work, &f); break;
    case DDL__CREDIT: p->credit += f.count; break;
    case DDL__ANNOUNCE:
    case DDL__ORDER:
        if (!ddl__name_messages_add(&m->name_messages, rank, f.kind, payload, bytes))
            fail_for_memory(m);
        break;
    case DDL__DATA: break;
    }
    p->link->ops->release(p->link);
    return true;
}

/* With no operation by name under way, nothing else can come than frames. */
static bool is_ours(const ddl__messages *m, const ddl__signature *signature)
{
    return ddl__is_frame(signature) || !m->named;
}

static bool receive_some(ddl__messages *m, int rank)
{
    ddl__link *link = m->peers[rank].link;
    ddl__signature signature;
    size_t bytes;
    unsigned n = 0;
    while (n < SLICE && m->status == DDL_OK && link->ops->next(link, &signature, &bytes) &&
           is_ours(m, &signature) && receive_frame(m, rank, &signature, bytes))
        n++;
    return n;
}

static bool run_peer(ddl__messages *m, int rank)
{
    if (!m->peers[rank].link)
        return false;
    bool moved = receive_some(m, rank);
    return send_some(m, &m->peers[rank]) || moved;
}

bool ddl__messages_run(ddl__messages *m)
{
    bool moved = add_posted(m);
    if (m->n_anywhere || m->named || ddl__messages_names_unsent(m)) {
        for (int i = 0; i < m->size; i++)
            moved = run_peer(m, i) || moved;
        return moved;
    }
    for (uint32_t k = 0; k < m->n_active;) {
        peer *p = &m->peers[m->active[k]];
        if (p->waiting || p->owed >= CREDIT_BATCH) {
            moved = run_peer(m, (int)m->active[k]) || moved;
            k++;
        } else {
            p->listed = false;
            m->active[k] = m->active[--m->n_active];
        }
    }
    return moved;
}

/* ------------------------------------------------------------------------------------- failures */

/* A work that waits for the peer; NULL: one that waits for any. */
static const ddl_work *who_waits(const ddl__messages *m, const peer *p)
{
    const ddl_work *work = m->pending;
    while (work && work->transfer.peer != (p ? (int)(p - m->peers) : DDL_ANY_SOURCE))
        work = work->transfer.after;
    return work;
}

static void fail_by_leaving(ddl__messages *m, const char *who, const ddl_work *work)
{
    char text[DDL__CALL_MAX];
    ddl__describe_call(text, sizeof text, &work->call);
    fail(m, DDL_EPEER, "%s left the comm while %s called %s", who, m->names[m->rank], text);
}

/* What is not ours waits for others than this peer; ours may lie behind it. */
static bool holds_spans(const peer *p)
{
    ddl__signature signature;
    size_t bytes;
    return p->link->ops->next(p->link, &signature, &bytes);
}

void ddl__messages_check_peers(ddl__messages *m)
{
    int left = 0;
    for (int i = 0; (m->pending || m->named) && i < m->size; i++) {
        const peer *p = &m->peers[i];
        if (!p->link || (!p->waiting && !m->n_anywhere && !m->named))
            continue;
        switch (p->link->state) {
        case DDL__LINK_OPEN:
        case DDL__LINK_ABORTED: /* who looks at all links will say so */ break;
        case DDL__LINK_LEFT:
            left++;
            if (p->waiting && !holds_spans(p))
                fail_by_leaving(m, m->names[i], who_waits(m, p));
            break;
        case DDL__LINK_MISMATCH: /* with what its link said just before */
            fail(m, DDL_EPEER, "%s is lost: its shared memory changed while it was read",
                 m->names[i]);
            break;
        case DDL__LINK_LOST:
            fail(m, DDL_EPEER, "%s is lost: %s", m->names[i], p->link->reason);
            break;
        }
    }
    if (m->n_anywhere && left && left == m->size - 1)
        fail_by_leaving(m, "every other rank", who_waits(m, NULL));
}

void ddl__messages_check_limits(ddl__messages *m)
{
    int64_t first = DDL__NEVER, now = m->pending ? ddl__now() : 0;
    if (now <= m->deadline)
        return;
    for (const ddl_work *work = m->pending; work; work = work->transfer.after) {
        if (work->deadline < first)
            first = work->deadline;
        if (now <= work->deadline)
            continue;
        char text[DDL__CALL_MAX];
        ddl__describe_call(text, sizeof text, &work->call);
        fail(m, DDL_EEXPIRED, "%s: %s ran past its limit of %lld ms", m->names[m->rank], text,
             (long long)work->call.timeout_ms);
    }
    m->deadline = first;
}

int64_t ddl__messages_deadline(const ddl__messages *m)
{
    return m->deadline;
}

ddl_status ddl__messages_failure(const ddl__messages *m, const char **text)
{
    *text = m->text;
    return m->status;
}

/* ------------------------------------------------------------------------------------ lifecycle */

ddl_work *ddl__messages_finished(ddl__messages *m)
{
    ddl_work *list = m->finished.head;
    m->finished = (ddl__queue){NULL, NULL};
    return list;
}

void ddl__messages_set_named(ddl__messages *m, bool named)
{
    m->named = named;
}

bool ddl__messages_send_name(ddl__messages *m, int rank, unsigned kind, const void *payload,
                             size_t bytes)
{
    bool added =
        ddl__name_messages_add(&m->peers[rank].name_messages, m->rank, kind, payload, bytes);
    atomic_fetch_add_explicit(&m->unsent, added, memory_order_relaxed);
    return added;
}

bool ddl__messages_names_unsent(const ddl__messages *m)
{
    return m && atomic_load_explicit(&m->unsent, memory_order_relaxed);
}

ddl__name_message *ddl__messages_take_name(ddl__messages *m)
{
    return ddl__name_messages_take(&m->name_messages);
}

ddl_work *ddl__messages_drop(ddl__messages *m)
{
    ddl__queue all = m->inbox;
    collect(m);
    for (ddl_work *work = m->pending; work; work = work->transfer.after)
        ddl__queue_push(&all, work);
    m->pending = NULL;
    for (int i = 0; i < m->size; i++) {
        peer *p = &m->peers[i];
        ddl__name_messages_clear(&p->name_messages);
        p->waiting = 0;
        p->listed = false;
        p->sends = p->accepted = p->leaving = p->accepting = (ddl__queue){NULL, NULL};
    }
    ddl__mailbox_drop_receives(m->mailbox);
    ddl__ids_clear(&m->ids);
    atomic_store_explicit(&m->unsent, 0, memory_order_relaxed);
    m->n_active = m->n_anywhere = 0;
    m->named = false;
    m->deadline = DDL__NEVER;
    m->status = DDL_OK;
    return all.head;
}

void ddl__messages_sleeping(ddl__messages *m, bool asleep)
{
    for (int i = 0; (m->pending || m->named) && i < m->size; i++) {
        peer *p = &m->peers[i];
        if (p->link && (p->waiting || m->n_anywhere || m->named))
            p->link->ops->sleeping(p->link, asleep);
    }
}

ddl__messages *ddl__messages_create(int rank, int size, ddl__link *const *links, char *const *names,
                                    pthread_mutex_t *lock)
{
    ddl__messages *m = calloc(1, sizeof *m);
    if (!m)
        return NULL;
    m->rank = rank;
    m->size = size;
    m->names = names;
    m->lock = lock;
    m->deadline = DDL__NEVER;
    m->peers = calloc((size_t)size, sizeof *m->peers);
    m->active = calloc((size_t)size, sizeof *m->active);
    m->mailbox = ddl__mailbox_create(size);
    if (!m->peers || !m->active || !m->mailbox) {
        ddl__messages_destroy(m);
        return NULL;
    }
    for (int i = 0; i < size; i++) {
        m->peers[i].link = links[i];
        m->peers[i].credit = CREDIT;
    }
    return m;
}

void ddl__messages_record(ddl__messages *m, ddl__recorder *recorder)
{
    m->recorder = recorder;
}

void ddl__messages_destroy(ddl__messages *m)
{
    if (!m)
        return;
    for (int i = 0; m->peers && i < m->size; i++)
        ddl__name_messages_clear(&m->peers[i].name_messages);
    ddl__name_messages_clear(&m->name_messages);
    ddl__mailbox_destroy(m->mailbox);
    ddl__ids_clear(&m->ids);
    free(m->active);
    free(m->peers);
    free(m);
}
