/* SPDX-License-Identifier: Apache-2.0 */
/* tcp_send.c - the sending half of a TCP link.
 *
 * Frames wait in a ring and point to user memory or to a slot; the oldest may be partly sent. A
 * frame is sent at once if the ring is empty. flush sends the waiting frames, many in one system
 * call. A slot counts the links that still have to send it, and is free at zero. The last entry of
 * the ring is reserved for the farewell.
 *
 * A link that is closed, or that has failed to send, discards new frames, so that no caller waits
 * for room on a dead link. The receiving half finds the cause of a failure, because a leave
 * message, an abort or data may have arrived before it. If a lane fails, the first connection is
 * still used for the farewell. */
#include <assert.h>
#include <errno.h>
#include <sys/socket.h>

#include "net/tcp/tcp_link.h"

enum { BATCH = 16 /* frames in one sendmsg */ };

static ddl__tcp_frame *queue_at(ddl__tcp_link *l, unsigned i)
{
    return &l->buffers->frames[(l->oldest + i) % DDL__TCP_QUEUE];
}

/* Return the bytes of the payload that are sent over the first connection. */
static size_t inline_bytes(const ddl__tcp_frame *f)
{
    return f->payload ? f->head.bytes : 0;
}

void ddl__tcp_enqueue(ddl__tcp_link *l, ddl__tcp_type type, const void *payload, size_t bytes,
                      const ddl__signature *signature, atomic_uint *users)
{
    assert(l->queued < DDL__TCP_QUEUE && bytes <= UINT32_MAX);
    bool by_lanes = type == DDL__TCP_SPAN && ddl__tcp_is_long(l, bytes);
    if (by_lanes)
        ddl__lanes_append(l, payload, bytes, users);
    *queue_at(l, l->queued++) = (ddl__tcp_frame){.head = {type, (uint32_t)bytes, *signature},
                                                 .payload = by_lanes || !bytes ? NULL : payload,
                                                 .users = by_lanes ? NULL : users};
}

void ddl__tcp_drop(ddl__tcp_link *l, unsigned keep)
{
    while (l->queued > keep)
        ddl__slot_leave(queue_at(l, --l->queued)->users);
    if (!keep)
        l->sent = 0;
    ddl__lanes_drop(l);
}

static void queue_advance(ddl__tcp_link *l, size_t bytes)
{
    l->sent += bytes;
    while (l->queued) {
        ddl__tcp_frame *f = queue_at(l, 0);
        size_t size = sizeof f->head + inline_bytes(f);
        if (l->sent < size)
            return;
        l->sent -= size;
        ddl__slot_leave(f->users);
        l->oldest = (l->oldest + 1) % DDL__TCP_QUEUE;
        l->queued--;
    }
}

void ddl__tcp_stop(ddl__tcp_link *l)
{
    ddl__tcp_drop(l, 0);
    l->closed = true;
    ddl__seal_drop(l->seal);
    if (!l->shut) {
        shutdown(l->fd, SHUT_WR);
        ddl__lanes_shut(l);
    }
    l->shut = true;
}

/* Fail the link after a send error. A full socket is not an error. */
static void stop_unless_full(ddl__tcp_link *l)
{
    if (errno == EAGAIN || errno == EWOULDBLOCK)
        return;
    if (l->fd < 0) {
        ddl__tcp_ask(l);
        return;
    }
    l->error = errno;
    ddl__tcp_stop(l);
}

