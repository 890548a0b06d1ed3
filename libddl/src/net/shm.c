/* Design notes.
 *
 * An arena is one rank's outgoing memory: a ring of bytes for spans, and for each reader a lane, a
 * ring of entries that say where the next span lies. Only the owner writes bytes and entries; only
 * the reader writes its lane's `released` count. So every cache line has one writer, and a short
 * span travels inside its entry: one line moves per message.
 *
 * Order: the owner fills span and entry, then stores the entry's stamp; the reader loads the stamp
 * before it reads either. The reader stores `released` after its last read; the owner loads it
 * before it writes there again. Bytes are reused in order: up to the oldest span that some reader
 * has not released.
 *
 * Sleeping: a driver announces sleep in its own arena, looks once more, and only then sleeps on its
 * doorbells. Whoever publishes to it or releases a span of it stores first and then looks at that
 * flag. Both pairs are sequentially consistent, so at least one side sees the other's store; who
 * takes the flag down rings, once.
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
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/forks.h"

enum {
    MAGIC = 0x64646c61,
    LAYOUT = 1,
    LINE = 64,
    QUEUE = 64,      /* entries per lane */
    SHORT_SPAN = 32, /* bytes that fit into an entry */
};

/* ------------------------------------------------------------------------- shared memory layout */

typedef struct entry {
    alignas(LINE) atomic_ullong stamp; /* position + 1; 0: never written */
    ddl__signature signature;
    uint32_t offset, bytes;
    unsigned char inline_span[SHORT_SPAN];
} entry;

typedef struct lane {
    alignas(LINE) atomic_ullong released; /* spans the reader is done with */
    entry entries[QUEUE];
} lane;

typedef struct header {
    uint32_t magic, layout, readers, queue;
    uint64_t bytes;
    alignas(LINE) atomic_uint sleeping; /* the owner's driver sleeps, or is about to */
    alignas(LINE) lane lanes[];
} header;

_Static_assert(sizeof(entry) == LINE, "an entry is one cache line");

/* ----------------------------------------------------------------------------------- the arena */

/* What the owner remembers of one reader. */
typedef struct reader {
    uint64_t published, released;
    uint64_t starts[QUEUE]; /* where each unreleased span begins, in bytes ever reserved */
} reader;

struct ddl__arena {
    atomic_uint references;
    int fd;
    size_t mapped;
    header *shared;
    unsigned char *bytes;
    /* Never read again from memory that a peer can write. */
    uint64_t size; /* of bytes */
    unsigned n_readers;

    /* The owner's driver only. Offsets count all bytes ever used; modulo the size they are places.
     */
    uint64_t head, tail, reserved;
    unsigned char short_span[SHORT_SPAN];
    reader *readers;
};

static size_t lanes_bytes(unsigned readers)
{
    size_t bytes = sizeof(header) + readers * sizeof(lane);
    return (bytes + 4095) & ~(size_t)4095;
}

static ddl__arena *arena_map(int fd, size_t mapped, bool filled)
{
    ddl__arena *arena = calloc(1, sizeof *arena);
    if (!arena) {
        ddl__fail(DDL_ENOMEM, "no memory for an arena");
        return NULL;
    }
    int flags = MAP_SHARED | (filled ? MAP_POPULATE : 0);
    void *base = mmap(NULL, mapped, PROT_READ | PROT_WRITE, flags, fd, 0);
    if (base == MAP_FAILED) {
        ddl__fail(DDL_ESYSTEM, "mmap of %zu shared bytes: %s", mapped, strerror(errno));
        free(arena);
        return NULL;
    }
    /* A forked child must not keep the memory of its parent's comms. */
    madvise(base, mapped, MADV_DONTFORK);
    atomic_init(&arena->references, 1);
    arena->fd = -1;
    arena->mapped = mapped;
    arena->shared = base;
    return arena;
}

ddl__arena *ddl__arena_create(unsigned readers, size_t bytes)
{
    size_t lanes = lanes_bytes(readers), mapped = lanes + bytes;
    int fd = memfd_create("libddl", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0 || ftruncate(fd, (off_t)mapped)) {
        ddl__fail(DDL_ESYSTEM, "memfd of %zu bytes: %s", mapped, strerror(errno));
        if (fd >= 0)
            close(fd);
        return NULL;
    }
    /* Peers must be able to trust the size. */
    fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
    ddl__arena *arena = arena_map(fd, mapped, true);
    if (!arena) {
        close(fd);
        return NULL;
    }
    arena->fd = ddl__guard(fd);
    arena->readers = calloc(readers, sizeof *arena->readers);
    if (!arena->readers) {
        ddl__arena_drop(arena);
        ddl__fail(DDL_ENOMEM, "no memory for %u readers", readers);
        return NULL;
    }
    header *shared = arena->shared;
    shared->magic = MAGIC;
    shared->layout = LAYOUT;
    shared->readers = readers;
    shared->queue = QUEUE;
    shared->bytes = bytes;
    arena->bytes = (unsigned char *)shared + lanes;
    arena->size = bytes;
    arena->n_readers = readers;
    return arena;
}

