/* An endpoint's door: a real endpoint, and strangers who come to its listeners with any bytes, in
 * any pieces, with descriptors beside them. It must let in who fits, refuse who does not and say
 * why, keep nothing of those who left, and go on serving. */
#include <sched.h>
#include <signal.h>

#include "door.h"
#include "net/shm.h"
#include "net/socket.h"

enum { PIECES_MAX = 8 };

typedef struct house {
    ddl_endpoint *endpoint;
    ddl__arena *arena;
    ddl__seat *seat;
    ddl__digest comm; /* that has the seat */
} house;

static house *the_house(void)
{
    static house h;
    if (!h.endpoint) {
        signal(SIGPIPE, SIG_IGN);
        h.comm.words[0] = 7;
        ddl_endpoint_config config = {.secret = "secret", .host = "127.0.0.1"};
        REQUIRE(ddl__endpoint_create(&config, &h.endpoint) == DDL_OK, "%s", ddl__message());
        REQUIRE(ddl__endpoint_enter(h.endpoint, h.comm, &h.seat) == DDL_OK, "%s", ddl__message());
        h.arena = ddl__arena_create(1, 4096, 4096);
        REQUIRE(h.arena, "%s", ddl__message());
    }
    return &h;
}

/* All fields that decide are right: then it must be let in. */
static bool fits(const house *h, const ddl__hello *hello, bool local)
{
    ddl__hello right = right_hello(h->endpoint, h->comm, hello->door);
    return hello->magic == right.magic && hello->protocol == right.protocol &&
           ddl__digest_equal(hello->endpoint, right.endpoint) &&
           ddl__digest_equal(hello->job, right.job) &&
           (local ? hello->door == DDL__DOOR_SHM || hello->door == DDL__DOOR_INPROC
                  : hello->door == DDL__DOOR_TCP || hello->door == DDL__DOOR_MESSAGES);
}

/* The answer at the door to a whole hello. */
static void check_answer(const house *h, int fd, const ddl__hello *hello, bool local)
{
    ddl__hello answer;
    REQUIRE(ddl__recv_all(fd, &answer, sizeof answer, ddl__now() + PATIENCE_NS), "no answer: %s",
            strerror(errno));
    bool in = fits(h, hello, local);
    REQUIRE(answer.status == (in ? DDL_INPROGRESS : DDL_EREFUSED), "status %d", answer.status);
    REQUIRE(ddl__hello_check(&answer) == DDL_OK, "%s", ddl__message());
    REQUIRE(!answer.arena && memchr(answer.text, 0, sizeof answer.text), "a strange answer");
    REQUIRE(in == !answer.text[0], "let in and refused: \"%s\"", answer.text);
    if (!in && hello->door == DDL__DOOR_INPROC)
        ddl__arena_drop((ddl__arena *)(uintptr_t)hello->arena); /* it stayed here */
}

/* A stranger with any bytes; the hello among them is the first ones. */
static void visit(const house *h, input *in)
{
    unsigned how = input_byte(in);
    bool local = how & 1, raw = how & 2, reads = how & 4;
    struct {
        ddl__hello hello;
        unsigned char more[64];
    } said;
    memset(&said, 0, sizeof said);
    said.hello = right_hello(h->endpoint, h->comm, (uint8_t)input_byte(in));
    size_t n = sizeof said.hello;
    if (raw)
        n = input_run(in, &said, sizeof said);
    else
        input_alter(in, &said, sizeof said.hello);
    if (how & 8)
        n = input_length(in, sizeof said);
    bool whole = n >= sizeof said.hello;
    /* A pointer is believed from this very process, which is the only one that has any. */
    if (whole && said.hello.door == DDL__DOOR_INPROC)
        said.hello.arena = (uintptr_t)ddl__arena_share(h->arena);

    int fd = dial(h->endpoint, local);
    const char *at = (const char *)&said;
    bool heard = true;
    for (unsigned piece = 0; heard && n; piece++) {
        size_t k = 1 + input_byte(in) % n;
        unsigned passed = local ? input_byte(in) % (PASSED_MAX + 1) : 0;
        if (piece == PIECES_MAX || !in->left)
            k = n;
        heard = send_piece(fd, at, k, ddl__arena_fd(h->arena), passed);
        at += k;
        n -= k;
        if (n)
            sched_yield();
    }
    if (whole && (reads || said.hello.door == DDL__DOOR_INPROC))
        check_answer(h, fd, &said.hello, local);
    if (how & 16) {
        ddl__guest guest;
        if (ddl__endpoint_guest(h->endpoint, h->seat, ddl__now(), &guest)) {
            if (guest.hello.door == DDL__DOOR_INPROC)
                ddl__arena_drop((ddl__arena *)(uintptr_t)guest.hello.arena);
            close(guest.fd);
            if (guest.passed >= 0)
                close(guest.passed);
        }
    }
    close(fd);
}

static void check_serving(const house *h, bool local)
{
    ddl__hello hello = right_hello(h->endpoint, h->comm, local ? DDL__DOOR_SHM : DDL__DOOR_TCP);
    int fd = dial(h->endpoint, local);
    REQUIRE(send_piece(fd, &hello, sizeof hello, -1, 0), "hung up");
    check_answer(h, fd, &hello, local);
    close(fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    input in = {bytes, n};
    const house *h = the_house();
    unsigned before = count_fds();
    for (unsigned visits = 1 + input_byte(&in) % 3; visits; visits--)
        visit(h, &in);
    check_serving(h, n % 2);
    check_clean(before);
    return 0;
}
