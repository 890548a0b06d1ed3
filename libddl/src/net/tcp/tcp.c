/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/forks.h"
#include "base/time_limits.h"
#include "net/tcp/tcp_link.h"

enum {
    SOCKET_BUFFER = 4 << 20,
    LANE_BUFFER = 512 << 10, /* send queue of a lane; the kernel doubles it */
    NEAR_BUFFER = 128 << 10, /* send queue between ranks of one machine */

    /* If a peer's kernel does not answer, the peer is dead or the network has failed. Keepalive
     * probes detect that on an idle connection; missing acknowledgements detect it on a busy
     * connection. */
    KEEPALIVE_IDLE_S = DDL__KEEPALIVE_IDLE / DDL__S,
    KEEPALIVE_EACH_S = DDL__KEEPALIVE_EACH / DDL__S,
    KEEPALIVE_PROBES = 3
};

/* --------------------------------------------------------------------------------- silent peers */

/* Return true if data was retransmitted and nothing was received for a long time. A peer that reads
 * nothing, but whose kernel answers, is only slow. */
static bool is_silent(int fd)
{
    struct tcp_info info;
    socklen_t length = sizeof info;
    return !getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) && info.tcpi_retransmits &&
           info.tcpi_unacked && info.tcpi_last_ack_recv > DDL__UNACKNOWLEDGED_LIMIT / DDL__MS;
}

static void link_examine(ddl__tcp_link *l)
{
    static const char why[] = "the peer's host has not acknowledged any data for a long time";
    if (is_silent(l->fd))
        ddl__tcp_lose(l, l->buffers->name, why);
    for (unsigned i = 0; i < l->n_lanes && l->base.state == DDL__LINK_OPEN; i++)
        if (is_silent(l->lanes[i].fd))
            ddl__tcp_lose(l, l->lanes[i].name, why);
}

/* Check the sockets. Nothing is announced, because the kernel itself wakes sleepers. */
static void tcp_sleeping(ddl__link *link, bool asleep)
{
    ddl__tcp_link *l = ddl__tcp_of(link);
    if (!asleep || link->state != DDL__LINK_OPEN || l->fd < 0)
        return;
    if (l->lost_at) /* the reason may have arrived, or be overdue */
        ddl__tcp_look(link);
    int64_t now = ddl__now();
    if (now < l->examined + DDL__UNACKNOWLEDGED_POLL)
        return;
    l->examined = now;
    link_examine(l);
}

/* ------------------------------------------------------------------------------ life and death */

/* Close the link. A leave message is sent after all waiting frames. An abort is sent before them,
 * but after the rest of a frame that was partly sent. If that rest does not fit into the socket
 * now, the abort cannot be sent, because the user memory of the frame may soon be freed. */
static void tcp_close(ddl__link *link, const char *reason)
{
    static const ddl__signature none;
    ddl__tcp_link *l = ddl__tcp_of(link);
    pthread_mutex_lock(&l->lock);
    if (!l->closed) {
        l->closed = true;
        if (reason) {
            ddl__tcp_drop(l, l->sent ? 1 : 0);
            ddl__lanes_shut(l);
            snprintf(l->buffers->farewell, sizeof l->buffers->farewell, "%s", reason);
        }
        ddl__tcp_enqueue(l, reason ? DDL__TCP_ABORT : DDL__TCP_LEAVE, l->buffers->farewell,
                         strlen(l->buffers->farewell), &none, NULL);
        ddl__tcp_push(l);
        if (reason && l->queued && l->buffers->frames[l->oldest].head.type == DDL__TCP_SPAN)
            ddl__tcp_stop(l);
    }
    pthread_mutex_unlock(&l->lock);
}

/* Read the received data, and close the socket. Closing a socket with unread data, even if it is
 * only the peer's leave message, would reset the connection and discard the data that was sent
 * last. */
static void empty_and_close(int fd)
{
    char rest[DDL__TCP_PAGE];
    for (int i = 0; i < SOCKET_BUFFER / DDL__TCP_PAGE; i++)
        if (recv(fd, rest, sizeof rest, MSG_DONTWAIT) <= 0)
            break;
    ddl__close_guarded(fd);
}

