/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzes a link over a stream socket. The peer sends any bytes in any pieces, between any calls of
 * the link's operations. What the link receives must be what was sent. */
#include <errno.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "engine/calls/describe.h"
#include "input.h"
#include "net/tcp/tcp.h"

enum { SLOT = 4096, SLOTS = 2, WIRE_MAX = 1 << 14, SPAN_MAX = 600, STEPS_MAX = 200 };

/* The wire format, defined independently of the library. */
typedef struct frame {
    uint32_t type, bytes;
    ddl__signature signature;
} frame;

enum { SPAN = 0x6c646401, LEAVE, ABORT };

typedef struct scene {
    input in;
    ddl__slots *slots;
    ddl__link *link;
    int fd; /* the peer's end, raw */
    ddl__link_state before;

    unsigned char wire[WIRE_MAX]; /* all bytes that the peer sends */
    size_t written, delivered;    /* bytes of `wire` that are filled, and bytes that are sent */
    size_t at;                    /* start of the next frame */
    uint64_t spans;               /* number of written spans */

    frame heard; /* the last header that the link sent */
    size_t n_heard, payload;
    bool farewell;

    bool wanting; /* the link was asked for this span, and may only be asked for the same again */
    bool taking;  /* asked by take */
    size_t want_bytes;
    ddl__signature want;
    bool held; /* peeked at */
    unsigned char *dst;
} scene;

static ddl__signature signature_of(uint64_t k)
{
    return (ddl__signature){{k << 32 | k % 16 << 16 | k % 16 << 8 | k % 8, ~k}};
}

/* ------------------------------------------------------------------------------------- the peer */

static void write_frame(scene *s, uint32_t type, uint32_t bytes, uint32_t said)
{
    frame head = {type, said, signature_of(s->spans)};
    if (s->written + sizeof head + bytes > sizeof s->wire)
        return;
    memcpy(s->wire + s->written, &head, sizeof head);
    s->written += sizeof head;
    for (uint32_t i = 0; i < bytes; i++)
        s->wire[s->written++] = (unsigned char)(i + s->spans + 1);
    s->spans += type == SPAN;
}

static void write_raw(scene *s)
{
    size_t n = input_length(&s->in, 64);
    if (s->written + n <= sizeof s->wire)
        s->written += input_run(&s->in, s->wire + s->written, n);
}

