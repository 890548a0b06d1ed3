/* SPDX-License-Identifier: Apache-2.0 */
/* A peer without the job's secret gets no further than the handshake, whether it dials or is
 * dialed, and whatever messages it has recorded or alters. Both sides get the reason. */
#include <stdalign.h>

#include "clients.h"
#include "processes.h"
#include "ranks.h"

#define TEXT_OF(number) #number
#define TEXT(number)    TEXT_OF(number)
#define WE_SPEAK        "but this libddl speaks protocol " TEXT(DDL__PROTOCOL)

enum { LIMIT_MS = 10000 };

static ddl__hello hello_for(const ddl__job *job, const ddl_endpoint *endpoint)
{
    ddl__hello hello = ddl__hello_begin(job, DDL__CONN_TCP, 1, 0, 2);
    hello.endpoint = ddl__endpoint_address(endpoint)->endpoint;
    hello.comm.words[0] = 7;
    return hello;
}

/* -------------------------------------------------------------------------------- the middleman */

/* The messages in order; the dialer sends the even ones. A numbered hello is not challenged. */
typedef enum message { HELLO, CHALLENGE, PROOF, ADMISSION, MEMBER, MESSAGES } message;

/* Relays the messages of one connection and inverts one byte of one message. */
typedef struct middleman {
    int listener;
    uint16_t port, behind;
    message which; /* the message to alter; MESSAGES: none */
    message end;   /* number of messages to relay */
    size_t place;
    pthread_t thread;
    alignas(ddl__hello) unsigned char seen[MESSAGES][sizeof(ddl__hello)];
} middleman;

