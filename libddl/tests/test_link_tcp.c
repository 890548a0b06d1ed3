/* Links over TCP and over unix stream sockets, and what they make of a strange wire. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "link_conformance.h"
#include "net/tcp.h"

enum { SLOTS = 16 };

static void tcp_pair(int fds[2])
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    fds[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(!bind(listener, (struct sockaddr *)&address, length) && !listen(listener, 1) &&
              !getsockname(listener, (struct sockaddr *)&address, &length) &&
              !connect(fds[0], (struct sockaddr *)&address, length),
          "no loopback: %s", strerror(errno));
    fds[1] = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    CHECK(fds[1] >= 0, "%s", strerror(errno));
    close(listener);
}

static void unix_pair(int fds[2])
{
    CHECK(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), "%s", strerror(errno));
}

/* Slots 0 are the centre's. */
static void create(star *s, void (*pair)(int fds[2]))
{
    ddl__slots **slots = calloc(1 + LEAVES, sizeof(ddl__slots *));
    s->own = slots;
    slots[0] = ddl__slots_create(LARGEST, SLOTS);
    for (unsigned i = 0; i < s->leaves; i++) {
        int fds[2];
        pair(fds);
        slots[1 + i] = ddl__slots_create(LARGEST, SLOTS);
        s->centre[i] = ddl__tcp_link_create(slots[0], fds[0]);
        s->leaf[i] = ddl__tcp_link_create(slots[1 + i], fds[1]);
        CHECK(slots[0] && slots[1 + i] && s->centre[i] && s->leaf[i], "%s", ddl__message());
    }
}

static void create_tcp(star *s)
{
    create(s, tcp_pair);
}

static void create_unix(star *s)
{
    create(s, unix_pair);
}

static void destroy(star *s)
{
    ddl__slots **slots = s->own;
    for (unsigned i = 0; i < 1 + LEAVES; i++)
        ddl__slots_destroy(slots[i]);
    free(slots);
}

/* ------------------------------------------------------------------------------------- the wire */

typedef struct wire {
    ddl__slots *slots;
    ddl__link *link;
    int fd; /* the other end, bare */
} wire;

static wire wire_create(void)
{
    int fds[2];
    tcp_pair(fds);
    wire w = {.slots = ddl__slots_create(LARGEST, SLOTS), .fd = fds[1]};
    w.link = ddl__tcp_link_create(w.slots, fds[0]);
    CHECK(w.link, "%s", ddl__message());
    return w;
}

static void wire_destroy(wire *w)
{
    link_destroy(&w->link);
    ddl__slots_destroy(w->slots);
    close(w->fd);
}

/* A frame as it is on the wire; returns its length. Types: 1 span, 2 goodbye, 3 abort. */
static size_t frame_make(unsigned char *to, unsigned type, uint64_t k, uint32_t bytes)
{
    uint32_t words[2] = {0x6c646400 | type, bytes};
    ddl__signature signature = signature_of(k);
    memcpy(to, words, 8);
    memcpy(to + 8, &signature, 16);
    fill(to + 24, bytes, k);
    return 24 + bytes;
}

static void wire_send(const wire *w, const void *memory, size_t bytes)
{
    CHECK(send(w->fd, memory, bytes, MSG_NOSIGNAL) == (ssize_t)bytes, "%s", strerror(errno));
}

/* A frame that comes byte by byte, with or without an event for each. */
static void test_crumbs(bool attend)
{
    wire w = wire_create();
    unsigned char bytes[200], dst[100];
    for (uint64_t k = 0; k < 2; k++) {
        size_t n = frame_make(bytes, 1, k, 100);
        ddl__signature signature = signature_of(k);
        bool whole = false;
        for (size_t i = 0; i < n; i++) {
            CHECK(!whole, "whole after %zu bytes", i);
            wire_send(&w, bytes + i, 1);
            poll(&(struct pollfd){.fd = w.link->fd, .events = POLLIN}, 1, 1000);
            if (attend)
                w.link->ops->attend(w.link);
            whole = k ? w.link->ops->take(w.link, dst, 100, &signature)
                      : w.link->ops->peek(w.link, 100, &signature) != NULL;
        }
        CHECK(whole, "not whole");
        if (k) {
            check_filled(dst, 100, k);
        } else {
            CHECK(peek_span(w.link, k, 100), "not whole");
            w.link->ops->release(w.link);
        }
    }
    size_t n = frame_make(bytes, 3, 0, 100);
    memset(bytes + 24, 'y', 100);
    ddl__signature signature = signature_of(2);
    for (size_t i = 0; i < n; i++) {
        check_open(w.link);
        wire_send(&w, bytes + i, 1);
        poll(&(struct pollfd){.fd = w.link->fd, .events = POLLIN}, 1, 1000);
        if (attend)
            w.link->ops->attend(w.link);
        else
            CHECK(!w.link->ops->take(w.link, dst, 50, &signature), "an abort taken for a span");
    }
    CHECK(w.link->state == DDL__LINK_ABORTED && strlen(w.link->reason) == 100, "state %d: %s",
          w.link->state, w.link->reason);
    wire_destroy(&w);
}

