/* SPDX-License-Identifier: Apache-2.0 */
/* Data that a peer sends on a message link is used only if it is valid: otherwise the comm ends
 * with a message, and nothing is written outside the buffers. */
#include "base/dtype.h"
#include "check.h"
#include "engine/calls/frames.h"
#include "engine/messages/messages.h"
#include "net/shm/shm.h"
#include "net/tcp/tcp.h"

enum { SLOT = 4096, SPANS = 4096, PRIVATE = 256 * 1024, EAGER_MAX = 8192, LARGE = 20000 };

static unsigned char data[64 * 1024];

/* The messages of rank 0 of 2, and the link over which the peer may send anything. */
typedef struct pair {
    ddl__arena *own, *theirs;
    ddl__slots *slots;
    ddl__link *first[2], *link, *other;
    ddl__messages *messages;
    const char *text;
} pair;

static char *const names[] = {"rank 0", "rank 1"};
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* not contended */
static atomic_uint names_unsent;

static pair make_pair(bool shared)
{
    pair p = {0};
    if (shared) {
        p.own = ddl__arena_create(2, SPANS, PRIVATE);
        p.theirs = ddl__arena_create(2, SPANS, PRIVATE);
        CHECK(p.own && p.theirs, "%s", ddl__message());
        p.first[0] = ddl__shm_link_create(p.own, 1, ddl__arena_share(p.theirs), 0, false);
        p.first[1] = ddl__shm_link_create(p.theirs, 0, ddl__arena_share(p.own), 1, false);
        p.link = ddl__shm_link_beside(p.first[0]);
        p.other = ddl__shm_link_beside(p.first[1]);
    } else {
        int fds[2];
        CHECK(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), "socketpair");
        p.slots = ddl__slots_create(SLOT, 1);
        p.link = p.first[0] = ddl__tcp_link_create(p.slots, fds[0], "", NULL);
        p.other = p.first[1] = ddl__tcp_link_create(p.slots, fds[1], "", NULL);
    }
    ddl__link *links[] = {NULL, p.link};
    p.messages = ddl__messages_create(0, 2, links, names, &lock, &names_unsent);
    CHECK(p.link && p.other && p.messages, "%s", ddl__message());
    return p;
}

static void drop_pair(pair *p)
{
    ddl__messages_drop(p->messages);
    ddl__messages_destroy(p->messages);
    ddl__links_close(p->first, 2, NULL);
    for (int i = 0; i < 2; i++)
        p->first[i]->ops->destroy(p->first[i]);
    ddl__slots_destroy(p->slots);
    ddl__arena_drop(p->theirs);
    ddl__arena_drop(p->own);
}

static void post(pair *p, ddl_work *work, ddl__kind kind, int64_t count, int tag)
{
    *work = (ddl_work){.call = {.kind = kind,
                                .dtype = DDL_U8,
                                .root = 1,
                                .count = count,
                                .send = data,
                                .recv = data,
                                .tag = tag},
                       .deadline = INT64_MAX};
    ddl__messages_post(p->messages, work);
}

static ddl_status run(pair *p)
{
    while (ddl__messages_run(p->messages))
        continue;
    ddl__messages_finished(p->messages);
    ddl__messages_check_peers(p->messages);
    return ddl__messages_failure(p->messages, &p->text);
}

static void say(const pair *p, const ddl__frame *f, size_t bytes)
{
    ddl__link *other = p->other;
    ddl__signature signature = ddl__frame_encode(f);
    CHECK(other->ops->send_user(&other, 1, data, bytes, &signature) && other->ops->flush(other),
          "no room");
}

static void check_refused(pair *p, const char *what)
{
    ddl_status status = run(p);
    CHECK(status == DDL_EINTERNAL && strstr(p->text, "rank 1 sent an invalid frame"),
          "%s %s: %d \"%s\"", p->link->ops->kind, what, status, p->text);
    drop_pair(p);
}

/* Send invalid frames to a rank that waits for a message, has offered one and spent credit for
 * another. */
