/* SPDX-License-Identifier: Apache-2.0 */
/* Design notes.
 *
 * Sleeping. A driver announces in its own arena that it sleeps, polls once more, and only then
 * sleeps on its bell. A peer that publishes a span to it, or releases one of its spans, stores
 * first and checks that flag afterwards. At least one side must see the store of the other. If both
 * processes support heavy fences (base/fences.h), the sleeper ensures this with such a fence. The
 * publisher then need not wait until the cache line to which it has stored arrives from the
 * reader's core. Otherwise both sides store and load with sequential consistency. The peer that
 * clears the flag rings the bell, so the bell rings once.
 *
 * A release wakes a driver only if the driver has found no room, or unreleased spans, since it woke
 * up. Most sleepers wait for spans, and a wake-up takes longer than a small operation. A driver
 * that finds no room only after its announcement rings its own bell, so that it wakes up and
 * announces this event, too.
 *
 * Waking. A driver that also waits for TCP sleeps on descriptors, not on a futex. It has one
 * descriptor for all peers that share memory with it: its bell (bell.h). Thus no pair of ranks
 * needs its own descriptor. */
#include "net/shm/shm.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "net/shm/bell.h"
#include "net/shm/shm_link.h"

_Static_assert((int)DDL__NONTEMPORAL_MINIMUM > (int)DDL__LINK_SHORT, "not among a link's words");

/* ------------------------------------------------------------------------------------ the link */

/* A position that no stamp reaches, so that no more spans are found. */
static const uint64_t NOTHING_MORE = UINT64_MAX / 2;

typedef ddl__shm_link shm_link;

static shm_link *shm(ddl__link *link)
{
    return ddl__shm_of(link);
}

/* Announce that from now on this rank's driver executes a heavy fence before each sleep. Return
 * true if the peer has announced the same. */
static bool are_promised(const shm_link *s)
{
    atomic_store_explicit(s->own_fences, 1, memory_order_release);
    return atomic_load_explicit(s->peer_fences, memory_order_acquire) == 1;
}

/* Store a word that the peer polls, and wake its driver if it sleeps and this event wakes it. */
static void word_store(shm_link *s, atomic_ullong *where, uint64_t value, ddl__arena_event event)
{
    atomic_uint *sleeping = &s->peer->shared->sleeping;
    unsigned asleep;
    if (s->light) {
        atomic_store_explicit(where, value, memory_order_release);
        ddl__fence_light();
        asleep = atomic_load_explicit(sleeping, memory_order_relaxed);
    } else {
        atomic_store_explicit(where, value, memory_order_seq_cst);
        asleep = atomic_load_explicit(sleeping, memory_order_seq_cst);
        s->light = s->fences && ddl__fences_joined(s->fences) && are_promised(s);
    }
    if ((asleep & event) && atomic_exchange_explicit(sleeping, 0, memory_order_relaxed))
        ddl__bell_ring(s->link.fd, s->bell);
}

/* Record that the driver may have to wait until a peer releases a span. */
static void await_release(const shm_link *s)
{
    if (!s->own->awaits_release && s->own->announced) /* so that the driver wakes up, and announces
                                                         that it also waits for releases */
        ddl__bell_ring(s->own_arena->bell, s->own_arena->bell_number);
    s->own->awaits_release = true;
}

/* ------------------------------------------------------------------------------------ sending */

static uint64_t whole_lines(size_t bytes)
{
    return (bytes + DDL__ARENA_LINE - 1) & ~(uint64_t)(DDL__ARENA_LINE - 1);
}

/* Return true if all entries of this reader's ring contain spans that it has not released. */
static bool outlet_is_full(ddl__arena_outlet *own, unsigned to)
{
    ddl__arena_reader *r = &own->readers[to];
    if (r->reserved - r->released < DDL__ARENA_QUEUE)
        return false;
    r->released = atomic_load_explicit(&own->shared->rings[to].released, memory_order_seq_cst);
    return r->reserved - r->released >= DDL__ARENA_QUEUE;
}

/* Move the tail up to the oldest span that some reader still needs. Return true if no reader needs
 * any. */
