/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzes a link of three sockets. The peer sends chunks of long spans over its lanes, valid or with
 * altered headers, with any bytes between them, and closes at any moment. A span must be complete
 * when all its chunks have arrived, and not before; an invalid peer ends the link, and nothing
 * else. */
#include <errno.h>
#include <sys/socket.h>
#include <unistd.h>

#include "input.h"
#include "net/tcp/tcp_link.h"

enum { SLOT = 4096, LANES = 2, STEPS_MAX = 400, CHUNK_MAX = 16 << 10, EXTRA_MAX = 64, SOCKETS = 3 };

typedef struct scene {
    input in;
    ddl__slots *slots;
    ddl__link *link;
    int fds[1 + LANES]; /* the peer's ends, raw */
    ddl__link_state before;

    uint64_t announced, dealt, taken; /* numbers of long spans */
    size_t offset;                    /* offset of the next chunk in span `dealt` */
    bool right;                       /* valid so far */
    bool blocked;                     /* a socket is full: nothing more is sent */
    /* the link was asked for a span, and may only be asked for the same again */
    bool begun, by_take;
} scene;

static size_t size_of(uint64_t number)
{
    return DDL__LONG_SPAN + number * 7 % EXTRA_MAX;
}

static ddl__signature signature_of(uint64_t number)
{
    return (ddl__signature){{number, ~number}};
}

static unsigned char byte_of(uint64_t number, size_t i)
{
    return (unsigned char)(number * 31 + i + (i >> 8));
}

/* ------------------------------------------------------------------------------------- the peer */

static void peer_send(scene *s, unsigned socket, const void *bytes, size_t n)
{
    if (s->blocked || !n)
        return;
    ssize_t k = send(s->fds[socket], bytes, n, MSG_DONTWAIT | MSG_NOSIGNAL);
    s->blocked = k != (ssize_t)n;
}

static void announce(scene *s)
{
    ddl__tcp_header head = {DDL__TCP_SPAN, (uint32_t)size_of(s->announced),
                            signature_of(s->announced)};
    peer_send(s, 0, &head, sizeof head);
    s->announced += !s->blocked;
}

/* Send the next chunk, or an altered one. */
static void deal(scene *s, bool alter)
{
    static unsigned char bytes[sizeof(ddl__tcp_header) + CHUNK_MAX];
    unsigned lane = 1 + input_byte(&s->in) % LANES;
    size_t left = size_of(s->dealt) - s->offset, n = 1 + input_length(&s->in, CHUNK_MAX);
    n = n > left ? left : n;
    ddl__tcp_header head = {DDL__TCP_CHUNK, (uint32_t)n, {{s->dealt, s->offset}}};
    for (size_t i = 0; i < n; i++)
        bytes[sizeof head + i] = byte_of(s->dealt, s->offset + i);
    if (alter) {
        ddl__tcp_header was = head;
        input_alter(&s->in, &head, sizeof head);
        s->right = s->right && !memcmp(&was, &head, sizeof head);
    }
    memcpy(bytes, &head, sizeof head);
    peer_send(s, lane, bytes, sizeof head + n);
    if (s->blocked)
        return;
    s->offset += n;
    if (s->offset == size_of(s->dealt)) {
        s->dealt++;
        s->offset = 0;
    }
}

static void say_anything(scene *s)
{
    unsigned char bytes[64];
    unsigned socket = input_byte(&s->in) % SOCKETS;
    peer_send(s, socket, bytes, input_run(&s->in, bytes, input_length(&s->in, sizeof bytes)));
    s->right = false;
}

static void say_farewell(scene *s)
{
    static const char why[] = "enough";
    bool abort = input_byte(&s->in) % 2;
    ddl__tcp_header head = {
        abort ? DDL__TCP_ABORT : DDL__TCP_LEAVE, abort ? sizeof why - 1 : 0, {{0, 0}}};
    peer_send(s, 0, &head, sizeof head);
    peer_send(s, 0, why, head.bytes);
    s->right = false;
}

