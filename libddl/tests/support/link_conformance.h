/* SPDX-License-Identifier: Apache-2.0 */
/* link_conformance.h - the requirements on every kind of link. A test program supplies a factory of
 * stars (a centre joined to a few leaves) and calls ddl__link_conformance. */
#ifndef DDL_TESTS_LINK_CONFORMANCE_H
#define DDL_TESTS_LINK_CONFORMANCE_H

#include "link_star.h"

/* ----------------------------------------------------------------------------------- streams */

/* A stream of spans 0 to `total` from one end to the other, each side driven by calls that do not
 * block. */
typedef struct stream {
    ddl__link *to, *from;
    uint64_t total, sent, received;
    unsigned char *user, *scratch;
    size_t used; /* bytes of `user` that must not change */
} stream;

enum { LENT = 2 * LARGEST, LONG_STREAM = SANITIZED ? 1000 : 3000 /* spans */ };

static stream stream_create(ddl__link *to, ddl__link *from, uint64_t total)
{
    return (stream){to, from, total, 0, 0, malloc(LENT), malloc(LARGEST + 8), 0};
}

static void stream_destroy(stream *s)
{
    free(s->user);
    free(s->scratch);
}

static bool stream_send(stream *s)
{
    uint64_t k = s->sent;
    size_t bytes = size_of(k);
    bool flushed = s->to->ops->flush(s->to), sent = false;
    if (k == s->total)
        return false;
    if (k % 2) {
        sent = publish_span(&s->to, 1, k, bytes);
    } else {
        if (flushed) {
            memset(s->user, 0xee, s->used); /* the link no longer uses it: overwrite it */
            s->used = 0;
        }
        if (s->used + bytes > LENT)
            return false;
        fill(s->user + s->used, bytes, k);
        sent = send_span(&s->to, 1, s->user + s->used, k, bytes);
        if (sent)
            s->used += bytes;
    }
    s->sent += sent;
    return sent;
}

static bool stream_receive(stream *s)
{
    if (s->received == s->total ||
        !read_span(s->from, s->received, size_of(s->received), s->scratch))
        return false;
    s->received++;
    return true;
}

static void test_both_ways(const star_factory *factory)
{
    star s = star_create(factory, 1);
    stream out = stream_create(s.centre[0], s.leaf[0], LONG_STREAM);
    stream in = stream_create(s.leaf[0], s.centre[0], LONG_STREAM);
    int64_t since = ddl__now();
    for (unsigned turn = 0; out.received < out.total || in.received < in.total; turn++) {
        stream_send(&out);
        stream_send(&in);
        /* Readers that pause let the senders run full. */
        if (turn % 512 < 256)
            stream_receive(&out);
        if (turn % 1024 < 512)
            stream_receive(&in);
        /* Events for which no one waits change nothing. */
        if (turn % 7 == 0)
            s.leaf[0]->ops->poll(s.leaf[0]);
        check_open(s.centre[0]);
        check_open(s.leaf[0]);
        check_time(since, "end");
    }
    stream_destroy(&out);
    stream_destroy(&in);
    star_destroy(&s);
}

/* One end, driven by one thread: it sends one stream and receives the other. */
typedef struct end {
    stream *out, *in;
    bool sleeps;
} end;

static bool end_step(end *e, bool *done)
{
    bool sent = stream_send(e->out), received = stream_receive(e->in);
    *done = e->out->sent == e->out->total && e->in->received == e->in->total &&
            e->out->to->ops->flush(e->out->to);
    check_open(e->out->to);
    return sent || received || *done;
}

static void *end_drive(void *argument)
{
    end *e = argument;
    ddl__link *link = e->out->to;
    int epoll = epoll_on(link);
    for (bool done = false; !done;) {
        if (end_step(e, &done))
            continue;
        if (!e->sleeps) {
            sched_yield();
            continue;
        }
        announce_sleep(link);
        bool idle = !end_step(e, &done);
        if (idle)
            sleep_on(epoll);
        link->ops->sleeping(link, false);
        if (idle)
            link->ops->poll(link);
    }
    close(epoll);
    return NULL;
}

/* Send `there` spans from the centre and `back` from the leaf. If nothing is sent back, only a
 * release wakes a sender that sleeps for lack of room. */