static bool outlet_reclaim(ddl__arena_outlet *own)
{
    bool released = true;
    uint64_t tail = own->head;
    for (unsigned i = 0; i < own->n_readers; i++) {
        ddl__arena_reader *r = &own->readers[i];
        if (r->published == r->released)
            continue;
        r->released = atomic_load_explicit(&own->shared->rings[i].released, memory_order_seq_cst);
        released = released && r->published == r->released;
        if (r->published != r->released && r->starts[r->released % DDL__ARENA_QUEUE] < tail)
            tail = r->starts[r->released % DDL__ARENA_QUEUE];
    }
    own->tail = tail;
    return released;
}

/* Reserve memory for a span of `bytes`. Return NULL while there is no room. */
static void *outlet_reserve(ddl__arena_outlet *own, size_t bytes)
{
    uint64_t size = own->size, need = whole_lines(bytes);
    uint64_t start = own->reserved, place = start % size, end = place + need;
    bool wraps = end > size; /* a span never does: skip the rest of this round */
    if (wraps)
        start += size - place;
    bool looks = place / DDL__OUTLET_WARM != end / DDL__OUTLET_WARM;
    if (looks || start + need - own->tail > size) {
        bool released = outlet_reclaim(own);
        if (own->tail == own->reserved) {
            if (released && !wraps)
                start += size - place;
            /* the outlet is empty, so the rest of the round is free as well */
            own->tail = own->head = own->reserved = start;
        }
    }
    if (start + need - own->tail > size)
        return NULL;
    own->reserved = start + need;
    own->is_new = start % size + need > own->touched;
    if (own->is_new)
        own->touched = start % size + need;
    return own->bytes + start % size;
}

static ddl__arena_entry *own_entry(ddl__arena_outlet *own, unsigned to, uint64_t number)
{
    return &own->shared->rings[to].entries[number % DDL__ARENA_QUEUE];
}

static bool is_short(unsigned n, size_t bytes)
{
    return bytes <= (n == 1 ? DDL__ARENA_SHORT_FOR_ONE : DDL__ARENA_SHORT_FOR_ALL);
}

static void *short_place(ddl__link *const *to, unsigned n)
{
    ddl__arena_outlet *own = shm(to[0])->own;
    unsigned one = shm(to[0])->to;
    return n == 1 ? own_entry(own, one, own->readers[one].reserved)->inline_span : own->short_span;
}

/* Handle a lack of room: an unopened link requests its peer's arena. */
__attribute__((noinline)) static void *wait_for_room(ddl__link *const *to, unsigned n)
{
    await_release(shm(to[0]));
    for (unsigned i = 0; i < n; i++)
        if (!ddl__shm_is_open(shm(to[i])))
            ddl__shm_ask(shm(to[i]));
    return NULL;
}

static void *shm_reserve(ddl__link *const *to, unsigned n, size_t bytes)
{
    ddl__arena_outlet *own = shm(to[0])->own;
    for (unsigned i = 0; i < n; i++)
        if (to[i]->fd < 0 || outlet_is_full(own, shm(to[i])->to))
            return wait_for_room(to, n);
    void *span = is_short(n, bytes) ? short_place(to, n) : outlet_reserve(own, bytes);
    if (!span)
        return wait_for_room(to, n);
    for (unsigned i = 0; i < n; i++)
        own->readers[shm(to[i])->to].reserved++;
    return span;
}

static void shm_publish(ddl__link *const *to, unsigned n, void *span, size_t bytes,
                        const ddl__signature *signature)
{
    ddl__arena_outlet *own = shm(to[0])->own;
    bool travels = is_short(n, bytes); /* the span is stored inside its ddl__arena_entry */
    uint64_t start = own->head;
    if (!travels) { /* offsets only grow: find the next one that has the span's position */
        uint64_t place = (uint64_t)((unsigned char *)span - own->bytes);
        start += (place + own->size - start % own->size) % own->size;
        own->head = start + whole_lines(bytes);
    }
    for (unsigned i = 0; i < n; i++) {
        shm_link *s = shm(to[i]);
        ddl__arena_reader *r = &own->readers[s->to];
        ddl__arena_entry *e = own_entry(own, s->to, r->published);
        r->starts[r->published % DDL__ARENA_QUEUE] = start;
        r->published++;
        e->signature = *signature;
        e->offset = travels ? DDL__ARENA_INLINE : (uint32_t)(start % own->size);
        e->bytes = (uint32_t)bytes;
        if (travels && span != e->inline_span)
            memcpy(e->inline_span, span, bytes);
        word_store(s, &e->stamp, r->published, DDL__ARENA_SPAN);
    }
}

