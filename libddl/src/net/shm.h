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

/* A new arena with one queue for each of `readers` peers and `bytes` for spans. `private_bytes` for
 * each reader serve the links beside the first ones, and cost no memory until they are used. NULL
 * when memory is refused (message set). */
ddl__arena *ddl__arena_create(unsigned readers, size_t bytes, size_t private_bytes);

/* Once this process has joined `fences`, the driver of the owner passes a heavy fence each time
 * that it has announced to sleep. Two peers that both do so publish to each other with less
 * waiting. It does not pay for drivers that sleep often. Call it before a link uses the arena.
 * `fences` is borrowed. */
void ddl__arena_fence(ddl__arena *arena, const ddl__fences *fences);

/* The memfd to pass to peers; owned by the arena. */
int ddl__arena_fd(const ddl__arena *arena);

/* The arena of a peer: from its memfd, to be read as its reader `number`, or from its object in the
 * same process. NULL when it cannot be mapped or is not an arena of this library (message set). fd
 * stays the caller's. */
ddl__arena *ddl__arena_open(int fd, unsigned number);
ddl__arena *ddl__arena_share(ddl__arena *arena);

/* Drop one reference. Create, open and share return one each. */
void ddl__arena_drop(ddl__arena *arena);

/* The descriptor by which peers wake the owner: that of all links of the arena. */
int ddl__arena_bell(const ddl__arena *arena);

/* A link that publishes in `own` to reader `to`, and reads the spans of `peer` as its reader
 * `from`. The link owns one reference of `peer`; `own` is borrowed. `inproc` only sets the name of
 * the kind. */
ddl__link *ddl__shm_link_create(ddl__arena *own, unsigned to, ddl__arena *peer, unsigned from,
                                bool inproc);

/* The buffers of the links to n readers. Those of many links take no memory until they are used,
 * since their pages are not touched. NULL without memory; free() them after the links. */
typedef struct ddl__shm_buffers ddl__shm_buffers;
ddl__shm_buffers *ddl__shm_buffers_create(size_t n);

/* The same without a peer yet: in a large comm most pairs never use their link. Its buffers are
 * those of number `to`. The driver asks for the peer by `ask`, once. */
ddl__link *ddl__shm_link_create_unopened(ddl__arena *own, unsigned to, unsigned from,
                                         ddl__shm_buffers *buffers, void (*ask)(void *context),
                                         void *context);

/* Give it the peer's arena, which it owns then; or tell that it will get none: LEFT or LOST. Once,
 * by any thread. */
void ddl__shm_link_connect(ddl__link *link, ddl__arena *peer);
void ddl__shm_link_lapse(ddl__link *link, ddl__link_state state);

/* The second link between the same two ranks, in memory of its own, so that neither blocks the
 * other. It belongs to the first link, which has the state of the peer; `next` copies that
 * state. */
ddl__link *ddl__shm_link_beside(ddl__link *first);

/* Take the offers of memory (lending.h) that have come, of all peers. The driver does that when it
 * takes a long span. */
void ddl__shm_take_offers(ddl__arena *own);

#endif
