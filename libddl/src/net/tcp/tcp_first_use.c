/* SPDX-License-Identifier: Apache-2.0 */
/* TCP links that get their connection when one of the two ends first sends.
 *
 * The sender requests the connection (connect/wireup/first_use.h dials it); the other end gets it
 * without a request. A rank that has waited to receive for a while requests it, too: the attempt
 * reveals a dead peer, even if no member monitors that peer any more. Another thread stores the
 * connection in `arrival`. The driver adopts it at the next event, or at the next send or receive,
 * whose system calls fail while the descriptor is -1. The driver then sends the queued frames. Only
 * the driver changes `fd` and `seal`; it holds the lock while it does so, because any thread may
 * close the link. */
#include <errno.h>
#include <stdio.h>

#include "base/clock.h"
#include "base/forks.h"
#include "base/time_limits.h"
#include "net/tcp/tcp_link.h"

void ddl__tcp_ask(ddl__tcp_link *l)
{
    void (*ask)(void *context) = l->arrival.ask;
    if (!ask || l->closed) /* no connection is opened only for a farewell */
        return;
    l->arrival.ask = NULL;
    ask(l->arrival.context);
}

void ddl__tcp_want(ddl__link *link)
{
    ddl__tcp_link *l = ddl__tcp_of(link);
    if (l->fd >= 0 || !l->arrival.ask)
        return;
    int64_t now = ddl__now();
    if (!l->arrival.waits_since)
        l->arrival.waits_since = now;
    if (now - l->arrival.waits_since < DDL__ASK_AFTER)
        return;
    pthread_mutex_lock(&l->lock);
    ddl__tcp_ask(l);
    pthread_mutex_unlock(&l->lock);
}

void ddl__tcp_link_connect(ddl__link *link, int fd, const char *name, ddl__seal *seal)
{
    ddl__tcp_link *l = ddl__tcp_of(link);
    ddl__tcp_socket_prepare(fd, false);
    l->arrival.fd = ddl__guard(fd);
    l->arrival.seal = seal;
    snprintf(l->buffers->name, sizeof l->buffers->name, "%s", name);
    atomic_store_explicit(&l->arrival.state, DDL__ARRIVAL_CONNECTED, memory_order_release);
}

void ddl__tcp_link_lapse(ddl__link *link, ddl__link_state state)
{
    ddl__tcp_link *l = ddl__tcp_of(link);
    l->arrival.lapsed = state;
    atomic_store_explicit(&l->arrival.state, DDL__ARRIVAL_LAPSED, memory_order_release);
}

static void link_lapse(ddl__tcp_link *l)
{
    pthread_mutex_lock(&l->lock);
    ddl__tcp_stop(l);
    pthread_mutex_unlock(&l->lock);
    if (l->arrival.lapsed == DDL__LINK_LOST)
        ddl__tcp_lose(l, "", "it exited before it was connected to this rank");
    else
        l->base.state = l->arrival.lapsed;
}

static void link_open(ddl__tcp_link *l)
{
    pthread_mutex_lock(&l->lock);
    l->base.fd = l->fd = l->arrival.fd;
    l->seal = l->arrival.seal;
    l->error = 0;
    bool near = l->near;
    ddl__tcp_push(l);
    pthread_mutex_unlock(&l->lock);
    if (near)
        ddl__tcp_link_shorten(&l->base);
    l->event = true;
}

bool ddl__tcp_adopt(ddl__tcp_link *l)
{
    int state = atomic_load_explicit(&l->arrival.state, memory_order_acquire);
    if (l->base.state != DDL__LINK_OPEN || state == DDL__ARRIVAL_NONE)
        return false;
    if (state == DDL__ARRIVAL_CONNECTED)
        link_open(l);
    else
        link_lapse(l);
    return true;
}
