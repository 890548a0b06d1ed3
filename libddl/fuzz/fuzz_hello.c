/* An endpoint's listeners: a real endpoint, and unauthenticated clients who connect to its
 * listeners with any bytes, in any pieces, with descriptors beside them, and prove what they say
 * rightly, wrongly or not at all. It must let in who fits, refuse who does not and say why, keep
 * nothing of those who left, and go on serving. */
#include <pthread.h>
#include <sched.h>
#include <signal.h>

#include "net/shm.h"
#include "net/socket.h"
#include "raw_client.h"

enum { PIECES_MAX = 8, MORE = 64 };

typedef struct house {
    ddl_endpoint *endpoint;
    ddl__arena *arena;
    ddl__comm_slot *slot;
    ddl__digest comm; /* that has the slot */
} house;

/* For a comm that nobody has: while somebody waits for connections, clients in numbers are heard at
 * once. */
static void *keep_open(void *argument)
{
    const house *h = argument;
    ddl__comm_slot *slot;
    ddl__digest comm = {{UINT64_MAX, 0}};
    REQUIRE(ddl__endpoint_open_slot(h->endpoint, comm, &slot) == DDL_OK, "%s", ddl__message());
    for (;;)
        await_accepted(h->endpoint, slot, ddl__now() + 3600 * 1000000000ll);
    return NULL;
}

static house *the_house(void)
{
    static house h;
    pthread_t keeper;
    if (!h.endpoint) {
        signal(SIGPIPE, SIG_IGN);
        h.comm.words[0] = 7;
        ddl_endpoint_config config = {.secret = "secret", .host = "127.0.0.1"};
        REQUIRE(ddl__endpoint_create(&config, &h.endpoint) == DDL_OK, "%s", ddl__message());
        REQUIRE(ddl__endpoint_open_slot(h.endpoint, h.comm, &h.slot) == DDL_OK, "%s",
                ddl__message());
        h.arena = ddl__arena_create(1, 4096, 4096);
        REQUIRE(h.arena, "%s", ddl__message());
        REQUIRE(!pthread_create(&keeper, NULL, keep_open, &h), "no thread");
    }
    return &h;
}

/* All fields that decide are right: then it must be challenged, and with a right proof let in. */
static bool fits(const house *h, const ddl__hello *hello, bool local)
{
    ddl__hello right = right_hello(h->endpoint, h->comm, hello->kind);
    return hello->magic == right.magic && hello->protocol == right.protocol &&
           hello->flags == right.flags && ddl__digest_equal(hello->endpoint, right.endpoint) &&
           (hello->kind == DDL__CONN_CONTROL || hello->kind == DDL__CONN_CREATE_FAILURE ||
            (local ? hello->kind == DDL__CONN_SHM || hello->kind == DDL__CONN_INPROC
                   : hello->kind == DDL__CONN_TCP || hello->kind == DDL__CONN_MESSAGES));
}

/* Send in pieces, with descriptors beside them. Whether none came with a piece that ends before
 * byte `end`: those are hung up on. */
static bool say(const house *h, int fd, const void *bytes, size_t n, bool local, size_t end,
                input *in)
{
    const char *at = bytes;
    bool heard = true, timely = true;
    for (unsigned piece = 0; heard && n; piece++) {
        size_t k = 1 + input_byte(in) % n;
        unsigned passed = local ? input_byte(in) % (PASSED_MAX + 1) : 0;
        if (piece == PIECES_MAX || !in->left)
            k = n;
        heard = send_piece(fd, at, k, ddl__arena_fd(h->arena), passed);
        at += k;
        n -= k;
        timely = timely && (!passed || at >= (const char *)bytes + end);
        if (n)
            sched_yield();
    }
    return timely;
}

/* Answer a challenge, perhaps wrongly; whether it must be let in. */
static bool answer_challenge(const house *h, int fd, const ddl__hello *hello,
                             const ddl__hello *challenge, bool local, input *in)
{
    const ddl__job *job = ddl__endpoint_job(h->endpoint);
    ddl__session session;
    unsigned char proof[DDL__KEY + MORE], right[DDL__KEY];
    memset(proof, 0, sizeof proof);
    REQUIRE(ddl__session_begin(job, hello, challenge, &session, right), "%s", ddl__message());
    memcpy(proof, right, sizeof right);
    input_alter(in, proof, DDL__KEY);
    size_t n = input_byte(in) % 4 == 3 ? input_length(in, sizeof proof) : DDL__KEY;
    bool timely = say(h, fd, proof, n, local, DDL__KEY, in);
    if (n < DDL__KEY || !timely)
        return false;
    ddl__hello answer = hear_answer(fd);
    bool proven = !memcmp(proof, right, sizeof right), in_now = answer.status == DDL_INPROGRESS;
    bool again = hello->number && !in_now; /* it may have been said before */
    REQUIRE(in_now == proven || again, "a %s proof is %s", proven ? "right" : "wrong",
            in_now ? "taken" : "refused");
    REQUIRE(!in_now || ddl__answer_is_proven(job, &session, DDL__AUTH_ADMISSION, &answer),
            "the endpoint proves nothing");
    return in_now;
}

/* A stranger with any bytes; the hello among them is the first ones. Whether it is kept although it
 * leaves, as what a member says last is. */
static bool inbound(const house *h, input *in)
{
    unsigned how = input_byte(in);
    bool local = how & 1, raw = how & 2, blind = how & 4;
    struct {
        ddl__hello hello;
        unsigned char more[MORE];
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
    bool whole = n >= sizeof said.hello, pointer = whole && said.hello.kind == DDL__CONN_INPROC;
    /* A pointer is believed from this very process, which is the only one that has any. */
    if (pointer)
        said.hello.arena = (uintptr_t)ddl__arena_share(h->arena);

    int fd = dial(h->endpoint, local);
    bool let_in = false;
    bool timely = say(h, fd, &said, n, local, sizeof said + 1, in);
    bool fitting = whole && fits(h, &said.hello, local);
    if (fitting && said.hello.number) {
        static const ddl__hello none;
        if (timely && !blind && n == sizeof said.hello)
            let_in = answer_challenge(h, fd, &said.hello, &none, local, in);
    } else if (whole && timely && !blind) {
        ddl__hello challenge = hear_answer(fd);
        REQUIRE((challenge.status == DDL_INPROGRESS) == fitting, "status %d", challenge.status);
        REQUIRE(!challenge.arena, "a strange answer");
        if (fitting && n == sizeof said.hello)
            let_in = answer_challenge(h, fd, &said.hello, &challenge, local, in);
    }
    if (pointer && !let_in)
        ddl__arena_drop(h->arena); /* it stayed here */
    if (how & 16)
        take_accepted(h->endpoint, h->slot);
    close(fd);
    return let_in && said.hello.kind == DDL__CONN_CONTROL &&
           ddl__digest_equal(said.hello.comm, h->comm);
}

static void check_serving(const house *h, bool local)
{
    ddl__hello hello = right_hello(h->endpoint, h->comm, local ? DDL__CONN_SHM : DDL__CONN_TCP);
    int fd = dial(h->endpoint, local);
    REQUIRE(initiate(h->endpoint, fd, &hello, -1), "the right one is not let in");
    close(fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    input in = {bytes, n};
    const house *h = the_house();
    unsigned before = count_fds();
    bool kept = false;
    for (unsigned visits = 1 + input_byte(&in) % 3; visits; visits--)
        kept = inbound(h, &in) || kept;
    check_serving(h, n % 2);
    if (kept)
        take_last_words(h->endpoint, h->slot, before);
    check_clean(before);
    return 0;
}
