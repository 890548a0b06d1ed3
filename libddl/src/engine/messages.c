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
 * Matching. Frames of a peer come in the order of its sends, and are matched in it: first with the
 * receives that wait, oldest first, else they wait among the peer's arrivals for the first receive
 * that fits. `order` counts both, so that receives from any rank keep their place as well.
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

enum {
    EAGER_MAX = 8 * 1024,     /* bytes of a message that travels whole */
    CREDIT = 256 * 1024,      /* of such messages that nobody has received yet */
    CREDIT_BATCH = 64 * 1024, /* to be given back at a time */
    OVERHEAD = 64,            /* what the shortest message takes of it */
    SEGMENT = 256 * 1024,     /* of a longer message */
    SEGMENT_SHARED = 64 * 1024,
    SLICE = 16 /* frames to and from one peer in one pass */
};

typedef struct queue {
    ddl_work *head, *tail;
} queue;

/* A message that came before its receive. */
typedef struct arrival {
    struct arrival *next;
    uint64_t order;
    ddl__frame frame;
    unsigned char payload[];
} arrival;

typedef struct peer {
    ddl__link *link;  /* NULL: ourselves */
    unsigned waiting; /* works that wait for this peer */
    bool listed;      /* among the active ones */
    queue sends;      /* not yet announced */
    queue accepted;   /* sends: their parts go out */
    queue leaving;    /* sends: all is lent */
    queue receives;   /* from this peer, not yet matched */
    queue accepting;  /* receives: matched with an offer, to be accepted */
    arrival *first, *last;
    int64_t credit; /* ours */
    int64_t owed;   /* the peer's, to be given back */
} peer;

struct ddl__messages {
    queue inbox; /* under the engine's lock */
    atomic_bool posted;

    queue collected; /* from the inbox */
    int rank, size;
    char *const *names;
    peer *peers;
    uint32_t *active, n_active; /* peers for which works wait; some that did are still in it */
    queue anywhere;             /* receives from any rank, not yet matched */
    unsigned n_anywhere;
    uint64_t order;
    ddl__ids ids;
    ddl_work *pending; /* all, in no order */
    queue finished;
    int64_t deadline; /* not after any work's */
    ddl_status status;
    char text[DDL__MESSAGE_MAX];
};

/* ------------------------------------------------------------------------------------- queueing */

static void push(queue *q, ddl_work *work)
{
    work->next = NULL;
    if (q->tail)
        q->tail->next = work;
    else
        q->head = work;
    q->tail = work;
}

static void remove_from(queue *q, ddl_work *work)
{
    ddl_work *before = NULL;
    for (ddl_work *w = q->head; w != work; w = w->next)
        before = w;
    if (before)
        before->next = work->next;
    else
        q->head = work->next;
    if (q->tail == work)
        q->tail = before;
}

static ddl_work *pop(queue *q)
{
    ddl_work *work = q->head;
    if (work)
        remove_from(q, work);
    return work;
}

/* The first receive with this tag. */
static ddl_work *find(const queue *q, uint32_t tag)
{
    ddl_work *work = q->head;
    while (work && (uint32_t)work->call.tag != tag)
        work = work->next;
    return work;
}

static arrival *find_arrival(const peer *p, uint32_t tag)
{
    arrival *a = p->first;
    while (a && a->frame.tag != tag)
        a = a->next;
    return a;
}

static void remove_arrival(peer *p, const arrival *a)
{
    arrival *before = NULL;
    for (arrival *b = p->first; b != a; b = b->next)
        before = b;
    if (before)
        before->next = a->next;
    else
        p->first = a->next;
    if (p->last == a)
        p->last = before;
}

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
    push(&m->finished, work);
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
        push(&p->accepting, receive);
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

/* The receive that has waited longest for such a message; it waits no more. */
static ddl_work *match(ddl__messages *m, int source, uint32_t tag)
{
    queue *from = &m->peers[source].receives;
    ddl_work *work = find(from, tag), *other = find(&m->anywhere, tag);
    if (other && (!work || other->transfer.order < work->transfer.order)) {
        from = &m->anywhere;
        work = other;
    }
    if (work)
        remove_from(from, work);
    return work;
}

/* A message for which there is no receive yet. */
static void keep(ddl__messages *m, int source, const ddl__frame *f, const void *payload,
                 size_t bytes)
{
    peer *p = &m->peers[source];
    arrival *a = malloc(sizeof *a + bytes);
    if (!a) {
        fail_for_memory(m);
        return;
    }
    a->next = NULL;
    a->order = m->order++;
    a->frame = *f;
    if (bytes)
        memcpy(a->payload, payload, bytes);
    if (p->last)
        p->last->next = a;
    else
        p->first = a;
    p->last = a;
}