/* Copy user memory into a span with the faster kind of stores. */
static void span_store(ddl__link *to, bool several, void *span, const void *memory, size_t bytes)
{
    if (bytes < DDL__NONTEMPORAL_MINIMUM || !to->copy) {
        memcpy(span, memory, bytes);
        return;
    }
    ddl__stores *stores = ddl__link_stores(to, several, bytes, to->from_memory);
    bool timed = !shm(to)->own->is_new && ddl__stores_time(stores, bytes);
    bool nontemporal = timed ? ddl__stores_choose(stores) : stores->nontemporal;
    int64_t start = timed ? ddl__now() : 0;
    if (nontemporal)
        to->copy_nontemporal(span, memory, bytes);
    else if (bytes < DDL__COPY_MINIMUM)
        memcpy(span, memory, bytes);
    else
        to->copy(span, memory, bytes);
    if (timed && bytes < DDL__COPY_MINIMUM)
        ddl__fence_drain();
    if (timed)
        ddl__stores_learn(stores, nontemporal, bytes, to->from_memory, ddl__now() - start);
}

static bool shm_send_user(ddl__link *const *to, unsigned n, const void *memory, size_t bytes,
                          const ddl__signature *signature)
{
    void *span = shm_reserve(to, n, bytes);
    if (!span)
        return false;
    span_store(to[0], n > 1, span, memory, bytes);
    shm_publish(to, n, span, bytes, signature);
    return true;
}

/* Publish a span of another kind (`kind` is a special value of `offset`). Its entry contains the
 * `length` bytes at `where`, which identify the memory of the span. */
static void publish_elsewhere(shm_link *s, uint32_t kind, const void *where, size_t length,
                              size_t bytes, const ddl__signature *signature)
{
    ddl__arena_reader *r = &s->own->readers[s->to];
    ddl__arena_entry *e = own_entry(s->own, s->to, r->published);
    r->starts[r->published % DDL__ARENA_QUEUE] = s->own->head;
    r->reserved++;
    r->published++;
    e->signature = *signature;
    e->offset = kind;
    e->bytes = (uint32_t)bytes;
    memcpy(e->inline_span, where, length);
    word_store(s, &e->stamp, r->published, DDL__ARENA_SPAN);
}

/* Let the peer read the memory in place. For first links only. */
static bool shm_lend(ddl__link *to, const ddl__region *region, const void *memory, size_t bytes,
                     const ddl__signature *signature, bool returns)
{
    shm_link *s = shm(to);
    ddl__arena_loans *loans = &s->own->shared->rings[s->to].loans;
    if (s->first || to->fd < 0 || bytes < DDL__LEND_LEAST ||
        !ddl__region_has(region, memory, bytes) || !ddl__region_is_attached(region) ||
        !ddl__lending_may(&s->lending, s->peer_arena, s->from, loans, region) ||
        outlet_is_full(s->own, s->to))
        return false;
    uint64_t span = s->own->readers[s->to].published + 1;
    ddl__loan loan = {.number = region->number,
                      .serial = region->serial,
                      .offset = (uint64_t)((const unsigned char *)memory - region->base)};
    loan.returns = returns && ddl__lending_await(&s->lending, span, region, memory, bytes);
    s->lending.lent = span;
    publish_elsewhere(s, DDL__ARENA_LENT, &loan, sizeof loan, bytes, signature);
    return true;
}

static bool shm_give_back(ddl__link *to, size_t bytes, const ddl__signature *signature)
{
    shm_link *s = shm(to);
    if (outlet_is_full(s->own, s->to)) {
        await_release(s);
        return false;
    }
    publish_elsewhere(s, DDL__ARENA_RETURNED, &s->lending.wanted, sizeof s->lending.wanted, bytes,
                      signature);
    to->borrowed = false;
    return true;
}

static ddl__arena_entry *next_entry(shm_link *s, unsigned ahead)
{
    return &s->peer->shared->rings[s->from].entries[(s->position + ahead) % DDL__ARENA_QUEUE];
}

static bool has_come(const shm_link *s, ddl__arena_entry *e, unsigned ahead)
{
    return atomic_load_explicit(&e->stamp, memory_order_seq_cst) == s->position + ahead + 1;
}

