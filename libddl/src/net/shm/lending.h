/* SPDX-License-Identifier: Apache-2.0 */
/* lending.h - zero-copy spans: they lie in the sender's own regions (regions.h), which the reader
 * maps.
 *
 * The owner offers a region to a peer when it first sends a span of that region to the peer. An
 * offer is a message with the region's descriptor, over a unix socket that is connected for this
 * message and closed afterwards. The reader checks for offers when it takes a long span, maps the
 * file read-only, and records that in its ring of the owner's arena. From then on the owner
 * publishes spans of that region as lent: their entry contains their position. Until then, and if a
 * reader cannot map, spans are copied through the arena. A reader therefore need not know in
 * advance how a peer sends.
 *
 * Any process of the host can connect to the reader's socket, and can take the socket's name after
 * the reader has exited. The owner therefore sends only to a socket of its own user, and the reader
 * accepts only offers with the secret of its arena, which only peers map.
 *
 * The owner's operation ends only after all lent spans are released. If the owner abandons an
 * operation, its caller may write to the memory at once. The owner therefore first marks the link
 * as closed, and a reader checks that mark after it has read a span and before it uses the result.
 *
 * In an in-place operation, the owner may want the result where the operand was, and requests that
 * in the span's entry. The reader then stores the result there, and publishes an empty span that
 * names the lent span. Only after such a request can the reader write to the region. If the owner
 * abandons such an operation, it detaches the region (regions.h), so that no peer writes to the
 * caller's memory.
 *
 * Freed regions stay mapped until their number is used again, or the link is destroyed; they have
 * no pages. */
#ifndef DDL_NET_LENDING_H
#define DDL_NET_LENDING_H

#include "net/shm/arena.h"
#include "net/shm/regions.h"

/* The content of a lent span's entry. */
typedef struct ddl__loan {
    uint32_t number, serial; /* of the region */
    uint64_t offset;
    uint32_t returns; /* 1: the owner wants the result at the same position */
    uint32_t unused;
} ddl__loan;

/* The message of an offer. */
typedef struct ddl__offer {
    uint64_t secret[2]; /* secret of the reader's arena */
    uint32_t from;      /* number of the offering rank among that arena's readers */
    uint32_t number, serial;
    uint32_t unused;
    uint64_t bytes;
} ddl__offer;

typedef struct ddl__lending {
    uint32_t *offered; /* by region number: serial of the region offered last; NULL: no offers */
    uint64_t lent;     /* number of spans published so far, up to and including the last lent one */
    struct ddl__awaited {
        uint64_t span; /* position + 1 of a lent span whose result is wanted in place */
        const void *memory;
        size_t bytes;
        ddl__region region;
    } * awaited; /* requests for results, by span modulo DDL__ARENA_QUEUE; or NULL */

    struct ddl__borrowed {
        uint32_t serial;
        unsigned char *base;
        size_t bytes;
        bool writable;
        uint64_t last; /* position + 1 of the last span found in this region */
    } * borrowed;      /* the peer's regions that are mapped here, by number; or NULL */
    uint64_t wanted;   /* position + 1 of the span whose result must be returned */
    unsigned looked;   /* number of the peer's offers that were checked */
} ddl__lending;

/* Return true if the peer has mapped this region. Otherwise offer the region to the peer, at most
 * once. `peer` is the peer's arena, and `from` is this rank's number as a reader of it. */
bool ddl__lending_may(ddl__lending *lending, const ddl__arena *peer, unsigned from,
                      ddl__arena_loans *reader, const ddl__region *region);

/* Return the memory of the lent span whose position + 1 is `span`; NULL if the peer's entry is
 * invalid. The memory is readable until the span is released. */
const void *ddl__lending_find(ddl__lending *lending, ddl__loan loan, uint64_t span, size_t bytes);

/* Return the same memory as ddl__lending_find, to store the result in it. Return NULL also if the
 * owner does not want the result, or if the memory is not writable. */
void *ddl__lending_borrow(ddl__lending *lending, ddl__loan loan, uint64_t span, size_t bytes);

/* Note that the owner wants the result of this span in place. Return false if out of memory. */
bool ddl__lending_await(ddl__lending *lending, uint64_t span, const ddl__region *region,
                        const void *memory, size_t bytes);

/* Return true if a result was stored for this span. Afterwards the result is at `memory`, even if
 * the region was detached meanwhile. */
bool ddl__lending_returned(const ddl__lending *lending, uint64_t span, void *memory, size_t bytes);

/* Return a listening socket for offers to the rank whose bell has this number, or -1 with the
 * message set. */
int ddl__lending_listen(uint64_t bell);

/* Receive the next offer that carries the secret of this rank's arena, without waiting. Return
 * false if there is none. *file is the descriptor of the offered region, which the caller closes.
 * It is -1 if this process has too many descriptors, or if the message had several (*several). */
bool ddl__lending_receive(const ddl__arena *own, ddl__offer *offer, int *file, bool *several);

/* Accept an offer of this peer: map the region if possible, and record that in `ours`. `released`
 * counts the released spans of this peer. Return false, with the reason, if the offer violates the
 * protocol. */
bool ddl__lending_take(ddl__lending *lending, const ddl__offer *offer, int file, bool several,
                       ddl__arena_loans *ours, uint64_t released, char *reason);

/* Unmap everything. */
void ddl__lending_end(ddl__lending *lending);

#endif