static void tcp_destroy(ddl__link *link)
{
    ddl__tcp_link *l = ddl__tcp_of(link);
    if (l->fd < 0)
        ddl__tcp_adopt(l); /* a peer that has just connected gets the leave message, too */
    tcp_close(link, NULL);
    ddl__tcp_drop(l, 0);
    empty_and_close(l->fd);
    for (unsigned i = 0; i < l->n_lanes; i++) {
        empty_and_close(l->lanes[i].fd);
        ddl__seal_destroy(l->lanes[i].seal);
    }
    ddl__seal_destroy(l->seal);
    if (link->fd != l->fd)
        ddl__close_guarded(link->fd);
    pthread_mutex_destroy(&l->lock);
    free(l->lanes);
    free(l->buffer);
    free(l);
}

static const ddl__link_ops tcp_ops = {
    .kind = "tcp",
    .zero_copy = true,
    .reserve = ddl__tcp_reserve,
    .publish = ddl__tcp_publish,
    .send_user = ddl__tcp_send_user,
    .next = ddl__tcp_next,
    .want = ddl__tcp_want,
    .peek = ddl__tcp_peek,
    .release = ddl__tcp_release,
    .flush = ddl__tcp_flush,
    .sleeping = tcp_sleeping,
    .poll = ddl__tcp_look,
    .close = tcp_close,
    .destroy = tcp_destroy,
};

/* ------------------------------------------------------------------------------------- creation */

/* Return true if the system grants a large buffer (net.core.rmem_max, wmem_max). Tested on a bare
 * socket, once per process. */
static bool is_buffer_granted(int option)
{
    enum { UNKNOWN, NO, YES };
    static atomic_int known[2];
    atomic_int *answer = &known[option == SO_SNDBUF];
    int now = atomic_load_explicit(answer, memory_order_relaxed), bytes = SOCKET_BUFFER;
    int granted = 0, probe = now ? -1 : socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    socklen_t length = sizeof granted;
    if (probe >= 0) {
        setsockopt(probe, SOL_SOCKET, option, &bytes, sizeof bytes);
        getsockopt(probe, SOL_SOCKET, option, &granted, &length);
        close(probe);
        now = granted >= bytes ? YES : NO;
        atomic_store_explicit(answer, now, memory_order_relaxed);
    }
    return now == YES;
}

/* Give the socket a large buffer from the start. If the system limits the size, request nothing,
 * because its own tuning reaches more. */
static void buffer_enlarge(int fd, int option)
{
    static const int bytes = SOCKET_BUFFER;
    if (is_buffer_granted(option))
        setsockopt(fd, SOL_SOCKET, option, &bytes, sizeof bytes);
}

/* All options but the first only improve the speed, or detect the end of the peer, so errors are
 * ignored: a unix socket may refuse these options. */
void ddl__tcp_socket_prepare(int fd, bool lane)
{
    static const int yes = 1, idle = KEEPALIVE_IDLE_S, each = KEEPALIVE_EACH_S,
                     probes = KEEPALIVE_PROBES, small = LANE_BUFFER;
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &yes, sizeof yes);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &each, sizeof each);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
    buffer_enlarge(fd, SO_RCVBUF);
    if (lane)
        setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &small, sizeof small);
    else
        buffer_enlarge(fd, SO_SNDBUF);
}

/* Create a link. If `buffers` is NULL, allocate them with the link. */
static ddl__tcp_link *link_create(ddl__slots *slots, ddl__tcp_buffers *buffers)
{
    ddl__tcp_link *l = calloc(1, sizeof *l + (buffers ? 0 : sizeof *buffers));
    if (!l) {
        ddl__fail(DDL_ENOMEM, "out of memory for a TCP link");
        return NULL;
    }
    l->buffers = buffers ? buffers : (ddl__tcp_buffers *)(l + 1);
    l->base.reason = l->buffers->reason;
    if (l->buffers->farewell[0]) /* buffers are reused after a link that failed */
        l->buffers->farewell[0] = 0;
    l->base.ops = &tcp_ops;
    l->base.fd = l->fd = -1;
    l->slots = slots;
    l->examined = ddl__now();
    pthread_mutex_init(&l->lock, NULL);
    return l;
}

