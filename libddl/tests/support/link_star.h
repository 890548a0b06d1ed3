/* SPDX-License-Identifier: Apache-2.0 */
/* link_star.h - a link's end and its peers' for tests: spans with distinct contents, and waiting
 * for them. */
#ifndef DDL_TESTS_LINK_STAR_H
#define DDL_TESTS_LINK_STAR_H

#include <sys/epoll.h>

#include "base/clock.h"
#include "base/fences.h"
#include "check.h"
#include "net/link.h"

enum { LEAVES = 3, SOCKETS = 8, LARGEST = 1 << 20, MS = 1000000 };

typedef struct star {
    unsigned leaves;
    ddl__link *centre[LEAVES]; /* the centre's links, one outlet */
    ddl__link *leaf[LEAVES];   /* leaf[i] is the other end of centre[i] */
    void *own;                 /* the factory's data */
    void (*destroy)(struct star *s);
} star;

/* The functions that create and destroy a star. Links must carry spans of LARGEST bytes. Each node
 * of the star may have its own thread. */
typedef struct star_factory {
    void (*create)(star *s);  /* create the links, given s->leaves */
    void (*destroy)(star *s); /* destroy what else create made; the links are already destroyed */
    /* Return the descriptors that end with a link's process, and their number; NULL: only
     * link->fd. */
    unsigned (*sockets)(const star *s, const ddl__link *link, int fds[SOCKETS]);
} star_factory;

static star star_create(const star_factory *factory, unsigned leaves)
{
    star s = {.leaves = leaves, .destroy = factory->destroy};
    factory->create(&s);
    return s;
}

static void link_destroy(ddl__link **link)
{
    if (*link)
        (*link)->ops->destroy(*link);
    *link = NULL;
}

static void star_destroy(star *s)
{
    for (unsigned i = 0; i < s->leaves; i++) {
        link_destroy(&s->centre[i]);
        link_destroy(&s->leaf[i]);
    }
    s->destroy(s);
}

/* ------------------------------------------------------------------------- span number k, made */

static uint64_t mixed(uint64_t k)
{
    k = (k ^ k >> 30) * 0xbf58476d1ce4e5b9;
    k = (k ^ k >> 27) * 0x94d049bb133111eb;
    return k ^ k >> 31;
}

static ddl__signature signature_of(uint64_t k)
{
    return (ddl__signature){{k, mixed(k)}};
}

/* Return a size: mostly short, including odd lengths; now and then up to LARGEST. */
static size_t size_of(uint64_t k)
{
    uint64_t r = mixed(k + 1);
    if (k % 1000 == 0)
        return LARGEST - r % 3;
    return 1 + r % (k % 50 == 0 ? 128 * 1024 : k % 5 == 0 ? 6000 : 100);
}

/* Fill in content that differs from span to span and from position to position. */
static void fill(void *memory, size_t bytes, uint64_t k)
{
    uint64_t word = mixed(k) | 1;
    unsigned char *to = memory;
    size_t i = 0;
    for (; i + 8 <= bytes; i += 8, word += 0x0123456789abcdef)
        memcpy(to + i, &word, 8);
    memcpy(to + i, &word, bytes - i);
}

static void check_filled(const void *memory, size_t bytes, uint64_t k)
{
    uint64_t word = mixed(k) | 1;
    const unsigned char *from = memory;
    size_t i = 0;
    for (; i + 8 <= bytes; i += 8, word += 0x0123456789abcdef)
        CHECK(!memcmp(from + i, &word, 8), "span %ju of %zu bytes near byte %zu", (uintmax_t)k,
              bytes, i);
    CHECK(!memcmp(from + i, &word, bytes - i), "span %ju of %zu bytes at its end", (uintmax_t)k,
          bytes);
}

/* ----------------------------------------------------------------------- one span, non-blocking */

static bool publish_span(ddl__link *const *to, unsigned n, uint64_t k, size_t bytes)
{
    void *span = to[0]->ops->reserve(to, n, bytes);
    if (!span)
        return false;
    ddl__signature signature = signature_of(k);
    fill(span, bytes, k);
    to[0]->ops->publish(to, n, span, bytes, &signature);
    return true;
}

