/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzes links over shared memory. The peer's memory file has any content, and the peer overwrites
 * parts of ours, between any calls of the operations of a first and a second link. Memory outside
 * the mappings must not be touched, and a span must be the requested one. Mappings lie between
 * guard pages, because sanitizers do not know shared memory. */
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "input.h"
#include "net/shm/bell.h"
#include "net/shm/lending.h"

enum { PAGE = 4096, GUARD = 16 * PAGE, SPANS = 4 * PAGE, PRIVATE = 2 * PAGE, STEPS_MAX = 200 };

/* In the order of mapping: our outlets, first and private, then the peer's. */
enum { OWN, OWN_PRIVATE, PEER, PEER_PRIVATE, MAPPINGS };

/* The layout of an arena, defined independently of the library: header, then the readers' rings. */
enum {
    LANES = 128,
    ENTRIES = 512, /* entries in a ring */
    ENTRY = 640,   /* bytes of an entry */
    LOANS = 256 * 4 + 128,
    LANE = ENTRIES + 64 * ENTRY + LOANS,
    OFFSET = 24,
    BYTES = 28,
    HEAD = 11 * PAGE, /* header and one ring, in whole pages */
    RIGHT_BESIDE = HEAD + SPANS,
    RIGHT_STRIDE = HEAD + PRIVATE
};

/* --------------------------------------------------------------------------------- guard pages */

static struct {
    char *base;
    size_t bytes;
} mappings[MAPPINGS];
static unsigned n_mappings;

void *__real_mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset);
void *__wrap_mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset);

void *__wrap_mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset)
{
    if (at || fd < 0 || n_mappings == MAPPINGS)
        return __real_mmap(at, bytes, protection, flags, fd, offset);
    size_t pages = (bytes + PAGE - 1) / PAGE * PAGE;
    char *base = __real_mmap(NULL, pages + 2 * GUARD, PROT_NONE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED)
        return MAP_FAILED;
    void *inside = __real_mmap(base + GUARD, bytes, protection, flags | MAP_FIXED, fd, offset);
    if (inside == MAP_FAILED) {
        munmap(base, pages + 2 * GUARD);
        return MAP_FAILED;
    }
    mappings[n_mappings].base = base;
    mappings[n_mappings++].bytes = bytes;
    return inside;
}

/* The memory between the guards is already unmapped, and may belong to another mapping by now. */
static void unmap_guards(void)
{
    while (n_mappings) {
        char *base = mappings[--n_mappings].base;
        munmap(base, GUARD);
        munmap(base + GUARD + (mappings[n_mappings].bytes + PAGE - 1) / PAGE * PAGE, GUARD);
    }
}

static bool is_inside(unsigned mapping, const void *at, size_t bytes)
{
    uintptr_t begin = (uintptr_t)mappings[mapping].base + GUARD, place = (uintptr_t)at;
    return place >= begin && place - begin <= mappings[mapping].bytes &&
           bytes <= mappings[mapping].bytes - (place - begin);
}

/* ------------------------------------------------------------------------------------- the peer */

typedef struct side {
    ddl__link *link;
    unsigned own, peer;                       /* indices of mappings */
    off_t own_outlet, peer_outlet, peer_lane; /* offsets in the files */
    uint64_t position;
    ddl__link_state before;
} side;

typedef struct scene {
    input in;
    ddl__arena *own;
    side sides[2]; /* the first and the second link */
    int own_file, peer_file;
} scene;

/* Overwrite short runs of an outlet's header and first rings. */
static void scribble(scene *s, int file, off_t outlet)
{
    unsigned char memory[LANES + LANE];
    if (file < 0)
        return;
    ssize_t n = pread(file, memory, sizeof memory, outlet);
    if (n <= 0)
        return;
    input_alter(&s->in, memory, (size_t)n);
    REQUIRE(pwrite(file, memory, (size_t)n, outlet) == n, "%s", strerror(errno));
}

