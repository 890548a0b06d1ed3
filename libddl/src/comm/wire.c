#include "comm/wire.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/forks.h"

enum { MAGIC = 0x64646c00, WAITING_MAX = 4 * DDL__WORD_MAX };

typedef struct head {
    uint32_t word; /* with the magic in its upper bytes */
    uint32_t bytes;
} head;

static bool reserve(ddl__buffer *b, size_t more)
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

static void add(ddl__buffer *b, const void *bytes, size_t n)
{
    if (n)
        memcpy(b->bytes + b->have, bytes, n);
    b->have += n;
}

static void drop(ddl__buffer *b, size_t n)
{
    b->have -= n;
    memmove(b->bytes, b->bytes + n, b->have);
}

void ddl__wire_open(ddl__wire *wire, int fd, ddl__seal *seal)
{
    struct sockaddr_storage own;
    socklen_t length = sizeof own;
    memset(wire, 0, sizeof *wire);
    wire->local = !getsockname(fd, (struct sockaddr *)&own, &length) && own.ss_family == AF_UNIX;
    wire->seal = seal;
    wire->fd = ddl__guard(fd);
}

void ddl__wire_close(ddl__wire *wire)
{
    ddl__close_guarded(wire->fd);
    wire->fd = -1;
    ddl__seal_destroy(wire->seal);
    wire->seal = NULL;
    free(wire->in.bytes);
    free(wire->out.bytes);
    wire->in = wire->out = (ddl__buffer){NULL, 0, 0};
}

static void end(ddl__wire *wire, int error)
{
    wire->error = error;
    wire->state =
        error == 0 || error == ECONNRESET || error == EPIPE ? DDL__WIRE_ENDED : DDL__WIRE_BROKEN;
}

/* What ends sending is learned by receiving, where something may lie in front of it. */
bool ddl__wire_flush(ddl__wire *wire)
{
    while (wire->out.have && wire->fd >= 0) {
        ssize_t n = ddl__seal_send_bytes(wire->seal, wire->fd, wire->out.bytes, wire->out.have);
        if (n > 0)
            drop(&wire->out, (size_t)n);
        else if (n < 0 && errno != EINTR)
            break;
    }
    return !wire->out.have && (!wire->seal || ddl__seal_flush(wire->seal, wire->fd));
}

bool ddl__wire_send(ddl__wire *wire, ddl__word word, const void *content, size_t bytes)
{
    head h = {MAGIC | (uint32_t)word, (uint32_t)bytes};
    if (wire->fd < 0 || wire->state == DDL__WIRE_ENDED ||
        wire->out.have + sizeof h + bytes > WAITING_MAX || !reserve(&wire->out, sizeof h + bytes))
        return false;
    add(&wire->out, &h, sizeof h);
    add(&wire->out, content, bytes);
    ddl__wire_flush(wire);
    return true;
}

/* Hand on all whole words; false when what came is none. */
static bool parse(ddl__wire *wire, ddl__hear *hear, void *context)
{
    size_t at = 0;
    for (head h; wire->in.have - at >= sizeof h; at += sizeof h + h.bytes) {
        memcpy(&h, wire->in.bytes + at, sizeof h);
        if ((h.word & ~(uint32_t)0xff) != MAGIC || h.bytes > DDL__WORD_MAX)
            return false;
        if (wire->in.have - at - sizeof h < h.bytes)
            break;
        hear(context, (ddl__word)(h.word & 0xff), wire->in.bytes + at + sizeof h, h.bytes);
    }
    drop(&wire->in, at);
    return true;
}

bool ddl__wire_receive(ddl__wire *wire, ddl__hear *hear, void *context)
{
    enum { PIECE = 4096 };
    bool came = false;
    while (wire->fd >= 0 && wire->state == DDL__WIRE_OPEN) {
        if (!reserve(&wire->in, PIECE))
            break; /* later */
        ssize_t n =
            ddl__seal_recv_bytes(wire->seal, wire->fd, wire->in.bytes + wire->in.have, PIECE);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            break;
        if (n <= 0) {
            end(wire, n < 0 ? errno : 0);
            break;
        }
        came = true;
        wire->in.have += (size_t)n;
        if (!parse(wire, hear, context))
            end(wire, EPROTO);
    }
    return came;
}
