/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzes an endpoint's listeners. Clients send any bytes, in any pieces, with descriptors, and send
 * valid, invalid or no proofs. The endpoint must admit valid clients, refuse others with a reason,
 * free everything of clients that have left, and continue to serve. */
#include <pthread.h>
#include <sched.h>
#include <signal.h>

#include "net/shm/shm.h"
#include "net/socket.h"
#include "raw_client.h"

enum { PIECES_MAX = 8, MORE = 64 };

typedef struct fixture {
    ddl_endpoint *endpoint;
    ddl__arena *arena;
    ddl__comm_slot *slot;
    ddl__digest comm; /* the slot's comm */
} fixture;

/* Wait for connections of a comm that no client names: the rate limit does not apply meanwhile. */
static void *keep_open(void *argument)
{
    const fixture *h = argument;
    ddl__comm_slot *slot;
    ddl__comm_id id = {.comm = {{UINT64_MAX, 0}}};
    REQUIRE(ddl__endpoint_open_slot(h->endpoint, &id, &slot) == DDL_OK, "%s", ddl__message());
    for (;;)
        await_accepted(h->endpoint, slot, ddl__now() + 3600 * 1000000000ll);
    return NULL;
}

static fixture *open_fixture(void)
{
    static fixture h;
    pthread_t keeper;
    if (!h.endpoint) {
        signal(SIGPIPE, SIG_IGN);
        h.comm.words[0] = 7;
        ddl_endpoint_config config = {.secret = "secret", .host = "127.0.0.1"};
        REQUIRE(ddl__endpoint_create(&config, DDL_LINK_SHM, &h.endpoint) == DDL_OK, "%s",
                ddl__message());
        REQUIRE(ddl__endpoint_open_slot(h.endpoint, &(ddl__comm_id){.comm = h.comm}, &h.slot) ==
                    DDL_OK,
                "%s", ddl__message());
        h.arena = ddl__arena_create(1, 4096, 4096);
        REQUIRE(h.arena, "%s", ddl__message());
        REQUIRE(!pthread_create(&keeper, NULL, keep_open, &h), "no thread");
    }
    return &h;
}

/* True if all fields are valid: the hello must be challenged, and admitted with a valid proof. */
static bool fits(const fixture *h, const ddl__hello *hello, bool local)
{
    ddl__hello right = right_hello(h->endpoint, h->comm, hello->kind);
    return hello->magic == right.magic && hello->protocol == right.protocol &&
           hello->flags == right.flags && ddl__digest_equal(hello->endpoint, right.endpoint) &&
           (hello->kind == DDL__CONN_CONTROL || hello->kind == DDL__CONN_CREATE_FAILURE ||
            hello->kind == DDL__CONN_LIST || hello->kind == DDL__CONN_LATE_CONTROL ||
            (local ? hello->kind == DDL__CONN_SHM || hello->kind == DDL__CONN_INPROC ||
                         hello->kind == DDL__CONN_FIRST_MEMORY
                   : hello->kind == DDL__CONN_TCP || hello->kind == DDL__CONN_MESSAGES ||
                         hello->kind == DDL__CONN_PAIR || hello->kind == DDL__CONN_FIRST_USE));
}

/* Send in pieces, with descriptors. Return false if a descriptor came with a piece that ends before
 * byte `end`: the endpoint closes such a connection. */
static bool send_pieces(const fixture *h, int fd, const void *bytes, size_t n, bool local,
                        size_t end, input *in)
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

/* Answer a challenge, perhaps wrongly. Return true if the client must be admitted. */
static bool answer_challenge(const fixture *h, int fd, const ddl__hello *hello,
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
    bool timely = send_pieces(h, fd, proof, n, local, DDL__KEY, in);
    if (n < DDL__KEY || !timely)
        return false;
    ddl__hello answer = receive_answer(fd);
    bool proven = !memcmp(proof, right, sizeof right),
         admitted_now = answer.status == DDL_INPROGRESS;
    bool again = hello->number && !admitted_now; /* it may have been sent before */
    REQUIRE(admitted_now == proven || again, "a %s proof is %s", proven ? "right" : "wrong",
            admitted_now ? "taken" : "refused");
    REQUIRE(!admitted_now || ddl__answer_is_proven(job, &session, DDL__AUTH_ADMISSION, &answer),
            "the endpoint sends no proof");
    return admitted_now;
}

/* Connect with any bytes; the first ones are the hello. Return true if the endpoint keeps the
 * connection although the client has closed it, because its last message may be in it. */
static bool inbound(const fixture *h, input *in)
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
    /* An endpoint accepts a pointer only from its own process, which is this one. */
    if (pointer)
        said.hello.arena = (uintptr_t)ddl__arena_share(h->arena);

    int fd = dial(h->endpoint, local);
    bool admitted = false;
    bool timely = send_pieces(h, fd, &said, n, local, sizeof said + 1, in);
    bool fitting = whole && fits(h, &said.hello, local);
    if (fitting && said.hello.number) {
        static const ddl__hello none;
        if (timely && !blind && n == sizeof said.hello)
            admitted = answer_challenge(h, fd, &said.hello, &none, local, in);
    } else if (whole && timely && !blind) {
        ddl__hello challenge = receive_answer(fd);
        REQUIRE((challenge.status == DDL_INPROGRESS) == fitting, "status %d", challenge.status);
        REQUIRE(!challenge.arena, "an answer with a pointer");
        if (fitting && n == sizeof said.hello)
            admitted = answer_challenge(h, fd, &said.hello, &challenge, local, in);
    }
    if (pointer && !admitted)
        ddl__arena_drop(h->arena); /* the reference was not passed */
    if (how & 16)
        take_accepted(h->endpoint, h->slot);
    close(fd);
    return admitted && said.hello.kind == DDL__CONN_CONTROL &&
           ddl__digest_equal(said.hello.comm, h->comm);
}

static void check_serving(const fixture *h, bool local)
{
    ddl__hello hello = right_hello(h->endpoint, h->comm, local ? DDL__CONN_SHM : DDL__CONN_TCP);
    int fd = dial(h->endpoint, local);
    REQUIRE(initiate(h->endpoint, fd, &hello, -1), "a valid client is not admitted");
    close(fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    input in = {bytes, n};
    const fixture *h = open_fixture();
    unsigned before = count_fds();
    bool kept = false;
    for (unsigned clients = 1 + input_byte(&in) % 3; clients; clients--)
        kept = inbound(h, &in) || kept;
    check_serving(h, n % 2);
    if (kept)
        take_parked(h->endpoint, h->slot, before);
    check_clean(before);
    return 0;
}
