/* SPDX-License-Identifier: Apache-2.0 */
/* Links over shared memory. With `shm` each side maps it separately, as two processes do; with
 * `inproc` it is mapped once, as between threads. */
#include "link_conformance.h"
#include "net/shm/arena.h"
#include "net/shm/regions.h"
#include "net/shm/shm.h"

enum { ARENA = 2 * LARGEST };

static bool is_inproc;

typedef struct memory {
    ddl__fences fences;
    ddl__arena *arenas[1 + LEAVES];
    ddl__link *first[2 * LEAVES]; /* the links that have second links */
} memory;

/* Create a star. Arena 0 is the centre's, with a reader for each leaf. */
static void create(star *s)
{
    memory *m = calloc(1, sizeof *m);
    ddl__arena **arenas = m->arenas;
    s->own = m;
    arenas[0] = ddl__arena_create(s->leaves, ARENA, ARENA);
    if (!is_inproc) {
        ddl__fences_start(&m->fences);
        fences = &m->fences;
        ddl__arena_fence(arenas[0], fences);
    }
    for (unsigned i = 0; i < s->leaves; i++) {
        arenas[1 + i] = ddl__arena_create(1, ARENA, ARENA);
        if (fences)
            ddl__arena_fence(arenas[1 + i], fences);
        ddl__arena *centre =
            is_inproc ? ddl__arena_share(arenas[0]) : ddl__arena_open(ddl__arena_fd(arenas[0]), i);
        ddl__arena *leaf = is_inproc ? ddl__arena_share(arenas[1 + i])
                                     : ddl__arena_open(ddl__arena_fd(arenas[1 + i]), 0);
        CHECK(centre && leaf, "%s", ddl__message());
        s->centre[i] = ddl__shm_link_create(arenas[0], i, leaf, 0, is_inproc);
        s->leaf[i] = ddl__shm_link_create(arenas[1 + i], 0, centre, i, is_inproc);
        CHECK(s->centre[i] && s->leaf[i], "%s", ddl__message());
    }
}

/* Create a star with a second link for each link. */
static void create_beside(star *s)
{
    create(s);
    memory *m = s->own;
    for (unsigned i = 0; i < s->leaves; i++) {
        m->first[2 * i] = s->centre[i];
        m->first[2 * i + 1] = s->leaf[i];
        s->centre[i] = ddl__shm_link_beside(s->centre[i]);
        s->leaf[i] = ddl__shm_link_beside(s->leaf[i]);
        CHECK(s->centre[i] && s->leaf[i], "%s", ddl__message());
    }
}

static void destroy(star *s)
{
    memory *m = s->own;
    for (unsigned i = 0; i < 2 * LEAVES; i++)
        link_destroy(&m->first[i]);
    for (unsigned i = 0; i < 1 + LEAVES; i++)
        ddl__arena_drop(m->arenas[i]);
    if (fences)
        ddl__fences_stop(&m->fences);
    fences = NULL;
    free(m);
}

/* Two links of one pair, and links of two pairs, do not block each other. */
static void test_beside_is_apart(void)
{
    star s = star_create(&(star_factory){create_beside, destroy, NULL}, LEAVES);
    memory *m = s.own;
    uint64_t sent = 0;
    while (publish_span(&s.centre[0], 1, sent, 1000)) /* no rank reads it */
        sent++;
    for (uint64_t k = 0; k < 500; k++) {
        CHECK(publish_span(&m->first[0], 1, k, 30000), "held up by the link beside");
        read_soon(NULL, m->first[1], k, 30000);
        CHECK(publish_span(&s.centre[1], 1, k, 30000), "held up by another pair");
        read_soon(NULL, s.leaf[1], k, 30000);
    }
    for (uint64_t k = 0; k < sent; k++)
        read_soon(NULL, s.leaf[0], k, 1000);
    star_destroy(&s);
}

/* Spans with lengths that just fit inside an entry, for one reader and for several, and just do
 * not; over both links. */
static void test_short_spans(void (*make)(star *s))
{
    static const size_t lengths[] = {0, 95, 96, 97, 607, 608, 609};
    star s = star_create(&(star_factory){make, destroy, NULL}, LEAVES);
    for (uint64_t k = 0; k < 1000; k++) {
        unsigned readers = 1 + k % (make == create ? LEAVES : 1);
        size_t bytes = lengths[k % 7];
        CHECK(publish_span(s.centre, readers, k, bytes), "full at %zu bytes", bytes);
        for (unsigned i = 0; i < readers; i++)
            read_soon(NULL, s.leaf[i], k, bytes);
    }
    star_destroy(&s);
}

