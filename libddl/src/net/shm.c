/* Design notes.
 *
 * An arena is one rank's outgoing memory. It consists of outlets: a ring of bytes for spans, and
 * for each reader a ring of entries that say where the next span lies. Only the owner
 * writes bytes and entries; only the reader writes its ring's `released` count. So every cache line
 * has one writer. A short span travels inside its entry, behind what says so: caches fetch the
 * second line of a pair with the first, and more of what is read in order. What lies elsewhere is
 * asked for when the entry has come, and its reader waits for a far core twice. Where many read a
 * span, it has to be very short to be stored for each of them.
 *
 * The first outlet serves all readers, and one who does not read holds up the others. Behind it
 * lies a private outlet for each reader, for links beside the first ones: nobody holds up anybody
 * there. Their memory is all zero until it is used, and costs nothing until then.
 *
 * Order: the owner fills span and entry, then stores the entry's stamp; the reader loads the stamp
 * before it reads either. The reader stores `released` after its last read; the owner loads it
 * before it writes there again. Bytes are reused in order: up to the oldest span that some reader
 * has not released.
 *
 * Sleeping: a driver announces sleep in its own arena, looks once more, and only then sleeps on its
 * doorbells. Whoever publishes to it or releases a span of it stores first and then looks at that
 * flag. At least one side must see the other's store. Where both processes can, the sleeper pays
 * for that with a heavy fence (base/fences.h), and a publisher need not wait until the line it has
 * stored to is back from the reader's core; else both pairs are sequentially consistent. Who takes
 * the flag down rings, once.
 *
 * The doorbell is the unix socket over which the two met. It also carries goodbye and abort, and
 * its end of file tells of a peer's death. Nothing has a name, so nothing is left behind.
 */
#include "net/shm.h"

#include <errno.h>
#include <fcntl.h>
#include <stdalign.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fences.h"
#include "base/forks.h"

enum {
    MAGIC = 0x64646c61,
    LAYOUT = 4,
    LINE = 64,
    PAIR = 2 * LINE, /* aligned to that much */
    QUEUE = 64,      /* entries per reader */
    ENTRY = 5 * PAIR,
    ENTRY_HEAD = 32,
    SHORT_FOR_ONE = ENTRY - ENTRY_HEAD, /* bytes of a span that travels inside an entry, */
    SHORT_FOR_ALL = PAIR - ENTRY_HEAD   /* and inside several */
};

/* ------------------------------------------------------------------------- shared memory layout */

typedef struct entry {
    alignas(PAIR) atomic_ullong stamp; /* position + 1; 0: never written */
    ddl__signature signature;
    uint32_t offset, bytes; /* offset: of the span, or INLINE */
    unsigned char inline_span[SHORT_FOR_ONE];
} entry;

typedef struct ring {
    alignas(PAIR) atomic_ullong released; /* spans the reader is done with */
    entry entries[QUEUE];
} ring;

typedef struct header {
    uint32_t magic, layout, readers, queue;
    uint64_t bytes, private_bytes; /* of the first outlet, and of each private one */
    atomic_uint fences; /* 1: from now on the owner's driver passes a heavy one before it sleeps */
    alignas(LINE) atomic_uint sleeping; /* the owner's driver sleeps, or is about to */
    alignas(PAIR) ring rings[];
} header;

static const uint32_t INLINE = UINT32_MAX;

_Static_assert(sizeof(entry) == ENTRY, "no gap");
_Static_assert((int)SHORT_FOR_ONE <= (int)DDL__LINK_SHORT, "nobody streams into an entry");

/* ----------------------------------------------------------------------------------- the arena */

/* What the owner remembers of one reader. */
typedef struct reader {
    uint64_t reserved, published, released; /* spans */
    uint64_t starts[QUEUE]; /* where each unreleased span begins, in bytes ever reserved */
} reader;

typedef struct outlet {
    header *shared;
    unsigned char *bytes;
    uint64_t size; /* of bytes; as `n_readers` never read again from memory that a peer can write */
    unsigned n_readers;

    /* The owner's driver only. Offsets count all bytes ever used; modulo the size they are places.
     * Up to the tail all is free again, up to the head published, up to `reserved` reserved. */
    uint64_t tail, head, reserved;
    unsigned char short_span[SHORT_FOR_ALL];
    reader *readers;
} outlet;