/* Frames that no link sends, and ends in the middle of one. */
static void test_garbage(void)
{
    for (int way = 0; way < 10; way++) {
        wire w = wire_create();
        unsigned char bytes[400];
        static const struct {
            unsigned type;
            uint32_t bytes;
        } cases[] = {{0, 10}, {4, 10}, {1, 0}, {2, 1}, {3, 256}};
        size_t n = frame_make(bytes, cases[way % 5].type, 7, cases[way % 5].bytes);
        wire_send(&w, bytes, n);
        if (way < 5) {
            ddl__signature signature = signature_of(7);
            poll(&(struct pollfd){.fd = w.link->fd, .events = POLLIN}, 1, 1000);
            CHECK(!w.link->ops->peek(w.link, 10, &signature), "garbage accepted");
        }
        check_becomes(w.link, DDL__LINK_LOST);
        CHECK(strstr(w.link->reason, "frame"), "reason %s", w.link->reason);
        wire_destroy(&w);
    }
    for (size_t cut = 1; cut < 124; cut += 61) {
        wire w = wire_create();
        unsigned char bytes[200];
        frame_make(bytes, 1, 7, 100);
        wire_send(&w, bytes, cut);
        close(w.fd);
        w.fd = -1;
        ddl__signature signature = signature_of(7);
        for (int64_t since = ddl__now(); w.link->state == DDL__LINK_OPEN;) {
            CHECK(!w.link->ops->peek(w.link, 100, &signature), "half a span accepted");
            check_time(since, "loss");
        }
        CHECK(w.link->state == DDL__LINK_LOST, "state %d", w.link->state);
        wire_destroy(&w);
    }
}

/* The end of a stream may arrive together with its last bytes: one event for both. */
static void test_end_behind_data(void)
{
    wire w = wire_create();
    unsigned char bytes[200];
    frame_make(bytes, 1, 7, 100);
    wire_send(&w, bytes, 80);
    shutdown(w.fd, SHUT_WR);
    usleep(20000);
    ddl__signature signature = signature_of(7);
    w.link->ops->attend(w.link);
    CHECK(!w.link->ops->peek(w.link, 100, &signature), "half a span accepted");
    CHECK(w.link->state == DDL__LINK_LOST, "the end was not seen");
    wire_destroy(&w);
}

/* A farewell is received even if a reset or our own failure to send comes to light first. */
static void test_farewell_before_reset(void)
{
    for (unsigned type = 2; type <= 3; type++) {
        wire w = wire_create();
        static unsigned char memory[LARGEST];
        unsigned char bytes[100];
        for (uint64_t k = 0; k < 3; k++)
            CHECK(lend_span(&w.link, 1, memory, k, LARGEST), "full");
        frame_make(bytes, 1, 7, 50);
        wire_send(&w, bytes, 74);
        frame_make(bytes, type, 0, 0);
        wire_send(&w, bytes, 24);
        close(w.fd); /* with data unread: a reset */
        w.fd = -1;
        for (uint64_t k = 3; k < 200; k++) { /* a dead link swallows all */
            CHECK(lend_span(&w.link, 1, memory, k, LARGEST), "no room on a dead link");
            flush_soon(w.link);
        }
        read_soon(NULL, w.link, 7, 50);
        check_becomes(w.link, type == 2 ? DDL__LINK_LEFT : DDL__LINK_ABORTED);
        wire_destroy(&w);
    }
}

/* A goodbye waits behind what is queued; an abort overtakes what has not begun. */
static void test_close_when_full(void)
{
    static unsigned char memory[LARGEST];
    for (int abort = 0; abort < 2; abort++) {
        star s = {.leaves = 1};
        create_unix(&s);
        uint64_t sent = 0, received = 0;
        fill(memory, LARGEST, 0);
        while (lend_span(s.centre, 1, memory, sent, LARGEST))
            sent++;
        CHECK(!s.centre[0]->ops->flush(s.centre[0]), "full and flushed at once");
        s.centre[0]->ops->close(s.centre[0], abort ? "stop" : NULL);
        ddl__link_state state = abort ? DDL__LINK_LOST : DDL__LINK_LEFT;
        if (abort) {
            CHECK(s.centre[0]->ops->flush(s.centre[0]), "memory in use after an abort");
            memset(memory, 0, LARGEST);
        }
        static unsigned char dst[LARGEST];
        for (int64_t since = ddl__now(); s.leaf[0]->state == DDL__LINK_OPEN;) {
            ddl__signature signature = signature_of(received);
            s.centre[0]->ops->flush(s.centre[0]);
            received += s.leaf[0]->ops->take(s.leaf[0], dst, LARGEST, &signature);
            check_time(since, "end");
        }
        CHECK(s.leaf[0]->state == state, "state %d: %s", s.leaf[0]->state, s.leaf[0]->reason);
        CHECK(abort ? received < sent : received == sent, "%ju of %ju", (uintmax_t)received,
              (uintmax_t)sent);
        link_destroy(&s.centre[0]);
        link_destroy(&s.leaf[0]);
        destroy(&s);
    }
}

int main(void)
{
    ddl__link_conformance(&(star_factory){create_tcp, destroy});
    ddl__link_conformance(&(star_factory){create_unix, destroy});
    test_crumbs(false);
    test_crumbs(true);
    test_garbage();
    test_end_behind_data();
    test_farewell_before_reset();
    test_close_when_full();
    return 0;
}
