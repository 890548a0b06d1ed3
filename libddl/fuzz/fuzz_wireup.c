/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzes the wireup of a comm of two ranks, one of which is this fuzzer. As rank 0 the library is
 * dialed by an intruder and by the valid member, which must get its place unless the intruder was
 * valid; over TCP with a second connection, for messages. As rank 1 the library dials, and gets
 * altered answers and altered memory. */
#include <arpa/inet.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "connect/wireup/wireup.h"
#include "raw_client.h"

enum { ARENA = 4096, SLOT = 4096, HEADER = 128, REPLIES = 3, MORE = 64 };

typedef struct stage {
    ddl_endpoint *endpoint;
    ddl__comm_slot *slot;
    ddl__digest comm;
    ddl__arena *own;    /* two readers, as in a comm of two */
    ddl__arena *theirs; /* memory that a valid peer passes */
    ddl__slots *slots;
    ddl__address peer; /* of the fuzzer's own endpoint, which only listens */
    int tcp, local;
} stage;

static stage *open_fixture(void)
{
    static stage s;
    if (s.endpoint)
        return &s;
    signal(SIGPIPE, SIG_IGN);
    s.comm.words[0] = 7;
    ddl_endpoint_config config = {.secret = "secret", .host = "127.0.0.1"};
    REQUIRE(ddl__endpoint_create(&config, DDL_LINK_SHM, &s.endpoint) == DDL_OK, "%s",
            ddl__message());
    REQUIRE(ddl__endpoint_open_slot(s.endpoint, &(ddl__comm_id){.comm = s.comm}, &s.slot) == DDL_OK,
            "%s", ddl__message());
    s.own = ddl__arena_create(2, ARENA, ARENA);
    s.theirs = ddl__arena_create(2, ARENA, ARENA);
    s.slots = ddl__slots_create(SLOT, 1);
    s.peer = *ddl__endpoint_address(s.endpoint);
    s.peer.endpoint.words[0]++;
    s.peer.port = 0;
    s.tcp = ddl__listen("127.0.0.1", &s.peer.port);
    struct sockaddr_storage name;
    socklen_t length = ddl__address_unix(&s.peer.endpoint, &name);
    s.local = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    REQUIRE(s.own && s.theirs && s.slots && s.tcp >= 0 && s.local >= 0 &&
                !bind(s.local, (struct sockaddr *)&name, length) && !listen(s.local, 8),
            "%s", ddl__message());
    return &s;
}

/* Return the valid arena, an arena with an altered header, or -1 for none. */
static int make_memory(const stage *s, input *in)
{
    unsigned how = input_byte(in) % 4;
    if (how < 2)
        return how ? -1 : dup(ddl__arena_fd(s->theirs));
    unsigned char header[HEADER];
    struct stat right;
    int fd = memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    REQUIRE(fd >= 0 && !fstat(ddl__arena_fd(s->theirs), &right) && !ftruncate(fd, right.st_size) &&
                pread(ddl__arena_fd(s->theirs), header, HEADER, 0) == HEADER,
            "%s", strerror(errno));
    input_alter(in, header, HEADER);
    REQUIRE(pwrite(fd, header, HEADER, 0) == HEADER, "%s", strerror(errno));
    if (how == 2)
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK);
    return fd;
}

/* Links by rank; only those to the other rank are created. */
typedef struct pair_links {
    ddl__link *links[2], *messages[2];
    ddl__control_dial *controls;
} pair_links;

/* Let a link receive any bytes, sent from the other end of its connection if we have that end. */
static void use_link(ddl__link *link, int fd, input *in)
{
    unsigned char bytes[MORE];
    ddl__signature signature = {{1, 2}};
    size_t n = input_run(in, bytes, sizeof bytes);
    if (fd >= 0 && n)
        send(fd, bytes, n, MSG_DONTWAIT | MSG_NOSIGNAL);
    link->ops->next(link, &signature, &n);
    ddl__link_peek(link, 16, &signature);
    link->ops->poll(link);
}

