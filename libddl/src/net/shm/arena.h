/* SPDX-License-Identifier: Apache-2.0 */
/* arena.h - the memory behind links over shared memory, for arena.c and shm.c.
 *
 * Design notes.
 *
 * An arena is the outgoing memory of one rank. It consists of outlets. An outlet is a ring of bytes
 * for spans and, for each reader, a ring of entries with the position of each span. Only the owner
 * writes bytes and entries; only the reader writes the `released` count of its ring, and its bell.
 * Every cache line thus has one writer, as long as the owner's process lives (shm_end.c).
 *
 * A short span is stored inside its entry, right behind the words that describe it: caches fetch
 * the second line of a pair with the first, and prefetch lines that are read in order. A span that
 * is stored elsewhere is fetched only after its entry has arrived, so its reader waits for a far
 * core twice. If a span has several readers, it is stored once in the entry of each reader, so it
 * has to be very short.
 *
 * The first outlet serves all readers, and a reader that does not read blocks the others. It is
 * followed by a private outlet for each reader, for the second link of each pair, in which no
 * reader blocks another. Private outlets are all zero until they are used, and cost no memory until
 * then.
 *
 * Order: the owner fills span and entry, then stores the stamp of the entry. The reader loads the
 * stamp before it reads either. The reader stores `released` after its last read, and the owner
 * loads it before it writes there again. Bytes are reused in order, up to the oldest span that some
 * reader has not released. If all are released, the owner starts again at the first byte: the
 * kernel provides pages that owner and readers touch for the first time, which takes longer than a
 * short operation, so short spans keep to few pages.
 *
 * An arena has no name, so a crash leaves nothing behind. */
#ifndef DDL_NET_ARENA_H
#define DDL_NET_ARENA_H

#include <stdalign.h>

#include "net/shm/regions.h"
#include "net/shm/shm.h"

enum {
    DDL__ARENA_MAGIC = 0x64646c61,
    DDL__ARENA_LAYOUT = 8,
    DDL__ARENA_LINE = 64,
    DDL__ARENA_PAIR = 2 * DDL__ARENA_LINE, /* the alignment of shared words */
    DDL__ARENA_QUEUE = 64,                 /* entries of a ring */
    DDL__ARENA_ENTRY = 5 * DDL__ARENA_PAIR,
    DDL__ARENA_ENTRY_HEAD = 32,
    /* The longest span that is stored inside its entry: for one reader, and for several. */
    DDL__ARENA_SHORT_FOR_ONE = DDL__ARENA_ENTRY - DDL__ARENA_ENTRY_HEAD,
    DDL__ARENA_SHORT_FOR_ALL = DDL__ARENA_PAIR - DDL__ARENA_ENTRY_HEAD,
    /* After so many bytes the owner looks whether it can start again at the first byte. */
    DDL__OUTLET_WARM = 64 << 10
};

/* ---- the layout of the shared memory ---- */

typedef struct ddl__arena_entry {
    alignas(DDL__ARENA_PAIR)
        atomic_ullong stamp; /* position + 1 of the span; 0 if the entry was never written */
    ddl__signature signature;
    /* offset: the span's position in the ring of bytes, or DDL__ARENA_INLINE, _LENT or _RETURNED */
    uint32_t offset, bytes;
    unsigned char inline_span[DDL__ARENA_SHORT_FOR_ONE];
} ddl__arena_entry;

/* The state of zero-copy spans, which lie in regions of the owner: see lending.h. */
typedef struct ddl__arena_loans {
    /* By region number: the serial of the region that the reader maps; 0: none. Written by the
     * reader. */
    alignas(DDL__ARENA_PAIR) atomic_uint mapped[DDL__REGIONS];
    /* The number of regions offered to this reader so far. Written by the owner. */
    alignas(DDL__ARENA_PAIR) atomic_uint offers;
} ddl__arena_loans;

/* The way in which the owner has ended. It is written once, either by the owner or by a reader that
 * knows that the owner's process has exited; a reader writes only the state. */
typedef struct ddl__arena_end {
    alignas(DDL__ARENA_PAIR) atomic_uint state; /* ddl__link_state: OPEN, LEFT, ABORTED or LOST */
    char reason[DDL__LINK_REASON];              /* text, if state is ABORTED */
} ddl__arena_end;