static void test_threads(const star_factory *factory, uint64_t there, uint64_t back, bool sleeps)
{
    star s = star_create(factory, 1);
    stream out = stream_create(s.centre[0], s.leaf[0], there);
    stream in = stream_create(s.leaf[0], s.centre[0], back);
    end centre = {&out, &in, sleeps}, leaf = {&in, &out, sleeps};
    pthread_t thread;
    CHECK(!pthread_create(&thread, NULL, end_drive, &leaf), "no thread");
    end_drive(&centre);
    pthread_join(thread, NULL);
    stream_destroy(&out);
    stream_destroy(&in);
    star_destroy(&s);
}

/* Closing from another thread stops a stream, and the other end learns of it. */
static void *close_soon(void *link)
{
    usleep(2000);
    ((ddl__link *)link)->ops->close(link, "enough");
    return NULL;
}

static void test_close_from_thread(const star_factory *factory)
{
    star s = star_create(factory, 1);
    stream out = stream_create(s.centre[0], s.leaf[0], UINT64_MAX);
    pthread_t threads[2];
    for (int i = 0; i < 2; i++)
        CHECK(!pthread_create(&threads[i], NULL, close_soon, s.centre[0]), "no thread");
    for (int64_t since = ddl__now(); s.leaf[0]->state == DDL__LINK_OPEN;) {
        stream_send(&out);
        stream_receive(&out);
        s.leaf[0]->ops->poll(s.leaf[0]);
        check_time(since, "abort");
    }
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    /* A span that was in progress may have to be cut off. */
    CHECK(s.leaf[0]->state == DDL__LINK_LOST || !strcmp(s.leaf[0]->reason, "enough"),
          "state %d: %s", s.leaf[0]->state, s.leaf[0]->reason);
    flush_soon(s.centre[0]);
    stream_destroy(&out);
    star_destroy(&s);
}

/* ------------------------------------------------------------------------- spans and readers */

/* Send each size alone: published or sent from an odd address, peeked at or taken. */
static void test_sizes(const star_factory *factory)
{
    static unsigned char memory[LARGEST + 1];
    star s = star_create(factory, 1);
    uint64_t k = 0;
    for (size_t bytes = 0; bytes <= LARGEST; bytes = bytes < 70 ? bytes + 1 : bytes * 3 / 2)
        for (int way = 0; way < 6; way++, k++) {
            fill(memory + 1, bytes, k);
            CHECK(way % 2 ? send_span(s.centre, 1, memory + 1, k, bytes)
                          : publish_span(s.centre, 1, k, bytes),
                  "an empty link has no room for %zu bytes", bytes);
            read_soon(s.centre[0], s.leaf[0], k, bytes);
            flush_soon(s.centre[0]);
        }
    star_destroy(&s);
}

/* A check for the next span consumes nothing, and sees all that was sent before the end. */
static void test_next(const star_factory *factory)
{
    static unsigned char scratch[LARGEST + 8];
    star s = star_create(factory, 1);
    ddl__link *to = s.centre[0], *from = s.leaf[0];
    enum { SPANS = 6 };
    static const size_t sizes[SPANS] = {0, 5, 0, 70000, 33, 0};
    CHECK(!span_is_next(from, 0, 0), "something on an empty link");
    for (uint64_t k = 0; k < SPANS; k++)
        CHECK(publish_span(&to, 1, k, sizes[k]), "full");
    flush_soon(to);
    to->ops->close(to, NULL);
    for (uint64_t k = 0; k < SPANS; k++) {
        for (int64_t since = ddl__now(); !span_is_next(from, k, sizes[k]);)
            check_time(since, "span");
        CHECK(span_is_next(from, k, sizes[k]), "looking consumes");
        for (int64_t since = ddl__now(); !read_span(from, k, sizes[k], scratch);)
            check_time(since, "span");
    }
    CHECK(!span_is_next(from, SPANS, 0), "something behind the last");
    star_destroy(&s);
}