/* The peer's state is read before the last poll for a span. If that poll finds no span and the
 * state is not open, no more spans will arrive. */
static bool shm_next(ddl__link *link, ddl__signature *signature, size_t *bytes)
{
    shm_link *s = shm(link);
    if (s->first && link->state == DDL__LINK_OPEN && s->first->link.state != DDL__LINK_OPEN &&
        s->first->link.state != DDL__LINK_MISMATCH) {
        link->state = s->first->link.state;
        memcpy(link->reason, s->first->link.reason, DDL__LINK_REASON);
    }
    if (link->fd < 0 && !ddl__shm_is_open(s))
        return false;
    ddl__arena_entry *e = next_entry(s, 0);
    if (!has_come(s, e, 0))
        return false;
    *signature = e->signature;
    *bytes = e->bytes;
    return true;
}

/* Accept an offer, which any peer of this rank may have sent. */
static void take_offer(ddl__arena *own, const ddl__offer *offer, int file, bool several)
{
    shm_link *s = offer->from < own->outlet.n_readers ? own->links[offer->from] : NULL;
    if (s && ddl__shm_is_open(s) &&
        !ddl__lending_take(&s->lending, offer, file, several,
                           &s->peer->shared->rings[s->from].loans, s->position, s->link.reason))
        s->link.state = DDL__LINK_LOST;
    if (file >= 0)
        close(file);
}

void ddl__shm_take_offers(ddl__arena *own)
{
    ddl__offer offer;
    int file;
    bool several;
    while (ddl__lending_receive(own, &offer, &file, &several))
        take_offer(own, &offer, file, several);
}

/* Accept an offer of the peer if one waits at this rank's socket. */
static void look_for_offers(shm_link *s)
{
    unsigned offers =
        atomic_load_explicit(&s->peer->shared->rings[s->from].loans.offers, memory_order_acquire);
    if (offers == s->lending.looked)
        return;
    s->lending.looked = offers;
    ddl__shm_take_offers(s->own_arena);
}

static ddl__loan loan_of(const ddl__arena_entry *e)
{
    ddl__loan loan;
    memcpy(&loan, e->inline_span, sizeof loan);
    return loan;
}

/* Find a span that lies neither in its entry nor in the arena. Return NULL if the peer's entry is
 * invalid. */
static const void *find_elsewhere(shm_link *s, const ddl__arena_entry *e, unsigned ahead,
                                  void *into, size_t bytes)
{
    uint64_t span = s->position + ahead + 1;
    if (e->offset == DDL__ARENA_LENT)
        return ddl__lending_find(&s->lending, loan_of(e), span, bytes);
    if (e->offset != DDL__ARENA_RETURNED)
        return NULL;
    memcpy(&span, e->inline_span, sizeof span);
    return ddl__lending_returned(&s->lending, span, into, bytes) ? into : NULL;
}

static void *shm_borrow(ddl__link *link)
{
    shm_link *s = shm(link);
    const ddl__arena_entry *e = next_entry(s, 0);
    void *memory = e->offset == DDL__ARENA_LENT
                       ? ddl__lending_borrow(&s->lending, loan_of(e), s->position + 1, e->bytes)
                       : NULL;
    link->borrowed = memory;
    s->lending.wanted = s->position + 1;
    return memory;
}

/* Return true if the span is inside the peer's memory and aligned. Numbers from a peer are never
 * trusted. */
static bool is_inside(const shm_link *s, uint64_t offset, size_t bytes)
{
    return offset <= s->peer->size && bytes <= s->peer->size - offset &&
           offset % DDL__ARENA_LINE == 0;
}

/* Peek at a span that is not stored in its entry. */
__attribute__((noinline)) static const void *peek_long(shm_link *s, const ddl__arena_entry *e,
                                                       unsigned ahead, void *into, size_t bytes)
{
    uint64_t offset = e->offset;
    if (bytes >= DDL__LEND_LEAST)
        look_for_offers(s);
    const void *elsewhere =
        offset >= DDL__ARENA_RETURNED ? find_elsewhere(s, e, ahead, into, bytes) : NULL;
    if (elsewhere)
        return elsewhere;
    if (!is_inside(s, offset, bytes)) {
        strcpy(s->link.reason, "its shared memory is corrupt");
        s->link.state = DDL__LINK_LOST;
        return NULL;
    }
    return s->peer->bytes + offset;
}

