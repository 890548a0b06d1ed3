/* SPDX-License-Identifier: Apache-2.0 */
/* Design notes: the end of a peer.
 *
 * A rank that leaves or aborts stores this, with the reason, in the ring of each reader, and rings
 * the reader's bell. A driver whose bell rings checks whether its peers have ended, which takes one
 * cache line for each peer.
 *
 * A process that dies leaves no trace in shared memory. But some members on its host have a control
 * connection to it, and their failure detector notices its death at once. The detector's thread
 * stores the end in all rings of the dead rank's arena, and rings the bells of all readers
 * (ddl__shm_peer_ended). So all members on the host notice the death as soon as the first one does.
 *
 * If all members with such a connection are dead, too, a waiting driver detects the death itself:
 * once a second it checks whether its peers' bells still exist (ddl__shm_probe).
 *
 * Spans that the dead rank had published are still delivered, because a reader checks for spans
 * after the end. */
#include <string.h>

#include "net/shm/bell.h"
#include "net/shm/shm_link.h"

void ddl__shm_look_for_end(ddl__shm_link *s)
{
    ddl__link *link = &s->link;
    const ddl__arena_end *end = &s->peer->shared->rings[s->from].end;
    unsigned state = atomic_load_explicit(&end->state, memory_order_seq_cst);
    bool is_open = link->state == DDL__LINK_OPEN;
    if (state == DDL__LINK_ABORTED && link->state != DDL__LINK_ABORTED) {
        memcpy(link->reason, end->reason, DDL__LINK_REASON - 1); /* truncated if too long */
        link->reason[DDL__LINK_REASON - 1] = 0;
        link->state = DDL__LINK_ABORTED;
    } else if (state == DDL__LINK_LEFT && is_open) {
        link->state = DDL__LINK_LEFT;
    } else if (state == DDL__LINK_LOST && (is_open || link->state == DDL__LINK_MISMATCH)) {
        strcpy(link->reason, "its process exited or closed the connection");
        link->state = DDL__LINK_LOST;
    }
}

void ddl__shm_close(ddl__link *link, const char *reason)
{
    ddl__shm_link *s = ddl__shm_of(link);
    if (s->first || /* only the first link stores the end */
        atomic_exchange_explicit(&s->closed, true, memory_order_relaxed))
        return;
    ddl__arena_ring *ring = &s->own_arena->outlet.shared->rings[s->to];
    if (reason)
        memcpy(ring->end.reason, reason, strnlen(reason, DDL__LINK_REASON - 1));
    unsigned open = DDL__LINK_OPEN;
    atomic_compare_exchange_strong(&ring->end.state, &open,
                                   reason ? DDL__LINK_ABORTED : DDL__LINK_LEFT);
    /* After this call, the program may write to memory that it has lent. No such store may be
     * reordered before this load. */
    uint64_t bell = atomic_load_explicit(&ring->bell, memory_order_seq_cst);
    if (bell)
        ddl__bell_ring(s->own_arena->bell, bell);
}

void ddl__shm_peer_ended(ddl__link *link)
{
    ddl__shm_link *s = ddl__shm_of(link);
    ddl__arena *peer = s->arrival ? ddl__shm_arrival_end(s->arrival) : s->peer_arena;
    if (peer)
        ddl__arena_mark_ended(peer, s->own_arena->bell);
    /* The member that marked the end first may have exited before it rang. */
    ddl__bell_ring(s->own_arena->bell, s->own_arena->bell_number);
}

/* A rank stores its end before it closes its bell, so a missing bell without an end means death. */
void ddl__shm_probe(ddl__link *link)
{
    ddl__shm_link *s = ddl__shm_of(link);
    if (!s->first && link->fd >= 0 && link->state == DDL__LINK_OPEN &&
        ddl__bell_is_gone(s->own_arena->bell_number, s->bell))
        ddl__shm_peer_ended(link);
}