static void deliver(scene *s, size_t n)
{
    if (n > s->written - s->delivered)
        n = s->written - s->delivered;
    if (!n)
        return;
    ssize_t k = send(s->fd, s->wire + s->delivered, n, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (k > 0)
        s->delivered += (size_t)k;
}

/* Check what the link sends: whole frames, and nothing after a farewell. */
static void peer_receive_byte(scene *s, unsigned char byte)
{
    REQUIRE(!s->farewell || s->payload, "something behind a farewell");
    if (s->payload) {
        s->payload--;
        return;
    }
    ((unsigned char *)&s->heard)[s->n_heard++] = byte;
    if (s->n_heard < sizeof s->heard)
        return;
    REQUIRE(s->heard.type >= SPAN && s->heard.type <= ABORT && s->heard.bytes <= SLOT,
            "out of step: type %x, %u bytes", s->heard.type, s->heard.bytes);
    s->n_heard = 0;
    s->payload = s->heard.bytes;
    s->farewell = s->heard.type != SPAN;
}

static void peer_receive(scene *s)
{
    unsigned char bytes[1000];
    ssize_t n = recv(s->fd, bytes, sizeof bytes, MSG_DONTWAIT);
    REQUIRE(n >= 0 || errno == EAGAIN || errno == ECONNRESET, "%s", strerror(errno));
    for (ssize_t i = 0; i < n; i++)
        peer_receive_byte(s, bytes[i]);
}

/* ------------------------------------------------------------------------------------- the link */

/* Return the frame at `at`, if its header has arrived. */
static bool next_frame(const scene *s, frame *head, const unsigned char **payload)
{
    if (s->delivered - s->at < sizeof *head)
        return false;
    memcpy(head, s->wire + s->at, sizeof *head);
    *payload = s->wire + s->at + sizeof *head;
    return true;
}

/* Choose a span to request: mostly the next one, as a peer's program would. */
static void want(scene *s)
{
    if (s->wanting)
        return;
    frame head = {0};
    s->wanting = true;
    s->want_bytes = 1 + input_length(&s->in, SPAN_MAX);
    s->want = signature_of(s->spans);
    if (s->at + sizeof head <= s->written)
        memcpy(&head, s->wire + s->at, sizeof head);
    unsigned how = input_byte(&s->in);
    s->taking = how & 8;
    how %= 8;
    if (head.bytes && head.bytes <= SPAN_MAX) {
        if (how != 1)
            s->want_bytes = head.bytes;
        s->want = head.signature;
        if (how == 2)
            s->want.words[0]++;
        if (how == 3)
            s->want.words[1]++;
    }
    free(s->dst);
    s->dst = malloc(s->want_bytes);
    REQUIRE(s->dst, "no memory");
}

/* Check that the received span is the requested one, and the one that was sent. */
static void check_span(const scene *s, const void *memory)
{
    frame head;
    const unsigned char *payload;
    REQUIRE(next_frame(s, &head, &payload), "a span without a header");
    REQUIRE(head.type == SPAN && head.bytes == s->want_bytes &&
                !memcmp(&head.signature, &s->want, sizeof s->want),
            "type %x, %u bytes", head.type, head.bytes);
    REQUIRE(s->delivered - s->at >= sizeof head + head.bytes, "a span before its end has come");
    REQUIRE(!memcmp(memory, payload, head.bytes), "not the span that came");
}

static void span_done(scene *s)
{
    s->at += sizeof(frame) + s->want_bytes;
    s->wanting = s->held = false;
}

static void peek(scene *s)
{
    const void *span = ddl__link_peek(s->link, s->want_bytes, &s->want);
    REQUIRE(span || !s->held, "a span peeked at has gone");
    s->held = span;
    if (span)
        check_span(s, span);
}

static void take(scene *s)
{
    if (!ddl__link_take(s->link, s->dst, s->want_bytes, &s->want))
        return;
    check_span(s, s->dst);
    span_done(s);
}

/* Check the state: once not open, it must not change, and it must follow from the next frame. */
static void check_state(scene *s)
{
    const ddl__link *link = s->link;
    frame head = {0};
    const unsigned char *payload = NULL;
    bool known = next_frame(s, &head, &payload);
    REQUIRE(s->before == DDL__LINK_OPEN || s->before == link->state, "state %d after %d",
            link->state, s->before);
    s->before = link->state;
    REQUIRE(memchr(link->reason, 0, DDL__LINK_REASON), "a reason without an end");
    switch (link->state) {
    case DDL__LINK_OPEN: return;
    case DDL__LINK_MISMATCH:
        REQUIRE(known && head.type == SPAN && s->wanting && link->found_bytes == head.bytes &&
                    !memcmp(&link->found, &head.signature, sizeof link->found),
                "a mismatch with what did not come");
        REQUIRE(head.bytes != s->want_bytes || memcmp(&head.signature, &s->want, sizeof s->want),
                "a mismatch with what was wanted");
        char text[DDL__CALL_MAX];
        ddl__describe_signature(text, sizeof text, &link->found);
        return;
    case DDL__LINK_LEFT:
        REQUIRE(known && head.type == LEAVE && !head.bytes, "a side left without a leave message");
        return;
    case DDL__LINK_ABORTED:
        REQUIRE(known && head.type == ABORT && head.bytes < DDL__LINK_REASON &&
                    s->delivered - s->at >= sizeof head + head.bytes &&
                    !memcmp(link->reason, payload, head.bytes),
                "aborted for another reason");
        return;
    case DDL__LINK_LOST: REQUIRE(link->reason[0], "lost without a reason"); return;
    }
}

static void link_receive(scene *s)
{
    want(s);
    if (s->taking)
        take(s);
    else
        peek(s);
}

/* Check that the next span that the link reports is the one on the wire, with or without its
 * end. */
static void link_check_next(scene *s)
{
    frame head;
    const unsigned char *payload;
    ddl__signature signature;
    size_t bytes;
    if (!s->link->ops->next(s->link, &signature, &bytes))
        return;
    REQUIRE(next_frame(s, &head, &payload), "a span without a header");
    REQUIRE(head.type == SPAN && head.bytes == bytes &&
                !memcmp(&head.signature, &signature, sizeof signature),
            "type %x, %u bytes", head.type, head.bytes);
}

static void send_span(scene *s, bool user_memory)
{
    static const unsigned char memory[SLOT];
    ddl__signature signature = signature_of(0);
    size_t bytes = 1 + input_length(&s->in, SLOT);
    if (user_memory) {
        s->link->ops->send_user(&s->link, 1, memory, bytes, &signature);
        return;
    }
    void *span = s->link->ops->reserve(&s->link, 1, bytes);
    if (!span)
        return;
    memset(span, 1, bytes);
    s->link->ops->publish(&s->link, 1, span, bytes, &signature);
}

static void step(scene *s)
{
    ddl__link *link = s->link;
    switch (input_byte(&s->in) % 19) {
    case 0: write_raw(s); break;
    case 1: {
        uint32_t bytes = 1 + (uint32_t)input_length(&s->in, SPAN_MAX);
        write_frame(s, SPAN, bytes, bytes);
        break;
    }
    case 2: write_frame(s, LEAVE, 0, 0); break;
    case 3: {
        uint32_t bytes = (uint32_t)input_length(&s->in, 300);
        write_frame(s, ABORT, bytes, bytes);
        break;
    }
    case 4: write_frame(s, SPAN + input_byte(&s->in) % 4, 4, input_word(&s->in)); break;
    case 5: deliver(s, 1 + input_byte(&s->in)); break;
    case 6: deliver(s, sizeof s->wire); break;
    case 7:
    case 8: link_receive(s); break;
    case 9:
        if (s->held) {
            link->ops->release(link);
            span_done(s);
        }
        break;
    case 10: link->ops->poll(link); break;
    case 11: send_span(s, false); break;
    case 12: send_span(s, true); break;
    case 13: link->ops->flush(link); break;
    case 14: link->ops->close(link, input_byte(&s->in) % 2 ? "enough" : NULL); break;
    case 15: peer_receive(s); break;
    case 16: shutdown(s->fd, input_byte(&s->in) % 2 ? SHUT_WR : SHUT_RDWR); break;
    case 17: link_check_next(s); break;
    default:
        link->ops->sleeping(link, true);
        link->ops->flush(link);
        break;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    static scene s; /* static because it is large for valgrind and the stack */
    memset(&s, 0, sizeof s);
    s.in = (input){bytes, n};
    int fds[2];
    REQUIRE(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), "%s", strerror(errno));
    s.fd = fds[1];
    s.slots = ddl__slots_create(SLOT, SLOTS);
    s.link = ddl__tcp_link_create(s.slots, fds[0], "", NULL);
    REQUIRE(s.slots && s.link, "%s", ddl__message());
    /* The smallest buffer, so that spans wait. */
    REQUIRE(!setsockopt(s.link->fd, SOL_SOCKET, SO_SNDBUF, &(int){1}, sizeof(int)), "%s",
            strerror(errno));
    for (unsigned i = 0; s.in.left && i < STEPS_MAX; i++) {
        step(&s);
        check_state(&s);
    }
    s.link->ops->destroy(s.link);
    close(s.fd);
    ddl__slots_destroy(s.slots);
    free(s.dst);
    return 0;
}