static void arrive(ddl__messages *m, int source, const ddl__frame *f, const void *payload,
                   size_t bytes)
{
    ddl_work *receive = match(m, source, f->tag);
    if (receive)
        join(m, receive, source, f, payload);
    else
        keep(m, source, f, payload, bytes);
}

/* The oldest message that fits the receive, and its source. */
static arrival *oldest(const ddl__messages *m, const ddl_work *receive, int *source)
{
    arrival *best = NULL;
    int from = receive->call.root == DDL_ANY_SOURCE ? 0 : receive->call.root;
    int to = receive->call.root == DDL_ANY_SOURCE ? m->size : from + 1;
    for (int i = from; i < to; i++) {
        arrival *a = find_arrival(&m->peers[i], (uint32_t)receive->call.tag);
        if (a && (!best || a->order < best->order)) {
            best = a;
            *source = i;
        }
    }
    return best;
}

static void add_receive(ddl__messages *m, ddl_work *work)
{
    bool any = work->call.root == DDL_ANY_SOURCE;
    int source = 0;
    arrival *a = oldest(m, work, &source);
    if (any)
        m->n_anywhere++;
    else
        wait_for(m, work, work->call.root);
    if (a) {
        remove_arrival(&m->peers[source], a);
        join(m, work, source, &a->frame, a->payload);
        free(a);
    } else {
        push(any ? &m->anywhere : &m->peers[work->call.root].receives, work);
    }
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
    ddl_work *receive = match(m, m->rank, f.tag);
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
    work->transfer =
        (ddl__transfer){.after = m->pending, .order = m->order++, .peer = DDL_ANY_SOURCE};
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
        push(&m->peers[work->call.root].sends, work);
}

void ddl__messages_post(ddl__messages *m, ddl_work *work)
{
    push(&m->inbox, work);
    atomic_store_explicit(&m->posted, true, memory_order_relaxed);
}

bool ddl__messages_posted(const ddl__messages *m)
{
    return atomic_load_explicit(&m->posted, memory_order_relaxed);
}

void ddl__messages_collect(ddl__messages *m)
{
    m->collected = m->inbox;
    m->inbox = (queue){NULL, NULL};
    atomic_store_explicit(&m->posted, false, memory_order_relaxed);
}

/* -------------------------------------------------------------------------------------- sending */

static bool lend(const peer *p, const ddl__frame *f, const void *memory, size_t bytes)
{
    ddl__signature signature = ddl__frame_encode(f);
    return p->link->ops->lend(&p->link, 1, bytes ? memory : "", bytes, &signature);
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
        bool sent = lend(p, &f, NULL, 0), empty = work->call.count == 0;
        if (!sent || empty) /* nothing will come for it */
            ddl__ids_remove(&m->ids, f.id);
        if (sent)
            pop(&p->accepting);
        if (sent && empty)
            finish(m, work);
        return sent;
    }
    ddl__frame f = {.kind = DDL__CREDIT, .count = p->owed};
    if (p->owed < CREDIT_BATCH || !lend(p, &f, NULL, 0))
        return false;
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
        if (!lend(p, &f, work->call.send, bytes))
            return false;
        p->credit -= cost(bytes);
        push(&p->leaving, pop(&p->sends));
        return true;
    }
    ddl__frame f = announce(work, DDL__OFFER);
    if (!ddl__ids_add(&m->ids, work, &f.id)) {
        fail_for_memory(m);
        return false;
    }
    if (!lend(p, &f, NULL, 0)) {
        ddl__ids_remove(&m->ids, f.id);
        return false;
    }
    pop(&p->sends);
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
    if (!lend(p, &f, memory + work->transfer.moved, part))
        return false;
    work->transfer.moved += part;
    if (part == left)
        push(&p->leaving, pop(&p->accepted));
    return true;
}

