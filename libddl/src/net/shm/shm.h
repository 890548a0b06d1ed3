/* SPDX-License-Identifier: Apache-2.0 */
/* shm.h - links over shared memory. Each rank owns one arena, in which it publishes spans; its
 * peers map the arena and read the spans in place. The same code serves processes (a memfd mapped
 * twice) and threads (one mapping). */
#ifndef DDL_NET_SHM_H
#define DDL_NET_SHM_H

#include "base/fences.h"
#include "net/link.h"

/* The outgoing memory of one rank. */
typedef struct ddl__arena ddl__arena;

/* Create an arena with one queue for each of `readers` peers and `bytes` for spans. `private_bytes`
 * for each reader are for the second links, and cost no memory until they are used. Return NULL if
 * memory is refused (message set). */
ddl__arena *ddl__arena_create(unsigned readers, size_t bytes, size_t private_bytes);

/* Let the owner's driver execute a heavy fence after each announcement of its sleep, once this
 * process has joined `fences`. If two peers both do so, they wait less when they publish to each
 * other. If a driver sleeps often, its fences cost more than they save. Call it before a link uses
 * the arena. `fences` is borrowed. */
void ddl__arena_fence(ddl__arena *arena, const ddl__fences *fences);

/* Return the memfd to pass to peers; owned by the arena. */
int ddl__arena_fd(const ddl__arena *arena);

/* Open the arena of a peer: from its memfd, to be read as its reader `number`, or from its object
 * in the same process. Return NULL if it cannot be mapped or is not an arena of this library
 * (message set). The caller keeps fd. */
ddl__arena *ddl__arena_open(int fd, unsigned number);
ddl__arena *ddl__arena_share(ddl__arena *arena);

/* Drop one reference. Create, open and share return one each. */
void ddl__arena_drop(ddl__arena *arena);

/* Return the descriptor by which peers wake the owner. All links of the arena use it. */
int ddl__arena_bell(const ddl__arena *arena);

/* Create a link that publishes in `own` to reader `to`, and reads the spans of `peer` as its reader
 * `from`. The link owns one reference of `peer`; `own` is borrowed. `inproc` only sets the name of
 * the kind. */
ddl__link *ddl__shm_link_create(ddl__arena *own, unsigned to, ddl__arena *peer, unsigned from,
                                bool inproc);

/* Create the buffers of the links to n readers. Unused buffers take no memory, because their pages
 * are not touched. Return NULL if out of memory. Free them with free() after the links. */
typedef struct ddl__shm_buffers ddl__shm_buffers;
ddl__shm_buffers *ddl__shm_buffers_create(size_t n);

/* Create an unopened link, which gets the peer's arena later, because in a large comm most pairs
 * never use their link. The link uses entry `to` of `buffers`, and calls `ask` once, in the
 * driver's thread, to request the arena. */
ddl__link *ddl__shm_link_create_unopened(ddl__arena *own, unsigned to, unsigned from,
                                         ddl__shm_buffers *buffers, void (*ask)(void *context),
                                         void *context);

/* Give the link the peer's arena, which it then owns; or close it unopened, with state LEFT or
 * LOST. Call one of these functions, once, from any thread. */
void ddl__shm_link_connect(ddl__link *link, ddl__arena *peer);
void ddl__shm_link_lapse(ddl__link *link, ddl__link_state state);

/* Return the second link between the same two ranks. It has its own memory, so that neither link
 * blocks the other. It belongs to the first link, which holds the state of the peer; `next` copies
 * that state. */
ddl__link *ddl__shm_link_beside(ddl__link *first);

/* Accept the received offers of memory (lending.h) of all peers. The driver calls this when it
 * takes a long span. */
void ddl__shm_take_offers(ddl__arena *own);

#endif