/* A full link refuses spans, and takes more once the reader has made room; nothing is lost. */
static void test_full(const star_factory *factory, bool user)
{
    static unsigned char memory[LARGEST], scratch[LARGEST + 8];
    star s = star_create(factory, 1);
    ddl__link *to = s.centre[0], *from = s.leaf[0];
    uint64_t sent = 0, received = 0;
    const size_t bytes = 50001;
    fill(memory, bytes, 0);
    for (int round = 0; round < 3; round++) {
        while (user ? send_span(&to, 1, memory, sent, bytes) : publish_span(&to, 1, sent, bytes))
            CHECK(++sent < 100000, "never full");
        CHECK(sent > received, "full and empty at once");
        for (uint64_t half = (sent + received + 1) / 2; received < half; received++) {
            if (!user) {
                read_soon(to, from, received, bytes);
                continue;
            }
            ddl__signature signature = signature_of(received);
            for (int64_t since = ddl__now(); !ddl__link_take(from, scratch, bytes, &signature);) {
                to->ops->flush(to);
                check_time(since, "span");
            }
            check_filled(scratch, bytes, 0);
        }
        for (int64_t since = ddl__now(); !(user ? send_span(&to, 1, memory, sent, bytes)
                                                : publish_span(&to, 1, sent, bytes));) {
            to->ops->flush(to);
            check_time(since, "room");
        }
        sent++;
    }
    star_destroy(&s);
}

/* Return true if span k goes to this leaf: to all, to the second, or to the others. */
static bool is_target(unsigned leaf, uint64_t k)
{
    return k % 4 < 2 || (k % 4 == 2) == (leaf == 1);
}

static unsigned targets_of(const star *s, uint64_t k, ddl__link **to)
{
    unsigned n = 0;
    for (unsigned i = 0; i < s->leaves; i++)
        if (is_target(i, k))
            to[n++] = s->centre[i];
    return n;
}

/* Several readers of one span each hold it for any time. */
static void test_readers(const star_factory *factory)
{
    star s = star_create(factory, LEAVES);
    const uint64_t total = LONG_STREAM / 2;
    uint64_t sent = 0, next[LEAVES] = {0};
    bool held[LEAVES] = {false};
    int64_t since = ddl__now();
    for (unsigned turn = 0; next[0] < total || next[1] < total || next[2] < total; turn++) {
        ddl__link *to[LEAVES];
        unsigned n = targets_of(&s, sent, to);
        sent += sent < total && publish_span(to, n, sent, size_of(sent));
        for (unsigned i = 0; i < LEAVES; i++) {
            ddl__link *leaf = s.leaf[i];
            s.centre[i]->ops->flush(s.centre[i]);
            check_open(leaf);
            while (next[i] < total && !is_target(i, next[i]))
                next[i]++;
            /* The last reader pauses for so long that the centre must wait for it. */
            if (next[i] == total || (i == 2 && turn % 4096 < 2048))
                continue;
            if (held[i] && mixed(turn) % (2 + i) == 0) {
                CHECK(peek_span(leaf, next[i], size_of(next[i])), "a span held has gone");
                leaf->ops->release(leaf);
                held[i] = false;
                next[i]++;
            } else if (!held[i]) {
                held[i] = peek_span(leaf, next[i], size_of(next[i]));
            }
        }
        check_time(since, "end");
    }
    star_destroy(&s);
}

typedef struct reader {
    ddl__link *leaf;
    unsigned number;
    uint64_t total;
} reader;

static void *reader_run(void *argument)
{
    reader *r = argument;
    unsigned char *scratch = malloc(LARGEST + 8);
    for (uint64_t k = 0; k < r->total; k++)
        while (is_target(r->number, k) && !read_span(r->leaf, k, size_of(k), scratch)) {
            check_open(r->leaf);
            sched_yield();
        }
    free(scratch);
    return NULL;
}

static void test_readers_threaded(const star_factory *factory)
{
    star s = star_create(factory, LEAVES);
    const uint64_t total = LONG_STREAM;
    reader readers[LEAVES];
    pthread_t threads[LEAVES];
    for (unsigned i = 0; i < LEAVES; i++) {
        readers[i] = (reader){s.leaf[i], i, total};
        CHECK(!pthread_create(&threads[i], NULL, reader_run, &readers[i]), "no thread");
    }
    for (uint64_t sent = 0; sent < total;) {
        ddl__link *to[LEAVES];
        unsigned n = targets_of(&s, sent, to);
        bool more = publish_span(to, n, sent, size_of(sent));
        sent += more;
        for (unsigned i = 0; i < LEAVES; i++)
            s.centre[i]->ops->flush(s.centre[i]);
        if (!more)
            sched_yield();
    }
    for (unsigned i = 0; i < LEAVES; i++) {
        while (!s.centre[i]->ops->flush(s.centre[i]))
            sched_yield();
        pthread_join(threads[i], NULL);
    }
    star_destroy(&s);
}