/* A second link gets the peer's state from the first, after everything that was sent. */
static void test_beside_ends(void)
{
    for (ddl__link_state state = DDL__LINK_LEFT; state <= DDL__LINK_LOST; state++) {
        star_factory factory = {create_beside, destroy, NULL};
        star s = star_create(&factory, 1);
        memory *m = s.own;
        ddl__link *leaf = s.leaf[0], *centre = m->first[0];
        CHECK(publish_span(&s.centre[0], 1, 0, 1000), "full");
        if (state == DDL__LINK_LOST)
            pull_plug(&factory, &s, centre, m->first[1]);
        else
            centre->ops->close(centre, state == DDL__LINK_LEFT ? NULL : "enough");
        check_becomes(m->first[1], state);
        read_soon(NULL, leaf, 0, 1000);
        CHECK(!span_is_next(leaf, 1, 0) && leaf->state == state, "state %d, not %d", leaf->state,
              state);
        CHECK(state == DDL__LINK_LEFT || leaf->reason[0], "no reason");
        star_destroy(&s);
    }
}

/* Two spans are reserved before either is published, the second read before the first is released,
 * for more than one round of the ring. */
static void test_several_at_once(void (*make)(star *s))
{
    enum { SPAN = ARENA / 5 };
    star s = star_create(&(star_factory){make, destroy, NULL}, 1);
    ddl__link *from = s.leaf[0], *const *to = &s.centre[0];
    const ddl__link_ops *ops = from->ops;
    for (uint64_t k = 0; k < 100; k += 2) {
        size_t bytes[] = {SPAN, SPAN / 2 + 64 * (k % 7)};
        void *spans[2];
        for (unsigned i = 0; i < 2; i++) {
            spans[i] = ops->reserve(to, 1, bytes[i]);
            CHECK(spans[i], "no room for span %ju", (uintmax_t)k + i);
        }
        for (unsigned i = 0; i < 2; i++)
            fill(spans[i], bytes[i], k + i);
        for (unsigned i = 0; i < 2; i++) {
            ddl__signature signature = signature_of(k + i);
            ops->publish(to, 1, spans[i], bytes[i], &signature);
        }
        const void *come[2];
        for (unsigned i = 0; i < 2; i++) {
            ddl__signature signature = signature_of(k + i);
            come[i] = ops->peek(from, i, NULL, bytes[i], &signature);
            CHECK(come[i], "span %ju has not come", (uintmax_t)k + i);
        }
        ddl__signature third = signature_of(k + 2);
        CHECK(!ops->peek(from, 2, NULL, 64, &third), "a third span");
        for (unsigned i = 0; i < 2; i++) {
            check_filled(come[i], bytes[i], k + i);
            CHECK(ops->flush(*to) == DDL__LINK_UNREAD, "released before it was");
            ops->release(from);
        }
        CHECK(ops->flush(*to) == DDL__LINK_DRAINED, "not released");
    }
    star_destroy(&s);
}

/* Spans that are read at once keep to the first pages of a ring, also after a time in which one
 * stayed unread. */
static void test_few_pages(void (*make)(star *s))
{
    enum { SPAN = 1000, MOST = 2 * DDL__OUTLET_WARM, UNREAD = 60 };
    _Static_assert((int)ARENA > (int)MOST + UNREAD * SPAN, "the ring has more pages");
    star s = star_create(&(star_factory){make, destroy, NULL}, 1);
    ddl__link *const *to = &s.centre[0];
    const char *least = NULL, *most = NULL;
    for (uint64_t k = 0; k < 1000; k++) {
        if (k == 400) {
            for (uint64_t i = 0; i < UNREAD; i++)
                CHECK(publish_span(to, 1, i, SPAN), "no room for unread span %ju", (uintmax_t)i);
            for (uint64_t i = 0; i < UNREAD; i++)
                read_soon(NULL, s.leaf[0], i, SPAN);
        }
        char *span = to[0]->ops->reserve(to, 1, SPAN);
        CHECK(span, "no room for span %ju", (uintmax_t)k);
        least = least && least < span ? least : span;
        most = most > span ? most : span;
        fill(span, SPAN, k);
        ddl__signature signature = signature_of(k);
        to[0]->ops->publish(to, 1, span, SPAN, &signature);
        read_soon(NULL, s.leaf[0], k, SPAN);
    }
    CHECK(most - least < MOST, "over %td bytes", most - least);
    star_destroy(&s);
}