static void *relay(void *argument)
{
    middleman *b = argument;
    int64_t deadline = ddl__deadline(LIMIT_MS);
    CHECK(ddl__await(b->listener, POLLIN, deadline), "no client connected");
    int dialer = accept4(b->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    int dialed = dial(b->behind);
    for (message m = HELLO; m < b->end; m++) {
        bool there = m == HELLO || m == PROOF;
        if (m == CHALLENGE && ((const ddl__hello *)b->seen[HELLO])->number)
            continue;
        size_t n = m == PROOF ? DDL__KEY : sizeof(ddl__hello);
        if (!ddl__recv_all(there ? dialer : dialed, b->seen[m], n, deadline))
            break;
        if (m == b->which)
            b->seen[m][b->place] ^= 1;
        if (!ddl__send_all(there ? dialed : dialer, b->seen[m], n, deadline))
            break;
    }
    close(dialer);
    close(dialed);
    return NULL;
}

static middleman middleman_open(const ddl_endpoint *endpoint, message which, size_t place,
                                message end)
{
    middleman b = {.which = which, .place = place, .end = end, .behind = port_of(endpoint)};
    b.listener = listen_at(&b.port);
    return b;
}

static void middleman_start(middleman *b)
{
    CHECK(!pthread_create(&b->thread, NULL, relay, b), "no thread");
}

static void middleman_close(middleman *b)
{
    pthread_join(b->thread, NULL);
    close(b->listener);
}

/* A valid dialer connects through a middleman. */
static ddl_status connect_through(ddl_endpoint *endpoint, message which, size_t place, middleman *b)
{
    ddl__session session;
    const ddl__job *job = ddl__endpoint_job(endpoint);
    *b = middleman_open(endpoint, which, place, MEMBER);
    ddl__hello hello = hello_for(job, endpoint);
    int fd = dial(b->port);
    middleman_start(b);
    ddl_status status = ddl__handshake_initiate(job, fd, &hello, ddl__deadline(LIMIT_MS), &session);
    close(fd);
    middleman_close(b);
    return status;
}

#define FIELD(m, name, words)                                                                      \
    {                                                                                              \
        m, offsetof(ddl__hello, name), #m "'s " #name, words                                       \
    }

static void test_altered(void)
{
    static const char differ[] = "the secrets differ", lies[] = "does not know the job's secret";
    static const struct {
        message which;
        size_t place;
        const char *name, *words;
    } alterations[] = {
        FIELD(HELLO, magic, "libddl's protocol"),
        FIELD(HELLO, protocol, WE_SPEAK),
        FIELD(HELLO, kind, ""),
        FIELD(HELLO, lane, differ),
        FIELD(HELLO, from, differ),
        FIELD(HELLO, to, differ),
        FIELD(HELLO, size, differ),
        FIELD(HELLO, flags, "secret"),
        FIELD(HELLO, endpoint, "another endpoint"),
        FIELD(HELLO, dialer, differ),
        FIELD(HELLO, comm, differ),
        FIELD(HELLO, family, differ),
        FIELD(HELLO, creation, differ),
        FIELD(HELLO, arena, differ),
        FIELD(HELLO, nonce, differ),
        FIELD(HELLO, text, differ),
        FIELD(HELLO, proof, differ),
        FIELD(CHALLENGE, protocol, "protocol"),
        FIELD(CHALLENGE, status, ""),
        FIELD(CHALLENGE, from, differ),
        FIELD(CHALLENGE, flags, "secret"),
        FIELD(CHALLENGE, nonce, differ),
        {PROOF, 0, "the proof", differ},
        {PROOF, DDL__KEY - 1, "the proof's end", differ},
        FIELD(ADMISSION, lane, lies),
        FIELD(ADMISSION, status, ""),
        FIELD(ADMISSION, text, lies),
        FIELD(ADMISSION, proof, lies),
    };
    ddl_endpoint *endpoint = open_endpoint("secret");
    middleman b;
    CHECK(connect_through(endpoint, MESSAGES, 0, &b) == DDL_OK, "%s", ddl__message());
    for (size_t i = 0; i < sizeof alterations / sizeof *alterations; i++) {
        ddl_status status =
            connect_through(endpoint, alterations[i].which, alterations[i].place, &b);
        CHECK(status == DDL_EREFUSED && strstr(ddl__message(), alterations[i].words),
              "%s: %d \"%s\"", alterations[i].name, status, ddl__message());
    }
    ddl_endpoint_destroy(endpoint);
}

/* ---------------------------------------------------------------------------- recorded messages */

static ddl__hello receive_answer(int fd)
{
    ddl__hello answer;
    CHECK(ddl__recv_all(fd, &answer, sizeof answer, ddl__deadline(LIMIT_MS)), "no answer: %s",
          strerror(errno));
    return answer;
}

static void send_bytes(int fd, const void *bytes, size_t n)
{
    CHECK(ddl__send_all(fd, bytes, n, ddl__deadline(LIMIT_MS)), "%s", strerror(errno));
}

/* Replay all messages of a valid dialer. */
static void test_replayed(void)
{
    ddl_endpoint *endpoint = open_endpoint("secret");
    middleman b;
    CHECK(connect_through(endpoint, MESSAGES, 0, &b) == DDL_OK, "%s", ddl__message());
    int fd = dial(port_of(endpoint));
    send_bytes(fd, b.seen[HELLO], sizeof(ddl__hello));
    CHECK(receive_answer(fd).status == DDL_INPROGRESS, "no challenge");
    send_bytes(fd, b.seen[PROOF], DDL__KEY);
    ddl__hello answer = receive_answer(fd);
    CHECK(answer.status == DDL_EREFUSED && strstr(answer.text, "secrets differ"), "%d \"%s\"",
          answer.status, answer.text);
    close(fd);
    ddl_endpoint_destroy(endpoint);
}

/* A valid dialer's numbered hello and its proof. */
typedef struct said {
    ddl__hello hello;
    unsigned char proof[DDL__KEY];
} said;

static said send_numbered(const ddl_endpoint *endpoint, uint64_t number)
{
    said s;
    ddl__session session;
    int fds[2];
    const ddl__job *job = ddl__endpoint_job(endpoint);
    ddl__hello hello = hello_for(job, endpoint);
    hello.dialer.words[0] = 1234;
    hello.number = number;
    CHECK(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), "%s", strerror(errno));
    OK(ddl__handshake_start(job, fds[0], &hello, -1, ddl__deadline(LIMIT_MS), &session));
    CHECK(ddl__recv_all(fds[1], &s, sizeof s, ddl__deadline(LIMIT_MS)), "%s", strerror(errno));
    close(fds[0]);
    close(fds[1]);
    return s;
}