/* ---------------------------------------------------------------------------------- sleeping */

enum { ROUNDS = LONG_STREAM * 2 / 3 };

/* Wait for span k like a driver that has nothing else to do. */
static void read_asleep(ddl__link *link, int epoll, uint64_t k, size_t bytes,
                        unsigned char *scratch)
{
    while (!read_span(link, k, bytes, scratch)) {
        link->ops->flush(link);
        announce_sleep(link);
        bool read = link->ops->flush(link) && read_span(link, k, bytes, scratch);
        if (!read)
            sleep_on(epoll);
        link->ops->sleeping(link, false);
        if (read)
            return;
        link->ops->poll(link);
    }
}

static void ping_pong(ddl__link *link, bool first)
{
    unsigned char *scratch = malloc(LARGEST + 8);
    int epoll = epoll_on(link);
    for (uint64_t k = 0; k < ROUNDS; k++) {
        if (!first)
            read_asleep(link, epoll, k, size_of(k), scratch);
        CHECK(publish_span(&link, 1, k, size_of(k)), "no room for a single span");
        if (first)
            read_asleep(link, epoll, k, size_of(k), scratch);
        check_open(link);
    }
    while (!link->ops->flush(link))
        sched_yield();
    close(epoll);
    free(scratch);
}

static void *pong(void *link)
{
    ping_pong(link, false);
    return NULL;
}

static void test_sleep(const star_factory *factory)
{
    star s = star_create(factory, 1);
    pthread_t thread;
    CHECK(!pthread_create(&thread, NULL, pong, s.leaf[0]), "no thread");
    ping_pong(s.centre[0], true);
    pthread_join(thread, NULL);
    star_destroy(&s);
}

static bool rings(const ddl__link *link)
{
    struct pollfd p = {.fd = link->fd, .events = POLLIN};
    return poll(&p, 1, 0) > 0;
}

static void wake_up(ddl__link *link)
{
    link->ops->sleeping(link, false);
    link->ops->poll(link);
    CHECK(!rings(link), "the bell still rings");
}

static void publish_all(ddl__link *link, uint64_t *sent, size_t bytes)
{
    while (publish_span(&link, 1, *sent, bytes))
        ++*sent;
    CHECK(!rings(link), "the bell rings although its driver is awake");
}

/* A release wakes a sleeper that found no room or unreleased spans, and no other one. */
static void check_wakes(const star_factory *factory, size_t bytes)
{
    star s = star_create(factory, 1);
    ddl__link *sleeper = s.centre[0], *peer = s.leaf[0];
    uint64_t sent = 0, read = 0, answers = 0;
    CHECK(publish_span(&sleeper, 1, sent++, bytes), "no room for a single span");
    announce_sleep(sleeper);
    read_soon(NULL, peer, read++, bytes);
    CHECK(!rings(sleeper), "a release woke a sleeper that waits for a span");
    CHECK(publish_span(&peer, 1, answers++, bytes), "no room for a single span");
    CHECK(rings(sleeper), "a span did not wake a sleeper");
    wake_up(sleeper);

    publish_all(sleeper, &sent, bytes);
    announce_sleep(sleeper);
    CHECK(!rings(sleeper), "an announced event is announced again");
    read_soon(NULL, peer, read++, bytes);
    CHECK(rings(sleeper), "a release did not wake a sleeper that waits for room");
    wake_up(sleeper);

    publish_all(sleeper, &sent, bytes);
    announce_sleep(sleeper);
    wake_up(sleeper);
    announce_sleep(sleeper);
    CHECK(!publish_span(&sleeper, 1, sent, bytes), "room without a release");
    CHECK(rings(sleeper), "a sleeper that found no room did not announce it");
    wake_up(sleeper);
    announce_sleep(sleeper);
    CHECK(!publish_span(&sleeper, 1, sent, bytes), "room without a release");
    CHECK(!rings(sleeper), "a sleeper announced the same event for ever");
    read_soon(NULL, peer, read++, bytes);
    CHECK(rings(sleeper), "a release did not wake a sleeper that waits for room");
    wake_up(sleeper);

    announce_sleep(sleeper);
    wake_up(sleeper);
    CHECK(sleeper->ops->flush(sleeper) == DDL__LINK_UNREAD, "the peer has read all");
    announce_sleep(sleeper);
    read_soon(NULL, peer, read++, bytes);
    CHECK(rings(sleeper), "a release did not wake a sleeper that has unread spans");
    star_destroy(&s);
}

