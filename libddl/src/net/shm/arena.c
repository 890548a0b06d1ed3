/* SPDX-License-Identifier: Apache-2.0 */
#include "net/shm/arena.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/crypto.h"
#include "base/forks.h"
#include "net/shm/bell.h"
#include "net/shm/lending.h"
#include "net/shm/memory_file.h"

static size_t rings_bytes(unsigned readers)
{
    size_t bytes = sizeof(ddl__arena_header) + readers * sizeof(ddl__arena_ring);
    return (bytes + 4095) & ~(size_t)4095;
}

static size_t private_stride(uint64_t private_bytes)
{
    return rings_bytes(1) + ((private_bytes + 4095) & ~(uint64_t)4095);
}

static void *memfd_map(int fd, size_t offset, size_t bytes)
{
    void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)offset);
    if (base == MAP_FAILED) {
        ddl__fail(DDL_ESYSTEM, "cannot map %zu bytes of shared memory: %s", bytes, strerror(errno));
        return NULL;
    }
    /* A forked child must not keep the memory of its parent alive. */
    madvise(base, bytes, MADV_DONTFORK);
    return base;
}

static void outlet_place(ddl__arena_outlet *o, void *memory, unsigned readers, uint64_t bytes)
{
    o->shared = memory;
    o->bytes = (unsigned char *)memory + rings_bytes(readers);
    o->size = bytes;
    o->n_readers = readers;
}

/* Map the first outlet, and n private outlets, starting with the outlet of reader `first`. Pages
 * are allocated when they are first written: zeroing them here would take most of the time of
 * creating a comm, and many comms never need them. */
static ddl__arena *arena_map(int fd, unsigned readers, uint64_t bytes, uint64_t private_bytes,
                             unsigned first, unsigned n)
{
    ddl__arena *arena = calloc(1, sizeof *arena);
    if (!arena) {
        ddl__fail(DDL_ENOMEM, "out of memory for an arena");
        return NULL;
    }
    atomic_init(&arena->references, 1);
    arena->fd = arena->bell = arena->offers = -1;
    arena->first = first;
    arena->private_bytes = private_bytes;
    size_t stride = private_stride(private_bytes), mapped = rings_bytes(readers) + bytes;
    void *base = memfd_map(fd, 0, mapped);
    if (base) {
        arena->mapped = mapped;
        outlet_place(&arena->outlet, base, readers, bytes);
        arena->privates = memfd_map(fd, mapped + first * stride, n * stride);
    }
    if (arena->privates) {
        arena->privates_mapped = n * stride;
        return arena;
    }
    ddl__arena_drop(arena);
    return NULL;
}