/* Return a file of any size with a valid arena's header, sealed or not. */
static int make_file(scene *s, const ddl__arena *right)
{
    static const size_t sizes[] = {
        0, 64, 127, 128, PAGE, RIGHT_BESIDE, RIGHT_BESIDE + 8, 2 * (RIGHT_BESIDE + RIGHT_STRIDE)};
    unsigned how = input_byte(&s->in);
    if (how < 128)
        return dup(ddl__arena_fd(right));
    unsigned char header[LANES + LANE];
    ssize_t n = pread(ddl__arena_fd(right), header, sizeof header, 0);
    size_t size = sizes[how % 8];
    int fd = memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    REQUIRE(fd >= 0 && n > 0 && !ftruncate(fd, (off_t)size), "%s", strerror(errno));
    if ((size_t)n > size)
        n = (ssize_t)size;
    uint64_t spans = size - HEAD - RIGHT_STRIDE;
    if (how & 8)
        memcpy(header + 16, &spans, sizeof spans);
    REQUIRE(pwrite(fd, header, (size_t)n, 0) == n, "%s", strerror(errno));
    if (how & 16)
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK);
    return fd;
}

/* Publish as a peer would, but with any position and length. */
static void publish(scene *s, const side *d)
{
    uint64_t position = d->position + input_byte(&s->in) % 2;
    off_t entry = d->peer_lane + ENTRIES + (off_t)(position % 64 * ENTRY);
    uint64_t stamp = d->position + 1 + input_byte(&s->in) % 2;
    uint64_t signature[2] = {1, 2};
    uint32_t place[2] = {input_word(&s->in), input_word(&s->in)};
    unsigned how = input_byte(&s->in);
    if (how & 1)
        place[0] = place[0] % (SPANS / 64) * 64;
    if (how & 2)
        place[1] %= 2 * PAGE;
    if (how & 4)
        place[0] = UINT32_MAX; /* inside the entry */
    pwrite(s->peer_file, signature, sizeof signature, entry + 8);
    pwrite(s->peer_file, place, sizeof place, entry + OFFSET);
    pwrite(s->peer_file, &stamp, sizeof stamp, entry);
}

/* Ring, and offer any memory, with a valid secret or not. */
static void ring(scene *s)
{
    struct sockaddr_un name;
    socklen_t length = ddl__bell_name("loan", s->own->bell_number, &name);
    ddl__offer offer = {.secret = {s->own->secret[0], s->own->secret[1]}};
    size_t n = input_byte(&s->in) % (sizeof offer + 1);
    input_alter(&s->in, &offer, sizeof offer);
    ddl__bell_ring(s->own->bell, s->own->bell_number);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    REQUIRE(fd >= 0 && !connect(fd, (struct sockaddr *)&name, length), "%s", strerror(errno));
    if (n)
        send(fd, &offer, n % 4 ? sizeof offer : n, MSG_DONTWAIT | MSG_NOSIGNAL);
    close(fd);
    ddl__shm_take_offers(s->own);
}

/* ------------------------------------------------------------------------------------- the link */

/* Return the length in the next entry, so that mostly the existing span is requested. */
static size_t wanted(scene *s, const side *d)
{
    uint32_t bytes = 0;
    off_t at = d->peer_lane + ENTRIES + (off_t)(d->position % 64) * ENTRY + BYTES;
    if (input_byte(&s->in) % 8 && pread(s->peer_file, &bytes, sizeof bytes, at) == sizeof bytes)
        return bytes;
    return input_word(&s->in) % (2 * SPANS);
}

static void check_span(const side *d, const void *span, size_t bytes)
{
    REQUIRE(is_inside(d->peer, span, bytes), "%zu bytes that are not the peer's", bytes);
    REQUIRE((uintptr_t)span % 8 == 0, "a span at an odd place");
}

static void link_receive(scene *s, side *d, bool take)
{
    static unsigned char dst[1 << 17];
    ddl__signature signature = {{1, 2}};
    size_t bytes = wanted(s, d);
    const void *span = ddl__link_peek(d->link, bytes, &signature);
    if (!span)
        return;
    check_span(d, span, bytes);
    REQUIRE(bytes <= sizeof dst, "%zu bytes", bytes);
    if (take)
        REQUIRE(ddl__link_take(d->link, dst, bytes, &signature), "a span has gone");
    else
        d->link->ops->release(d->link);
    d->position++;
}

/* Check that the next span that the link reports is delivered, or that the peer's memory is
 * corrupt. */
static void link_check_next(const side *d)
{
    ddl__signature signature;
    size_t bytes;
    if (!d->link->ops->next(d->link, &signature, &bytes))
        return;
    const void *span = ddl__link_peek(d->link, bytes, &signature);
    if (span)
        check_span(d, span, bytes);
    else
        REQUIRE(d->link->state == DDL__LINK_LOST, "state %d", d->link->state);
}