static void peer_receive(scene *s)
{
    static unsigned char bytes[1 << 16];
    for (int i = 0; i < SOCKETS; i++)
        recv(s->fds[i], bytes, sizeof bytes, MSG_DONTWAIT);
}

/* ------------------------------------------------------------------------------------- the link */

static void check_span(scene *s, const unsigned char *memory)
{
    REQUIRE(!s->right || s->taken < s->announced, "a span that was not announced");
    REQUIRE(!s->right || s->taken < s->dealt, "a span before all of it has come");
    for (size_t i = 0; s->right && i < size_of(s->taken); i++)
        REQUIRE(memory[i] == byte_of(s->taken, i), "span %ju is wrong at %zu", (uintmax_t)s->taken,
                i);
}

static void link_receive(scene *s, bool take)
{
    static unsigned char place[DDL__LONG_SPAN + EXTRA_MAX];
    s->by_take = s->begun ? s->by_take : take;
    s->begun = true;
    ddl__signature signature = signature_of(s->taken);
    size_t bytes = size_of(s->taken);
    if (s->by_take) {
        if (!ddl__link_take(s->link, place, bytes, &signature))
            return;
        check_span(s, place);
    } else {
        const void *span = ddl__link_peek(s->link, bytes, &signature);
        if (!span)
            return;
        check_span(s, span);
        s->link->ops->release(s->link);
    }
    s->begun = false;
    s->taken++;
}

static void send_user(scene *s)
{
    static const unsigned char memory[2 * DDL__LONG_SPAN];
    ddl__signature signature = signature_of(0);
    s->link->ops->send_user(&s->link, 1, memory, input_length(&s->in, sizeof memory), &signature);
}

static void step(scene *s)
{
    ddl__link *link = s->link;
    ddl__signature signature;
    size_t bytes;
    switch (input_byte(&s->in) % 20) {
    case 0:
    case 1:
    case 2: announce(s); break;
    case 3:
    case 4:
    case 5:
    case 6:
    case 7: deal(s, false); break;
    case 8: deal(s, true); break;
    case 9: say_anything(s); break;
    case 10:
    case 11: link_receive(s, true); break;
    case 12:
    case 13: link_receive(s, false); break;
    case 14: link->ops->poll(link); break;
    case 15: link->ops->next(link, &signature, &bytes); break;
    case 16: send_user(s); break;
    case 17: link->ops->flush(link), peer_receive(s); break;
    case 18:
        shutdown(s->fds[input_byte(&s->in) % SOCKETS], SHUT_WR);
        s->blocked = true;
        break;
    default:
        say_farewell(s);
        link->ops->close(link, input_byte(&s->in) % 2 ? "enough" : NULL);
        break;
    }
}

static void check_state(scene *s)
{
    REQUIRE(s->before == DDL__LINK_OPEN || s->before == s->link->state, "state %d after %d",
            s->link->state, s->before);
    REQUIRE(memchr(s->link->reason, 0, DDL__LINK_REASON), "a reason without an end");
    REQUIRE(!s->right || s->blocked || s->link->state == DDL__LINK_OPEN, "%d: %s", s->link->state,
            s->link->reason);
    s->before = s->link->state;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    scene s = {.in = {bytes, n}, .right = true, .slots = ddl__slots_create(SLOT, 1)};
    for (unsigned i = 0; i < SOCKETS; i++) {
        int pair[2];
        REQUIRE(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), "%s", strerror(errno));
        s.fds[i] = pair[1];
        if (!i)
            s.link = ddl__tcp_link_create(s.slots, pair[0], "", NULL);
        REQUIRE(s.link && (!i || ddl__tcp_link_add_lane(s.link, pair[0], "lane", NULL)), "%s",
                ddl__message());
    }
    for (unsigned i = 0; s.in.left && i < STEPS_MAX; i++) {
        step(&s);
        check_state(&s);
    }
    s.link->ops->destroy(s.link);
    for (unsigned i = 0; i < SOCKETS; i++)
        close(s.fds[i]);
    ddl__slots_destroy(s.slots);
    return 0;
}