static void test_wakes(const star_factory *factory)
{
    star s = star_create(factory, 1);
    bool shared = s.centre[0]->shared;
    star_destroy(&s);
    for (size_t bytes = 1024; shared && bytes <= LARGEST; bytes *= 256)
        check_wakes(factory, bytes);
}

/* ---------------------------------------------------------------------------------- failures */

/* A span that is not the expected one is reported, and the sender can be notified. */
static void test_mismatch(const star_factory *factory)
{
    static unsigned char scratch[2000];
    enum { TAKE = 1, POLL = 2, WAYS = 4 };
    for (int way = 0; way < WAYS; way++)
        for (int wrong = 0; wrong < 4; wrong++) {
            star s = star_create(factory, 1);
            ddl__link *leaf = s.leaf[0];
            CHECK(publish_span(s.centre, 1, 1, 10) && publish_span(s.centre, 1, 2, 1000), "full");
            read_soon(s.centre[0], leaf, 1, 10);
            if (way & POLL) {
                poll(&(struct pollfd){.fd = leaf->fd, .events = POLLIN}, 1, 10);
                leaf->ops->poll(leaf);
            }
            ddl__signature sent = signature_of(2), expected = sent;
            if (wrong < 2)
                expected.words[wrong]++;
            size_t bytes = wrong < 2 ? 1000 : wrong == 2 ? 1 : 2000;
            for (int64_t since = ddl__now(); leaf->state == DDL__LINK_OPEN;) {
                CHECK(way & TAKE ? !ddl__link_take(leaf, scratch, bytes, &expected)
                                 : !ddl__link_peek(leaf, bytes, &expected),
                      "a wrong span was accepted");
                check_time(since, "mismatch");
            }
            CHECK(leaf->state == DDL__LINK_MISMATCH && leaf->found_bytes == 1000 &&
                      !memcmp(&leaf->found, &sent, sizeof sent),
                  "state %d, %zu bytes", leaf->state, leaf->found_bytes);
            leaf->ops->close(leaf, "wrong");
            check_becomes(s.centre[0], DDL__LINK_ABORTED);
            CHECK(!strcmp(s.centre[0]->reason, "wrong"), "reason %s", s.centre[0]->reason);
            star_destroy(&s);
        }
}

static void test_leave(const star_factory *factory)
{
    enum { DESTROY = 1, POLL = 2, WAYS = 4 };
    for (int way = 0; way < WAYS; way++) {
        star s = star_create(factory, 1);
        ddl__link *leaf = s.leaf[0];
        for (uint64_t k = 0; k < 4; k++)
            CHECK(publish_span(s.centre, 1, k, 30000), "full");
        flush_soon(s.centre[0]);
        s.centre[0]->ops->close(s.centre[0], NULL);
        s.centre[0]->ops->close(s.centre[0], "too late");
        if (way & DESTROY)
            link_destroy(&s.centre[0]);
        if (way & POLL) {
            poll(&(struct pollfd){.fd = leaf->fd, .events = POLLIN}, 1, 1000);
            leaf->ops->poll(leaf);
        }
        for (uint64_t k = 0; k < 4; k++)
            read_soon(NULL, leaf, k, 30000);
        check_becomes(leaf, DDL__LINK_LEFT);
        star_destroy(&s);
    }
}