static void send_span(scene *s, const side *d, bool user_memory)
{
    static const unsigned char memory[SPANS];
    ddl__signature signature = {{3, 4}};
    ddl__link *link = d->link;
    size_t bytes = 1 + input_length(&s->in, d->own == OWN ? SPANS : PRIVATE);
    if (user_memory) {
        link->ops->send_user(&link, 1, memory, bytes, &signature);
        return;
    }
    void *span = link->ops->reserve(&link, 1, bytes);
    if (!span)
        return;
    REQUIRE(is_inside(d->own, span, bytes), "%zu bytes that are not ours", bytes);
    memset(span, 1, bytes);
    link->ops->publish(&link, 1, span, bytes, &signature);
}

static void check_state(side *d)
{
    const ddl__link *link = d->link;
    REQUIRE(memchr(link->reason, 0, DDL__LINK_REASON), "a reason without an end");
    REQUIRE(d->before == DDL__LINK_OPEN || link->state != DDL__LINK_OPEN, "open again after %d",
            d->before);
    REQUIRE(link->state != DDL__LINK_LOST || link->reason[0], "lost without a reason");
    d->before = link->state;
}

static void step(scene *s)
{
    enum { KINDS = 14 };
    unsigned what = input_byte(&s->in);
    side *d = &s->sides[what / KINDS % 2];
    ddl__link *link = d->link;
    switch (what % KINDS) {
    case 0: scribble(s, s->peer_file, d->peer_outlet); break;
    case 1: scribble(s, s->own_file, d->own_outlet); break;
    case 2: publish(s, d); break;
    case 3: ring(s); break;
    case 4: link_receive(s, d, true); break;
    case 5: link_receive(s, d, false); break;
    case 6: link->ops->poll(link); break;
    case 7: send_span(s, d, true); break;
    case 8: send_span(s, d, false); break;
    case 9: link->ops->sleeping(link, input_byte(&s->in) % 2); break;
    case 10: link->ops->close(link, input_byte(&s->in) % 2 ? "enough" : NULL); break;
    case 11: link_check_next(d); break;
    case 12: link->ops->peer_ended(s->sides[0].link); break;
    default: link->ops->flush(link); break;
    }
    check_state(&s->sides[0]);
    check_state(&s->sides[1]);
}

static void run_links(scene *s, ddl__arena *peer, unsigned number)
{
    ddl__link *link = ddl__shm_link_create(s->own, 0, peer, number, false);
    REQUIRE(link && n_mappings == MAPPINGS, "%s", ddl__message());
    off_t beside = (off_t)(mappings[PEER].bytes + number * mappings[PEER_PRIVATE].bytes);
    s->sides[0] =
        (side){.link = link, .own = OWN, .peer = PEER, .peer_lane = LANES + (off_t)number * LANE};
    s->sides[1] = (side){.link = ddl__shm_link_beside(link),
                         .own = OWN_PRIVATE,
                         .peer = PEER_PRIVATE,
                         .own_outlet = RIGHT_BESIDE,
                         .peer_outlet = beside,
                         .peer_lane = beside + LANES};
    for (unsigned i = 0; s->in.left && i < STEPS_MAX; i++)
        step(s);
    s->sides[1].link->ops->destroy(s->sides[1].link);
    link->ops->destroy(link);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    scene s = {.in = {bytes, n}};
    ddl__arena *right = NULL;
    s.own = ddl__arena_create(1, SPANS, PRIVATE);
    n_mappings = MAPPINGS;
    /* without guards, because the link does not read it */
    right = ddl__arena_create(1, SPANS, PRIVATE);
    n_mappings = PEER;
    REQUIRE(s.own && right, "%s", ddl__message());
    s.own_file = ddl__arena_fd(s.own);
    s.peer_file = make_file(&s, right);
    scribble(&s, s.peer_file, 0);
    unsigned number = input_byte(&s.in) % 4;

    ddl__message_clear();
    ddl__arena *peer = ddl__arena_open(s.peer_file, number);
    if (peer)
        run_links(&s, peer, number);
    else
        REQUIRE(ddl__message()[0], "refused without a message");
    close(s.peer_file);
    ddl__arena_drop(right);
    ddl__arena_drop(s.own);
    unmap_guards();
    return 0;
}