/* A span for which no ring has room does not affect later spans; short ones have separate room. */
static void test_room(void)
{
    enum { SHORT = 100 };
    star s = star_create(&(star_factory){create, destroy, NULL}, 1);
    ddl__link *const *to = &s.centre[0];
    CHECK(!to[0]->ops->reserve(to, 1, ARENA + 64), "more than there is");
    CHECK(publish_span(to, 1, 0, 1000), "no room for a span");
    read_soon(NULL, s.leaf[0], 0, 1000);
    void *spans[] = {to[0]->ops->reserve(to, 1, SHORT), to[0]->ops->reserve(to, 1, SHORT)};
    for (unsigned i = 0; i < 2; i++)
        fill(spans[i], SHORT, 1 + i);
    for (unsigned i = 0; i < 2; i++) {
        ddl__signature signature = signature_of(1 + i);
        to[0]->ops->publish(to, 1, spans[i], SHORT, &signature);
    }
    for (unsigned i = 0; i < 2; i++)
        read_soon(NULL, s.leaf[0], 1 + i, SHORT);
    star_destroy(&s);
}

/* Send span k from a region: zero-copy if the peer maps it. */
static bool send_from(ddl__link *to, ddl__regions *regions, char *buffer, uint64_t k)
{
    ddl__region region = ddl__regions_find(regions, buffer);
    ddl__signature signature = signature_of(k);
    fill(buffer, DDL__LEND_LEAST, k);
    bool lent = to->ops->lend(to, &region, buffer, DDL__LEND_LEAST, &signature, false);
    CHECK(lent || publish_span(&to, 1, k, DDL__LEND_LEAST), "full");
    return lent;
}

/* A link and a buffer of a region, which is lent from. */
typedef struct lender {
    star s;
    ddl__link *to, *from;
    ddl__regions *regions;
    char *buffer;
} lender;

static lender lender_create(void)
{
    lender l = {.s = star_create(&(star_factory){create, destroy, NULL}, 1),
                .regions = ddl__regions_create()};
    l.to = l.s.centre[0];
    l.from = l.s.leaf[0];
    l.buffer = ddl__memory_alloc(l.regions, DDL__REGION_LEAST);
    return l;
}

static void lender_destroy(lender *l)
{
    ddl__memory_free(l->buffer);
    ddl__regions_release(l->regions);
    star_destroy(&l->s);
}

/* A span of a region is copied until the peer maps the region. From then on it is read in place,
 * until it is released. A region with the number of an earlier one is mapped again. */
static void test_lent(void)
{
    star s = star_create(&(star_factory){create, destroy, NULL}, 1);
    ddl__link *to = s.centre[0];
    ddl__regions *regions = ddl__regions_create();
    uint64_t k = 0;
    for (unsigned round = 0; round < 3; round++) {
        char *buffer = ddl__memory_alloc(regions, DDL__REGION_LEAST);
        CHECK(!send_from(to, regions, buffer, k), "the peer cannot know region %u", round);
        read_soon(NULL, s.leaf[0], k++, DDL__LEND_LEAST);
        CHECK(to->ops->flush(to) == DDL__LINK_DRAINED, "user memory was copied");
        for (size_t at = 0; at < 3; at++) {
            CHECK(send_from(to, regions, buffer + at * 1000, k), "region %u is copied", round);
            CHECK(to->ops->flush(to) == DDL__LINK_SENDING, "the peer has yet to read");
            read_soon(NULL, s.leaf[0], k++, DDL__LEND_LEAST);
            CHECK(to->ops->flush(to) == DDL__LINK_DRAINED, "released");
        }
        ddl__memory_free(buffer);
    }
    ddl__regions_release(regions);
    star_destroy(&s);
}

/* A zero-copy span of a link that is closed before its release must not be used, and no more spans
 * arrive. A copied span is still valid. */
static void test_lent_and_closed(bool lent)
{
    lender l = lender_create();
    send_from(l.to, l.regions, l.buffer, 0);
    read_soon(NULL, l.from, 0, DDL__LEND_LEAST);
    for (uint64_t k = 1; k < 3; k++)
        CHECK(lent ? send_from(l.to, l.regions, l.buffer, k)
                   : publish_span(&l.to, 1, k, DDL__LEND_LEAST),
              "span %d", (int)k);
    for (uint64_t k = 1; k < 3; k++) {
        ddl__signature signature = signature_of(k);
        const void *span = ddl__link_peek(l.from, DDL__LEND_LEAST, &signature);
        CHECK(!span == (lent && k == 2), "span %d", (int)k);
        if (!span)
            break;
        l.to->ops->close(l.to, "enough");
        CHECK(l.from->ops->release(l.from) == !lent, "span %d", (int)k);
    }
    check_becomes(l.from, DDL__LINK_ABORTED);
    lender_destroy(&l);
}

