/* SPDX-License-Identifier: Apache-2.0 */
/* Links over shared memory that get the peer's arena when one of the two ends first sends.
 *
 * Until then such a link looks full to the sender and empty to the receiver. A driver that wants to
 * send, or has waited to receive for a while, requests the arena (connect/wireup/first_use.h dials
 * the peer). Another thread stores the arena in `arrival`. The driver adopts it at the next send,
 * receive or event. Thus only the driver changes the link. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/time_limits.h"
#include "net/shm/shm_link.h"

ddl__shm_buffers *ddl__shm_buffers_create(size_t n)
{
    return calloc(n, sizeof(ddl__shm_buffers));
}

ddl__link *ddl__shm_link_create_unopened(ddl__arena *own, unsigned to, unsigned from,
                                         ddl__shm_buffers *buffers, void (*ask)(void *context),
                                         void *context)
{
    ddl__shm_link *s = ddl__shm_create(own, to, &buffers[to], false);
    ddl__shm_arrival *a = s ? calloc(1, sizeof *a) : NULL;
    if (!a) {
        if (s)
            own->links[to] = NULL;
        free(s);
        ddl__fail(DDL_ENOMEM, "out of memory for a link");
        return NULL;
    }
    a->ask = ask;
    a->context = context;
    a->from = from;
    pthread_mutex_init(&a->lock, NULL);
    s->arrival = a;
    return &s->link;
}

static ddl__shm_link *first_of(ddl__shm_link *s)
{
    return s->first ? s->first : s;
}

void ddl__shm_ask(ddl__shm_link *s)
{
    ddl__shm_arrival *a = first_of(s)->arrival;
    void (*ask)(void *context) = a->ask;
    if (!ask)
        return;
    a->ask = NULL;
    ask(a->context);
}

void ddl__shm_want(ddl__link *link)
{
    ddl__shm_arrival *a = first_of(ddl__shm_of(link))->arrival;
    if (link->fd >= 0 || !a->ask)
        return;
    int64_t now = ddl__now();
    if (!a->waits_since)
        a->waits_since = now;
    if (now - a->waits_since >= DDL__ASK_AFTER)
        ddl__shm_ask(ddl__shm_of(link));
}

void ddl__shm_link_connect(ddl__link *link, ddl__arena *peer)
{
    ddl__shm_arrival *a = ddl__shm_of(link)->arrival;
    pthread_mutex_lock(&a->lock);
    a->arena = peer;
    bool ended = a->ended;
    pthread_mutex_unlock(&a->lock);
    if (ended)
        ddl__arena_mark_ended(peer, ddl__shm_of(link)->own_arena->bell);
    atomic_store_explicit(&a->state, DDL__SHM_CONNECTED, memory_order_release);
}

ddl__arena *ddl__shm_arrival_end(ddl__shm_arrival *a)
{
    pthread_mutex_lock(&a->lock);
    a->ended = true;
    ddl__arena *arena = a->arena;
    pthread_mutex_unlock(&a->lock);
    return arena;
}

void ddl__shm_link_lapse(ddl__link *link, ddl__link_state state)
{
    ddl__shm_arrival *a = ddl__shm_of(link)->arrival;
    a->lapsed = state;
    atomic_store_explicit(&a->state, DDL__SHM_LAPSED, memory_order_release);
}

static void lapse(ddl__shm_link *first)
{
    first->link.state = first->arrival->lapsed;
    if (first->link.state == DDL__LINK_LOST)
        strcpy(first->link.reason, "it exited before it was connected to this rank");
}

void ddl__shm_adopt(ddl__shm_link *s)
{
    ddl__shm_link *first = first_of(s);
    ddl__shm_arrival *a = first->arrival;
    int state = atomic_load_explicit(&a->state, memory_order_acquire);
    if (state == DDL__SHM_UNOPENED || first->link.state != DDL__LINK_OPEN)
        return;
    if (state == DDL__SHM_LAPSED) {
        lapse(first);
        return;
    }
    ddl__shm_attach(first, a->arena, a->from);
}

void ddl__shm_arrival_destroy(ddl__shm_arrival *a)
{
    ddl__arena_drop(a->arena);
    pthread_mutex_destroy(&a->lock);
    free(a);
}
