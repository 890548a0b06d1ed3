/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzes sends and receives. The peer sends anything over a real message link: any frames in any
 * order, about existing works or not, with too much or too little data behind them. No byte may be
 * written outside a buffer (buffers are as large as their messages, for sanitizers to see), a
 * receive that succeeds must have all its bytes, and invalid input must end the comm with a
 * message. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/dtype.h"
#include "engine/calls/frames.h"
#include "engine/messages/messages.h"
#include "input.h"
#include "net/shm/shm.h"
#include "net/tcp/tcp.h"

enum {
    SLOT = 4096,
    SPANS = 4096,
    PRIVATE = 256 * 1024,
    WORKS = 12,
    BYTES_MAX = 1 << 17,
    SPAN_MAX = 1 << 16,
    REPEATS = 40,
    STEPS_MAX = 200
};

/* The bytes that all sends use; no byte is 0, while receive buffers start as 0. */
static unsigned char sent[BYTES_MAX];

typedef struct scene {
    input in;
    ddl__arena *own, *theirs;
    ddl__slots *slots;
    ddl__link *first, *their_first; /* this rank's and the peer's link */
    ddl__link *link, *other;        /* the same for messages */
    ddl__messages *messages;
    ddl_work works[WORKS];
    unsigned n_works;
    uint32_t offered, accepted; /* this rank's last numbers, as received by the peer */
    bool dead;
} scene;

static char *const names[] = {"rank 0", "rank 1"};
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* not contended */
static atomic_uint names_unsent;

/* ------------------------------------------------------------------------------------ both ends */

static void open_links(scene *s, bool shared)
{
    if (shared) {
        s->own = ddl__arena_create(2, SPANS, PRIVATE);
        s->theirs = ddl__arena_create(2, SPANS, PRIVATE);
        ddl__arena *opened = s->theirs ? ddl__arena_open(ddl__arena_fd(s->theirs), 0) : NULL;
        REQUIRE(s->own && opened, "%s", ddl__message());
        s->first = ddl__shm_link_create(s->own, 1, opened, 0, false);
        s->their_first = ddl__shm_link_create(s->theirs, 0, ddl__arena_share(s->own), 1, false);
        s->link = ddl__shm_link_beside(s->first);
        s->other = ddl__shm_link_beside(s->their_first);
    } else {
        int fds[2];
        REQUIRE(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), "%s", strerror(errno));
        s->slots = ddl__slots_create(SLOT, 1);
        s->link = s->first = ddl__tcp_link_create(s->slots, fds[0], "", NULL);
        s->other = s->their_first = ddl__tcp_link_create(s->slots, fds[1], "", NULL);
    }
    ddl__link *links[] = {NULL, s->link};
    s->messages = ddl__messages_create(0, 2, links, names, &lock, &names_unsent);
    REQUIRE(s->messages, "no memory");
}

static void close_links(scene *s)
{
    s->their_first->ops->destroy(s->their_first);
    s->first->ops->destroy(s->first);
    ddl__slots_destroy(s->slots);
    ddl__arena_drop(s->theirs);
    ddl__arena_drop(s->own);
}

/* ------------------------------------------------------------------------------------- the peer */

/* Return a number that was received, or any other. */
static uint32_t some_id(scene *s)
{
    unsigned how = input_byte(&s->in);
    switch (how % 4) {
    case 0: return s->offered;
    case 1: return s->accepted;
    case 2: return how / 4;
    default: return input_word(&s->in);
    }
}

/* Send one frame, perhaps repeatedly; its count is that of the bytes, or any other. */
static void peer_send(scene *s)
{
    unsigned how = input_byte(&s->in);
    ddl__frame f = {.kind = input_byte(&s->in) % 8};
    size_t bytes = how & 1 ? 0 : input_length(&s->in, SPAN_MAX);
    if (f.kind == DDL__ACCEPT || f.kind == DDL__DATA) {
        f.your = some_id(s);
    } else {
        f.dtype = how & 2 ? DDL_U8 : input_byte(&s->in);
        f.tag = how & 4 ? 0 : input_byte(&s->in);
        f.count = how & 8 ? (int64_t)bytes : (int64_t)input_word(&s->in);
    }
    f.id = how & 16 ? 0 : some_id(s);
    ddl__signature signature = ddl__frame_encode(&f);
    if (how & 32)
        input_alter(&s->in, &signature, sizeof signature);
    for (unsigned n = how & 64 ? input_byte(&s->in) % REPEATS + 1 : 1; n; n--)
        s->other->ops->send_user(&s->other, 1, sent, bytes, &signature);
    s->other->ops->flush(s->other);
}

