/* SPDX-License-Identifier: Apache-2.0 */
/* Links over TCP and over unix stream sockets, also encrypted, and their reaction to invalid
 * data. */
#include <netinet/in.h>

#include "link_conformance.h"
#include "net/tcp/tcp.h"

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

/* One end of a link: its sockets, starting with the first connection's. */
typedef struct end_of_link {
    const ddl__link *link;
    int fds[SOCKETS];
} end_of_link;

typedef struct tcp_star {
    ddl__slots *slots[1 + LEAVES]; /* the first are the centre's */
    unsigned sockets;
    end_of_link ends[2 * LEAVES];
} tcp_star;

static ddl__crypto *crypto; /* NULL: not encrypted */

/* Each connection has its own keys; the keys of the two ends are swapped. */
static ddl__seal *make_seal(unsigned lane, bool dialed)
{
    if (!crypto)
        return NULL;
    unsigned char keys[2][DDL__KEY];
    memset(keys[0], 1 + (int)lane, DDL__KEY);
    memset(keys[1], 100 + (int)lane, DDL__KEY);
    ddl__seal *s = ddl__seal_create(crypto, keys[dialed], keys[!dialed]);
    CHECK(s, "%s", ddl__message());
    return s;
}

static ddl__link *join(ddl__slots *slots, end_of_link *own, unsigned sockets, bool dialed)
{
    ddl__link *link = ddl__tcp_link_create(slots, own->fds[0], "", make_seal(0, dialed));
    CHECK(link, "%s", ddl__message());
    own->link = link;
    for (unsigned i = 1; i < sockets; i++)
        CHECK(ddl__tcp_link_add_lane(link, own->fds[i], "lane", make_seal(i, dialed)), "%s",
              ddl__message());
    CHECK(ddl__tcp_link_lanes(link) == sockets - 1, "%u lanes", ddl__tcp_link_lanes(link));
    return link;
}

static void create(star *s, void (*pair)(int fds[2]), unsigned sockets)
{
    tcp_star *own = calloc(1, sizeof *own);
    s->own = own;
    own->sockets = sockets;
    for (unsigned i = 0; i <= s->leaves; i++)
        CHECK((own->slots[i] = ddl__slots_create(LARGEST, SLOTS)), "%s", ddl__message());
    for (unsigned i = 0; i < s->leaves; i++) {
        end_of_link *ends = &own->ends[2 * i];
        for (unsigned j = 0; j < sockets; j++) {
            int fds[2];
            pair(fds);
            ends[0].fds[j] = fds[0];
            ends[1].fds[j] = fds[1];
        }
        s->centre[i] = join(own->slots[0], &ends[0], sockets, false);
        s->leaf[i] = join(own->slots[1 + i], &ends[1], sockets, true);
    }
}

static void create_tcp(star *s)
{
    create(s, tcp_pair, 1);
}

static void create_unix(star *s)
{
    create(s, unix_pair, 1);
}

static void create_tcp_lanes(star *s)
{
    create(s, tcp_pair, 4);
}

static void create_unix_lanes(star *s)
{
    create(s, unix_pair, 3);
}

static void destroy(star *s)
{
    tcp_star *own = s->own;
    for (unsigned i = 0; i < 1 + LEAVES; i++)
        ddl__slots_destroy(own->slots[i]);
    free(own);
}

static unsigned sockets(const star *s, const ddl__link *link, int fds[SOCKETS])
{
    const tcp_star *own = s->own;
    for (unsigned i = 0; i < 2 * s->leaves; i++)
        if (own->ends[i].link == link)
            memcpy(fds, own->ends[i].fds, sizeof own->ends[i].fds);
    return own->sockets;
}

/* ------------------------------------------------------------------------------------- the wire */

typedef struct wire {
    ddl__slots *slots;
    ddl__link *link;
    int fd; /* the other end, raw */
} wire;

static wire wire_create(void)
{
    int fds[2];
    tcp_pair(fds);
    wire w = {.slots = ddl__slots_create(LARGEST, SLOTS), .fd = fds[1]};
    w.link = ddl__tcp_link_create(w.slots, fds[0], "", NULL);
    CHECK(w.link, "%s", ddl__message());
    return w;
}

static void wire_destroy(wire *w)
{
    link_destroy(&w->link);
    ddl__slots_destroy(w->slots);
    close(w->fd);
}