/* Send both again, and return the endpoint's only answer. */
static ddl__hello send_again(const ddl_endpoint *endpoint, const said *s)
{
    int fd = dial(port_of(endpoint));
    send_bytes(fd, s, sizeof *s);
    ddl__hello answer = receive_answer(fd);
    close(fd);
    return answer;
}

#define IS_REFUSED(answer, words)                                                                  \
    CHECK((answer).status == DDL_EREFUSED && strstr((answer).text, words), "%d \"%s\"",            \
          (answer).status, (answer).text)

/* A numbered hello gets one answer and no challenge. A replayed one is refused, however many others
 * came in between. */
static void test_numbered(void)
{
    enum { MANY = 4 * DDL__REPLAY_GUARD_LAST };
    ddl_endpoint *endpoint = open_endpoint("secret"), *other = open_endpoint("secret");
    said first = send_numbered(endpoint, 2), late = send_numbered(endpoint, 1), s;
    ddl__hello answer = send_again(endpoint, &first);
    CHECK(answer.status == DDL_INPROGRESS, "refused: %s", answer.text);
    answer = send_again(endpoint, &first);
    IS_REFUSED(answer, "sent before");
    answer = send_again(endpoint, &late);
    CHECK(answer.status == DDL_INPROGRESS, "one that was overtaken is refused: %s", answer.text);
    for (uint64_t number = 3; number < MANY; number++) {
        s = send_numbered(endpoint, number);
        answer = send_again(endpoint, &s);
        CHECK(answer.status == DDL_INPROGRESS, "%s", answer.text);
    }
    answer = send_again(endpoint, &first);
    IS_REFUSED(answer, "sent before");
    answer = send_again(endpoint, &late);
    IS_REFUSED(answer, "sent before");
    answer = send_again(endpoint, &s);
    IS_REFUSED(answer, "sent before");
    answer = send_again(other, &s);
    IS_REFUSED(answer, "another endpoint");
    ddl_endpoint_destroy(endpoint);
    ddl_endpoint_destroy(other);
}

/* Every byte is authenticated: an altered hello has another number, another endpoint, or no number,
 * so that it is challenged. */
static void test_numbered_altered(void)
{
    static const size_t places[] = {offsetof(said, hello.kind),   offsetof(said, hello.from),
                                    offsetof(said, hello.comm),   offsetof(said, hello.dialer),
                                    offsetof(said, hello.number), offsetof(said, hello.nonce),
                                    offsetof(said, hello.arena),  offsetof(said, proof)};
    ddl_endpoint *endpoint = open_endpoint("secret");
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        said s = send_numbered(endpoint, 2 + i); /* 3 becomes 2, which was not used either */
        ((unsigned char *)&s)[places[i]] ^= 1;
        ddl__hello answer = send_again(endpoint, &s);
        CHECK(answer.status == DDL_EREFUSED, "byte %zu is altered, and it is admitted", places[i]);
    }
    said s = send_numbered(endpoint, 1);
    s.hello.number = 0;
    int fd = dial(port_of(endpoint));
    send_bytes(fd, &s, sizeof s);
    CHECK(receive_answer(fd).status == DDL_INPROGRESS, "no challenge");
    ddl__hello answer = receive_answer(fd);
    IS_REFUSED(answer, "secrets differ");
    close(fd);
    ddl_endpoint_destroy(endpoint);
}