static bool send_some(ddl__messages *m, peer *p)
{
    bool moved = false;
    for (unsigned n = 0; n < SLICE && p->link->ops->flush(p->link); n++) {
        for (ddl_work *work; (work = pop(&p->leaving)); moved = true)
            finish(m, work);
        if (!send_word(m, p) && !send_announcement(m, p) && !send_part(p))
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
        push(&p->accepted, work);
    else
        finish(m, work);
}

/* Whether the frame makes sense; *work becomes the one that is meant. */
static bool is_sound(const ddl__messages *m, int rank, const ddl__frame *f, size_t bytes,
                     ddl_work **work)
{
    switch ((ddl__frame_kind)f->kind) {
    case DDL__EAGER:
        return bytes <= EAGER_MAX && bytes == (size_t)f->count * ddl__dtype_size(f->dtype);
    case DDL__OFFER: return bytes == 0 && ddl__dtype_size(f->dtype);
    case DDL__CREDIT: return bytes == 0;
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
    case DDL__EAGER:
    case DDL__OFFER: arrive(m, rank, &f, payload, bytes); break;
    case DDL__ACCEPT: be_accepted(m, p, work, &f); break;
    case DDL__CREDIT: p->credit += f.count; break;
    case DDL__DATA: break;
    }
    p->link->ops->release(p->link);
    return true;
}

static bool receive_some(ddl__messages *m, int rank)
{
    ddl__link *link = m->peers[rank].link;
    ddl__signature signature;
    size_t bytes;
    unsigned n = 0;
    while (n < SLICE && m->status == DDL_OK && link->ops->next(link, &signature, &bytes) &&
           receive_frame(m, rank, &signature, bytes))
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
    bool moved = false;
    for (ddl_work *work; (work = pop(&m->collected));)
        add(m, work);
    if (m->n_anywhere) {
        for (int i = 0; i < m->size; i++)
            moved = run_peer(m, i) || moved;
        return moved;
    }
    for (uint32_t k = 0; k < m->n_active;) {
        peer *p = &m->peers[m->active[k]];
        if (p->waiting) {
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

void ddl__messages_check_peers(ddl__messages *m)
{
    int left = 0;
    for (int i = 0; m->pending && i < m->size; i++) {
        const peer *p = &m->peers[i];
        if (!p->link || (!p->waiting && !m->n_anywhere))
            continue;
        switch (p->link->state) {
        case DDL__LINK_OPEN:
        case DDL__LINK_ABORTED: /* who looks at all links will say so */ break;
        case DDL__LINK_LEFT:
            left++;
            if (p->waiting)
                fail_by_leaving(m, m->names[i], who_waits(m, p));
            break;
        case DDL__LINK_MISMATCH:
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

bool ddl__messages_pending(const ddl__messages *m)
{
    return m && (m->pending || ddl__messages_posted(m));
}

ddl_work *ddl__messages_finished(ddl__messages *m)
{
    ddl_work *list = m->finished.head;
    m->finished = (queue){NULL, NULL};
    return list;
}

ddl_work *ddl__messages_drop(ddl__messages *m)
{
    ddl__messages_collect(m);
    queue all = m->collected;
    for (ddl_work *work = m->pending; work; work = work->transfer.after)
        push(&all, work);
    m->collected = (queue){NULL, NULL};
    m->pending = NULL;
    m->n_active = m->n_anywhere = 0;
    m->deadline = DDL__NEVER;
    m->status = DDL_OK;
    return all.head;
}

void ddl__messages_sleeping(ddl__messages *m, bool asleep)
{
    for (int i = 0; m->pending && i < m->size; i++) {
        peer *p = &m->peers[i];
        if (p->link && (p->waiting || m->n_anywhere))
            p->link->ops->sleeping(p->link, asleep);
    }
}

ddl__messages *ddl__messages_create(int rank, int size, ddl__link *const *links, char *const *names)
{
    ddl__messages *m = calloc(1, sizeof *m);
    peer *peers = calloc((size_t)size, sizeof *peers);
    uint32_t *active = calloc((size_t)size, sizeof *active);
    if (!m || !peers || !active) {
        free(active);
        free(peers);
        free(m);
        return NULL;
    }
    m->rank = rank;
    m->size = size;
    m->names = names;
    m->peers = peers;
    m->active = active;
    m->deadline = DDL__NEVER;
    for (int i = 0; i < size; i++) {
        peers[i].link = links[i];
        peers[i].credit = CREDIT;
    }
    return m;
}

void ddl__messages_destroy(ddl__messages *m)
{
    if (!m)
        return;
    for (int i = 0; i < m->size; i++)
        for (arrival *a = m->peers[i].first, *next; a; a = next) {
            next = a->next;
            free(a);
        }
    ddl__ids_clear(&m->ids);
    free(m->active);
    free(m->peers);
    free(m);
}