int ddl__arena_fd(const ddl__arena *arena)
{
    return arena->fd;
}

/* A file that can shrink would end this process when it is read. The header is copied before it is
 * believed, since a peer can write it at any moment. */
ddl__arena *ddl__arena_open(int fd)
{
    header said;
    struct stat status;
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || !(seals & F_SEAL_SHRINK) || fstat(fd, &status) ||
        pread(fd, &said, sizeof said, 0) != sizeof said) {
        ddl__fail(DDL_EREFUSED, "a peer's shared memory is no sealed file with a header");
        return NULL;
    }
    size_t mapped = (size_t)status.st_size, lanes = lanes_bytes(said.readers);
    if (said.magic != MAGIC || said.layout != LAYOUT || said.queue != QUEUE) {
        ddl__fail(DDL_EREFUSED, "a peer's shared memory has layout %u, ours is %d", said.layout,
                  LAYOUT);
        return NULL;
    }
    if (lanes > mapped || said.bytes != mapped - lanes) {
        ddl__fail(DDL_EREFUSED,
                  "a peer's shared memory of %zu bytes says %u readers and %llu bytes", mapped,
                  said.readers, (unsigned long long)said.bytes);
        return NULL;
    }
    /* What its owner has not filled is not ours to fill. */
    bool filled = (uint64_t)status.st_blocks * 512 >= mapped;
    ddl__arena *arena = arena_map(fd, mapped, filled);
    if (!arena)
        return NULL;
    arena->size = said.bytes;
    arena->n_readers = said.readers;
    arena->bytes = (unsigned char *)arena->shared + lanes;
    return arena;
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
    munmap(arena->shared, arena->mapped);
    ddl__close_guarded(arena->fd);
    free(arena->readers);
    free(arena);
}

static bool lane_full(ddl__arena *arena, unsigned to)
{
    reader *r = &arena->readers[to];
    if (r->published - r->released < QUEUE)
        return false;
    r->released = atomic_load_explicit(&arena->shared->lanes[to].released, memory_order_seq_cst);
    return r->published - r->released >= QUEUE;
}

/* Move the tail up to the oldest span that some reader still needs. */
static void reclaim(ddl__arena *arena)
{
    uint64_t tail = arena->head;
    for (unsigned i = 0; i < arena->n_readers; i++) {
        reader *r = &arena->readers[i];
        if (r->published == r->released)
            continue;
        r->released = atomic_load_explicit(&arena->shared->lanes[i].released, memory_order_seq_cst);
        if (r->published != r->released && r->starts[r->released % QUEUE] < tail)
            tail = r->starts[r->released % QUEUE];
    }
    arena->tail = tail;
}

/* ------------------------------------------------------------------------------------ the link */

typedef struct shm_link {
    ddl__link link;
    ddl__arena *own, *peer;
    unsigned to, from;
    uint64_t position; /* spans released by us */
    atomic_bool closed;
    size_t reason_length;
    bool reason_whole;
} shm_link;

static shm_link *shm(ddl__link *link)
{
    return (shm_link *)link;
}