struct ddl__arena {
    atomic_uint references;
    int fd;
    const ddl__fences *fences; /* that its owner's driver passes, or NULL */
    outlet outlet;             /* the one for all */
    size_t mapped;

    /* Private outlets, from that of reader `first` on. */
    unsigned char *privates;
    unsigned first;
    uint64_t private_bytes;
    size_t privates_mapped;
};

static size_t rings_bytes(unsigned readers)
{
    size_t bytes = sizeof(header) + readers * sizeof(ring);
    return (bytes + 4095) & ~(size_t)4095;
}

static size_t private_stride(uint64_t private_bytes)
{
    return rings_bytes(1) + ((private_bytes + 4095) & ~(uint64_t)4095);
}

static void *map(int fd, size_t offset, size_t bytes)
{
    void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)offset);
    if (base == MAP_FAILED) {
        ddl__fail(DDL_ESYSTEM, "mmap of %zu shared bytes: %s", bytes, strerror(errno));
        return NULL;
    }
    /* A forked child must not keep the memory of its parent's comms. */
    madvise(base, bytes, MADV_DONTFORK);
    return base;
}

static void outlet_place(outlet *o, void *memory, unsigned readers, uint64_t bytes)
{
    o->shared = memory;
    o->bytes = (unsigned char *)memory + rings_bytes(readers);
    o->size = bytes;
    o->n_readers = readers;
}

/* Map the first outlet, and n private ones from that of reader `first` on. Pages are allocated when
 * they are first written: zeroing them all here would take most of the time in which a comm is
 * created, and many a comm never needs them. */
static ddl__arena *arena_map(int fd, unsigned readers, uint64_t bytes, uint64_t private_bytes,
                             unsigned first, unsigned n)
{
    ddl__arena *arena = calloc(1, sizeof *arena);
    if (!arena) {
        ddl__fail(DDL_ENOMEM, "no memory for an arena");
        return NULL;
    }
    atomic_init(&arena->references, 1);
    arena->fd = -1;
    arena->first = first;
    arena->private_bytes = private_bytes;
    size_t stride = private_stride(private_bytes), mapped = rings_bytes(readers) + bytes;
    void *base = map(fd, 0, mapped);
    if (base) {
        arena->mapped = mapped;
        outlet_place(&arena->outlet, base, readers, bytes);
        arena->privates = map(fd, mapped + first * stride, n * stride);
    }
    if (arena->privates) {
        arena->privates_mapped = n * stride;
        return arena;
    }
    ddl__arena_drop(arena);
    return NULL;
}

/* An empty file becomes one of `total` bytes. Beyond RLIMIT_FSIZE the kernel would end the process
 * by SIGXFSZ, unless that is handled. */
static bool set_size(int fd, size_t total)
{
    struct rlimit limit;
    if (!getrlimit(RLIMIT_FSIZE, &limit) && limit.rlim_cur != RLIM_INFINITY &&
        limit.rlim_cur < total) {
        ddl__fail(DDL_ESYSTEM,
                  "shared memory of %zu bytes is a file, and files may have %llu bytes here: raise "
                  "ulimit -f",
                  total, (unsigned long long)limit.rlim_cur);
        return false;
    }
    if (ftruncate(fd, (off_t)total)) {
        ddl__fail(DDL_ESYSTEM, "memfd of %zu bytes: %s", total, strerror(errno));
        return false;
    }
    return true;
}

ddl__arena *ddl__arena_create(unsigned readers, size_t bytes, size_t private_bytes)
{
    bytes = (bytes + 4095) & ~(size_t)4095;
    size_t total = rings_bytes(readers) + bytes + readers * private_stride(private_bytes);
    int fd = memfd_create("libddl", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0) {
        ddl__fail(DDL_ESYSTEM, "no memory file (memfd_create): %s", strerror(errno));
        return NULL;
    }
    if (!set_size(fd, total)) {
        close(fd);
        return NULL;
    }
    /* Peers must be able to trust the size. */
    fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
    ddl__arena *arena = arena_map(fd, readers, bytes, private_bytes, 0, readers);
    if (!arena) {
        close(fd);
        return NULL;
    }
    arena->fd = ddl__guard(fd);
    arena->outlet.readers = calloc(readers, sizeof *arena->outlet.readers);
    if (!arena->outlet.readers) {
        ddl__arena_drop(arena);
        ddl__fail(DDL_ENOMEM, "no memory for %u readers", readers);
        return NULL;
    }
    header *shared = arena->outlet.shared;
    shared->magic = MAGIC;
    shared->layout = LAYOUT;
    shared->readers = readers;
    shared->queue = QUEUE;
    shared->bytes = bytes;
    shared->private_bytes = private_bytes;
    return arena;
}