/* Proofs of equal bytes under different labels differ. */
static void test_auth_labels(void)
{
    ddl__job job;
    ddl__session sessions[2] = {{{1}}, {{2}}};
    unsigned char proofs[2 * DDL__AUTH_LISTENER_KEY][DDL__KEY];
    unsigned n = 0;
    OK(ddl__job_open(&job, "secret", false));
    for (int s = 0; s < 2; s++)
        for (int label = DDL__AUTH_HELLO; label <= DDL__AUTH_LISTENER_KEY; label++, n++) {
            CHECK(ddl__prove(&job, &sessions[s], (ddl__auth_label)label, "words", 5, proofs[n]),
                  "%s", ddl__message());
            CHECK(ddl__is_proven(&job, &sessions[s], (ddl__auth_label)label, "words", 5, proofs[n]),
                  "wrong");
            for (unsigned other = 0; other < n; other++)
                CHECK(memcmp(proofs[n], proofs[other], DDL__KEY) != 0, "proof %u is %u", n, other);
        }
    ddl__job_close(&job);
}

/* A dialed side that reflects the dialer's messages. */
typedef struct mirror {
    int fd;
    bool nonce; /* use the dialer's own nonce as the challenge */
} mirror;

static void *reflect(void *argument)
{
    const mirror *m = argument;
    unsigned char proof[DDL__KEY];
    ddl__hello hello = receive_answer(m->fd),
               challenge = ddl__hello_answer(&hello, DDL_INPROGRESS, NULL);
    if (!m->nonce)
        memset(challenge.nonce, 1, sizeof challenge.nonce);
    send_bytes(m->fd, &challenge, sizeof challenge);
    CHECK(ddl__recv_all(m->fd, proof, sizeof proof, ddl__deadline(LIMIT_MS)), "no proof");
    ddl__hello answer = ddl__hello_answer(&hello, DDL_INPROGRESS, NULL);
    memcpy(answer.proof, proof, sizeof proof);
    send_bytes(m->fd, &answer, sizeof answer);
    return NULL;
}

static void test_reflected(void)
{
    ddl_endpoint *endpoint = open_endpoint("secret");
    const ddl__job *job = ddl__endpoint_job(endpoint);
    for (int nonce = 0; nonce < 2; nonce++) {
        int fds[2];
        pthread_t thread;
        ddl__session session;
        ddl__hello hello = hello_for(job, endpoint);
        CHECK(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), "%s", strerror(errno));
        mirror m = {fds[1], nonce};
        CHECK(!pthread_create(&thread, NULL, reflect, &m), "no thread");
        ddl_status status =
            ddl__handshake_initiate(job, fds[0], &hello, ddl__deadline(LIMIT_MS), &session);
        CHECK(status == DDL_EREFUSED && strstr(ddl__message(), "does not know the job's secret"),
              "%d \"%s\"", status, ddl__message());
        pthread_join(thread, NULL);
        close(fds[0]);
        close(fds[1]);
    }
    ddl_endpoint_destroy(endpoint);
}

/* ----------------------------------------------------------------------------- another protocol */

/* The hello of protocol 3 is shorter: both sides fail at once, without waiting for the rest. */
static void test_old_protocol(void)
{
    enum { OLD = 3, OLD_BYTES = 176 };
    ddl_endpoint *endpoint = open_endpoint("secret");
    ddl__hello hello = hello_for(ddl__endpoint_job(endpoint), endpoint);
    hello.protocol = OLD;
    int fd = dial(port_of(endpoint));
    send_bytes(fd, &hello, OLD_BYTES);
    ddl__hello answer = receive_answer(fd);
    CHECK(answer.magic == DDL__HELLO_MAGIC && answer.protocol == DDL__PROTOCOL &&
              answer.status == DDL_EREFUSED && strstr(answer.text, "protocol 3, " WE_SPEAK),
          "%d \"%s\"", answer.status, answer.text);
    close(fd);

    int fds[2];
    ddl__session session;
    CHECK(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), "%s", strerror(errno));
    send_bytes(fds[1], &hello, OLD_BYTES);
    ddl__hello ours = hello_for(ddl__endpoint_job(endpoint), endpoint);
    REFUSED(ddl__handshake_initiate(ddl__endpoint_job(endpoint), fds[0], &ours,
                                    ddl__deadline(LIMIT_MS), &session),
            DDL_EREFUSED, "it speaks protocol 3, " WE_SPEAK);
    close(fds[0]);
    close(fds[1]);
    ddl_endpoint_destroy(endpoint);
}

