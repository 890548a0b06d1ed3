/* SPDX-License-Identifier: Apache-2.0 */
/* Links over shared memory that get their connection, and the peer's arena with it, when one of the
 * two ends first sends.
 *
 * Until then such a link looks as if it were full and empty. A driver that wants to send asks for
 * the connection (connect/first_use.h dials it); so does one that has waited for a while to
 * receive. Another thread leaves it in `arrival`. The driver takes it over at the next send,
 * receive or event. So only the driver changes the link; any thread may close it, and then sends
 * the leave message under the lock of the arrival. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/forks.h"
#include "base/time_limits.h"
#include "net/shm_link.h"

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
        free(s);
        ddl__fail(DDL_ENOMEM, "no memory for a link");
        return NULL;
    }
    a->ask = ask;
    a->context = context;
    a->from = from;
    a->fd = -1;
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

void ddl__shm_link_connect(ddl__link *link, int fd, ddl__arena *peer)
{
    const ddl__shm_link *s = ddl__shm_of(link);
    ddl__shm_arrival *a = s->arrival;
    pthread_mutex_lock(&a->lock);
    a->fd = ddl__guard(fd);
    a->arena = peer;
    if (a->farewell_bytes)
        ddl__shm_say_farewell(fd, s->buffers->farewell, a->farewell_bytes);
    pthread_mutex_unlock(&a->lock);
    atomic_store_explicit(&a->state, DDL__SHM_CONNECTED, memory_order_release);
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
        strcpy(first->link.reason, "it ended before it was connected with this rank");
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
    ddl__shm_attach(first, a->arena, a->from, a->fd);
}

void ddl__shm_arrival_close(ddl__shm_link *first, const char *text, size_t n)
{
    ddl__shm_arrival *a = first->arrival;
    pthread_mutex_lock(&a->lock);
    if (a->fd >= 0) {
        ddl__shm_say_farewell(a->fd, text, n);
    } else {
        memcpy(first->buffers->farewell, text, n);
        a->farewell_bytes = n;
    }
    pthread_mutex_unlock(&a->lock);
}

void ddl__shm_arrival_destroy(ddl__shm_arrival *a)
{
    ddl__close_guarded(a->fd);
    ddl__arena_drop(a->arena);
    pthread_mutex_destroy(&a->lock);
    free(a);
}
