/* A peer's memory file with anything in it, and the peer's scribbling in ours, between any calls of
 * the link's verbs: nothing outside the mapped memory is touched, and a span is what was asked for.
 * Mappings lie between guard pages, since sanitizers know nothing of shared memory. */
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "input.h"
#include "net/shm.h"

enum { PAGE = 4096, GUARD = 16 * PAGE, SPANS = 4 * PAGE, MAPPINGS = 2, STEPS_MAX = 200 };

/* As in the arena, written down a second time: header, then the first reader's lane. */
enum { LANES = 128, LANE = 64 + 64 * 64, ENTRY = 64, OFFSET = 24, BYTES = 28 };

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

/* What lay between them is unmapped already, and may belong to somebody else by now. */
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

typedef struct scene {
    input in;
    ddl__arena *own;
    ddl__link *link;
    int own_file, peer_file, bell;
    uint64_t position;
    ddl__link_state before;
} scene;

/* Overwrite short runs of a memory file's header and first lanes. */
static void scribble(scene *s, int file)
{
    unsigned char memory[LANES + LANE];
    if (file < 0)
        return;
    ssize_t n = pread(file, memory, sizeof memory, 0);
    if (n <= 0)
        return;
    input_alter(&s->in, memory, (size_t)n);
    REQUIRE(pwrite(file, memory, (size_t)n, 0) == n, "%s", strerror(errno));
}

/* The right arena's header in a file of any size, sealed or not. */
static int make_file(scene *s, const ddl__arena *right)
{
    static const size_t sizes[] = {0, 64, 127, 128, 4096, 8192, 8200, 65536};
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
    uint64_t spans = size - 8192;
    if (how & 8)
        memcpy(header + 16, &spans, sizeof spans);
    REQUIRE(pwrite(fd, header, (size_t)n, 0) == n, "%s", strerror(errno));
    if (how & 16)
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK);
    return fd;
}

/* Publish as a peer would, but say any place and length. */
static void publish(scene *s)
{
    size_t entry = LANES + 64 + (s->position + input_byte(&s->in) % 2) % 64 * ENTRY;
    uint64_t stamp = s->position + 1 + input_byte(&s->in) % 2;
    uint64_t signature[2] = {1, 2};
    uint32_t place[2] = {input_word(&s->in), input_word(&s->in)};
    unsigned how = input_byte(&s->in);
    if (how & 1)
        place[0] = place[0] % (SPANS / 64) * 64;
    if (how & 2)
        place[1] %= 2 * PAGE;
    pwrite(s->peer_file, signature, sizeof signature, (off_t)entry + 8);
    pwrite(s->peer_file, place, sizeof place, (off_t)entry + OFFSET);
    pwrite(s->peer_file, &stamp, sizeof stamp, (off_t)entry);
}

static void ring(scene *s)
{
    char bytes[300];
    size_t n = input_run(&s->in, bytes, 1 + input_byte(&s->in));
    if (n)
        send(s->bell, bytes, n, MSG_DONTWAIT | MSG_NOSIGNAL);
}

/* ------------------------------------------------------------------------------------- the link */

/* What the next entry says, so that the span asked for is mostly the one that is there. */
static size_t wanted(scene *s)
{
    uint32_t bytes = 0;
    off_t at = LANES + 64 + (off_t)(s->position % 64) * ENTRY + BYTES;
    if (input_byte(&s->in) % 8 && pread(s->peer_file, &bytes, sizeof bytes, at) == sizeof bytes)
        return bytes;
    return input_word(&s->in) % (2 * SPANS);
}

static void receive(scene *s, bool take)
{
    static unsigned char dst[1 << 17];
    ddl__signature signature = {{1, 2}};
    size_t bytes = wanted(s);
    const unsigned char *span = s->link->ops->peek(s->link, bytes, &signature);
    if (!span)
        return;
    REQUIRE(is_inside(1, span, bytes), "%zu bytes that are not the peer's", bytes);
    REQUIRE((uintptr_t)span % 8 == 0, "a span at an odd place");
    REQUIRE(bytes <= sizeof dst, "%zu bytes", bytes);
    if (take)
        REQUIRE(s->link->ops->take(s->link, dst, bytes, &signature), "a span has gone");
    else
        s->link->ops->release(s->link);
    s->position++;
}

static void send_span(scene *s, bool lend)
{
    static const unsigned char memory[SPANS];
    ddl__signature signature = {{3, 4}};
    size_t bytes = 1 + input_length(&s->in, SPANS);
    if (lend) {
        s->link->ops->lend(&s->link, 1, memory, bytes, &signature);
        return;
    }
    void *span = s->link->ops->reserve(&s->link, 1, bytes);
    if (!span)
        return;
    REQUIRE(bytes <= 32 || is_inside(0, span, bytes), "%zu bytes that are not ours", bytes);
    memset(span, 1, bytes);
    s->link->ops->publish(&s->link, 1, span, bytes, &signature);
}

static void step(scene *s)
{
    ddl__link *link = s->link;
    switch (input_byte(&s->in) % 12) {
    case 0: scribble(s, s->peer_file); break;
    case 1: scribble(s, s->own_file); break;
    case 2: publish(s); break;
    case 3: ring(s); break;
    case 4: receive(s, true); break;
    case 5: receive(s, false); break;
    case 6: link->ops->attend(link); break;
    case 7: send_span(s, true); break;
    case 8: send_span(s, false); break;
    case 9: link->ops->sleeping(link, input_byte(&s->in) % 2); break;
    case 10: link->ops->close(link, input_byte(&s->in) % 2 ? "enough" : NULL); break;
    default:
        link->ops->owes(link);
        link->ops->flush(link);
        break;
    }
    REQUIRE(memchr(link->reason, 0, sizeof link->reason), "a reason without an end");
    REQUIRE(s->before == DDL__LINK_OPEN || link->state != DDL__LINK_OPEN, "open again after %d",
            s->before);
    REQUIRE(link->state != DDL__LINK_LOST || link->reason[0], "lost without a reason");
    s->before = link->state;
}

static void run_link(scene *s, ddl__arena *peer, int bell)
{
    s->link = ddl__shm_link_create(s->own, 0, peer, input_byte(&s->in) % 4, bell, false);
    if (!s->link) {
        REQUIRE(ddl__message()[0], "refused without a message");
        close(bell);
        ddl__arena_drop(peer);
        return;
    }
    for (unsigned i = 0; s->in.left && i < STEPS_MAX; i++)
        step(s);
    s->link->ops->destroy(s->link);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    scene s = {.in = {bytes, n}};
    ddl__arena *right = NULL;
    int bells[2];
    s.own = ddl__arena_create(1, SPANS); /* mapping 0 */
    n_mappings = MAPPINGS;
    right = ddl__arena_create(1, SPANS); /* without guards: it is not looked at */
    n_mappings = 1;
    REQUIRE(s.own && right && !socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, bells), "%s",
            strerror(errno));
    s.own_file = ddl__arena_fd(s.own);
    s.peer_file = make_file(&s, right);
    s.bell = bells[1];
    scribble(&s, s.peer_file);

    ddl__message_clear();
    ddl__arena *peer = ddl__arena_open(s.peer_file); /* mapping 1 */
    if (peer) {
        run_link(&s, peer, bells[0]);
    } else {
        REQUIRE(ddl__message()[0], "refused without a message");
        close(bells[0]);
    }
    close(s.peer_file);
    close(s.bell);
    ddl__arena_drop(right);
    ddl__arena_drop(s.own);
    unmap_guards();
    return 0;
}