/* -------------------------------------------------------------------------------- whole members */

typedef struct member {
    const char *secret;
    ddl_endpoint *endpoint;
    unsigned char addresses[2][DDL_ADDRESS_MAX];
    size_t lengths[2];
    int rank;
    uint32_t links;
    int64_t timeout_ms;
    char url[64]; /* or by rendezvous */
    ddl_status status;
    char message[512];
    pthread_t thread;
} member;

static void *join(void *argument)
{
    member *m = argument;
    const void *addresses[] = {m->addresses[0], m->addresses[1]};
    ddl_comm_config config = {
        .struct_size = sizeof config, .links = m->links, .timeout_ms = m->timeout_ms};
    ddl_comm *comm = NULL;
    m->status =
        m->url[0] ? ddl_rendezvous(m->endpoint, m->url, m->rank, 2, &config, &comm)
                  : ddl_comm_create(m->endpoint, addresses, m->lengths, m->rank, 2, &config, &comm);
    snprintf(m->message, sizeof m->message, "%s", m->status == DDL_OK ? "" : ddl_last_error());
    ddl_comm_destroy(comm);
    return NULL;
}

static void open_members(member members[2], const char *first, const char *second)
{
    memset(members, 0, 2 * sizeof *members);
    members[0].secret = first;
    members[1].secret = second;
    for (int i = 0; i < 2; i++) {
        members[i].rank = i;
        members[i].timeout_ms = 20000;
        members[i].endpoint = open_endpoint(members[i].secret);
        OK(ddl_endpoint_address(members[i].endpoint, members[0].addresses[i], DDL_ADDRESS_MAX,
                                &members[0].lengths[i]));
        memcpy(members[1].addresses[i], members[0].addresses[i], DDL_ADDRESS_MAX);
        members[1].lengths[i] = members[0].lengths[i];
    }
}

/* Run both members of each of `n` pairs, all at once. */
static void run_members(member (*pairs)[2], int n)
{
    member *members = pairs[0];
    for (int i = 0; i < 2 * n; i++)
        CHECK(!pthread_create(&members[i].thread, NULL, join, &members[i]), "no thread");
    for (int i = 0; i < 2 * n; i++)
        pthread_join(members[i].thread, NULL);
    for (int i = 0; i < 2 * n; i++)
        ddl_endpoint_destroy(members[i].endpoint);
}

static void check_both(const member members[2], const char *words)
{
    CHECK(members[1].status == DDL_EREFUSED ||
              (members[1].links != DDL_LINK_TCP && members[1].status == DDL_EUNREACHABLE),
          "rank 1 got %d: %s", members[1].status, members[1].message);
    CHECK(members[0].status == DDL_ETIMEDOUT, "rank 0 got %d: %s", members[0].status,
          members[0].message);
    for (int i = 0; i < 2; i++)
        CHECK(strstr(members[i].message, words), "rank %d: \"%s\" lacks \"%s\"", i,
              members[i].message, words);
}

/* Test the secrets over each kind of link, and at the rendezvous. */
static void test_secrets(const char *first, const char *second, const char *words)
{
    static const uint32_t kinds[] = {DDL_LINK_TCP, DDL_LINK_SHM, DDL_LINK_INPROC};
    enum { KINDS = sizeof kinds / sizeof *kinds };
    member pairs[KINDS + 1][2];
    for (int i = 0; i <= KINDS; i++) {
        member *members = pairs[i];
        bool by_rendezvous = i == KINDS;
        open_members(members, first, second);
        int port = by_rendezvous ? free_port() : 0;
        for (int r = 0; r < 2; r++) {
            members[r].links = by_rendezvous ? DDL_LINK_TCP : kinds[i];
            if (by_rendezvous)
                snprintf(members[r].url, sizeof members[r].url, "tcp://127.0.0.1:%d", port);
        }
        if (words) /* no member connects */
            members[0].timeout_ms = 2000;
    }
    run_members(pairs, KINDS + 1);
    for (int i = 0; i <= KINDS; i++) {
        if (words)
            check_both(pairs[i], words);
        for (int r = 0; r < 2 && !words; r++)
            CHECK(pairs[i][r].status == DDL_OK, "rank %d: %s", r, pairs[i][r].message);
    }
}