static bool send_span(ddl__link *const *to, unsigned n, const void *memory, uint64_t k,
                      size_t bytes)
{
    ddl__signature signature = signature_of(k);
    return to[0]->ops->send_user(to, n, memory, bytes, &signature);
}

/* Peek at span k without consuming it. */
static bool peek_span(ddl__link *from, uint64_t k, size_t bytes)
{
    ddl__signature signature = signature_of(k);
    const void *span = ddl__link_peek(from, bytes, &signature);
    if (!span)
        return false;
    check_filled(span, bytes, k);
    CHECK(ddl__link_peek(from, bytes, &signature) == span, "a second peek gives another place");
    return true;
}

/* Return true if a span is there, which must be span k, without consuming it. */
static bool span_is_next(ddl__link *from, uint64_t k, size_t bytes)
{
    ddl__signature signature, expected = signature_of(k);
    size_t found;
    if (!from->ops->next(from, &signature, &found))
        return false;
    CHECK(found == bytes && !memcmp(&signature, &expected, sizeof expected),
          "not span %ju of %zu bytes, but one of %zu", (uintmax_t)k, bytes, found);
    return true;
}

/* Receive span k by peeking or, every third, by taking it to a mostly odd address; every fourth
 * only when it is known to be the next. */
static bool read_span(ddl__link *from, uint64_t k, size_t bytes, unsigned char *scratch)
{
    if (k % 4 == 0 && !span_is_next(from, k, bytes))
        return false;
    if (k % 3) {
        if (!peek_span(from, k, bytes))
            return false;
        from->ops->release(from);
        return true;
    }
    unsigned char *dst = scratch + k % 8;
    ddl__signature signature = signature_of(k);
    if (!ddl__link_take(from, dst, bytes, &signature))
        return false;
    check_filled(dst, bytes, k);
    return true;
}

/* ----------------------------------------------------------------------------------- waiting */

static void check_open(const ddl__link *link)
{
    CHECK(link->state == DDL__LINK_OPEN, "state %d: %s", link->state, link->reason);
}

/* Call in a loop that makes progress: fails if it has run for too long. */
static void check_time(int64_t since, const char *what)
{
    CHECK(ddl__now() - since < 60000 * (int64_t)MS, "no %s within a minute", what);
}

static void flush_soon(ddl__link *to)
{
    for (int64_t since = ddl__now(); !to->ops->flush(to);)
        check_time(since, "flush");
}

static void read_soon(ddl__link *to, ddl__link *from, uint64_t k, size_t bytes)
{
    static unsigned char scratch[LARGEST + 8];
    for (int64_t since = ddl__now(); !read_span(from, k, bytes, scratch);) {
        if (to)
            to->ops->flush(to);
        check_time(since, "span");
    }
}

/* Wait on the link's fd alone, at most a second, until the link is in `state`. */
static void check_becomes(ddl__link *link, ddl__link_state state)
{
    for (int64_t since = ddl__now(); link->state == DDL__LINK_OPEN;) {
        CHECK(ddl__now() - since < 20000 * (int64_t)MS, "no state %d within 20 s", state);
        struct pollfd p = {.fd = link->fd, .events = POLLIN};
        poll(&p, 1, 1000);
        link->ops->poll(link);
    }
    CHECK(link->state == state, "state %d, not %d: %s", link->state, state, link->reason);
}

/* Watch as a driver does: edge-triggered. */
static int epoll_on(ddl__link *link)
{
    int epoll = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event = {.events = EPOLLIN | EPOLLET};
    if (!link->shared)
        event.events |= EPOLLOUT | EPOLLRDHUP;
    CHECK(epoll >= 0 && !epoll_ctl(epoll, EPOLL_CTL_ADD, link->fd, &event), "no epoll");
    return epoll;
}

static const ddl__fences *fences; /* announced fences, if any */
static void announce_sleep(ddl__link *link)
{
    link->ops->sleeping(link, true);
    if (fences && ddl__fences_joined(fences))
        ddl__fence_heavy();
}

static void sleep_on(int epoll)
{
    struct epoll_event event;
    int n = epoll_wait(epoll, &event, 1, 5000);
    CHECK(n > 0 || (n < 0 && errno == EINTR), "a wake-up was lost");
}

#endif