/* Write a frame as it is on the wire, and return its length. Types: 1 span, 2 leave, 3 abort. */
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

/* A frame arrives byte by byte, with or without an event for each byte. */
static void test_crumbs(bool poll_first)
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
            if (poll_first)
                w.link->ops->poll(w.link);
            whole = k ? ddl__link_take(w.link, dst, 100, &signature)
                      : ddl__link_peek(w.link, 100, &signature) != NULL;
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
        if (poll_first)
            w.link->ops->poll(w.link);
        else
            CHECK(!ddl__link_take(w.link, dst, 50, &signature), "an abort taken for a span");
    }
    CHECK(w.link->state == DDL__LINK_ABORTED && strlen(w.link->reason) == 100, "state %d: %s",
          w.link->state, w.link->reason);
    wire_destroy(&w);
}

/* Frames that no link sends, and a connection that ends in the middle of one. */
static void test_garbage(void)
{
    for (int way = 0; way < 8; way++) {
        wire w = wire_create();
        unsigned char bytes[400];
        static const struct {
            unsigned type;
            uint32_t bytes;
        } cases[] = {{0, 10}, {4, 10}, {2, 1}, {3, 256}};
        size_t n = frame_make(bytes, cases[way % 4].type, 7, cases[way % 4].bytes);
        wire_send(&w, bytes, n);
        if (way < 4) {
            ddl__signature signature = signature_of(7);
            poll(&(struct pollfd){.fd = w.link->fd, .events = POLLIN}, 1, 1000);
            CHECK(!ddl__link_peek(w.link, 10, &signature), "garbage accepted");
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
            CHECK(!ddl__link_peek(w.link, 100, &signature), "half a span accepted");
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
    w.link->ops->poll(w.link);
    CHECK(!ddl__link_peek(w.link, 100, &signature), "half a span accepted");
    CHECK(w.link->state == DDL__LINK_LOST, "the end was not seen");
    wire_destroy(&w);
}

/* A farewell is received even if a reset or a send error is detected first. */
static void test_farewell_before_reset(void)
{
    for (unsigned type = 2; type <= 3; type++) {
        wire w = wire_create();
        static unsigned char memory[LARGEST];
        unsigned char bytes[100];
        for (uint64_t k = 0; k < 3; k++)
            CHECK(send_span(&w.link, 1, memory, k, LARGEST), "full");
        frame_make(bytes, 1, 7, 50);
        wire_send(&w, bytes, 74);
        frame_make(bytes, type, 0, 0);
        wire_send(&w, bytes, 24);
        close(w.fd); /* with unread data: a reset */
        w.fd = -1;
        for (uint64_t k = 3; k < 200; k++) { /* a dead link discards everything */
            CHECK(send_span(&w.link, 1, memory, k, LARGEST), "no room on a dead link");
            flush_soon(w.link);
        }
        read_soon(NULL, w.link, 7, 50);
        check_becomes(w.link, type == 2 ? DDL__LINK_LEFT : DDL__LINK_ABORTED);
        wire_destroy(&w);
    }
}

/* An abort may arrive where a span was expected, with a text that is longer or shorter than the
 * span, and with any data behind it. */
static void test_abort_for_span(void)
{
    static const size_t expectations[] = {50, 100, 8000};
    static unsigned char bytes[8000], dst[8000];
    for (int i = 0; i < 3; i++) {
        wire w = wire_create();
        size_t n = frame_make(bytes, 3, 0, 100), expected = expectations[i];
        memset(bytes + 24, 'y', 100);
        n += frame_make(bytes + n, 1, 7, 7000);
        wire_send(&w, bytes, n);
        ddl__signature signature = signature_of(7);
        for (int64_t since = ddl__now(); w.link->state == DDL__LINK_OPEN;) {
            CHECK(!ddl__link_take(w.link, dst, expected, &signature), "not a span");
            check_time(since, "abort");
        }
        CHECK(w.link->state == DDL__LINK_ABORTED && strspn(w.link->reason, "y") == 100 &&
                  strlen(w.link->reason) == 100,
              "state %d: %s", w.link->state, w.link->reason);
        wire_destroy(&w);
    }
}

/* A link that only sends also learns of the peer's end. */
static void test_lost_sending(void)
{
    static unsigned char memory[1000];
    wire w = wire_create();
    close(w.fd);
    w.fd = -1;
    int64_t since = ddl__now();
    for (uint64_t k = 0; w.link->state == DDL__LINK_OPEN; k++) {
        CHECK(send_span(&w.link, 1, memory, k, sizeof memory), "full");
        check_time(since, "loss");
    }
    CHECK(w.link->state == DDL__LINK_LOST && w.link->reason[0], "state %d", w.link->state);
    wire_destroy(&w);
}

/* Data in flight still arrives when the link is destroyed with the peer's leave message unread. */
static void test_destroy_unread(void)
{
    static unsigned char memory[800000], dst[sizeof memory + 48];
    wire w = wire_create();
    unsigned char leave[24];
    frame_make(leave, 2, 0, 0);
    wire_send(&w, leave, sizeof leave);
    CHECK(send_span(&w.link, 1, memory, 0, sizeof memory), "full");
    flush_soon(w.link);
    link_destroy(&w.link);
    ssize_t n = recv(w.fd, dst, sizeof dst, MSG_WAITALL);
    CHECK(n == (ssize_t)sizeof dst, "%zd of %zu bytes", n, sizeof dst);
    wire_destroy(&w);
}

/* A span that finds the queue empty is sent without a flush. */
static void test_at_once(void)
{
    static unsigned char memory[1000];
    star s = star_create(&(star_factory){create_tcp, destroy, sockets}, 1);
    for (uint64_t k = 0; k < 10; k += 2) {
        fill(memory, sizeof memory, k);
        CHECK(send_span(s.centre, 1, memory, k, sizeof memory), "full");
        read_soon(NULL, s.leaf[0], k, sizeof memory);
        CHECK(publish_span(s.centre, 1, k + 1, 3000), "full");
        read_soon(NULL, s.leaf[0], k + 1, 3000);
    }
    star_destroy(&s);
}

/* A leave message waits behind queued spans. An abort overtakes spans that have not been started; a
 * started span is finished if there is room for it, else the stream is cut. */
static void test_close_when_full(void)
{
    static unsigned char memory[50000], dst[sizeof memory];
    enum { LEAVE, CUT, FINISH, WAYS };
    static const ddl__link_state state[WAYS] = {DDL__LINK_LEFT, DDL__LINK_LOST, DDL__LINK_ABORTED};
    for (int way = 0; way < WAYS; way++) {
        star s = star_create(&(star_factory){create_unix, destroy, sockets}, 1);
        ddl__link *centre = s.centre[0], *leaf = s.leaf[0];
        uint64_t sent = 0, received = 0;
        while (send_span(&centre, 1, memory, sent, sizeof memory))
            sent++;
        CHECK(!centre->ops->flush(centre), "full and flushed at once");
        for (int64_t since = ddl__now(); way == FINISH && received < 2;) {
            ddl__signature signature = signature_of(received);
            received += ddl__link_take(leaf, dst, sizeof memory, &signature);
            centre->ops->flush(centre);
            check_time(since, "span");
        }
        /* Then room for the rest of the started span. */
        for (bool taken = way == FINISH; taken && received < 4; received += taken) {
            ddl__signature signature = signature_of(received);
            taken = ddl__link_take(leaf, dst, sizeof memory, &signature);
        }
        centre->ops->close(centre, way == LEAVE ? NULL : "stop");
        CHECK(way == LEAVE || centre->ops->flush(centre), "memory in use after an abort");
        for (int64_t since = ddl__now(); leaf->state == DDL__LINK_OPEN;) {
            ddl__signature signature = signature_of(received);
            centre->ops->flush(centre);
            received += ddl__link_take(leaf, dst, sizeof memory, &signature);
            check_time(since, "end");
        }
        CHECK(leaf->state == state[way], "way %d: state %d: %s", way, leaf->state, leaf->reason);
        CHECK(way == LEAVE ? received == sent : received < sent, "%ju of %ju", (uintmax_t)received,
              (uintmax_t)sent);
        star_destroy(&s);
    }
}

/* Spans that a closed link has not sent release their slots. */
static void test_slots_come_back(void)
{
    star s = star_create(&(star_factory){create_unix, destroy, sockets}, 2);
    uint64_t k = 0;
    while (publish_span(s.centre, 2, k, LARGEST))
        k++;
    for (int i = 0; i < 2; i++) {
        CHECK(!publish_span(&s.centre[1], 1, k, LARGEST), "a slot still to be sent was taken");
        s.centre[i]->ops->close(s.centre[i], "stop");
    }
    for (unsigned i = 0; i < 2 * SLOTS; i++)
        CHECK(publish_span(&s.centre[1], 1, k, LARGEST), "slot %u has gone", i);
    star_destroy(&s);
}

/* A link that cannot send on a lane is lost, with the lane's name, and can still send the reason;
 * the peer, whose span will never be complete, receives it behind all announced spans. */
static void test_lane_fails(void)
{
    static unsigned char memory[LARGEST], dst[LARGEST];
    star s = star_create(&(star_factory){create_tcp_lanes, destroy, sockets}, 1);
    ddl__link *centre = s.centre[0], *leaf = s.leaf[0];
    int fds[SOCKETS], null = open("/dev/null", O_RDWR | O_CLOEXEC);
    sockets(&s, centre, fds);
    CHECK(null >= 0 && dup2(null, fds[2]) >= 0, "no /dev/null");
    close(null);
    for (uint64_t k = 0; k < 3; k++)
        CHECK(send_span(&centre, 1, memory, k, LARGEST), "full");
    CHECK(publish_span(&centre, 1, 3, 100), "full");
    for (int64_t since = ddl__now(); centre->state == DDL__LINK_OPEN;) {
        centre->ops->flush(centre);
        check_time(since, "loss");
    }
    CHECK(centre->state == DDL__LINK_LOST && !strncmp(centre->reason, "lane: ", 6), "state %d: %s",
          centre->state, centre->reason);
    centre->ops->close(centre, "a lane has failed");
    for (int64_t since = ddl__now(); leaf->state == DDL__LINK_OPEN;) {
        ddl__signature signature = signature_of(0);
        CHECK(!ddl__link_take(leaf, dst, LARGEST, &signature), "half a span");
        check_time(since, "abort");
    }
    CHECK(leaf->state == DDL__LINK_ABORTED && !strcmp(leaf->reason, "a lane has failed"),
          "state %d: %s", leaf->state, leaf->reason);
    star_destroy(&s);
}

/* A peer that closes a lane without a reason is lost after a while. */
static void test_lane_ends(void)
{
    static unsigned char dst[LARGEST];
    star s = star_create(&(star_factory){create_tcp_lanes, destroy, sockets}, 1);
    ddl__link *leaf = s.leaf[0];
    int fds[SOCKETS];
    unsigned n = sockets(&s, s.centre[0], fds);
    unsigned char head[24];
    uint32_t words[2] = {0x6c646401, LARGEST};
    ddl__signature signature = signature_of(0);
    memcpy(head, words, 8);
    memcpy(head + 8, &signature, 16);
    CHECK(send(fds[0], head, sizeof head, MSG_NOSIGNAL) == sizeof head, "%s", strerror(errno));
    for (unsigned i = 1; i < n; i++)
        shutdown(fds[i], SHUT_WR);
    for (int64_t since = ddl__now(); leaf->state == DDL__LINK_OPEN;) {
        CHECK(!ddl__link_take(leaf, dst, LARGEST, &signature), "a span of nothing");
        check_time(since, "loss");
    }
    CHECK(leaf->state == DDL__LINK_LOST && strstr(leaf->reason, "lane"), "state %d: %s",
          leaf->state, leaf->reason);
    star_destroy(&s);
}

int main(void)
{
    ddl__link_conformance(&(star_factory){create_tcp, destroy, sockets});
    ddl__link_conformance(&(star_factory){create_unix, destroy, sockets});
    ddl__link_conformance(&(star_factory){create_tcp_lanes, destroy, sockets});
    ddl__link_conformance(&(star_factory){create_unix_lanes, destroy, sockets});
    CHECK((crypto = ddl__crypto_open()), "%s", ddl__message());
    ddl__link_conformance(&(star_factory){create_tcp, destroy, sockets});
    ddl__link_conformance(&(star_factory){create_unix_lanes, destroy, sockets});
    ddl__crypto_close(crypto);
    crypto = NULL;
    test_crumbs(false);
    test_crumbs(true);
    test_garbage();
    test_end_behind_data();
    test_farewell_before_reset();
    test_abort_for_span();
    test_lost_sending();
    test_destroy_unread();
    test_at_once();
    test_close_when_full();
    test_slots_come_back();
    test_lane_fails();
    test_lane_ends();
}