ddl__link *ddl__tcp_link_create(ddl__slots *slots, int fd, const char *name, ddl__seal *seal)
{
    ddl__tcp_link *l = link_create(slots, NULL);
    if (!l)
        return NULL;
    l->base.fd = l->fd = ddl__guard(fd);
    l->seal = seal;
    snprintf(l->buffers->name, sizeof l->buffers->name, "%s", name);
    ddl__tcp_socket_prepare(fd, false);
    return &l->base;
}

ddl__tcp_buffers *ddl__tcp_buffers_create(size_t n)
{
    return calloc(n, sizeof(ddl__tcp_buffers));
}

ddl__link *ddl__tcp_link_create_unopened(ddl__slots *slots, ddl__tcp_buffers *buffers,
                                         size_t number, void (*ask)(void *context), void *context)
{
    ddl__tcp_link *l = link_create(slots, &buffers[number]);
    if (!l)
        return NULL;
    l->error = ENOTCONN;
    l->arrival.ask = ask;
    l->arrival.context = context;
    return &l->base;
}

/* Use a short send queue. Only a network needs a long one, which covers its delay and the time
 * during which the driver does other work. Between ranks of one machine, a long queue evicts unread
 * data from the caches, and the pages that the kernel will copy to next. */
void ddl__tcp_link_shorten(ddl__link *link)
{
    static const int bytes = NEAR_BUFFER;
    ddl__tcp_link *l = ddl__tcp_of(link);
    pthread_mutex_lock(&l->lock);
    l->near = true;
    if (!l->n_lanes && l->fd >= 0)
        setsockopt(l->fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
    pthread_mutex_unlock(&l->lock);
}

int ddl__tcp_link_socket(const ddl__link *link)
{
    return ((const ddl__tcp_link *)link)->fd;
}

unsigned ddl__tcp_link_lanes(const ddl__link *link)
{
    return ((const ddl__tcp_link *)link)->n_lanes;
}

void ddl__tcp_link_describe(const ddl__link *link, char *text, size_t size)
{
    const ddl__tcp_link *l = (const ddl__tcp_link *)link;
    size_t n = 0;
    text[0] = 0;
    for (unsigned i = 0; i < l->n_lanes || (i == 0 && !l->n_lanes); i++) {
        const char *name = l->n_lanes ? l->lanes[i].name : l->buffers->name;
        if (!strstr(text, name) && n + strlen(name) + 3 < size)
            n += (size_t)snprintf(text + n, size - n, "%s%s", n ? ", " : "", name);
    }
}

/* Add a socket to the epoll set of a link with several sockets, for the same events as the driver
 * watches a link. In the driver's epoll set this set stands for all the sockets; its own events are
 * never read. */
static bool epoll_watch(int epoll, int fd)
{
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET};
    return !epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
}

bool ddl__tcp_link_add_lane(ddl__link *link, int fd, const char *name, ddl__seal *seal)
{
    ddl__tcp_link *l = ddl__tcp_of(link);
    if (!l->lanes && !(l->lanes = calloc(DDL__LANES_MAX, sizeof *l->lanes))) {
        ddl__fail(DDL_ENOMEM, "out of memory for a TCP link's lanes");
        return false;
    }
    if (link->fd == l->fd) {
        int epoll = ddl__guard(epoll_create1(EPOLL_CLOEXEC));
        if (epoll < 0 || !epoll_watch(epoll, l->fd)) {
            ddl__fail(DDL_ESYSTEM,
                      "cannot create the epoll descriptor of a TCP link with several sockets: %s",
                      strerror(errno));
            ddl__close_guarded(epoll);
            return false;
        }
        link->fd = epoll;
    }
    if (l->n_lanes == DDL__LANES_MAX || !epoll_watch(link->fd, fd)) {
        ddl__fail(DDL_ESYSTEM,
                  "cannot add socket %u to a TCP link: too many sockets, or epoll failed",
                  l->n_lanes + 1);
        return false;
    }
    ddl__lane *lane = &l->lanes[l->n_lanes++];
    lane->fd = ddl__guard(fd);
    lane->seal = seal;
    snprintf(lane->name, sizeof lane->name, "%s", name);
    ddl__tcp_socket_prepare(fd, true);
    return true;
}