/* Wake the peer's driver if it sleeps. Called after the store that it should see. */
static void ring(shm_link *s)
{
    atomic_uint *sleeping = &s->peer->shared->sleeping;
    if (atomic_load_explicit(sleeping, memory_order_seq_cst) &&
        atomic_exchange_explicit(sleeping, 0, memory_order_relaxed))
        send(s->link.fd, "D", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
}

static void *shm_reserve(ddl__link *const *to, unsigned n, size_t bytes)
{
    ddl__arena *arena = shm(to[0])->own;
    for (unsigned i = 0; i < n; i++)
        if (lane_full(arena, shm(to[i])->to))
            return NULL;
    if (bytes <= SHORT_SPAN)
        return arena->short_span;

    uint64_t size = arena->size;
    uint64_t need = (bytes + LINE - 1) & ~(uint64_t)(LINE - 1);
    uint64_t start = arena->head, place = start % size;
    if (place + need > size)
        start += size - place; /* a span never wraps: leave the rest of this round */
    if (start + need - arena->tail > size) {
        reclaim(arena);
        if (arena->tail == arena->head) /* empty: what was left of the round is free as well */
            arena->tail = arena->head = start;
    }
    if (start + need - arena->tail > size)
        return NULL;
    arena->reserved = start;
    return arena->bytes + start % size;
}

static void shm_publish(ddl__link *const *to, unsigned n, void *span, size_t bytes,
                        const ddl__signature *signature)
{
    ddl__arena *arena = shm(to[0])->own;
    bool is_short = bytes <= SHORT_SPAN;
    uint64_t start = is_short ? arena->head : arena->reserved;
    if (!is_short)
        arena->head = start + ((bytes + LINE - 1) & ~(uint64_t)(LINE - 1));
    for (unsigned i = 0; i < n; i++) {
        shm_link *s = shm(to[i]);
        reader *r = &arena->readers[s->to];
        entry *e = &arena->shared->lanes[s->to].entries[r->published % QUEUE];
        r->starts[r->published % QUEUE] = start;
        r->published++;
        e->signature = *signature;
        e->offset = (uint32_t)(start % arena->size);
        e->bytes = (uint32_t)bytes;
        if (is_short)
            memcpy(e->inline_span, span, bytes);
        atomic_store_explicit(&e->stamp, r->published, memory_order_seq_cst);
        ring(s);
    }
}

static bool shm_lend(ddl__link *const *to, unsigned n, const void *memory, size_t bytes,
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
    return &s->peer->shared->lanes[s->from].entries[s->position % QUEUE];
}

static const void *shm_peek(ddl__link *link, size_t bytes, const ddl__signature *signature)
{
    shm_link *s = shm(link);
    entry *e = next_entry(s);
    if (atomic_load_explicit(&e->stamp, memory_order_seq_cst) != s->position + 1)
        return NULL;
    if (e->bytes != bytes || e->signature.words[0] != signature->words[0] ||
        e->signature.words[1] != signature->words[1]) {
        link->found = e->signature;
        link->found_bytes = e->bytes;
        link->state = DDL__LINK_MISMATCH;
        return NULL;
    }
    if (bytes <= SHORT_SPAN)
        return e->inline_span;
    /* Never follow a peer's number out of its memory, nor to where no element can lie. */
    uint64_t offset = e->offset;
    if (offset > s->peer->size || bytes > s->peer->size - offset || offset % LINE) {
        strcpy(link->reason, "its shared memory is corrupt");
        link->state = DDL__LINK_LOST;
        return NULL;
    }
    return s->peer->bytes + offset;
}

static void shm_release(ddl__link *link)
{
    shm_link *s = shm(link);
    s->position++;
    atomic_store_explicit(&s->peer->shared->lanes[s->from].released, s->position,
                          memory_order_seq_cst);
    ring(s);
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
    (void)link; /* lend copies */
    return true;
}

static bool shm_owes(const ddl__link *link)
{
    const shm_link *s = (const shm_link *)link;
    const reader *r = &s->own->readers[s->to];
    return atomic_load_explicit(&s->own->shared->lanes[s->to].released, memory_order_seq_cst) !=
           r->published;
}

static void shm_sleeping(ddl__link *link, bool asleep)
{
    atomic_store_explicit(&shm(link)->own->shared->sleeping, asleep, memory_order_seq_cst);
}

/* The socket's bytes: D doorbell, G goodbye, A abort followed by the reason and NUL. */
static void shm_attend(ddl__link *link)
{
    shm_link *s = shm(link);
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
    if (atomic_exchange_explicit(&shm(link)->closed, true, memory_order_relaxed))
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
    shm_close(link, NULL);
    ddl__close_guarded(link->fd);
    ddl__arena_drop(shm(link)->peer);
    free(link);
}

#define SHM_OPS(name)                                                                              \
    {                                                                                              \
        .kind = name, .lends = false, .shared = true, .reserve = shm_reserve,                      \
        .publish = shm_publish, .lend = shm_lend, .peek = shm_peek, .release = shm_release,        \
        .take = shm_take, .flush = shm_flush, .owes = shm_owes, .sleeping = shm_sleeping,          \
        .attend = shm_attend, .close = shm_close, .destroy = shm_destroy                           \
    }

static const ddl__link_ops shm_ops = SHM_OPS("shm");
static const ddl__link_ops inproc_ops = SHM_OPS("inproc");

ddl__link *ddl__shm_link_create(ddl__arena *own, unsigned to, ddl__arena *peer, unsigned from,
                                int fd, bool inproc)
{
    if (to >= own->n_readers || from >= peer->n_readers) {
        ddl__fail(DDL_EREFUSED, "reader %u of %u in a peer's shared memory", from, peer->n_readers);
        return NULL;
    }
    shm_link *s = calloc(1, sizeof *s);
    if (!s) {
        ddl__fail(DDL_ENOMEM, "no memory for a link");
        return NULL;
    }
    s->link.ops = inproc ? &inproc_ops : &shm_ops;
    s->link.fd = ddl__guard(fd);
    s->own = own;
    s->to = to;
    s->peer = peer;
    s->from = from;
    return &s->link;
}