static const void *shm_peek(ddl__link *link, unsigned ahead, void *into, size_t bytes,
                            const ddl__signature *signature)
{
    shm_link *s = shm(link);
    if (link->fd < 0 && !ddl__shm_is_open(s))
        return NULL;
    ddl__arena_entry *e = next_entry(s, ahead);
    if (!has_come(s, e, ahead))
        return NULL;
    if (e->bytes != bytes || e->signature.words[0] != signature->words[0] ||
        e->signature.words[1] != signature->words[1]) {
        link->found = e->signature;
        link->found_bytes = e->bytes;
        link->state = DDL__LINK_MISMATCH;
        return NULL;
    }
    if (e->offset == DDL__ARENA_INLINE && bytes <= DDL__ARENA_SHORT_FOR_ONE)
        return e->inline_span;
    return bytes < DDL__LEND_LEAST && is_inside(s, e->offset, bytes)
               ? s->peer->bytes + e->offset
               : peek_long(s, e, ahead, into, bytes);
}

/* Return true if the peer has closed the link before this rank has read all of a lent span. The
 * peer's program may then have changed the span, unless its process has exited. The atomic addition
 * of 0 keeps the reads before the check. */
static bool lent_has_ended(shm_link *s)
{
    if (!s->lending.borrowed || next_entry(s, 0)->offset != DDL__ARENA_LENT)
        return false;
    atomic_uint *state = &s->peer->shared->rings[s->from].end.state;
    unsigned end = atomic_fetch_add_explicit(state, 0, memory_order_acq_rel);
    return end == DDL__LINK_LEFT || end == DDL__LINK_ABORTED;
}

static bool shm_release(ddl__link *link)
{
    shm_link *s = shm(link);
    if (lent_has_ended(s)) {
        s->position = NOTHING_MORE;
        return false;
    }
    s->position++;
    word_store(s, &s->peer->shared->rings[s->from].released, s->position, DDL__ARENA_RELEASE);
    return true;
}

/* send_user copies, so only lent memory can be in use. */
static ddl__link_pending shm_flush(ddl__link *link)
{
    const shm_link *s = shm(link);
    const ddl__arena_reader *r = &s->own->readers[s->to];
    uint64_t released =
        atomic_load_explicit(&s->own->shared->rings[s->to].released, memory_order_seq_cst);
    if (released == r->published)
        return DDL__LINK_DRAINED;
    await_release(s);
    return released < s->lending.lent ? DDL__LINK_SENDING : DDL__LINK_UNREAD;
}

static void shm_sleeping(ddl__link *link, bool asleep)
{
    ddl__arena_outlet *own = shm(link)->own;
    if (!asleep) /* keep a wait for releases until it has been announced */
        own->awaits_release = own->awaits_release && !(own->announced & DDL__ARENA_RELEASE);
    own->announced = !asleep               ? 0
                     : own->awaits_release ? DDL__ARENA_SPAN | DDL__ARENA_RELEASE
                                           : DDL__ARENA_SPAN;
    atomic_store_explicit(&own->shared->sleeping, own->announced, memory_order_seq_cst);
}

static void shm_tell_computed(ddl__link *link, uint64_t number)
{
    atomic_store_explicit(&shm(link)->own_arena->outlet.shared->computed, number,
                          memory_order_relaxed);
}

static uint64_t shm_computed_of(const ddl__link *link)
{
    const ddl__arena *peer = ((const shm_link *)link)->peer_arena;
    return peer ? atomic_load_explicit(&peer->outlet.shared->computed, memory_order_relaxed) : 0;
}

/* Handle the bell, which is the same for all links of the arena. */
static void shm_poll(ddl__link *link)
{
    const ddl__arena *own = shm(link)->own_arena;
    ddl__bell_silence(own->bell);
    for (unsigned i = 0; i < own->outlet.n_readers; i++)
        if (own->links[i] && ddl__shm_is_open(own->links[i]))
            ddl__shm_look_for_end(own->links[i]);
}