static void test_abort(const star_factory *factory)
{
    char text[1000];
    memset(text, 'x', sizeof text);
    for (size_t length = 20; length < sizeof text; length += sizeof text - 21) {
        star s = star_create(factory, 1);
        text[length] = 0;
        s.centre[0]->ops->close(s.centre[0], text);
        s.centre[0]->ops->close(s.centre[0], "another");
        text[length] = 'x';
        check_becomes(s.leaf[0], DDL__LINK_ABORTED);
        size_t room = DDL__LINK_REASON - 1, told = strlen(s.leaf[0]->reason);
        CHECK(told == (length < room ? length : room) && !memcmp(s.leaf[0]->reason, text, told),
              "reason %s", s.leaf[0]->reason);
        star_destroy(&s);
    }
}

static unsigned sockets_of(const star_factory *factory, const star *s, const ddl__link *link,
                           int fds[SOCKETS])
{
    if (factory->sockets)
        return factory->sockets(s, link, fds);
    fds[0] = link->fd;
    return 1;
}

/* Close this process's copy of a link's descriptors, as the exit of its process would. If the other
 * end does not detect that itself, notify it. */
static void pull_plug(const star_factory *factory, const star *s, ddl__link *link, ddl__link *other)
{
    if (other->ops->peer_ended) {
        other->ops->peer_ended(other);
        return;
    }
    int fds[SOCKETS], null = open("/dev/null", O_RDWR | O_CLOEXEC);
    for (unsigned i = 0, n = sockets_of(factory, s, link, fds); i < n; i++)
        CHECK(null >= 0 && dup2(null, fds[i]) >= 0, "no /dev/null");
    close(null);
}

static void test_lost(const star_factory *factory)
{
    star s = star_create(factory, 1);
    for (uint64_t k = 0; k < 4; k++)
        CHECK(publish_span(s.leaf, 1, k, 3000), "full");
    flush_soon(s.leaf[0]);
    pull_plug(factory, &s, s.leaf[0], s.centre[0]);
    for (uint64_t k = 0; k < 4; k++)
        read_soon(NULL, s.centre[0], k, 3000);
    check_becomes(s.centre[0], DDL__LINK_LOST);
    CHECK(s.centre[0]->reason[0], "no reason");
    star_destroy(&s);
}

static void test_killed(const star_factory *factory)
{
    star s = star_create(factory, 1);
    /* the link must be notified: see the tests of whole processes */
    if (s.leaf[0]->ops->peer_ended) {
        star_destroy(&s);
        return;
    }
    /* The child plays a peer: it holds the other end, as no child of ours would. */
    int held[SOCKETS];
    unsigned n = sockets_of(factory, &s, s.leaf[0], held);
    for (unsigned i = 0; i < n; i++)
        CHECK((held[i] = dup(held[i])) >= 0, "no descriptor");
    pid_t child = fork();
    CHECK(child >= 0, "no child");
    while (!child)
        pause();
    for (unsigned i = 0; i < n; i++)
        close(held[i]);
    pull_plug(factory, &s, s.leaf[0], s.centre[0]);
    usleep(20000);
    s.centre[0]->ops->poll(s.centre[0]);
    check_open(s.centre[0]);
    kill(child, SIGKILL);
    check_becomes(s.centre[0], DDL__LINK_LOST);
    CHECK(s.centre[0]->reason[0], "no reason");
    waitpid(child, NULL, 0);
    star_destroy(&s);
}

/* Test a link that moves spans and leaves the detection of the peer's end to another link. */
static inline void ddl__link_conformance_beside(const star_factory *factory)
{
    test_sizes(factory);
    test_next(factory);
    test_full(factory, false);
    test_full(factory, true);
    test_both_ways(factory);
    test_threads(factory, 3 * LONG_STREAM, 3 * LONG_STREAM, false);
    test_threads(factory, LONG_STREAM, LONG_STREAM, true);
    test_threads(factory, LONG_STREAM, 0, true);
    test_sleep(factory);
    test_wakes(factory);
}

static inline void ddl__link_conformance(const star_factory *factory)
{
    test_killed(factory); /* it forks, so it must run before threads start */
    ddl__link_conformance_beside(factory);
    test_readers(factory);
    test_readers_threaded(factory);
    test_mismatch(factory);
    test_leave(factory);
    test_abort(factory);
    test_close_from_thread(factory);
    test_lost(factory);
}

#endif
