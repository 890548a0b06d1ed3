/* tcp.c - links over stream sockets.
 *
 * Design notes
 *
 * Wire. A frame is a 24-byte header (type, length, signature) and its payload: a span, nothing
 * (goodbye) or a reason in words (abort). Bytes are in the host's order; that both ends agree on it
 * and on the version is settled by the handshake before there is a link, and a stream that is out
 * of step is found by the magic in the type.
 *
 * Sending. Frames wait in a ring, each pointing at lent memory or at a slot; the oldest may be half
 * sent. A frame that finds the ring empty goes out at once; flush sends the rest, many frames to a
 * system call. A slot counts the links that have yet to send it and is free again at zero. The last
 * place in the ring is kept for the farewell. A link that was closed or whose sending failed
 * swallows what it is given, so that nobody waits for room on a dead link; what has happened is
 * learned by receiving, where a goodbye, an abort and data may still lie in front of the error.
 *
 * Receiving. `got` counts the bytes of the next frame that have come, header included, and is the
 * whole state. Header and payload are read by one recvmsg, the payload straight into its place, on
 * the assumption that the next frame is the span that is expected; never more, so the stream stays
 * in step. Where the assumption fails the span expected will never come, and its place may hold the
 * first bytes of something else. A header read early by attend waits for its span to be asked for.
 *
 * Edges. A short read or write means that the socket is exhausted and that an event will follow,
 * except for an end of file right behind the data, which came with an event already seen. So after
 * an event the next reads go on until EAGAIN.
 *
 * Locks. `lock` guards the sending half, because any thread may close; it is held for one
 * non-blocking system call at the longest. The receiving half belongs to the driver alone. */
#include "net/tcp.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/forks.h"

enum {
    QUEUE = 64, /* frames waiting on one link, the farewell included */
    BATCH = 16, /* frames to one sendmsg */
    SOCKET_BUFFER = 4 << 20,
    PAGE = 4096
};

/* --------------------------------------------------------------------------------------- frames */

/* "ddl" and a number. */
typedef enum frame_type { SPAN = 0x6c646401, GOODBYE, ABORT } frame_type;

typedef struct header {
    uint32_t type;
    uint32_t bytes; /* of payload */
    ddl__signature signature;
} header;
_Static_assert(sizeof(header) == 24, "the wire format");

typedef struct frame {
    header head;
    const void *payload;
    atomic_uint *users; /* of the slot in which the payload lies; NULL: lent */
} frame;

typedef struct tcp_link {
    ddl__link base;
    ddl__slots *slots;

    pthread_mutex_t lock; /* from here to `farewell` */
    bool closed;          /* nothing more is accepted */
    bool shut;            /* nothing more is sent */
    int error;            /* that ended sending, an errno */
    unsigned oldest, queued;
    size_t sent; /* bytes of the oldest frame */
    frame queue[QUEUE];
    char farewell[256];

    header head; /* of the frame that is coming */
    size_t got;  /* bytes of it that have come */
    bool event;  /* has come since the last EAGAIN */
    void *buffer;
    size_t capacity;
} tcp_link;

static tcp_link *of(ddl__link *link)
{
    return (tcp_link *)link;
}

/* ---------------------------------------------------------------------------------------- slots */

struct ddl__slots {
    size_t bytes; /* of one */
    unsigned n;
    char *memory;
    atomic_uint users[]; /* links that have yet to send slot i */
};

ddl__slots *ddl__slots_create(size_t slot_bytes, unsigned n)
{
    size_t stride = (slot_bytes + PAGE - 1) / PAGE * PAGE;
    ddl__slots *s = calloc(1, sizeof *s + n * sizeof *s->users);
    char *memory = s ? aligned_alloc(PAGE, n * stride) : NULL;
    if (!memory) {
        ddl__fail(DDL_ENOMEM, "out of memory for %u slots of %zu bytes", n, stride);
        free(s);
        return NULL;
    }
    s->bytes = stride;
    s->n = n;
    s->memory = memory;
    return s;
}