void ddl__arena_fence(ddl__arena *arena, const ddl__fences *fences)
{
    arena->fences = fences;
}

int ddl__arena_fd(const ddl__arena *arena)
{
    return arena->fd;
}

/* Whether a file of `total` bytes is what its header says; no sum may overflow. */
static bool fits(const header *said, uint64_t total)
{
    uint64_t rings = rings_bytes(said->readers), readers = said->readers;
    if (!readers || rings > total || said->bytes > total - rings || said->private_bytes > total)
        return false;
    uint64_t rest = total - rings - said->bytes;
    return said->bytes % LINE == 0 && rest % readers == 0 &&
           rest / readers == private_stride(said->private_bytes);
}

/* A file that can shrink would end this process when it is read. The header is copied before it is
 * believed, since a peer can write it at any moment. */
ddl__arena *ddl__arena_open(int fd, unsigned number)
{
    header said;
    struct stat status;
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || !(seals & F_SEAL_SHRINK) || fstat(fd, &status) ||
        pread(fd, &said, sizeof said, 0) != (ssize_t)sizeof said) {
        ddl__fail(DDL_EREFUSED, "a peer's shared memory is no sealed file with a header");
        return NULL;
    }
    if (said.magic != MAGIC || said.layout != LAYOUT || said.queue != QUEUE) {
        ddl__fail(DDL_EREFUSED, "a peer's shared memory has layout %u, ours is %d", said.layout,
                  LAYOUT);
        return NULL;
    }
    if (!fits(&said, (uint64_t)status.st_size)) {
        ddl__fail(DDL_EREFUSED,
                  "a peer's shared memory of %lld bytes says %u readers, %llu bytes for all and "
                  "%llu for each",
                  (long long)status.st_size, said.readers, (unsigned long long)said.bytes,
                  (unsigned long long)said.private_bytes);
        return NULL;
    }
    if (number >= said.readers) {
        ddl__fail(DDL_EREFUSED, "reader %u of %u in a peer's shared memory", number, said.readers);
        return NULL;
    }
    return arena_map(fd, said.readers, said.bytes, said.private_bytes, number, 1);
}

ddl__arena *ddl__arena_share(ddl__arena *arena)
{
    atomic_fetch_add_explicit(&arena->references, 1, memory_order_relaxed);
    return arena;
}

void ddl__arena_drop(ddl__arena *arena)
{
    if (!arena || atomic_fetch_sub_explicit(&arena->references, 1, memory_order_acq_rel) > 1)
        return;
    if (arena->mapped)
        munmap(arena->outlet.shared, arena->mapped);
    if (arena->privates_mapped)
        munmap(arena->privates, arena->privates_mapped);
    ddl__close_guarded(arena->fd);
    free(arena->outlet.readers);
    free(arena);
}

/* The private outlet of a reader, as its owner or that reader sees it. */
static void outlet_place_private(outlet *o, const ddl__arena *arena, unsigned number)
{
    size_t stride = private_stride(arena->private_bytes);
    outlet_place(o, arena->privates + (number - arena->first) * stride, 1, arena->private_bytes);
}

static bool ring_is_full(outlet *own, unsigned to)
{
    reader *r = &own->readers[to];
    if (r->reserved - r->released < QUEUE)
        return false;
    r->released = atomic_load_explicit(&own->shared->rings[to].released, memory_order_seq_cst);
    return r->reserved - r->released >= QUEUE;
}