static void use_links(const pair_links *m, int peer, int fd, int messages_fd, input *in)
{
    ddl__link *link = m->links[peer], *messages = m->messages[peer];
    REQUIRE(link->state == DDL__LINK_OPEN && messages->state == DDL__LINK_OPEN, "states %d, %d",
            link->state, messages->state);
    REQUIRE(!link->shared || messages == ddl__shm_link_beside(link), "not the one beside");
    use_link(messages, messages_fd, in);
    use_link(link, fd, in);
}

static void drop_links(const pair_links *m, int peer)
{
    if (m->messages[peer])
        m->messages[peer]->ops->destroy(m->messages[peer]);
    if (m->links[peer])
        m->links[peer]->ops->destroy(m->links[peer]);
    ddl__controls_destroy(m->controls, 2);
}

static bool run_wireup(const stage *s, int rank, uint32_t kinds, pair_links *m)
{
    ddl__address addresses[2];
    addresses[rank] = *ddl__endpoint_address(s->endpoint);
    addresses[!rank] = s->peer;
    int64_t start = ddl__now(), warn_at = DDL__NEVER;
    ddl__creation creation = {.deadline = start + LIMIT_NS};
    ddl__wireup wireup = {.endpoint = s->endpoint,
                          .slot = s->slot,
                          .id = {.comm = s->comm},
                          .addresses = addresses,
                          .rank = rank,
                          .size = 2,
                          .kinds = kinds,
                          .begun = start,
                          .deadline = start + LIMIT_NS,
                          .warn_at = &warn_at,
                          .arena = s->own,
                          .slots = s->slots,
                          .links = m->links,
                          .messages = m->messages,
                          .creation = &creation};
    m->controls = wireup.controls = ddl__controls_create(2);
    REQUIRE(m->controls, "no memory");
    ddl__message_clear();
    ddl_status status = ddl__wireup_run(&wireup);
    REQUIRE(ddl__now() - start < LIMIT_NS, "kept waiting: %s", ddl__message());
    REQUIRE(!m->links[rank] && !m->messages[rank], "a link to ourselves");
    REQUIRE(!m->messages[!rank] == (status != DDL_OK), "status %d", status);
    REQUIRE(m->links[!rank] || !m->messages[!rank], "a second link without a first one");
    REQUIRE(status == DDL_OK || (rank == 1 && ddl__message()[0]), "status %d: %s", status,
            ddl__message());
    return status == DDL_OK;
}

/* ---------------------------------------------------------------- the library is dialed */

/* The valid member. Over TCP it dials again after it was answered. If the intruder has its place,
 * it completes the intruder's wireup. */
typedef struct member {
    const stage *stage;
    int fd, second;
    bool in; /* the first connection was admitted */
    /* the intruder's connection may be a lane of this member's link; the second connection then has
     * one, too */
    bool by_lane;
    int lane;
} member;

static void *dial_second(void *argument)
{
    member *m = argument;
    const stage *s = m->stage;
    ddl__hello answer, hello = right_hello(s->endpoint, s->comm, DDL__CONN_MESSAGES);
    REQUIRE(ddl__recv_all(m->fd, &answer, sizeof answer, ddl__now() + LIMIT_NS), "no answer: %s",
            strerror(errno));
    m->in = answer.status == DDL_OK;
    m->second = dial(s->endpoint, false);
    REQUIRE(initiate(s->endpoint, m->second, &hello, -1), "the second connection is not admitted");
    if (!m->by_lane || !ddl__recv_all(m->second, &answer, sizeof answer, ddl__now() + LIMIT_NS))
        return NULL;
    m->lane = dial(s->endpoint, false);
    hello.lane = 1;
    initiate(s->endpoint, m->lane, &hello, -1);
    return NULL;
}