void ddl__slots_destroy(ddl__slots *s)
{
    if (!s)
        return;
    free(s->memory);
    free(s);
}

/* A free slot, the lowest because it is the likeliest to be in the cache. */
static void *slot_find(ddl__slots *s)
{
    for (unsigned i = 0; i < s->n; i++)
        if (!atomic_load_explicit(&s->users[i], memory_order_acquire))
            return s->memory + i * s->bytes;
    return NULL;
}

static atomic_uint *slot_users(ddl__slots *s, const void *slot)
{
    return &s->users[(size_t)((const char *)slot - s->memory) / s->bytes];
}

static void slot_leave(atomic_uint *users)
{
    if (users)
        atomic_fetch_sub_explicit(users, 1, memory_order_release);
}

/* -------------------------------------------------------------------------------------- sending */

/* All of this section, but for the operations at its end, with the lock held. */

static frame *queue_at(tcp_link *l, unsigned i)
{
    return &l->queue[(l->oldest + i) % QUEUE];
}

static void queue_append(tcp_link *l, frame_type type, const void *payload, size_t bytes,
                         const ddl__signature *signature, atomic_uint *users)
{
    assert(l->queued < QUEUE && bytes <= UINT32_MAX);
    *queue_at(l, l->queued++) =
        (frame){.head = {type, (uint32_t)bytes, *signature}, .payload = payload, .users = users};
}

/* Forget all frames but the `keep` oldest. */
static void queue_drop(tcp_link *l, unsigned keep)
{
    while (l->queued > keep)
        slot_leave(queue_at(l, --l->queued)->users);
    if (!keep)
        l->sent = 0;
}

static void queue_advance(tcp_link *l, size_t bytes)
{
    l->sent += bytes;
    while (l->queued) {
        frame *f = queue_at(l, 0);
        size_t size = sizeof f->head + f->head.bytes;
        if (l->sent < size)
            return;
        l->sent -= size;
        slot_leave(f->users);
        l->oldest = (l->oldest + 1) % QUEUE;
        l->queued--;
    }
}

/* Add what is left of a piece of memory after *skip bytes, and lower *skip by the piece. */
static void piece_add(struct iovec *pieces, size_t *n, const void *memory, size_t bytes,
                      size_t *skip)
{
    size_t skipped = *skip < bytes ? *skip : bytes;
    *skip -= skipped;
    if (skipped < bytes)
        pieces[(*n)++] = (struct iovec){(char *)(uintptr_t)memory + skipped, bytes - skipped};
}

/* Nothing more will be sent; what waits is dropped. */
static void stop_sending(tcp_link *l)
{
    queue_drop(l, 0);
    l->closed = true;
    if (!l->shut)
        shutdown(l->base.fd, SHUT_WR);
    l->shut = true;
}