/* Move the tail up to the oldest span that some reader still needs. */
static void reclaim(outlet *own)
{
    uint64_t tail = own->head;
    for (unsigned i = 0; i < own->n_readers; i++) {
        reader *r = &own->readers[i];
        if (r->published == r->released)
            continue;
        r->released = atomic_load_explicit(&own->shared->rings[i].released, memory_order_seq_cst);
        if (r->published != r->released && r->starts[r->released % QUEUE] < tail)
            tail = r->starts[r->released % QUEUE];
    }
    own->tail = tail;
}

/* ------------------------------------------------------------------------------------ the link */

typedef struct shm_link {
    ddl__link link;
    outlet *own, *peer; /* reader `to` of our own, reader `from` of the peer's */
    unsigned to, from;
    uint64_t position; /* spans released by us */
    unsigned kept;     /* after them: peeked at and not yet released */
    const ddl__fences *fences;
    atomic_uint *own_fences, *peer_fences; /* in the headers of the two arenas */
    bool light;                            /* both take part: see tell */

    /* A link beside another one: */
    struct shm_link *first; /* has the doorbell and knows how the peer is */
    outlet private_own, private_peer;
    reader private_reader;

    /* A first link, which lies in front of the one beside it: */
    ddl__arena *peer_arena;
    atomic_bool closed;
    size_t reason_length;
    bool reason_whole;
} shm_link;

static shm_link *shm(ddl__link *link)
{
    return (shm_link *)link;
}

/* This process has joined, so each sleep of our driver from now on has a heavy fence. Whether the
 * peer has said so, too. */
static bool are_promised(const shm_link *s)
{
    atomic_store_explicit(s->own_fences, 1, memory_order_release);
    return atomic_load_explicit(s->peer_fences, memory_order_acquire) == 1;
}

/* Store what the peer is to see, and wake its driver if it sleeps. */
static void tell(shm_link *s, atomic_ullong *where, uint64_t value)
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
    if (asleep && atomic_exchange_explicit(sleeping, 0, memory_order_relaxed))
        send(s->link.fd, "D", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
}

static entry *own_entry(outlet *own, unsigned to, uint64_t number)
{
    return &own->shared->rings[to].entries[number % QUEUE];
}

static bool is_short(unsigned n, size_t bytes)
{
    return bytes <= (n == 1 ? SHORT_FOR_ONE : SHORT_FOR_ALL);
}

static void *short_place(ddl__link *const *to, unsigned n)
{
    outlet *own = shm(to[0])->own;
    unsigned one = shm(to[0])->to;
    return n == 1 ? own_entry(own, one, own->readers[one].reserved)->inline_span : own->short_span;
}

static uint64_t whole_lines(size_t bytes)
{
    return (bytes + LINE - 1) & ~(uint64_t)(LINE - 1);
}

static void *reserve_bytes(outlet *own, size_t bytes)
{
    uint64_t size = own->size, need = whole_lines(bytes);
    uint64_t start = own->reserved, place = start % size;
    if (place + need > size)
        start += size - place; /* a span never wraps: leave the rest of this round */
    if (start + need - own->tail > size) {
        reclaim(own);
        if (own->tail == own->reserved) /* empty: what was left of the round is free as well */
            own->tail = own->head = own->reserved = start;
    }
    if (start + need - own->tail > size)
        return NULL;
    own->reserved = start + need;
    return own->bytes + start % size;
}

static void *shm_reserve(ddl__link *const *to, unsigned n, size_t bytes)
{
    outlet *own = shm(to[0])->own;
    for (unsigned i = 0; i < n; i++)
        if (ring_is_full(own, shm(to[i])->to))
            return NULL;
    void *span = is_short(n, bytes) ? short_place(to, n) : reserve_bytes(own, bytes);
    for (unsigned i = 0; span && i < n; i++)
        own->readers[shm(to[i])->to].reserved++;
    return span;
}