static void shm_destroy(ddl__link *link)
{
    shm_link *s = shm(link);
    if (s->first) /* the second link is allocated with the first link */
        return;
    ddl__shm_close(link, NULL);
    s->own_arena->links[s->to] = NULL;
    if (s->arrival)
        ddl__shm_arrival_destroy(s->arrival);
    else
        ddl__arena_drop(s->peer_arena);
    ddl__lending_end(&s->lending);
    free(s);
}

#define SHM_OPS(name, lends)                                                                       \
    {                                                                                              \
        .kind = name, .zero_copy = false, .reserve = shm_reserve, .publish = shm_publish,          \
        .send_user = shm_send_user, .lend = lends, .borrow = shm_borrow,                           \
        .give_back = shm_give_back, .next = shm_next, .want = ddl__shm_want, .peek = shm_peek,     \
        .release = shm_release, .flush = shm_flush, .sleeping = shm_sleeping,                      \
        .tell_computed = shm_tell_computed, .computed_of = shm_computed_of, .poll = shm_poll,      \
        .close = ddl__shm_close, .peer_ended = ddl__shm_peer_ended, .probe = ddl__shm_probe,       \
        .destroy = shm_destroy                                                                     \
    }

static const ddl__link_ops shm_ops = SHM_OPS("shm", shm_lend);
static const ddl__link_ops inproc_ops = SHM_OPS("inproc", NULL);

ddl__shm_link *ddl__shm_create(ddl__arena *own, unsigned to, ddl__shm_buffers *buffers, bool inproc)
{
    if (to >= own->outlet.n_readers) {
        ddl__fail(DDL_EREFUSED, "the shared memory has no reader %u; it has %u readers", to,
                  own->outlet.n_readers);
        return NULL;
    }
    shm_link *s = calloc(1, 2 * sizeof *s + (buffers ? 0 : sizeof *buffers)), *beside = s + 1;
    if (!s) {
        ddl__fail(DDL_ENOMEM, "out of memory for a link");
        return NULL;
    }
    s->buffers = buffers ? buffers : (ddl__shm_buffers *)(s + 2);
    s->link.ops = beside->link.ops = inproc ? &inproc_ops : &shm_ops;
    s->link.shared = beside->link.shared = true;
    s->link.fd = beside->link.fd = -1;
    s->own = beside->own = &own->outlet;
    s->own_arena = beside->own_arena = own;
    s->to = beside->to = to;
    s->fences = beside->fences = own->fences;
    s->own_fences = beside->own_fences = &own->outlet.shared->fences;

    beside->first = s;
    for (int i = 0; i < 2; i++) {
        s[i].link.reason = s->buffers->reasons[i];
        s[i].link.stores = s->buffers->stores[i];
    }
    own->links[to] = s;
    return s;
}

void ddl__shm_attach(ddl__shm_link *s, ddl__arena *peer, unsigned from)
{
    shm_link *beside = s + 1;
    ddl__shm_buffers *buffers = s->buffers;
    s->peer_arena = peer;
    s->peer = &peer->outlet;
    s->from = from;
    s->peer_fences = beside->peer_fences = &peer->outlet.shared->fences;
    ddl__outlet_place_private(&buffers->private_own, s->own_arena, s->to);
    buffers->private_own.readers = &buffers->private_reader;
    beside->own = &buffers->private_own;
    beside->to = 0;
    ddl__outlet_place_private(&buffers->private_peer, peer, from);
    beside->peer = &buffers->private_peer;
    s->bell = beside->bell = peer->bell_number;
    s->link.fd = beside->link.fd = s->own_arena->bell;
    ddl__arena_ring *ring = &s->peer->shared->rings[from];
    atomic_store_explicit(&ring->bell, s->own_arena->bell_number, memory_order_seq_cst);
    ddl__shm_look_for_end(s);
}

ddl__link *ddl__shm_link_create(ddl__arena *own, unsigned to, ddl__arena *peer, unsigned from,
                                bool inproc)
{
    if (from >= peer->outlet.n_readers) {
        ddl__fail(DDL_EREFUSED, "a peer's shared memory has no reader %u; it has %u readers", from,
                  peer->outlet.n_readers);
        return NULL;
    }
    shm_link *s = ddl__shm_create(own, to, NULL, inproc);
    if (!s)
        return NULL;
    ddl__shm_attach(s, peer, from);
    return &s->link;
}

ddl__link *ddl__shm_link_beside(ddl__link *link)
{
    return &(shm(link) + 1)->link;
}