/* Send as much as the socket takes. */
static void push(tcp_link *l)
{
    while (l->queued) {
        struct iovec pieces[2 * BATCH];
        struct msghdr message = {.msg_iov = pieces};
        size_t skip = l->sent, bytes = 0;
        for (unsigned i = 0; i < l->queued && i < BATCH; i++) {
            frame *f = queue_at(l, i);
            piece_add(pieces, &message.msg_iovlen, &f->head, sizeof f->head, &skip);
            piece_add(pieces, &message.msg_iovlen, f->payload, f->head.bytes, &skip);
            bytes += sizeof f->head + f->head.bytes;
        }
        bytes -= l->sent;
        ssize_t k = sendmsg(l->base.fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (k >= 0) {
            queue_advance(l, (size_t)k);
            if ((size_t)k < bytes)
                return;
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            return;
        } else if (errno != EINTR) {
            l->error = errno;
            stop_sending(l);
        }
    }
    if (l->closed && !l->shut)
        stop_sending(l);
}

static void look(tcp_link *l);

/* Unlock in the driver's thread. After a failure to send, receive the cause. */
static void unlock(tcp_link *l)
{
    bool failed = l->error;
    pthread_mutex_unlock(&l->lock);
    if (failed)
        look(l);
}

static void send_span(tcp_link *l, const void *payload, size_t bytes,
                      const ddl__signature *signature, atomic_uint *users)
{
    pthread_mutex_lock(&l->lock);
    if (l->closed) {
        slot_leave(users);
    } else {
        queue_append(l, SPAN, payload, bytes, signature, users);
        if (l->queued == 1)
            push(l);
    }
    unlock(l);
}

static bool all_have_room(ddl__link *const *to, unsigned n)
{
    bool room = true;
    for (unsigned i = 0; i < n && room; i++) {
        tcp_link *l = of(to[i]);
        pthread_mutex_lock(&l->lock);
        room = l->queued < QUEUE - 1;
        pthread_mutex_unlock(&l->lock);
    }
    return room;
}

static void *tcp_reserve(ddl__link *const *to, unsigned n, size_t bytes)
{
    ddl__slots *slots = of(to[0])->slots;
    assert(bytes <= slots->bytes);
    (void)bytes;
    return all_have_room(to, n) ? slot_find(slots) : NULL;
}

static void tcp_publish(ddl__link *const *to, unsigned n, void *span, size_t bytes,
                        const ddl__signature *signature)
{
    atomic_uint *users = slot_users(of(to[0])->slots, span);
    atomic_store_explicit(users, n, memory_order_relaxed);
    for (unsigned i = 0; i < n; i++)
        send_span(of(to[i]), span, bytes, signature, users);
}

static bool tcp_lend(ddl__link *const *to, unsigned n, const void *memory, size_t bytes,
                     const ddl__signature *signature)
{
    if (!all_have_room(to, n))
        return false;
    for (unsigned i = 0; i < n; i++)
        send_span(of(to[i]), memory, bytes, signature, NULL);
    return true;
}

static bool tcp_flush(ddl__link *link)
{
    tcp_link *l = of(link);
    pthread_mutex_lock(&l->lock);
    push(l);
    bool empty = !l->queued;
    unlock(l);
    return empty;
}

static bool tcp_owes(const ddl__link *link)
{
    tcp_link *l = of((ddl__link *)(uintptr_t)link);
    pthread_mutex_lock(&l->lock);
    bool waiting = l->queued;
    pthread_mutex_unlock(&l->lock);
    return waiting;
}

/* ------------------------------------------------------------------------------------ receiving */

static void lose(tcp_link *l, const char *reason)
{
    l->base.state = DDL__LINK_LOST;
    snprintf(l->base.reason, sizeof l->base.reason, "%s", reason);
}

/* The stream has ended with an errno, or 0. */
static void lose_stream(tcp_link *l, int error)
{
    if (!error) {
        pthread_mutex_lock(&l->lock);
        error = l->error;
        pthread_mutex_unlock(&l->lock);
    }
    if (error) {
        char text[sizeof l->base.reason];
        errno = error;
        snprintf(text, sizeof text, "%m");
        lose(l, text);
    } else {
        lose(l, l->got ? "the peer closed the connection within a span"
                       : "the peer closed the connection without a goodbye");
    }
}

/* A header has just come, and `extra` bytes behind it to where a span was expected. False when it
 * is not one of ours. The text of a control frame goes to its own place. */
static bool header_accept(tcp_link *l, const void *payload, size_t extra)
{
    uint32_t bytes = l->head.bytes;
    switch ((frame_type)l->head.type) {
    case SPAN: return true;
    case GOODBYE:
    case ABORT:
        if (bytes >= sizeof l->base.reason || (bytes && l->head.type == GOODBYE))
            return false;
        if (extra > bytes)
            extra = bytes;
        if (extra)
            memcpy(l->base.reason, payload, extra);
        l->got = sizeof l->head + extra;
        return true;
    }
    return false;
}

/* What is to be done about the frame that is coming. */
typedef enum progress { MORE, WHOLE, STOP } progress;

/* Compare a known header with the expected span; signature NULL: none is. */
static progress header_match(tcp_link *l, size_t bytes, const ddl__signature *signature)
{
    if (l->head.type == SPAN) {
        if (!signature)
            return STOP;
        if (l->head.bytes != bytes ||
            memcmp(&l->head.signature, signature, sizeof *signature) != 0) {
            l->base.state = DDL__LINK_MISMATCH;
            l->base.found = l->head.signature;
            l->base.found_bytes = l->head.bytes;
            return STOP;
        }
        return l->got == sizeof l->head + bytes ? WHOLE : MORE;
    }
    if (l->got < sizeof l->head + l->head.bytes)
        return MORE;
    l->base.reason[l->head.bytes] = 0;
    l->base.state = l->head.type == GOODBYE ? DDL__LINK_LEFT : DDL__LINK_ABORTED;
    return STOP;
}

/* Receive the next span into `into`; true when it is whole. With signature NULL, only look what
 * comes next. */
static bool receive(tcp_link *l, void *into, size_t bytes, const ddl__signature *signature)
{
    bool exhausted = false;
    while (l->base.state == DDL__LINK_OPEN) {
        if (l->got >= sizeof l->head) {
            progress p = header_match(l, bytes, signature);
            if (p != MORE)
                return p == WHOLE;
            if (l->head.type != SPAN) {
                into = l->base.reason;
                bytes = l->head.bytes;
            }
        }
        if (exhausted && !l->event)
            return false;

        struct iovec pieces[2];
        struct msghdr message = {.msg_iov = pieces};
        size_t skip = l->got;
        piece_add(pieces, &message.msg_iovlen, &l->head, sizeof l->head, &skip);
        piece_add(pieces, &message.msg_iovlen, into, bytes, &skip);
        size_t before = l->got, want = sizeof l->head + bytes - before;
        ssize_t k = recvmsg(l->base.fd, &message, MSG_DONTWAIT);
        if (k > 0) {
            exhausted = (size_t)k < want;
            l->got += (size_t)k;
            if (before < sizeof l->head && l->got >= sizeof l->head &&
                !header_accept(l, into, l->got - sizeof l->head))
                lose(l, "what came is not a libddl frame");
        } else if (k == 0) {
            lose_stream(l, 0);
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            l->event = false;
            return false;
        } else if (errno != EINTR) {
            lose_stream(l, errno);
        }
    }
    return false;
}

/* Look for a farewell or an end. */
static void look(tcp_link *l)
{
    l->event = true;
    receive(l, NULL, 0, NULL);
}

/* While the state is open, a header that has come is that of a span. */
static bool tcp_next(ddl__link *link, ddl__signature *signature, size_t *bytes)
{
    tcp_link *l = of(link);
    receive(l, NULL, 0, NULL);
    if (link->state != DDL__LINK_OPEN || l->got < sizeof l->head || l->head.type != SPAN)
        return false;
    *signature = l->head.signature;
    *bytes = l->head.bytes;
    return true;
}

static const void *tcp_peek(ddl__link *link, size_t bytes, const ddl__signature *signature)
{
    tcp_link *l = of(link);
    if (!l->buffer || l->capacity < bytes) {
        assert(l->got <= sizeof l->head || l->head.type != SPAN);
        free(l->buffer);
        l->capacity = bytes ? (bytes + PAGE - 1) / PAGE * PAGE : PAGE;
        l->buffer = aligned_alloc(PAGE, l->capacity);
        if (!l->buffer) {
            l->capacity = 0;
            if (l->base.state == DDL__LINK_OPEN)
                lose(l, "out of memory for a receive buffer");
            return NULL;
        }
    }
    return receive(l, l->buffer, bytes, signature) ? l->buffer : NULL;
}

static void tcp_release(ddl__link *link)
{
    of(link)->got = 0;
}

static bool tcp_take(ddl__link *link, void *dst, size_t bytes, const ddl__signature *signature)
{
    if (!receive(of(link), dst, bytes, signature))
        return false;
    tcp_release(link);
    return true;
}

static void tcp_attend(ddl__link *link)
{
    look(of(link));
}

static void tcp_sleeping(ddl__link *link, bool asleep)
{
    /* The kernel wakes sleepers without being asked. */
    (void)link, (void)asleep;
}

/* ------------------------------------------------------------------------------ life and death */

/* A goodbye goes behind everything that waits, an abort in front of all but a span that has begun.
 * When that span's end does not fit into the socket now, the abort cannot be told in words: lent
 * memory may be gone in a moment. */
static void tcp_close(ddl__link *link, const char *reason)
{
    static const ddl__signature none;
    tcp_link *l = of(link);
    pthread_mutex_lock(&l->lock);
    if (!l->closed) {
        l->closed = true;
        if (reason) {
            queue_drop(l, l->sent ? 1 : 0);
            snprintf(l->farewell, sizeof l->farewell, "%s", reason);
        }
        queue_append(l, reason ? ABORT : GOODBYE, l->farewell, strlen(l->farewell), &none, NULL);
        push(l);
        if (reason && l->queued && queue_at(l, 0)->head.type == SPAN)
            stop_sending(l);
    }
    pthread_mutex_unlock(&l->lock);
}

static void tcp_destroy(ddl__link *link)
{
    tcp_link *l = of(link);
    tcp_close(link, NULL);
    queue_drop(l, 0);
    /* Closing a socket with something unread, be it the peer's goodbye, resets the connection and
     * discards what we have sent last. */
    char rest[PAGE];
    for (int i = 0; i < SOCKET_BUFFER / PAGE; i++)
        if (recv(link->fd, rest, sizeof rest, MSG_DONTWAIT) <= 0)
            break;
    ddl__close_guarded(link->fd);
    pthread_mutex_destroy(&l->lock);
    free(l->buffer);
    free(l);
}

static const ddl__link_ops tcp_ops = {
    .kind = "tcp",
    .lends = true,
    .shared = false,
    .reserve = tcp_reserve,
    .publish = tcp_publish,
    .lend = tcp_lend,
    .next = tcp_next,
    .peek = tcp_peek,
    .release = tcp_release,
    .take = tcp_take,
    .flush = tcp_flush,
    .owes = tcp_owes,
    .sleeping = tcp_sleeping,
    .attend = tcp_attend,
    .close = tcp_close,
    .destroy = tcp_destroy,
};

/* Give the socket a large buffer from the start. Where the system caps what may be asked for
 * (net.core.rmem_max), its own tuning goes further: then ask for nothing, which a bare socket
 * tells. */
static void buffer_enlarge(int fd, int option)
{
    int bytes = SOCKET_BUFFER, granted = 0;
    socklen_t length = sizeof granted;
    int probe = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (probe < 0)
        return;
    setsockopt(probe, SOL_SOCKET, option, &bytes, sizeof bytes);
    getsockopt(probe, SOL_SOCKET, option, &granted, &length);
    close(probe);
    if (granted >= bytes)
        setsockopt(fd, SOL_SOCKET, option, &bytes, sizeof bytes);
}

ddl__link *ddl__tcp_link_create(ddl__slots *slots, int fd)
{
    tcp_link *l = calloc(1, sizeof *l);
    if (!l) {
        ddl__fail(DDL_ENOMEM, "out of memory for a TCP link");
        return NULL;
    }
    l->base.ops = &tcp_ops;
    l->base.fd = ddl__guard(fd);
    l->slots = slots;
    pthread_mutex_init(&l->lock, NULL);

    /* All but the first are for speed, and may be refused (TCP_NODELAY by a unix socket). */
    const int yes = 1;
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    buffer_enlarge(fd, SO_SNDBUF);
    buffer_enlarge(fd, SO_RCVBUF);
    return &l->base;
}