/* Over TCP the wireup lasts until the second connection is admitted. */
static void connect_both(const stage *s, bool local, member *m, pair_links *made)
{
    ddl__hello answer;
    pthread_t thread;
    if (!local) {
        REQUIRE(!pthread_create(&thread, NULL, dial_second, m), "no thread");
        run_wireup(s, 0, DDL_LINK_TCP | DDL_LINK_SHM, made);
        pthread_join(thread, NULL);
        return;
    }
    run_wireup(s, 0, DDL_LINK_TCP | DDL_LINK_SHM, made);
    m->in = ddl__recv_all(m->fd, &answer, sizeof answer, ddl__now());
    REQUIRE(!m->in || answer.status == DDL_OK, "the right one is refused: %s", answer.text);
}

static void run_dialed(const stage *s, input *in, unsigned before)
{
    pair_links made = {0};
    bool local = input_byte(in) % 2;
    ddl__hello hello = right_hello(s->endpoint, s->comm, local ? DDL__CONN_SHM : DDL__CONN_TCP);
    ddl__hello right = hello;
    input_alter(in, &hello, sizeof hello);
    if (hello.kind == DDL__CONN_INPROC)
        hello.kind = DDL__CONN_SHM; /* pointers of this process would be valid */
    if (hello.kind == DDL__CONN_CREATE_FAILURE)
        hello.kind = right.kind; /* a notice with a valid proof would end the creation */
    int memory = local ? make_memory(s, in) : -1, whole = dup(ddl__arena_fd(s->theirs));
    int fds[2]; /* the endpoint chooses which connection it handles first */
    unsigned late = input_byte(in) % 2;
    for (unsigned i = 0; i < 2; i++) {
        fds[i] = dial(s->endpoint, local);
        if (i == late)
            initiate(s->endpoint, fds[i], &hello, memory);
        else
            REQUIRE(initiate(s->endpoint, fds[i], &right, local ? whole : -1),
                    "the valid member is not admitted");
    }
    int intruder = fds[late];
    member m = {.stage = s, .fd = fds[!late], .second = -1, .by_lane = hello.lane == 1, .lane = -1};
    connect_both(s, local, &m, &made);
    /* Over TCP the links may use either connection; the intruder has at most one. */
    use_links(&made, 1, m.in ? m.fd : intruder, m.second, in);
    drop_links(&made, 1);
    close(intruder);
    close(m.fd);
    close(whole);
    if (m.second >= 0)
        close(m.second);
    if (m.lane >= 0)
        close(m.lane);
    if (memory >= 0)
        close(memory);
    if (hello.kind == DDL__CONN_CONTROL)
        take_parked(s->endpoint, s->slot, before);
}

/* ---------------------------------------------------------------- the library dials */

enum { ADMISSION, MEMBER, ANSWERS, SCRIPT = 40 };

/* The answers to a dialer: valid ones, altered before or after they are authenticated. */
typedef struct reply {
    unsigned char script[SCRIPT];
    bool early;
    size_t bytes; /* bytes of all answers to send */
    int memory;
} reply;

typedef struct responder {
    const stage *stage;
    reply replies[REPLIES];
    int stop;
    unsigned char more[MORE];
    bool admitted; /* a dialer got an authenticated answer of a member */
} responder;

static void alter(const reply *c, ddl__hello answers[ANSWERS])
{
    input script = {c->script, sizeof c->script};
    input_alter(&script, answers, ANSWERS * sizeof *answers);
}

/* Send an answer after alterations. Return false if no more answers follow. */
static bool send_answer(const reply *c, int fd, const ddl__hello answers[ANSWERS], int which,
                        ddl__hello *as)
{
    ddl__hello altered[ANSWERS];
    size_t before = (size_t)which * sizeof *altered;
    size_t n = c->bytes > before ? c->bytes - before : 0;
    memcpy(altered, answers, sizeof altered);
    if (!c->early)
        alter(c, altered);
    *as = altered[which];
    int memory = which == MEMBER ? c->memory : -1;
    return n && send_piece(fd, as, n < sizeof *as ? n : sizeof *as, memory, memory >= 0) &&
           n >= sizeof *as;
}

