/* SPDX-License-Identifier: Apache-2.0 */
/* lending.h - spans that lie in the sender's own regions (regions.h), which the reader maps.
 *
 * The owner offers a region to a peer when it first sends from it: a message with the descriptor,
 * over a unix socket that is connected for it and closed afterwards. The reader looks for offers
 * when it takes a long span, maps the file read-only, and says so in its lane of the owner's arena.
 * From then on the owner publishes spans of that region as lent: their entry says where they lie.
 * Until then, and when a reader cannot map, spans are copied through the arena as always. So nobody
 * has to know how others send.
 *
 * Every process of the host can connect to that socket, and could take its name when the reader has
 * ended. So the owner sends to a socket of its own user only, and the reader takes what carries the
 * secret of its arena, which only peers map.
 *
 * The owner's operation ends only after all lent spans are released. When it gives an operation up,
 * its caller may write to the memory at once. So the owner first says that it has closed the link,
 * and a reader looks at that after it has read and before it uses what it has made of it.
 *
 * In place, the owner may want the result where the operand lay. Its entry says so, the reader
 * stores the result there, and publishes a span without bytes that names the lent one. Only from
 * then on can the reader write to the region. An owner that gives such an operation up detaches the
 * region (regions.h), so that no peer writes to what its caller has.
 *
 * Regions that are freed stay mapped until their number is used again, or the link is destroyed;
 * they have no pages. */
#ifndef DDL_NET_LENDING_H
#define DDL_NET_LENDING_H

#include "net/arena.h"
#include "net/regions.h"

/* What travels inside the entry of a lent span. */
typedef struct ddl__loan {
    uint32_t number, serial; /* of the region */
    uint64_t offset;
    uint32_t returns; /* the result is wanted there */
    uint32_t unused;
} ddl__loan;

/* The message of an offer. */
typedef struct ddl__offer {
    uint64_t secret[2]; /* of the reader's arena */
    uint32_t from;      /* the owner, as a reader of that arena */
    uint32_t number, serial;
    uint32_t unused;
    uint64_t bytes;
} ddl__offer;

typedef struct ddl__lending {
    uint32_t *offered; /* by number: the serial that was offered last; or NULL */
    uint64_t lent;     /* spans published up to the last lent one */
    struct ddl__awaited {
        uint64_t span; /* position + 1 of a lent span whose result is wanted where it lies */
        const void *memory;
        size_t bytes;
        ddl__region region;
    } * awaited; /* by span, modulo DDL__ARENA_QUEUE; or NULL */

    struct ddl__borrowed {
        uint32_t serial;
        unsigned char *base;
        size_t bytes;
        bool writable;
        uint64_t last; /* position + 1 of the last span that was found there */
    } * borrowed;      /* by number: what the peer has offered and we have mapped; or NULL */
    uint64_t wanted;   /* position + 1 of the span whose result is to be given back */
    unsigned looked;   /* offers that were looked for */
} ddl__lending;

/* Whether the reader maps this region. If not, it is offered, once: to the owner of arena `peer`,
 * by its reader `from`. */
bool ddl__lending_may(ddl__lending *lending, const ddl__arena *peer, unsigned from,
                      ddl__arena_loans *reader, const ddl__region *region);

/* Where this span, its position + 1, lies; or NULL if the peer has said nonsense. It is read until
 * it is released. */
const void *ddl__lending_find(ddl__lending *lending, ddl__loan loan, uint64_t span, size_t bytes);

/* The same, to store the result there; also NULL if that is not wanted, or not possible. */
void *ddl__lending_borrow(ddl__lending *lending, ddl__loan loan, uint64_t span, size_t bytes);

/* The owner wants the result of this span where it lies. False if that cannot be remembered. */
bool ddl__lending_await(ddl__lending *lending, uint64_t span, const ddl__region *region,
                        const void *memory, size_t bytes);

/* Whether the result that was stored there is the one of this span. It is there afterwards, also if
 * the region was detached meanwhile. */
bool ddl__lending_returned(const ddl__lending *lending, uint64_t span, void *memory, size_t bytes);

/* A listening socket for offers to the rank whose bell has this number; -1 with the message set. */
int ddl__lending_listen(uint64_t bell);

/* The next offer that carries the secret of the owner of the arena, without waiting; false if there
 * is none. *file is its descriptor, which the caller closes; -1: none came, for this process has
 * too many, or several. */
bool ddl__lending_receive(const ddl__arena *own, ddl__offer *offer, int *file, bool *several);

/* Take an offer of this peer: the region is mapped, if it can be, and `ours` says so. `released`:
 * the spans of this peer that were released. False, with the reason, if no honest peer makes such
 * an offer. */
bool ddl__lending_take(ddl__lending *lending, const ddl__offer *offer, int file, bool several,
                       ddl__arena_loans *ours, uint64_t released, char *reason);

/* Unmap everything. */
void ddl__lending_end(ddl__lending *lending);

#endif
