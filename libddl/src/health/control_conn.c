/* SPDX-License-Identifier: Apache-2.0 */
#include "health/control_conn.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/forks.h"

enum { MAGIC = 0x64646c00, UNSENT_MAX = 4 * DDL__CONTROL_MSG_MAX };

typedef struct head {
    uint32_t message; /* the kind, with the magic in the upper bytes */
    uint32_t bytes;
} head;

static bool buffer_reserve(ddl__buffer *b, size_t more)
{
    if (b->capacity - b->have >= more)
        return true;
    size_t capacity = 2 * (b->have + more);
    unsigned char *larger = realloc(b->bytes, capacity);
    if (!larger)
        return false;
    b->bytes = larger;
    b->capacity = capacity;
    return true;
}

static void buffer_append(ddl__buffer *b, const void *bytes, size_t n)
{
    if (n)
        memcpy(b->bytes + b->have, bytes, n);
    b->have += n;
}

static void buffer_consume(ddl__buffer *b, size_t n)
{
    b->have -= n;
    memmove(b->bytes, b->bytes + n, b->have);
}

void ddl__control_conn_open(ddl__control_conn *conn, int fd, ddl__seal *seal)
{
    struct sockaddr_storage own;
    socklen_t length = sizeof own;
    memset(conn, 0, sizeof *conn);
    conn->local = !getsockname(fd, (struct sockaddr *)&own, &length) && own.ss_family == AF_UNIX;
    conn->seal = seal;
    conn->fd = ddl__guard(fd);
}

void ddl__control_conn_close(ddl__control_conn *conn)
{
    ddl__close_guarded(conn->fd);
    conn->fd = -1;
    ddl__seal_destroy(conn->seal);
    conn->seal = NULL;
    free(conn->in.bytes);
    free(conn->out.bytes);
    conn->in = conn->out = (ddl__buffer){NULL, 0, 0};
}

static void conn_end(ddl__control_conn *conn, int error)
{
    conn->error = error;
    conn->state = error == 0 || error == ECONNRESET || error == EPIPE ? DDL__CONTROL_CONN_ENDED
                                                                      : DDL__CONTROL_CONN_BROKEN;
}

/* Send errors are ignored: receiving reports them, after the messages that have arrived before. */
bool ddl__control_conn_flush(ddl__control_conn *conn)
{
    while (conn->out.have && conn->fd >= 0) {
        ssize_t n = ddl__seal_send_bytes(conn->seal, conn->fd, conn->out.bytes, conn->out.have);
        if (n > 0)
            buffer_consume(&conn->out, (size_t)n);
        else if (n < 0 && errno != EINTR)
            break;
    }
    return !conn->out.have && (!conn->seal || ddl__seal_flush(conn->seal, conn->fd));
}

bool ddl__control_conn_send(ddl__control_conn *conn, ddl__control_msg message, const void *content,
                            size_t bytes)
{
    head h = {MAGIC | (uint32_t)message, (uint32_t)bytes};
    if (conn->fd < 0 || conn->state == DDL__CONTROL_CONN_ENDED ||
        conn->out.have + sizeof h + bytes > UNSENT_MAX ||
        !buffer_reserve(&conn->out, sizeof h + bytes))
        return false;
    buffer_append(&conn->out, &h, sizeof h);
    buffer_append(&conn->out, content, bytes);
    ddl__control_conn_flush(conn);
    return true;
}

/* Pass all complete messages to `handle`. Return false if the received bytes are not a valid
 * message. */
static bool conn_parse(ddl__control_conn *conn, ddl__control_msg_handler *handle, void *context)
{
    size_t at = 0;
    for (head h; conn->in.have - at >= sizeof h; at += sizeof h + h.bytes) {
        memcpy(&h, conn->in.bytes + at, sizeof h);
        if ((h.message & ~(uint32_t)0xff) != MAGIC || h.bytes > DDL__CONTROL_MSG_MAX)
            return false;
        if (conn->in.have - at - sizeof h < h.bytes)
            break;
        handle(context, (ddl__control_msg)(h.message & 0xff), conn->in.bytes + at + sizeof h,
               h.bytes);
    }
    buffer_consume(&conn->in, at);
    return true;
}

bool ddl__control_conn_receive(ddl__control_conn *conn, ddl__control_msg_handler *handle,
                               void *context)
{
    enum { PIECE = 4096 };
    bool received = false;
    while (conn->fd >= 0 && conn->state == DDL__CONTROL_CONN_OPEN) {
        if (!buffer_reserve(&conn->in, PIECE))
            break; /* retry later */
        ssize_t n =
            ddl__seal_recv_bytes(conn->seal, conn->fd, conn->in.bytes + conn->in.have, PIECE);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            break;
        if (n <= 0) {
            conn_end(conn, n < 0 ? errno : 0);
            break;
        }
        received = true;
        conn->in.have += (size_t)n;
        if (!conn_parse(conn, handle, context))
            conn_end(conn, EPROTO);
    }
    return received;
}