ddl__arena *ddl__arena_create(unsigned readers, size_t bytes, size_t private_bytes)
{
    bytes = (bytes + 4095) & ~(size_t)4095;
    size_t total = rings_bytes(readers) + bytes + readers * private_stride(private_bytes);
    int fd = ddl__memory_file_create(total);
    if (fd < 0)
        return NULL;
    ddl__arena *arena = arena_map(fd, readers, bytes, private_bytes, 0, readers);
    if (!arena) {
        close(fd);
        return NULL;
    }
    arena->fd = ddl__guard(fd);
    arena->outlet.readers = calloc(readers, sizeof *arena->outlet.readers);
    arena->links = calloc(readers, sizeof *arena->links);
    if (!arena->outlet.readers || !arena->links) {
        ddl__arena_drop(arena);
        ddl__fail(DDL_ENOMEM, "out of memory for %u readers", readers);
        return NULL;
    }
    arena->bell = ddl__guard(ddl__bell_create(&arena->bell_number));
    if (arena->bell >= 0)
        arena->offers = ddl__guard(ddl__lending_listen(arena->bell_number));
    if (arena->offers < 0 || !ddl__random(arena->secret, sizeof arena->secret)) {
        ddl__arena_drop(arena);
        return NULL;
    }
    ddl__arena_header *shared = arena->outlet.shared;
    shared->magic = DDL__ARENA_MAGIC;
    shared->layout = DDL__ARENA_LAYOUT;
    shared->readers = readers;
    shared->queue = DDL__ARENA_QUEUE;
    shared->bytes = bytes;
    shared->private_bytes = private_bytes;
    shared->bell = arena->bell_number;
    memcpy(shared->secret, arena->secret, sizeof arena->secret);
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

int ddl__arena_bell(const ddl__arena *arena)
{
    return arena->bell;
}

/* Return true if a file of `total` bytes fits its header. No sum may overflow. */
static bool header_fits(const ddl__arena_header *said, uint64_t total)
{
    uint64_t rings = rings_bytes(said->readers), readers = said->readers;
    if (!readers || rings > total || said->bytes > total - rings || said->private_bytes > total)
        return false;
    uint64_t rest = total - rings - said->bytes;
    return said->bytes % DDL__ARENA_LINE == 0 && rest % readers == 0 &&
           rest / readers == private_stride(said->private_bytes);
}

/* A file that can shrink is rejected, because reading beyond its new end would kill this process.
 * The header is copied before it is checked, because the peer can change it at any time. */
ddl__arena *ddl__arena_open(int fd, unsigned number)
{
    ddl__arena_header said;
    struct stat status;
    const char *fault = ddl__memory_file_fault(fd, sizeof said);
    if (!fault && (fstat(fd, &status) || pread(fd, &said, sizeof said, 0) != (ssize_t)sizeof said))
        fault = "cannot be read";
    if (fault) {
        ddl__fail(DDL_EREFUSED, "the file of a peer's shared memory %s", fault);
        return NULL;
    }
    if (said.magic != DDL__ARENA_MAGIC || said.layout != DDL__ARENA_LAYOUT ||
        said.queue != DDL__ARENA_QUEUE) {
        ddl__fail(DDL_EREFUSED,
                  "a peer's shared memory has layout %u, but this libddl uses layout %d: install "
                  "one version on all hosts",
                  said.layout, DDL__ARENA_LAYOUT);
        return NULL;
    }
    if (!header_fits(&said, (uint64_t)status.st_size)) {
        ddl__fail(DDL_EREFUSED,
                  "a peer's shared memory has %lld bytes, too few for its %u readers, %llu shared "
                  "bytes and "
                  "%llu bytes for each reader",
                  (long long)status.st_size, said.readers, (unsigned long long)said.bytes,
                  (unsigned long long)said.private_bytes);
        return NULL;
    }
    if (number >= said.readers) {
        ddl__fail(DDL_EREFUSED, "a peer's shared memory has no reader %u; it has %u readers",
                  number, said.readers);
        return NULL;
    }
    ddl__arena *arena = arena_map(fd, said.readers, said.bytes, said.private_bytes, number, 1);
    if (arena) {
        arena->bell_number = said.bell;
        memcpy(arena->secret, said.secret, sizeof arena->secret);
    }
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
    if (arena->mapped)
        munmap(arena->outlet.shared, arena->mapped);
    if (arena->privates_mapped)
        munmap(arena->privates, arena->privates_mapped);
    ddl__close_guarded(arena->fd);
    ddl__close_guarded(arena->bell);
    ddl__close_guarded(arena->offers);
    free(arena->links);
    free(arena->outlet.readers);
    free(arena);
}

/* No reader misses the end: a reader that maps the arena later first stores its bell, then checks
 * the end in its ring. */
void ddl__arena_mark_ended(ddl__arena *arena, int bell)
{
    ddl__arena_outlet *o = &arena->outlet;
    for (unsigned i = 0; i < o->n_readers; i++) {
        ddl__arena_ring *ring = &o->shared->rings[i];
        unsigned open = DDL__LINK_OPEN;
        if (!atomic_compare_exchange_strong(&ring->end.state, &open, DDL__LINK_LOST))
            continue;
        uint64_t reader = atomic_load_explicit(&ring->bell, memory_order_seq_cst);
        if (reader)
            ddl__bell_ring(bell, reader);
    }
}

/* Set `o` to the private outlet of a reader, as seen by the owner or that reader. */
void ddl__outlet_place_private(ddl__arena_outlet *o, const ddl__arena *arena, unsigned number)
{
    size_t stride = private_stride(arena->private_bytes);
    outlet_place(o, arena->privates + (number - arena->first) * stride, 1, arena->private_bytes);
}