static void test_senseless(bool shared)
{
    static const struct {
        const char *what;
        ddl__frame frame;
        size_t bytes;
    } frames[] = {
        {"no kind", {.kind = 0}, 0},
        {"an unknown kind", {.kind = DDL__CREDIT + 1}, 0},
        {"an eager message without a dtype", {.kind = DDL__EAGER, .count = 5}, 0},
        {"an unknown dtype", {.kind = DDL__EAGER, .dtype = 99, .count = 5}, 0},
        {"fewer bytes", {.kind = DDL__EAGER, .dtype = DDL_U8, .count = 5, .tag = 1}, 4},
        {"more bytes", {.kind = DDL__EAGER, .dtype = DDL_U8, .count = 5, .tag = 1}, 6},
        {"too long", {.kind = DDL__EAGER, .dtype = DDL_U8, .count = 8193}, 8193},
        {"no tag of anybody's",
         {.kind = DDL__OFFER, .dtype = DDL_U8, .count = 5, .tag = 1u << 31},
         0},
        {"an offer with bytes", {.kind = DDL__OFFER, .dtype = DDL_U8, .count = 5}, 5},
        {"an offer without a dtype", {.kind = DDL__OFFER, .count = 5}, 0},
        {"what was not offered", {.kind = DDL__ACCEPT, .your = 7}, 0},
        {"nothing is accepted", {.kind = DDL__ACCEPT, .your = UINT32_MAX}, 0},
        {"an accept with bytes", {.kind = DDL__ACCEPT, .your = 0}, 1},
        {"data for nothing", {.kind = DDL__DATA, .your = 7}, 8},
        {"data for a send", {.kind = DDL__DATA, .your = 0}, 8},
        {"a credit with bytes", {.kind = DDL__CREDIT, .count = 1}, 1},
        {"credit that was not spent", {.kind = DDL__CREDIT, .count = 1000}, 0},
        {"more credit than fits", {.kind = DDL__CREDIT, .count = ((int64_t)1 << 48) - 1}, 0},
    };
    for (size_t i = 0; i < sizeof frames / sizeof *frames; i++) {
        pair p = make_pair(shared);
        ddl_work works[3];
        post(&p, &works[0], DDL__RECV, 5, 1);
        post(&p, &works[1], DDL__SEND, LARGE, 2); /* offered, as number 0 */
        post(&p, &works[2], DDL__SEND, 5, 3);
        CHECK(run(&p) == DDL_OK, "%s", p.text);
        say(&p, &frames[i].frame, frames[i].bytes);
        check_refused(&p, frames[i].what);
    }
}

/* A message must not be longer than announced. */
static void test_data_too_long(bool shared)
{
    pair p = make_pair(shared);
    ddl_work work;
    post(&p, &work, DDL__RECV, LARGE, 1);
    say(&p, &(ddl__frame){.kind = DDL__OFFER, .dtype = DDL_U8, .count = LARGE, .tag = 1}, 0);
    CHECK(run(&p) == DDL_OK, "%s", p.text);
    say(&p, &(ddl__frame){.kind = DDL__DATA}, LARGE - 10);
    CHECK(run(&p) == DDL_OK, "%s", p.text);
    say(&p, &(ddl__frame){.kind = DDL__DATA}, 11);
    check_refused(&p, "data behind the end");
}

/* Unreceived data is limited by the credit: a peer that exceeds it is refused, but it may use all
 * of it, repeatedly. */
static void test_beyond_credit(bool shared)
{
    enum { FIT = 256 * 1024 / (EAGER_MAX + 64) };
    pair p = make_pair(shared);
    ddl_work work, works[FIT];
    ddl__frame eager = {.kind = DDL__EAGER, .dtype = DDL_U8, .count = EAGER_MAX, .tag = 1};
    post(&p, &work, DDL__RECV, 5, 7);
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < FIT; i++) {
            say(&p, &eager, EAGER_MAX);
            CHECK(run(&p) == DDL_OK, "message %d: %s", i, p.text);
        }
        if (round == 2)
            break;
        for (int i = 0; i < FIT; i++)
            post(&p, &works[i], DDL__RECV, EAGER_MAX, 1);
        CHECK(run(&p) == DDL_OK, "%s", p.text);
        int64_t back = 0;
        ddl__signature signature;
        for (size_t bytes; p.other->ops->next(p.other, &signature, &bytes);) {
            CHECK(ddl__link_peek(p.other, bytes, &signature), "no frame");
            back += ddl__frame_decode(&signature).count;
            p.other->ops->release(p.other);
        }
        CHECK(back == FIT * (EAGER_MAX + 64), "%lld came back", (long long)back);
    }
    say(&p, &eager, EAGER_MAX);
    check_refused(&p, "a message beyond the credit");
}

/* Links whose frame in shared memory changes while it is read. */
static ddl__link_ops altered;
static const ddl__link_ops *plain;

static bool next_but_altered(ddl__link *link, ddl__signature *signature, size_t *bytes)
{
    bool there = plain->next(link, signature, bytes);
    signature->words[1] ^= (uint64_t)1 << 32; /* it had another tag before */
    return there;
}

static void test_altered(void)
{
    pair p = make_pair(true);
    plain = p.link->ops;
    altered = *plain;
    altered.next = next_but_altered;
    p.link->ops = &altered;
    ddl_work work;
    post(&p, &work, DDL__RECV, 5, 1);
    say(&p, &(ddl__frame){.kind = DDL__EAGER, .dtype = DDL_U8, .count = 5, .tag = 1}, 5);
    ddl_status status = run(&p);
    CHECK(status == DDL_EPEER && strstr(p.text, "rank 1 is lost: its shared memory"), "%d \"%s\"",
          status, p.text);
    drop_pair(&p);
}

int main(void)
{
    for (unsigned shared = 0; shared < 2; shared++) {
        test_senseless(shared);
        test_data_too_long(shared);
        test_beyond_credit(shared);
    }
    test_altered();
}