/* Alter the member's answer, which completes the link. */
static void test_member_altered(void)
{
    static const size_t places[] = {offsetof(ddl__hello, status), offsetof(ddl__hello, arena),
                                    offsetof(ddl__hello, proof)};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        member members[2];
        ddl__address address;
        ddl__interface ips[DDL__INTERFACES_MAX];
        open_members(members, "secret", "secret");
        middleman b = middleman_open(members[0].endpoint, MEMBER, places[i], MESSAGES);
        CHECK(ddl__address_decode(&address, ips, members[1].addresses[0], members[1].lengths[0]) ==
                  DDL_OK,
              "%s", ddl__message());
        address.port = b.port;
        ddl__address_encode(&address, members[1].addresses[0]);
        members[0].links = members[1].links = DDL_LINK_TCP;
        members[0].timeout_ms = 2000;
        middleman_start(&b);
        run_members(&members, 1);
        middleman_close(&b);
        CHECK(members[1].status == DDL_EREFUSED && strstr(members[1].message, "altered"),
              "rank 1 got %d: %s", members[1].status, members[1].message);
        CHECK(members[0].status != DDL_OK, "rank 0 is content");
    }
}

/* A host of the other byte order dials, is dialed, and passes its address. */
static void test_other_byte_order(void)
{
    static const char words[] = "its byte order is not ours: all hosts of a job must be";
    ddl_endpoint *endpoint = open_endpoint("");
    ddl__hello hello = hello_for(ddl__endpoint_job(endpoint), endpoint), ours = hello;
    hello.magic = __builtin_bswap32(hello.magic);
    hello.protocol = __builtin_bswap16(hello.protocol);
    int fd = dial(port_of(endpoint));
    send_bytes(fd, &hello, sizeof hello);
    ddl__hello answer = receive_answer(fd);
    IS_REFUSED(answer, words);
    close(fd);

    int fds[2];
    ddl__session session;
    CHECK(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), "%s", strerror(errno));
    send_bytes(fds[1], &hello, sizeof hello);
    REFUSED(ddl__handshake_initiate(ddl__endpoint_job(endpoint), fds[0], &ours,
                                    ddl__deadline(LIMIT_MS), &session),
            DDL_EREFUSED, words);
    close(fds[0]);
    close(fds[1]);

    unsigned char bytes[DDL_ADDRESS_MAX];
    ddl__address address;
    ddl__interface ips[DDL__INTERFACES_MAX];
    size_t n = ddl__address_encode(ddl__endpoint_address(endpoint), bytes);
    uint32_t magic;
    memcpy(&magic, bytes, sizeof magic);
    magic = __builtin_bswap32(magic);
    memcpy(bytes, &magic, sizeof magic);
    REFUSED(ddl__address_decode(&address, ips, bytes, n), DDL_EINVAL, words);
    ddl_endpoint_destroy(endpoint);
}

int main(void)
{
    setenv("DDL_LOG", "off", 0);
    test_other_byte_order();
    test_altered();
    test_replayed();
    test_numbered();
    test_numbered_altered();
    test_auth_labels();
    test_reflected();
    test_old_protocol();
    test_secrets("secret", "secret", NULL);
    test_secrets("", "", NULL);
    test_secrets("ours", "theirs", "another job: the secrets differ");
    test_secrets("ours", "", "secret");
    test_secrets("", "theirs", "secret");
    test_member_altered();
}