static void answer_connection(responder *h, const reply *c, int fd)
{
    const ddl__job *job = ddl__endpoint_job(h->stage->endpoint);
    ddl__hello hello, answers[ANSWERS], sent;
    ddl__session session;
    unsigned char proof[DDL__KEY], right[DDL__KEY];
    static const ddl__hello no_challenge;
    int64_t deadline = ddl__now() + LIMIT_NS;
    if (!ddl__recv_all(fd, &hello, sizeof hello, deadline))
        return;
    for (int i = 0; i < ANSWERS; i++)
        answers[i] = ddl__hello_answer(&hello, i == MEMBER ? DDL_OK : DDL_INPROGRESS, NULL);
    if (c->early)
        alter(c, answers);
    if (!ddl__recv_all(fd, proof, sizeof proof, deadline) ||
        !ddl__session_begin(job, &hello, &no_challenge, &session, right))
        return;
    REQUIRE(hello.number, "it waits for a challenge");
    REQUIRE(!memcmp(proof, right, sizeof right), "a wrong proof");
    ddl__answer_prove(job, &session, DDL__AUTH_ADMISSION, &answers[ADMISSION]);
    ddl__answer_prove(job, &session, DDL__AUTH_MEMBER, &answers[MEMBER]);
    if (send_answer(c, fd, answers, ADMISSION, &sent) &&
        send_answer(c, fd, answers, MEMBER, &sent)) {
        if (ddl__answer_is_proven(job, &session, DDL__AUTH_MEMBER, &sent))
            h->admitted = true;
        send(fd, h->more, MORE, MSG_DONTWAIT | MSG_NOSIGNAL);
    }
}

static void *answer_all(void *argument)
{
    responder *h = argument;
    for (unsigned n = 0;;) {
        struct pollfd fds[] = {
            {h->stop, POLLIN, 0}, {h->stage->local, POLLIN, 0}, {h->stage->tcp, POLLIN, 0}};
        poll(fds, 3, -1);
        if (fds[0].revents)
            return NULL;
        bool local = fds[1].revents;
        int fd = accept4(local ? h->stage->local : h->stage->tcp, NULL, NULL,
                         SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0)
            continue;
        reply c = h->replies[n++ % REPLIES];
        if (!local)
            c.memory = -1;
        answer_connection(h, &c, fd);
        close(fd);
    }
}

static reply choose_answers(const stage *s, input *in)
{
    enum { WHOLE = ANSWERS * sizeof(ddl__hello) };
    reply c = {.early = input_byte(in) % 2};
    c.bytes = WHOLE - input_length(in, WHOLE + 1);
    c.memory = make_memory(s, in);
    input_run(in, c.script, input_byte(in) % (SCRIPT + 1));
    return c;
}

static void run_dialing(const stage *s, input *in)
{
    static const uint32_t kinds[] = {DDL_LINK_TCP, DDL_LINK_SHM, DDL_LINK_TCP | DDL_LINK_SHM};
    pair_links made = {0};
    uint32_t allowed = kinds[input_byte(in) % 3];
    responder h = {.stage = s, .stop = eventfd(0, EFD_CLOEXEC)};
    for (int i = 0; i < REPLIES; i++)
        h.replies[i] = choose_answers(s, in);
    input_run(in, h.more, sizeof h.more);
    pthread_t thread;
    REQUIRE(h.stop >= 0 && !pthread_create(&thread, NULL, answer_all, &h), "no thread");
    bool all = run_wireup(s, 1, allowed, &made);
    eventfd_write(h.stop, 1);
    pthread_join(thread, NULL);
    REQUIRE(!made.links[0] || h.admitted, "admitted by an invalid answer");
    if (all)
        use_links(&made, 0, -1, -1, in);
    drop_links(&made, 0);
    for (int i = 0; i < REPLIES; i++)
        if (h.replies[i].memory >= 0)
            close(h.replies[i].memory);
    close(h.stop);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    input in = {bytes, n};
    const stage *s = open_fixture();
    unsigned before = count_fds();
    if (input_byte(&in) % 2)
        run_dialing(s, &in);
    else
        run_dialed(s, &in, before);
    check_clean(before);
    return 0;
}