typedef struct ddl__arena_ring {
    alignas(DDL__ARENA_PAIR) atomic_ullong released; /* spans that the reader has released */
    atomic_ullong bell; /* the reader's bell; 0: it does not map the arena yet */
    ddl__arena_end end;
    ddl__arena_entry entries[DDL__ARENA_QUEUE];
    ddl__arena_loans loans;
} ddl__arena_ring;

/* Events that wake a sleeping driver. */
typedef enum ddl__arena_event {
    DDL__ARENA_SPAN = 1,   /* a reader of the arena publishes a span to its owner */
    DDL__ARENA_RELEASE = 2 /* a reader of the arena releases a span */
} ddl__arena_event;

typedef struct ddl__arena_header {
    uint32_t magic, layout, readers, queue;
    uint64_t bytes, private_bytes; /* bytes of the first outlet, and of each private one */
    atomic_uint fences; /* 1: the owner's driver executes a heavy fence before it sleeps */
    /* the number of the owner's bell (bell.h), and the secret for offers to it (lending.h) */
    uint64_t bell, secret[2];
    /* the events that wake the owner's driver, which sleeps or is about to; 0: it is awake */
    alignas(DDL__ARENA_LINE) atomic_uint sleeping;
    alignas(DDL__ARENA_PAIR) atomic_ullong computed; /* see tell_computed in link.h; 0: never */
    alignas(DDL__ARENA_PAIR) ddl__arena_ring rings[];
} ddl__arena_header;

/* Special values of `offset`. INLINE: the span is in the entry. LENT: a ddl__loan in the entry
 * gives the span's position. RETURNED: the result is stored in a span that the reader had lent, and
 * the entry contains the position + 1 of that span. */
static const uint32_t DDL__ARENA_INLINE = UINT32_MAX, DDL__ARENA_LENT = UINT32_MAX - 1,
                      DDL__ARENA_RETURNED = UINT32_MAX - 2;

_Static_assert(sizeof(ddl__arena_entry) == DDL__ARENA_ENTRY, "no gap");
_Static_assert((int)DDL__ARENA_SHORT_FOR_ONE <= (int)DDL__LINK_SHORT,
               "no non-temporal stores into an entry");

/* ---- this process's view of the arena ---- */

/* The owner's record of one reader. */
typedef struct ddl__arena_reader {
    uint64_t reserved, published, released; /* counts of spans */
    uint64_t starts[DDL__ARENA_QUEUE];      /* the start of each unreleased span, as an offset */
} ddl__arena_reader;

typedef struct ddl__arena_outlet {
    ddl__arena_header *shared;
    unsigned char *bytes;
    /* the size of `bytes`. This and n_readers are copies, because a peer can change the values in
     * shared memory */
    uint64_t size;
    unsigned n_readers;

    /* Used by the owner's driver only. Offsets count all bytes ever used; modulo the size they are
     * positions. Bytes before `tail` are free again, bytes before `head` published, and bytes
     * before `reserved` reserved. */
    uint64_t tail, head, reserved;
    uint64_t touched;    /* the bytes of the ring that have been reserved once */
    bool is_new;         /* the span reserved last has new pages */
    unsigned announced;  /* the last value that the driver stored into shared->sleeping */
    bool awaits_release; /* since it woke up, the driver has lacked room, or has found unreleased
                            spans */
    unsigned char short_span[DDL__ARENA_SHORT_FOR_ALL];
    ddl__arena_reader *readers;
} ddl__arena_outlet;

struct ddl__shm_link;

struct ddl__arena {
    atomic_uint references;
    int fd;
    /* The owner's bell, its socket for offers of memory, and its first links, by reader; some links
     * are NULL. */
    int bell, offers;
    struct ddl__shm_link **links;
    uint64_t bell_number, secret[2]; /* copies of the header's values, which a peer can change */
    const ddl__fences *fences;       /* heavy fences that the owner's driver executes; or NULL */
    ddl__arena_outlet outlet;        /* the first outlet, which serves all readers */
    size_t mapped;

    /* The private outlets, starting with the outlet of reader `first`. */
    unsigned char *privates;
    unsigned first;
    uint64_t private_bytes;
    size_t privates_mapped;
};

/* Store for all readers that the process of this arena's owner has exited, and wake them by ringing
 * from `bell`. Any thread may call this. */
void ddl__arena_mark_ended(ddl__arena *arena, int bell);

/* Set `o` to the private outlet of a reader, as seen by the owner or that reader. */
void ddl__outlet_place_private(ddl__arena_outlet *o, const ddl__arena *arena, unsigned number);

#endif
