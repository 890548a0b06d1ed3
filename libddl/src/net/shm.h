/* shm.h - links over shared memory: each rank owns one arena, mapped by its peers, in which it
 * publishes spans; peers read them in place. The same code serves processes (a memfd mapped twice)
 * and threads (one mapping). */
#ifndef DDL_NET_SHM_H
#define DDL_NET_SHM_H

#include "base/fences.h"
#include "net/link.h"

/* One rank's outgoing memory. */
typedef struct ddl__arena ddl__arena;

/* A new arena with one queue for each of `readers` peers and `bytes` for spans; and for links
 * beside the first ones `private_bytes` for each reader, which are no memory until they are used.
 * NULL when memory is refused (message set). */
ddl__arena *ddl__arena_create(unsigned readers, size_t bytes, size_t private_bytes);

/* Before a link is made of it: once this process has joined `fences`, its owner's driver passes a
 * heavy one each time that it has announced to sleep. Two peers that both do so publish to each
 * other with less waiting; it is not for those who sleep often. `fences` is borrowed. */
void ddl__arena_fence(ddl__arena *arena, const ddl__fences *fences);

/* The memfd to hand to peers; owned by the arena. */
int ddl__arena_fd(const ddl__arena *arena);

/* A peer's arena from its memfd, to be read as its reader `number`, or from the peer's own
 * object in the same process. NULL when it cannot be mapped or is not an arena of ours (message
 * set). fd stays the caller's. */
ddl__arena *ddl__arena_open(int fd, unsigned number);
ddl__arena *ddl__arena_share(ddl__arena *arena);

/* Drop one reference: create, open and share each give one. */
void ddl__arena_drop(ddl__arena *arena);

/* A link that publishes in `own` to reader number `to`, and reads `peer`'s spans as its reader
 * number `from`. fd is the connected unix socket that serves as doorbell and tells of death; the
 * link owns it, and one reference of `peer`. `own` is borrowed. `inproc` only names the kind. */
ddl__link *ddl__shm_link_create(ddl__arena *own, unsigned to, ddl__arena *peer, unsigned from,
                                int fd, bool inproc);

/* The second link between the same two, in memory that no other link uses, so that neither holds up
 * the other. It belongs to the first one, which has the doorbell and says how the peer is: `next`
 * takes its state over. */
ddl__link *ddl__shm_link_beside(ddl__link *first);

#endif