/* Check that this rank's frames are valid. */
static void peer_receive(scene *s)
{
    ddl__signature signature;
    size_t bytes;
    while (s->other->ops->next(s->other, &signature, &bytes)) {
        ddl__frame f = ddl__frame_decode(&signature);
        REQUIRE(f.kind >= DDL__EAGER && f.kind <= DDL__CREDIT && bytes <= BYTES_MAX,
                "we sent kind %u, %zu bytes", f.kind, bytes);
        const unsigned char *span = ddl__link_peek(s->other, bytes, &signature);
        if (!span)
            return;
        REQUIRE(!memchr(span, 0, bytes), "something else than the message");
        s->other->ops->release(s->other);
        if (f.kind == DDL__OFFER)
            s->offered = f.id;
        if (f.kind == DDL__ACCEPT)
            s->accepted = f.id;
    }
}

/* --------------------------------------------------------------------------------- this rank */

static size_t bytes_of(const ddl_work *work)
{
    return (size_t)work->call.count * ddl__dtype_size(work->call.dtype);
}

static void post(scene *s, ddl__kind kind)
{
    static const ddl_dtype dtypes[] = {DDL_U8, DDL_F32, DDL_C128};
    static const int roots[] = {1, 1, 0, DDL_ANY_SOURCE};
    if (s->n_works == WORKS)
        return;
    unsigned how = input_byte(&s->in);
    ddl_work *work = &s->works[s->n_works++];
    work->call = (ddl__call){.kind = kind, .root = roots[how % 4], .tag = (int)(how / 4 % 2)};
    if (kind == DDL__SEND && work->call.root == DDL_ANY_SOURCE)
        work->call.root = 1;
    work->call.dtype = how & 8 ? dtypes[how / 16 % 3] : DDL_U8;
    work->call.count = (int64_t)input_length(&s->in, SPAN_MAX);
    if (how & 128 && work->call.dtype == DDL_U8)
        work->call.count *= 2;
    if (bytes_of(work) > BYTES_MAX)
        work->call.count = BYTES_MAX / 16;
    work->deadline = INT64_MAX;
    if (kind == DDL__SEND) {
        work->call.send = sent;
    } else {
        work->call.recv = calloc(1, bytes_of(work) ? bytes_of(work) : 1);
        REQUIRE(work->call.recv, "no memory");
    }
    ddl__messages_post(s->messages, work);
}

/* Run as the driver does. */
static void run(scene *s)
{
    const char *text;
    if (!ddl__messages_run(s->messages)) {
        ddl__messages_check_peers(s->messages);
        ddl__messages_check_limits(s->messages);
    }
    for (ddl_work *work = ddl__messages_finished(s->messages); work; work = work->next)
        REQUIRE(work->call.kind == DDL__SEND || !memchr(work->call.recv, 0, bytes_of(work)),
                "a receive of %zu bytes succeeded without all of them", bytes_of(work));
    ddl_status status = ddl__messages_failure(s->messages, &text);
    s->dead = status != DDL_OK;
    REQUIRE(!s->dead ||
                ((status == DDL_EMISMATCH || status == DDL_EPEER || status == DDL_EINTERNAL) &&
                 strstr(text, "rank") && text[strlen(text) - 1] != ' '),
            "status %d: \"%s\"", status, text);
}

static void step(scene *s)
{
    switch (input_byte(&s->in) % 12) {
    case 0: post(s, DDL__SEND); break;
    case 1: post(s, DDL__RECV); break;
    case 2:
    case 3: peer_send(s); break;
    case 4: peer_receive(s); break;
    case 5: ddl__messages_sleeping(s->messages, input_byte(&s->in) % 2); break;
    case 6: s->link->ops->poll(s->link); break;
    case 7:
        s->their_first->ops->close(s->their_first, input_byte(&s->in) % 2 ? "enough" : NULL);
        break;
    default: run(s); break;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    static scene s;
    memset(&s, 0, sizeof s);
    for (size_t i = 0; !sent[BYTES_MAX - 1] && i < BYTES_MAX; i++)
        sent[i] = (unsigned char)(i % 255 + 1);
    s.in = (input){bytes, n};
    open_links(&s, input_byte(&s.in) % 2);
    for (unsigned i = 0; s.in.left && !s.dead && i < STEPS_MAX; i++)
        step(&s);
    for (unsigned i = 0; !s.dead && i < 4; i++) {
        peer_receive(&s);
        run(&s);
    }
    for (ddl_work *work = ddl__messages_drop(s.messages); work; work = work->next)
        REQUIRE(work >= s.works && work < s.works + s.n_works, "a work of nobody's");
    ddl__messages_destroy(s.messages);
    close_links(&s);
    for (unsigned i = 0; i < s.n_works; i++)
        free(s.works[i].call.recv);
    return 0;
}
