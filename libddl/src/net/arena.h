/* SPDX-License-Identifier: Apache-2.0 */
/* arena.h - the memory behind links over shared memory, for arena.c and shm.c.
 *
 * Design notes.
 *
 * An arena is the outgoing memory of one rank. It consists of outlets. An outlet is a ring of bytes
 * for spans and, for each reader, a ring of entries that say where the next span lies. Only the
 * owner writes bytes and entries; only the reader writes the `released` count of its ring, and its
 * bell. Every cache line thus has one writer, as long as the owner's process lives (shm_end.c).
 *
 * A short span travels inside its entry, right behind the words that describe it: caches fetch the
 * second line of a pair with the first, and prefetch more of what is read in order. A span
 * elsewhere is fetched only when its entry has come, so its reader waits for a far core twice. A
 * span for many readers has to be very short to be stored for each of them.
 *
 * The first outlet serves all readers, and one that does not read blocks the others. After it comes
 * a private outlet for each reader, for the links beside the first ones: there nobody blocks
 * anybody. Their memory is all zero until it is used, and costs nothing until then.
 *
 * Order: the owner fills span and entry, then stores the stamp of the entry. The reader loads the
 * stamp before it reads either. The reader stores `released` after its last read, and the owner
 * loads it before it writes there again. Bytes are reused in order, up to the oldest span that some
 * reader has not released.
 *
 * An arena has no name, so a crash leaves nothing behind.
 */
#ifndef DDL_NET_ARENA_H
#define DDL_NET_ARENA_H

#include <stdalign.h>

#include "net/regions.h"
#include "net/shm.h"

enum {
    DDL__ARENA_MAGIC = 0x64646c61,
    DDL__ARENA_LAYOUT = 7,
    DDL__ARENA_LINE = 64,
    DDL__ARENA_PAIR = 2 * DDL__ARENA_LINE, /* the alignment of shared words */
    DDL__ARENA_QUEUE = 64,                 /* entries of a ring */
    DDL__ARENA_ENTRY = 5 * DDL__ARENA_PAIR,
    DDL__ARENA_ENTRY_HEAD = 32,
    /* Bytes of a span that travels inside its entry: for one reader, and for several. */
    DDL__ARENA_SHORT_FOR_ONE = DDL__ARENA_ENTRY - DDL__ARENA_ENTRY_HEAD,
    DDL__ARENA_SHORT_FOR_ALL = DDL__ARENA_PAIR - DDL__ARENA_ENTRY_HEAD
};

/* ---- the layout of the shared memory ---- */

typedef struct ddl__arena_entry {
    alignas(DDL__ARENA_PAIR) atomic_ullong stamp; /* position + 1; 0: never written */
    ddl__signature signature;
    uint32_t offset, bytes; /* offset: of the span, or DDL__ARENA_INLINE, _LENT, _RETURNED */
    unsigned char inline_span[DDL__ARENA_SHORT_FOR_ONE];
} ddl__arena_entry;

/* For spans that lie in regions of the owner: see lending.h. */
typedef struct ddl__arena_loans {
    /* Written by the reader: the serial of the region with this number that it maps; 0: none. */
    alignas(DDL__ARENA_PAIR) atomic_uint mapped[DDL__REGIONS];
    /* Written by the owner: offers made. */
    alignas(DDL__ARENA_PAIR) atomic_uint offers;
} ddl__arena_loans;

/* The last that is heard of the owner. Written once, by the owner, or by a reader that knows that
 * the owner's process has ended. (Readers add nothing to the state.) */
typedef struct ddl__arena_end {
    alignas(DDL__ARENA_PAIR) atomic_uint state; /* ddl__link_state: OPEN, LEFT, ABORTED or LOST */
    char reason[DDL__LINK_REASON];              /* ABORTED: in words */
} ddl__arena_end;

typedef struct ddl__arena_ring {
    alignas(DDL__ARENA_PAIR) atomic_ullong released; /* spans that the reader has released */
    atomic_ullong bell; /* the number of the reader's bell; 0: it does not map the arena yet */
    ddl__arena_end end;
    ddl__arena_entry entries[DDL__ARENA_QUEUE];
    ddl__arena_loans loans;
} ddl__arena_ring;

typedef struct ddl__arena_header {
    uint32_t magic, layout, readers, queue;
    uint64_t bytes, private_bytes; /* of the first outlet, and of each private one */
    atomic_uint fences;            /* 1: the owner's driver passes a heavy fence before it sleeps */
    uint64_t bell, secret[2];      /* of the owner: see bell.h, and lending.h */
    alignas(DDL__ARENA_LINE) atomic_uint sleeping; /* the owner's driver sleeps, or is about to */
    alignas(DDL__ARENA_PAIR) ddl__arena_ring rings[];
} ddl__arena_header;

/* In place of an offset: the span is in the entry; a ddl__loan says where it lies; it lies where
 * the reader has lent a span, whose position + 1 is in the entry. */
static const uint32_t DDL__ARENA_INLINE = UINT32_MAX, DDL__ARENA_LENT = UINT32_MAX - 1,
                      DDL__ARENA_RETURNED = UINT32_MAX - 2;

_Static_assert(sizeof(ddl__arena_entry) == DDL__ARENA_ENTRY, "no gap");
_Static_assert((int)DDL__ARENA_SHORT_FOR_ONE <= (int)DDL__LINK_SHORT,
               "no non-temporal stores into an entry");

/* ---- what this process knows of it ---- */

/* What the owner remembers of one reader. */
typedef struct ddl__arena_reader {
    uint64_t reserved, published, released; /* spans */
    uint64_t starts[DDL__ARENA_QUEUE];      /* where each unreleased span begins, as an offset */
} ddl__arena_reader;

typedef struct ddl__arena_outlet {
    ddl__arena_header *shared;
    unsigned char *bytes;
    uint64_t
        size; /* of bytes; like n_readers, never read again from memory that a peer can write */
    unsigned n_readers;

    /* Used by the owner's driver only. Offsets count all bytes ever used; modulo the size they are
     * places. Bytes before the tail are free again, those before the head published, those before
     * `reserved` reserved. */
    uint64_t tail, head, reserved;
    unsigned char short_span[DDL__ARENA_SHORT_FOR_ALL];
    ddl__arena_reader *readers;
} ddl__arena_outlet;

/* Whether spans are stored in its ring for the first time, so that the kernel provides the pages.
 * That takes many times longer than the stores. */
static inline bool ddl__outlet_is_new(const ddl__arena_outlet *own)
{
    return own->reserved <= own->size;
}

struct ddl__shm_link;

struct ddl__arena {
    atomic_uint references;
    int fd;
    /* Of the owner: its bell, the socket for offers of memory, and its first links by reader, with
     * holes. */
    int bell, offers;
    struct ddl__shm_link **links;
    uint64_t bell_number, secret[2]; /* as in the header, which a peer can write */
    const ddl__fences *fences;       /* heavy ones that the owner's driver passes, or NULL */
    ddl__arena_outlet outlet;        /* the one for all readers */
    size_t mapped;

    /* The private outlets, beginning with that of reader `first`. */
    unsigned char *privates;
    unsigned first;
    uint64_t private_bytes;
    size_t privates_mapped;
};

/* The process of this arena's owner has ended: store that for all readers, and wake them by ringing
 * from `bell`. Any thread. */
void ddl__arena_mark_ended(ddl__arena *arena, int bell);

/* The private outlet of a reader, as its owner or that reader sees it. */
void ddl__outlet_place_private(ddl__arena_outlet *o, const ddl__arena *arena, unsigned number);

#endif
