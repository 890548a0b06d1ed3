/* SPDX-License-Identifier: Apache-2.0 */
/* Each allocation has a header just before it, in memory that a forked child inherits. */
#include "net/shm/regions.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/forks.h"
#include "base/log.h"
#include "base/status.h"
#include "net/shm/memory_file.h"

enum { PAGE = 4096, HUGE_PAGE = 2 * 1024 * 1024, LINE = 64 };

typedef struct header {
    ddl__regions *regions; /* NULL: ordinary memory */
    char *mapping;         /* the mapping with header and memory */
    size_t mapped;
    uint32_t number;
    unsigned generation; /* generation of the process that allocated it */
} header;

_Static_assert(sizeof(header) <= LINE, "before aligned memory");

static header *header_of(void *memory)
{
    return (header *)((char *)memory - LINE);
}

ddl__regions *ddl__regions_create(void)
{
    ddl__regions *regions = calloc(1, sizeof *regions);
    if (!regions)
        return NULL;
    pthread_mutex_init(&regions->lock, NULL);
    regions->references = 1;
    return regions;
}

/* Drop a reference. The caller holds the lock, and this function releases it. */
static void regions_drop(ddl__regions *regions)
{
    bool last = !--regions->references;
    pthread_mutex_unlock(&regions->lock);
    if (!last)
        return;
    pthread_mutex_destroy(&regions->lock);
    free(regions);
}

void ddl__regions_release(ddl__regions *regions)
{
    if (!regions)
        return;
    pthread_mutex_lock(&regions->lock);
    regions_drop(regions);
}

/* Reserve memory for a header, followed by `bytes` bytes that start at a multiple of `alignment`.
 * Return NULL if the kernel refuses. The memory is reserved as ordinary memory first, because the
 * kernel then rejects excessive sizes as it does for malloc; it does not check the size of a memory
 * file. */