static void shm_publish(ddl__link *const *to, unsigned n, void *span, size_t bytes,
                        const ddl__signature *signature)
{
    outlet *own = shm(to[0])->own;
    bool travels = is_short(n, bytes); /* inside its entry */
    uint64_t start = own->head;
    if (!travels) { /* the next offset at this place */
        uint64_t place = (uint64_t)((unsigned char *)span - own->bytes);
        start += (place + own->size - start % own->size) % own->size;
        own->head = start + whole_lines(bytes);
    }
    for (unsigned i = 0; i < n; i++) {
        shm_link *s = shm(to[i]);
        reader *r = &own->readers[s->to];
        entry *e = own_entry(own, s->to, r->published);
        r->starts[r->published % QUEUE] = start;
        r->published++;
        e->signature = *signature;
        e->offset = travels ? INLINE : (uint32_t)(start % own->size);
        e->bytes = (uint32_t)bytes;
        if (travels && span != e->inline_span)
            memcpy(e->inline_span, span, bytes);
        tell(s, &e->stamp, r->published);
    }
}

static bool shm_send_user(ddl__link *const *to, unsigned n, const void *memory, size_t bytes,
                          const ddl__signature *signature)
{
    void *span = shm_reserve(to, n, bytes);
    if (!span)
        return false;
    memcpy(span, memory, bytes);
    shm_publish(to, n, span, bytes, signature);
    return true;
}

static entry *next_entry(shm_link *s)
{
    return &s->peer->shared->rings[s->from].entries[(s->position + s->kept) % QUEUE];
}

static bool has_come(const shm_link *s, entry *e)
{
    return atomic_load_explicit(&e->stamp, memory_order_seq_cst) == s->position + s->kept + 1;
}

/* What has happened to the peer is read before the last look for a span: so with no span and an end
 * none will come. */
static bool shm_next(ddl__link *link, ddl__signature *signature, size_t *bytes)
{
    shm_link *s = shm(link);
    if (s->first && link->state == DDL__LINK_OPEN && s->first->link.state != DDL__LINK_MISMATCH) {
        link->state = s->first->link.state;
        memcpy(link->reason, s->first->link.reason, sizeof link->reason);
    }
    entry *e = next_entry(s);
    if (!has_come(s, e))
        return false;
    *signature = e->signature;
    *bytes = e->bytes;
    return true;
}

static const void *shm_peek(ddl__link *link, size_t bytes, const ddl__signature *signature)
{
    shm_link *s = shm(link);
    entry *e = next_entry(s);
    if (!has_come(s, e))
        return NULL;
    if (e->bytes != bytes || e->signature.words[0] != signature->words[0] ||
        e->signature.words[1] != signature->words[1]) {
        link->found = e->signature;
        link->found_bytes = e->bytes;
        link->state = DDL__LINK_MISMATCH;
        return NULL;
    }
    uint64_t offset = e->offset;
    if (offset == INLINE && bytes <= SHORT_FOR_ONE)
        return e->inline_span;
    /* Never follow a peer's number out of its memory, nor to where no element can lie. */
    if (offset > s->peer->size || bytes > s->peer->size - offset || offset % LINE) {
        strcpy(link->reason, "its shared memory is corrupt");
        link->state = DDL__LINK_LOST;
        return NULL;
    }
    return s->peer->bytes + offset;
}

static void shm_keep(ddl__link *link)
{
    shm(link)->kept++;
}

static void shm_release(ddl__link *link)
{
    shm_link *s = shm(link);
    s->position++;
    s->kept -= s->kept > 0;
    tell(s, &s->peer->shared->rings[s->from].released, s->position);
}

static bool shm_take(ddl__link *link, void *dst, size_t bytes, const ddl__signature *signature)
{
    const void *span = shm_peek(link, bytes, signature);
    if (!span)
        return false;
    memcpy(dst, span, bytes);
    shm_release(link);
    return true;
}

static bool shm_flush(ddl__link *link)
{
    (void)link; /* send_user copies */
    return true;
}

static bool shm_has_unread(const ddl__link *link)
{
    const shm_link *s = (const shm_link *)link;
    const reader *r = &s->own->readers[s->to];
    return atomic_load_explicit(&s->own->shared->rings[s->to].released, memory_order_seq_cst) !=
           r->published;
}

static void shm_sleeping(ddl__link *link, bool asleep)
{
    atomic_store_explicit(&shm(link)->own->shared->sleeping, asleep, memory_order_seq_cst);
}

