/* SPDX-License-Identifier: Apache-2.0 */
/* tcp_receive.c - the receiving half of a TCP link.
 *
 * `got` counts the received bytes of the current frame on the first connection, including its
 * header. It is the whole state of that connection. One recvmsg reads header and payload, assuming
 * that the frame is the expected span: the payload is read directly into the span's destination. It
 * never reads beyond the frame, so the stream stays in step. If the assumption is wrong, the
 * expected span will never arrive, and its destination may contain the first bytes of another
 * frame. A header that poll has read waits until its span is requested.
 *
 * Events are edge-triggered. After a short read or write, the socket is exhausted, and another
 * event will follow. The exception is an end of file directly after the data, because one event
 * reports both. After an event, reads therefore continue until EAGAIN. */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "net/tcp/tcp_link.h"

void ddl__tcp_lose(ddl__tcp_link *l, const char *name, const char *reason)
{
    l->base.state = DDL__LINK_LOST;
    snprintf(l->base.reason, DDL__LINK_REASON, "%s%s%s", name, name[0] ? ": " : "", reason);
}

/* Handle the end of the connection, with an errno or 0. */
static void lose_stream(ddl__tcp_link *l, int error)
{
    if (!error) {
        pthread_mutex_lock(&l->lock);
        error = l->failed_lane ? 0 : l->error;
        pthread_mutex_unlock(&l->lock);
    }
    if (error) {
        char text[128];
        ddl__tcp_lose(l, l->buffers->name, ddl__seal_error(error, text, sizeof text));
    } else {
        ddl__tcp_lose(l, l->buffers->name,
                      l->got ? "the peer closed the connection within a span"
                             : "the peer closed the connection without a leave message");
    }
}

/* If the failure of a lane is due to be reported, and the link is still open, mark the link as
 * lost. Always returns false. */
static bool link_check_loss(ddl__tcp_link *l)
{
    if (l->lost_at && l->base.state == DDL__LINK_OPEN && ddl__now() > l->lost_at)
        ddl__tcp_lose(l, "", l->buffers->lost_why);
    return false;
}

/* Check a received header. `extra` bytes after it are already in the destination of the expected
 * span. Return false if it is not valid. The text of a control frame is moved to its own buffer. */
static bool header_accept(ddl__tcp_link *l, const void *payload, size_t extra)
{
    uint32_t bytes = l->head.bytes;
    switch ((ddl__tcp_type)l->head.type) {
    case DDL__TCP_SPAN: return true;
    case DDL__TCP_LEAVE:
    case DDL__TCP_ABORT:
        if (bytes >= DDL__LINK_REASON || (bytes && l->head.type == DDL__TCP_LEAVE))
            return false;
        if (extra > bytes)
            extra = bytes;
        if (extra)
            memcpy(l->base.reason, payload, extra);
        l->got = sizeof l->head + extra;
        return true;
    case DDL__TCP_CHUNK: return false;
    }
    return false;
}

/* The next step for the current frame. */
typedef enum progress { MORE, WHOLE, STOP } progress;

/* Start the expected long span, whose header was received. */
static progress span_assemble(ddl__tcp_link *l, void *into, size_t bytes)
{
    if (!l->assembling) {
        l->assembling = true;
        l->unplaced = l->missing = bytes;
    }
    return ddl__lanes_receive(l, into, bytes) ? WHOLE : STOP;
}

/* Compare the header with the expected span; signature NULL: none is expected. */
static progress header_match(ddl__tcp_link *l, void *into, size_t bytes,
                             const ddl__signature *signature)
{
    if (l->head.type == DDL__TCP_SPAN) {
        if (!signature)
            return STOP;
        if (l->head.bytes != bytes ||
            memcmp(&l->head.signature, signature, sizeof *signature) != 0) {
            l->base.state = DDL__LINK_MISMATCH;
            l->base.found = l->head.signature;
            l->base.found_bytes = l->head.bytes;
            return STOP;
        }
        if (ddl__tcp_is_long(l, bytes))
            return span_assemble(l, into, bytes);
        return l->got == sizeof l->head + bytes ? WHOLE : MORE;
    }
    if (l->got < sizeof l->head + l->head.bytes)
        return MORE;
    l->base.reason[l->head.bytes] = 0;
    l->base.state = l->head.type == DDL__TCP_LEAVE ? DDL__LINK_LEFT : DDL__LINK_ABORTED;
    return STOP;
}

/* Receive the rest of a frame over the first connection. Returns false if the socket is
 * exhausted. */
static bool frame_read(ddl__tcp_link *l, void *into, size_t bytes)
{
    struct iovec pieces[2];
    struct msghdr message = {.msg_iov = pieces};
    size_t skip = l->got;
    ddl__piece_add(pieces, &message.msg_iovlen, &l->head, sizeof l->head, &skip);
    ddl__piece_add(pieces, &message.msg_iovlen, into, bytes, &skip);
    size_t before = l->got, want = sizeof l->head + bytes - before;
    ssize_t k = ddl__seal_recv(l->seal, l->fd, &message);
    l->base.quiet = false;
    if (k > 0) {
        l->got += (size_t)k;
        if (before < sizeof l->head && l->got >= sizeof l->head &&
            !header_accept(l, into, l->got - sizeof l->head))
            ddl__tcp_lose(l, l->buffers->name, "the received bytes are not a libddl frame");
        return (size_t)k == want || l->event;
    }
    if (k == 0) {
        lose_stream(l, 0);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
        l->event = false;
        l->base.quiet = true;
        return false;
    } else if (l->fd < 0) {
        return ddl__tcp_adopt(l);
    } else if (errno != EINTR) {
        lose_stream(l, errno);
    }
    return true;
}