static void *reserve(size_t bytes, size_t alignment, header *h)
{
    if (bytes > SIZE_MAX / 2)
        return NULL;
    h->mapped = bytes + alignment + PAGE;
    h->mapping = mmap(NULL, h->mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (h->mapping == MAP_FAILED)
        return NULL;
    uintptr_t first = (uintptr_t)h->mapping + LINE;
    return h->mapping + LINE + (-first & (alignment - 1));
}

static void *alloc_ordinary(size_t bytes)
{
    void *memory = NULL;
    if (bytes <= SIZE_MAX - 2 * LINE)
        memory = aligned_alloc(LINE, (bytes + 2 * LINE - 1) / LINE * LINE);
    if (!memory) {
        ddl__fail(DDL_ENOMEM, "out of memory for %zu bytes", bytes);
        return NULL;
    }
    memset(memory, 0, bytes + LINE);
    memory = (char *)memory + LINE;
    *header_of(memory) = (header){.generation = ddl__generation()};
    return memory;
}

/* Under the lock: return a number that no region has, or DDL__REGIONS. */
static uint32_t find_number(ddl__regions *regions)
{
    uint32_t number = 0;
    while (number < regions->used && regions->all[number].base)
        number++;
    return number;
}

/* Add a region. Return false if there are too many. */
static bool regions_add(ddl__regions *regions, ddl__region region, uint32_t *number)
{
    pthread_mutex_lock(&regions->lock);
    *number = region.number = find_number(regions);
    bool added = region.number < DDL__REGIONS;
    if (added) {
        if (!++regions->serial)
            regions->serial = 1;
        region.serial = regions->serial;
        region.detached = &regions->detached[region.number];
        atomic_store_explicit(&regions->detached[region.number], false, memory_order_relaxed);
        regions->all[region.number] = region;
        if (region.number == regions->used)
            regions->used++;
        regions->references++;
        atomic_fetch_add_explicit(&regions->n, 1, memory_order_relaxed);
    }
    pthread_mutex_unlock(&regions->lock);
    return added;
}

/* Map a new memory file over part of the reserved memory. Return its descriptor, or -1. */
static int map_file(void *memory, size_t bytes)
{
    int fd = ddl__memory_file_create(bytes);
    if (fd < 0)
        return -1;
    if (mmap(memory, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED) {
        close(fd);
        return -1;
    }
    if (bytes >= HUGE_PAGE)
        madvise(memory, bytes, MADV_HUGEPAGE);
    if (!ddl__guard_memory(memory, bytes, fd)) { /* a forked child would share the memory */
        close(fd);
        return -1;
    }
    return ddl__guard(fd);
}

/* Allocate memory that peers can map. Return NULL if there is no such memory, or too many
 * regions. */
static void *alloc_region(ddl__regions *regions, size_t bytes)
{
    size_t whole = (bytes + PAGE - 1) / PAGE * PAGE;
    header h = {.regions = regions, .generation = ddl__generation()};
    void *memory = reserve(whole, whole >= HUGE_PAGE ? HUGE_PAGE : PAGE, &h);
    if (!memory)
        return NULL;
    int fd = map_file(memory, whole);
    ddl__region region = {.base = memory, .bytes = whole, .fd = fd};
    if (fd >= 0 && regions_add(regions, region, &h.number)) {
        *header_of(memory) = h;
        return memory;
    }
    ddl__unguard_memory(memory);
    ddl__close_guarded(fd);
    munmap(h.mapping, h.mapped);
    return NULL;
}

void *ddl__memory_alloc(ddl__regions *regions, size_t bytes)
{
    bool shared = bytes >= DDL__REGION_LEAST && bytes <= SIZE_MAX / 2 &&
                  atomic_load_explicit(&regions->n, memory_order_relaxed) < DDL__REGIONS;
    void *memory = shared ? alloc_region(regions, bytes) : NULL;
    return memory ? memory : alloc_ordinary(bytes);
}

static void free_region(const header *h)
{
    ddl__regions *regions = h->regions;
    pthread_mutex_lock(&regions->lock);
    ddl__region region = regions->all[h->number];
    bool attached = ddl__region_is_attached(&region);
    regions->all[h->number].base = NULL;
    atomic_fetch_sub_explicit(&regions->n, 1, memory_order_relaxed);
    regions_drop(regions);
    ddl__unguard_memory(region.base);
    /* Free the pages, so that peers that still map the file hold no memory. A detached file keeps
     * its pages, because forked children read them. */
    if (attached)
        fallocate(region.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, (off_t)region.bytes);
    ddl__close_guarded(region.fd);
    munmap(h->mapping, h->mapped);
}

void ddl__memory_free(void *memory)
{
    if (!memory)
        return;
    header h = *header_of(memory);
    if (!h.regions)
        free(header_of(memory));
    else if (h.generation == ddl__generation())
        free_region(&h);
    else
        munmap(h.mapping, h.mapped); /* also unmaps a forked child's copy */
}

ddl__region ddl__regions_find(ddl__regions *regions, const void *memory)
{
    ddl__region found = {.base = NULL};
    pthread_mutex_lock(&regions->lock);
    for (uint32_t i = 0; i < regions->used; i++)
        if (ddl__region_has(&regions->all[i], memory, 1) &&
            ddl__region_is_attached(&regions->all[i]))
            found = regions->all[i];
    pthread_mutex_unlock(&regions->lock);
    return found;
}

/* A private mapping shows the file's content until its page is first written. */
void ddl__region_detach(ddl__regions *regions, const ddl__region *region, void *memory,
                        size_t bytes)
{
    pthread_mutex_lock(&regions->lock);
    bool was =
        atomic_exchange_explicit(&regions->detached[region->number], true, memory_order_acq_rel);
    if (!was && mmap(region->base, region->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED,
                     region->fd, 0) == MAP_FAILED)
        ddl__log(
            DDL__WARN,
            "cannot unmap %zu bytes of a failed operation, so peers may still write to them: %s",
            bytes, strerror(errno));
    else if (!was)
        ddl__unguard_memory(region->base);
    pthread_mutex_unlock(&regions->lock);
    atomic_uchar *at = (atomic_uchar *)memory - (uintptr_t)memory % PAGE;
    for (atomic_uchar *end = (atomic_uchar *)memory + bytes; at < end; at += PAGE) {
        unsigned char same = atomic_load_explicit(at, memory_order_relaxed);
        atomic_compare_exchange_strong_explicit(at, &same, same, memory_order_relaxed,
                                                memory_order_relaxed);
    }
}