/* Lend span k, whose result is wanted in place; the peer stores it there. */
static void lend_and_return(ddl__link *to, ddl__link *from, ddl__regions *regions, char *buffer,
                            uint64_t k)
{
    ddl__region region = ddl__regions_find(regions, buffer);
    ddl__signature signature = signature_of(k);
    fill(buffer, DDL__LEND_LEAST, k);
    CHECK(to->ops->lend(to, &region, buffer, DDL__LEND_LEAST, &signature, true),
          "span %d is copied", (int)k);
    const void *span = ddl__link_peek(from, DDL__LEND_LEAST, &signature);
    check_filled(span, DDL__LEND_LEAST, k);
    void *result = from->ops->borrow(from);
    CHECK(result == span && from->borrowed, "the result is not wanted");
    fill(result, DDL__LEND_LEAST, k + 1);
    from->ops->release(from);
    CHECK(from->ops->give_back(from, DDL__LEND_LEAST, &signature) && !from->borrowed, "full");
}

/* A result that is stored where the owner wants it is found there, even after the owner has
 * detached the region. It is found nowhere else, nor if nothing was lent, nor if no result was
 * wanted. */
static void test_returned(void)
{
    lender l = lender_create();
    ddl__region region;
    uint64_t k = 0;
    send_from(l.to, l.regions, l.buffer, k);
    read_soon(NULL, l.from, k++, DDL__LEND_LEAST);
    CHECK(send_from(l.to, l.regions, l.buffer, k), "copied");
    ddl__signature signature = signature_of(k);
    CHECK(ddl__link_peek(l.from, DDL__LEND_LEAST, &signature) && !l.from->ops->borrow(l.from),
          "a result that is not wanted");
    read_soon(NULL, l.from, k++, DDL__LEND_LEAST);
    for (int detached = 0; detached < 2; detached++, k++) {
        char *at = l.buffer + (3 * k % 5) * DDL__LEND_LEAST;
        region = ddl__regions_find(l.regions, l.buffer);
        lend_and_return(l.to, l.from, l.regions, at, k);
        signature = signature_of(k);
        if (detached) {
            ddl__region_detach(l.regions, &region, at, DDL__LEND_LEAST);
            memset(at, 0, DDL__LEND_LEAST); /* as another operation's caller may */
        }
        CHECK(l.to->ops->peek(l.to, 0, at, DDL__LEND_LEAST, &signature) == at, "not returned");
        check_filled(at, DDL__LEND_LEAST, k + 1);
        l.to->ops->release(l.to);
    }
    CHECK(!ddl__regions_find(l.regions, l.buffer).base, "lent from detached memory");
    CHECK(!l.to->ops->lend(l.to, &region, l.buffer, DDL__LEND_LEAST, &signature, false), "lent");
    lender_destroy(&l);
}

/* A peer that returns a result that was not requested, or in another place, is lost. */
static void test_returned_elsewhere(bool elsewhere)
{
    lender l = lender_create();
    ddl__signature signature = signature_of(1);
    if (elsewhere) {
        send_from(l.to, l.regions, l.buffer, 0);
        read_soon(NULL, l.from, 0, DDL__LEND_LEAST);
        lend_and_return(l.to, l.from, l.regions, l.buffer, 1);
    } else {
        l.from->ops->give_back(l.from, DDL__LEND_LEAST, &signature);
    }
    CHECK(!l.to->ops->peek(l.to, 0, l.buffer + elsewhere, DDL__LEND_LEAST, &signature), "found");
    CHECK(l.to->state == DDL__LINK_LOST && strstr(l.to->reason, "corrupt"), "%d %s", l.to->state,
          l.to->reason);
    lender_destroy(&l);
}

/* No more spans are reserved than a ring has entries for. */
static void test_ring_is_full(void)
{
    star s = star_create(&(star_factory){create, destroy, NULL}, 1);
    unsigned n = 0;
    while (n < 1000 && s.centre[0]->ops->reserve(&s.centre[0], 1, 1000))
        n++;
    CHECK(n == 64, "%u spans", n);
    star_destroy(&s);
}

int main(int argc, char **argv)
{
    is_inproc = argc > 1 && !strcmp(argv[1], "inproc");
    ddl__link_conformance(&(star_factory){create, destroy, NULL});
    ddl__link_conformance_beside(&(star_factory){create_beside, destroy, NULL});
    if (is_inproc) /* the rest is the same code */
        return 0;
    test_short_spans(create);
    test_short_spans(create_beside);
    test_several_at_once(create);
    test_several_at_once(create_beside);
    test_few_pages(create);
    test_few_pages(create_beside);
    test_room();
    test_ring_is_full();
    test_lent();
    test_lent_and_closed(true);
    test_lent_and_closed(false);
    test_returned();
    test_returned_elsewhere(true);
    test_returned_elsewhere(false);
    test_beside_is_apart();
    test_beside_ends();
}