/* Send as many frames as the first connection accepts. */
static void push_frames(ddl__tcp_link *l)
{
    while (l->queued) {
        struct iovec pieces[2 * BATCH];
        struct msghdr message = {.msg_iov = pieces};
        size_t skip = l->sent, bytes = 0;
        for (unsigned i = 0; i < l->queued && i < BATCH; i++) {
            ddl__tcp_frame *f = queue_at(l, i);
            size_t payload = inline_bytes(f);
            ddl__piece_add(pieces, &message.msg_iovlen, &f->head, sizeof f->head, &skip);
            ddl__piece_add(pieces, &message.msg_iovlen, f->payload, payload, &skip);
            bytes += sizeof f->head + payload;
        }
        bytes -= l->sent;
        ssize_t k = ddl__seal_send(l->seal, l->fd, &message);
        if (k >= 0) {
            queue_advance(l, (size_t)k);
            if ((size_t)k < bytes)
                return;
        } else if (errno != EINTR) {
            stop_unless_full(l);
            return;
        }
    }
    if (l->seal && !l->shut && !ddl__seal_flush(l->seal, l->fd))
        stop_unless_full(l);
}

void ddl__tcp_push(ddl__tcp_link *l)
{
    push_frames(l);
    if (l->n_long || (l->seal && l->n_lanes))
        ddl__lanes_push(l);
    if (l->closed && !l->shut && !ddl__tcp_waits(l))
        ddl__tcp_stop(l);
}

/* Unlock, in the driver's thread. After a send error, look for its cause in the received data. */
static void unlock(ddl__tcp_link *l)
{
    int error = l->error;
    const char *failed_lane = l->failed_lane;
    pthread_mutex_unlock(&l->lock);
    if (failed_lane)
        ddl__lanes_fail(l, failed_lane, error);
    if (error)
        ddl__tcp_look(&l->base);
}

static void send_span(ddl__tcp_link *l, const void *payload, size_t bytes,
                      const ddl__signature *signature, atomic_uint *users)
{
    pthread_mutex_lock(&l->lock);
    if (l->closed || l->failed_lane) {
        ddl__slot_leave(users);
    } else {
        ddl__tcp_enqueue(l, DDL__TCP_SPAN, payload, bytes, signature, users);
        if (l->queued == 1)
            ddl__tcp_push(l);
    }
    unlock(l);
}

static bool all_have_room(ddl__link *const *to, unsigned n)
{
    bool room = true;
    for (unsigned i = 0; i < n && room; i++) {
        ddl__tcp_link *l = ddl__tcp_of(to[i]);
        pthread_mutex_lock(&l->lock);
        room = l->queued < DDL__TCP_QUEUE - 1 && l->n_long < DDL__TCP_QUEUE;
        pthread_mutex_unlock(&l->lock);
    }
    return room;
}

void *ddl__tcp_reserve(ddl__link *const *to, unsigned n, size_t bytes)
{
    ddl__slots *slots = ddl__tcp_of(to[0])->slots;
    assert(bytes <= ddl__slots_bytes(slots));
    (void)bytes;
    return all_have_room(to, n) ? ddl__slot_find(slots) : NULL;
}

void ddl__tcp_publish(ddl__link *const *to, unsigned n, void *span, size_t bytes,
                      const ddl__signature *signature)
{
    atomic_uint *users = ddl__slot_users(ddl__tcp_of(to[0])->slots, span);
    atomic_store_explicit(users, n, memory_order_relaxed);
    for (unsigned i = 0; i < n; i++)
        send_span(ddl__tcp_of(to[i]), span, bytes, signature, users);
}

bool ddl__tcp_send_user(ddl__link *const *to, unsigned n, const void *memory, size_t bytes,
                        const ddl__signature *signature)
{
    if (!all_have_room(to, n))
        return false;
    for (unsigned i = 0; i < n; i++)
        send_span(ddl__tcp_of(to[i]), memory, bytes, signature, NULL);
    return true;
}

ddl__link_pending ddl__tcp_flush(ddl__link *link)
{
    ddl__tcp_link *l = ddl__tcp_of(link);
    pthread_mutex_lock(&l->lock);
    ddl__tcp_push(l);
    bool empty = !ddl__tcp_waits(l);
    unlock(l);
    return empty ? DDL__LINK_DRAINED : DDL__LINK_SENDING;
}