/* Receive the next span. Return true if it is complete. With signature NULL, only receive the next
 * header. */
static bool span_receive(ddl__tcp_link *l, void *into, size_t bytes,
                         const ddl__signature *signature)
{
    bool more = true;
    while (l->base.state == DDL__LINK_OPEN) {
        void *place = into;
        size_t room = ddl__tcp_is_long(l, bytes) ? 0 : bytes;
        if (l->got >= sizeof l->head) {
            progress p = header_match(l, into, bytes, signature);
            if (p != MORE)
                return p == WHOLE || link_check_loss(l);
            if (l->head.type != DDL__TCP_SPAN) {
                place = l->base.reason;
                room = l->head.bytes;
            }
        }
        if (!more)
            return link_check_loss(l);
        more = frame_read(l, place, room);
    }
    return false;
}

/* Return the number of bytes of the current span that still have to arrive over the first
 * connection. */
static size_t inline_left(const ddl__tcp_link *l)
{
    size_t payload = ddl__tcp_is_long(l, l->head.bytes) ? 0 : l->head.bytes;
    return sizeof l->head + payload - l->got;
}

/* Skip an expected span that will never be complete, and everything up to the farewell that
 * contains the peer's reason. */
static void seek_farewell(ddl__tcp_link *l)
{
    char rest[DDL__TCP_PAGE];
    l->event = true;
    while (l->base.state == DDL__LINK_OPEN) {
        if (l->got < sizeof l->head || l->head.type != DDL__TCP_SPAN) {
            span_receive(l, NULL, 0, NULL);
            if (l->got < sizeof l->head || l->head.type != DDL__TCP_SPAN)
                return;
        }
        size_t left = inline_left(l);
        if (!left) {
            l->got = 0;
            continue;
        }
        ssize_t k =
            ddl__seal_recv_bytes(l->seal, l->fd, rest, left < sizeof rest ? left : sizeof rest);
        if (k > 0) {
            l->got += (size_t)k;
        } else if (k < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            link_check_loss(l);
            return;
        } else if (k == 0 || errno != EINTR) {
            lose_stream(l, k ? errno : 0);
        }
    }
}

void ddl__tcp_look(ddl__link *link)
{
    ddl__tcp_link *l = ddl__tcp_of(link);
    l->event = true;
    link->quiet = false;
    for (unsigned i = 0; i < l->n_lanes; i++)
        l->lanes[i].event = true;
    if (l->broken)
        seek_farewell(l);
    else
        span_receive(l, NULL, 0, NULL);
}

/* While the state is open, a received header belongs to a span. */
bool ddl__tcp_next(ddl__link *link, ddl__signature *signature, size_t *bytes)
{
    ddl__tcp_link *l = ddl__tcp_of(link);
    if (l->broken) {
        seek_farewell(l);
        return false;
    }
    span_receive(l, NULL, 0, NULL);
    if (link->state != DDL__LINK_OPEN || l->got < sizeof l->head || l->head.type != DDL__TCP_SPAN)
        return false;
    *signature = l->head.signature;
    *bytes = l->head.bytes;
    return true;
}

/* Receive the expected span, unless the link is broken. */
static bool span_obtain(ddl__tcp_link *l, void *into, size_t bytes, const ddl__signature *signature)
{
    if (!l->broken && span_receive(l, into, bytes, signature))
        return true;
    if (l->broken)
        seek_farewell(l);
    ddl__tcp_want(&l->base);
    return false;
}

const void *ddl__tcp_peek(ddl__link *link, unsigned ahead, void *into, size_t bytes,
                          const ddl__signature *signature)
{
    ddl__tcp_link *l = ddl__tcp_of(link);
    assert(!ahead);
    (void)ahead;
    if (into)
        return span_obtain(l, into, bytes, signature) ? into : NULL;
    if (!l->buffer || l->capacity < bytes) {
        assert(l->got <= sizeof l->head || l->head.type != DDL__TCP_SPAN);
        free(l->buffer);
        l->capacity =
            bytes ? (bytes + DDL__TCP_PAGE - 1) / DDL__TCP_PAGE * DDL__TCP_PAGE : DDL__TCP_PAGE;
        l->buffer = aligned_alloc(DDL__TCP_PAGE, l->capacity);
        if (!l->buffer) {
            l->capacity = 0;
            if (l->base.state == DDL__LINK_OPEN)
                ddl__tcp_lose(l, "", "out of memory for a receive buffer");
            return NULL;
        }
    }
    return span_obtain(l, l->buffer, bytes, signature) ? l->buffer : NULL;
}

bool ddl__tcp_release(ddl__link *link)
{
    ddl__tcp_link *l = ddl__tcp_of(link);
    l->got = 0;
    l->long_received += l->assembling;
    l->assembling = false;
    return true;
}