/* The socket's bytes: D doorbell, G goodbye, A abort followed by the reason and NUL. */
static void shm_poll(ddl__link *link)
{
    shm_link *s = shm(link);
    if (s->first)
        link = &(s = s->first)->link;
    char bytes[256];
    for (;;) {
        ssize_t n = recv(link->fd, bytes, sizeof bytes, MSG_DONTWAIT);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return;
        if (n <= 0) {
            if (link->state == DDL__LINK_OPEN || link->state == DDL__LINK_MISMATCH) {
                strcpy(link->reason, "its process ended or closed the connection");
                link->state = DDL__LINK_LOST;
            }
            return;
        }
        for (ssize_t i = 0; i < n; i++) {
            if (link->state == DDL__LINK_ABORTED) {
                s->reason_whole = s->reason_whole || !bytes[i];
                if (!s->reason_whole && s->reason_length + 1 < sizeof link->reason)
                    link->reason[s->reason_length++] = bytes[i];
            } else if (bytes[i] == 'A') {
                link->state = DDL__LINK_ABORTED;
            } else if (bytes[i] == 'G' && link->state == DDL__LINK_OPEN) {
                link->state = DDL__LINK_LEFT;
            }
        }
    }
}

static void shm_close(ddl__link *link, const char *reason)
{
    if (shm(link)->first || /* that one says it */
        atomic_exchange_explicit(&shm(link)->closed, true, memory_order_relaxed))
        return;
    char text[2 + sizeof link->reason] = "G";
    size_t n = 1;
    if (reason) {
        text[0] = 'A';
        n += strnlen(reason, sizeof link->reason - 1);
        memcpy(text + 1, reason, n - 1);
        text[n++] = 0;
    }
    send(link->fd, text, n, MSG_DONTWAIT | MSG_NOSIGNAL);
    shutdown(link->fd, SHUT_WR);
}

static void shm_destroy(ddl__link *link)
{
    shm_link *s = shm(link);
    if (s->first) /* a part of it */
        return;
    shm_close(link, NULL);
    ddl__close_guarded(link->fd);
    ddl__arena_drop(s->peer_arena);
    free(s);
}

#define SHM_OPS(name)                                                                              \
    {                                                                                              \
        .kind = name, .zero_copy = false, .shared = true, .reserve = shm_reserve,                  \
        .publish = shm_publish, .send_user = shm_send_user, .next = shm_next, .peek = shm_peek,    \
        .keep = shm_keep, .release = shm_release, .take = shm_take, .flush = shm_flush,            \
        .has_unread = shm_has_unread, .sleeping = shm_sleeping, .poll = shm_poll,                  \
        .close = shm_close, .destroy = shm_destroy                                                 \
    }

static const ddl__link_ops shm_ops = SHM_OPS("shm");
static const ddl__link_ops inproc_ops = SHM_OPS("inproc");

ddl__link *ddl__shm_link_create(ddl__arena *own, unsigned to, ddl__arena *peer, unsigned from,
                                int fd, bool inproc)
{
    if (to >= own->outlet.n_readers || from >= peer->outlet.n_readers) {
        ddl__fail(DDL_EREFUSED, "reader %u of %u in a peer's shared memory", from,
                  peer->outlet.n_readers);
        return NULL;
    }
    shm_link *s = calloc(2, sizeof *s), *beside = s + 1;
    if (!s) {
        ddl__fail(DDL_ENOMEM, "no memory for a link");
        return NULL;
    }
    s->link.ops = inproc ? &inproc_ops : &shm_ops;
    s->link.fd = ddl__guard(fd);
    s->own = &own->outlet;
    s->to = to;
    s->peer = &peer->outlet;
    s->from = from;
    s->peer_arena = peer;
    s->fences = beside->fences = own->fences;
    s->own_fences = beside->own_fences = &own->outlet.shared->fences;
    s->peer_fences = beside->peer_fences = &peer->outlet.shared->fences;

    beside->link.ops = s->link.ops;
    beside->link.fd = fd;
    beside->first = s;
    outlet_place_private(&beside->private_own, own, to);
    outlet_place_private(&beside->private_peer, peer, from);
    beside->private_own.readers = &beside->private_reader;
    beside->own = &beside->private_own;
    beside->peer = &beside->private_peer;
    return &s->link;
}

ddl__link *ddl__shm_link_beside(ddl__link *link)
{
    return &(shm(link) + 1)->link;
}
