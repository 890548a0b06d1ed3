/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks whose TCP connections are encrypted: their results are right, the wire does not show their
 * data, data that is altered on the wire ends the comm with an error that says so, and ranks with
 * different settings get an error that names them. */
#include "clients.h"
#include "connect/addresses/address.h"
#include "ranks.h"

enum { WAIT_MS = 20000, MEMBERS = 3, LARGE = 16 << 20 };

/* ------------------------------------------------------------------------------- the middleman */

/* Forwards all connections to one endpoint, and may alter one byte of the traffic to it. */
typedef struct between {
    int listener;
    uint16_t port, behind;
    const char *words; /* words to search for in the traffic */
    size_t n_words;
    atomic_bool found, alter, stop;
    atomic_size_t passed;
    pthread_t thread;
} between;

enum { WIRES = 16 };

typedef struct wire {
    int fds[2]; /* the dialer's socket and the dialed rank's */
} wire;

/* Forward data. Return false at the end. */
static bool hand_on(between *b, int from, int to, bool there)
{
    static unsigned char bytes[1 << 16];
    ssize_t n = recv(from, bytes, sizeof bytes, MSG_DONTWAIT);
    if (n < 0 && errno == EAGAIN)
        return true;
    if (n <= 0)
        return false;
    if (b->words && memmem(bytes, (size_t)n, b->words, b->n_words))
        atomic_store(&b->found, true);
    if (there && n > 100 && atomic_exchange(&b->alter, false))
        bytes[n / 2] ^= 1;
    atomic_fetch_add(&b->passed, (size_t)n);
    return ddl__send_all(to, bytes, (size_t)n, ddl__deadline(WAIT_MS));
}

static void *stand(void *argument)
{
    between *b = argument;
    wire wires[WIRES];
    unsigned n = 0;
    while (!atomic_load(&b->stop)) {
        struct pollfd polls[2 * WIRES + 1] = {{.fd = b->listener, .events = POLLIN}};
        for (unsigned i = 0; i < 2 * n; i++)
            polls[1 + i] = (struct pollfd){.fd = wires[i / 2].fds[i % 2], .events = POLLIN};
        poll(polls, 1 + 2 * n, 10);
        for (unsigned i = 0; i < 2 * n; i++)
            if (polls[1 + i].revents &&
                !hand_on(b, wires[i / 2].fds[i % 2], wires[i / 2].fds[!(i % 2)], i % 2 == 0)) {
                for (int j = 0; j < 2; j++) {
                    close(wires[i / 2].fds[j]);
                    wires[i / 2].fds[j] = -1; /* poll skips it */
                }
            }
        if (polls[0].revents) {
            CHECK(n < WIRES, "too many connections");
            int fd = accept4(b->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
            if (fd >= 0)
                wires[n++] = (wire){{fd, dial(b->behind)}};
        }
    }
    for (unsigned i = 0; i < 2 * n; i++)
        if (wires[i / 2].fds[i % 2] >= 0)
            close(wires[i / 2].fds[i % 2]);
    return NULL;
}

/* -------------------------------------------------------------------------------------- members */

typedef struct member {
    ddl_endpoint *endpoint;
    unsigned char addresses[MEMBERS][DDL_ADDRESS_MAX];
    size_t lengths[MEMBERS];
    int rank, size;
    int64_t timeout_ms;
    char url[URL_MAX]; /* or by rendezvous */
    void (*fn)(ddl_comm *comm, between *b);
    between *between;
    ddl_status status;
    char message[512];
    pthread_t thread;
} member;

static void *join(void *argument)
{
    member *m = argument;
    const void *addresses[MEMBERS];
    for (int i = 0; i < m->size; i++)
        addresses[i] = m->addresses[i];
    ddl_comm_config config = {
        .struct_size = sizeof config, .links = DDL_LINK_TCP, .timeout_ms = m->timeout_ms};
    ddl_comm *comm = NULL;
    m->status = m->url[0] ? ddl_rendezvous(m->endpoint, m->url, m->rank, m->size, &config, &comm)
                          : ddl_comm_create(m->endpoint, addresses, m->lengths, m->rank, m->size,
                                            &config, &comm);
    snprintf(m->message, sizeof m->message, "%s", m->status == DDL_OK ? "" : ddl_last_error());
    if (m->status == DDL_OK && m->fn)
        m->fn(comm, m->between);
    ddl_comm_destroy(comm);
    return NULL;
}

static void open_members(member *members, int size, const int32_t *encrypt, unsigned sockets)
{
    memset(members, 0, (size_t)size * sizeof *members);
    for (int i = 0; i < size; i++) {
        ddl_endpoint_config config = {.struct_size = sizeof config,
                                      .secret = "secret",
                                      .host = "127.0.0.1",
                                      .sockets = sockets,
                                      .encrypt = encrypt[i]};
        members[i].rank = i;
        members[i].size = size;
        members[i].timeout_ms = WAIT_MS;
        OK(ddl_endpoint_create(&config, &members[i].endpoint));
        for (int j = 0; j < size; j++)
            OK(ddl_endpoint_address(members[i].endpoint, members[j].addresses[i], DDL_ADDRESS_MAX,
                                    &members[j].lengths[i]));
    }
}

static void run_members(member *members, int size)
{
    for (int i = 0; i < size; i++)
        CHECK(!pthread_create(&members[i].thread, NULL, join, &members[i]), "no thread");
    for (int i = 0; i < size; i++)
        pthread_join(members[i].thread, NULL);
    for (int i = 0; i < size; i++)
        ddl_endpoint_destroy(members[i].endpoint);
}

/* Let rank 1 reach rank 0 through a middleman. */
static void put_between(member *members, between *b)
{
    ddl__address address;
    ddl__interface ips[DDL__INTERFACES_MAX];
    CHECK(ddl__address_decode(&address, ips, members[1].addresses[0], members[1].lengths[0]) ==
              DDL_OK,
          "%s", ddl__message());
    b->behind = address.port;
    b->listener = listen_at(&b->port);
    address.port = b->port;
    ddl__address_encode(&address, members[1].addresses[0]);
    CHECK(!pthread_create(&b->thread, NULL, stand, b), "no thread");
}

static void take_away(between *b)
{
    atomic_store(&b->stop, true);
    pthread_join(b->thread, NULL);
    close(b->listener);
}

/* ----------------------------------------------------------------------------------- operations */

/* Run one operation of each kind, short and long, and messages. */
static void operate(ddl_comm *comm, between *b)
{
    static const int64_t counts[] = {1, 1000, 16384, 70000, 1 << 20};
    int rank = ddl_comm_rank(comm), size = ddl_comm_size(comm);
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
        int64_t n = counts[c], all = n * size;
        int32_t *send = malloc((size_t)all * sizeof *send),
                *recv = calloc((size_t)all, sizeof *recv);
        CHECK(send && recv, "no memory");
        for (int64_t i = 0; i < all; i++)
            send[i] = (int32_t)i + rank;
        OK(ddl_allreduce(comm, send, recv, n, DDL_I32, DDL_SUM, NULL, NULL));
        for (int64_t i = 0; i < n; i++)
            CHECK(recv[i] == size * (int32_t)i + size * (size - 1) / 2, "sum %d", recv[i]);
        OK(ddl_allgather(comm, send, recv, n, DDL_I32, NULL, NULL));
        for (int64_t i = 0; i < all; i++)
            CHECK(recv[i] == (int32_t)(i % n) + (int32_t)(i / n), "gathered %d", recv[i]);
        OK(ddl_alltoall(comm, send, recv, n, DDL_I32, NULL, NULL));
        for (int64_t i = 0; i < all; i++)
            CHECK(recv[i] == (int32_t)(rank * n + i % n) + (int32_t)(i / n), "block %d", recv[i]);
        OK(ddl_broadcast(comm, send, n, DDL_I32, size - 1, NULL, NULL));
        CHECK(send[n - 1] == (int32_t)n - 1 + size - 1, "broadcast %d", send[n - 1]);
        int next = (rank + 1) % size, before = (rank + size - 1) % size;
        OK(ddl_sendrecv(comm, send, n, next, 5, recv, n, before, 5, DDL_I32, NULL, NULL));
        CHECK(recv[n - 1] == (int32_t)n - 1 + size - 1, "message %d", recv[n - 1]);
        free(send);
        free(recv);
    }
}

static void operate_large(ddl_comm *comm, between *b)
{
    float *data = malloc(LARGE * sizeof *data);
    CHECK(data, "no memory");
    for (int i = 0; i < LARGE; i++)
        data[i] = (float)(i % 1000);
    OK(ddl_allreduce(comm, NULL, data, LARGE, DDL_F32, DDL_SUM, NULL, NULL));
    for (int i = 0; i < LARGE; i++)
        CHECK(data[i] == (float)(2 * (i % 1000)), "element %d is %g", i, (double)data[i]);
    free(data);
}

static void test_operations(int size, unsigned sockets, void (*fn)(ddl_comm *, between *))
{
    static const int32_t all[MEMBERS] = {1, 1, 1};
    member members[MEMBERS];
    open_members(members, size, all, sockets);
    for (int i = 0; i < size; i++)
        members[i].fn = fn;
    run_members(members, size);
    for (int i = 0; i < size; i++)
        CHECK(members[i].status == DDL_OK, "rank %d: %s", i, members[i].message);
}

/* The addresses are encrypted, too. */
static void test_rendezvous(void)
{
    static const int32_t all[MEMBERS] = {1, 1, 1};
    member members[MEMBERS];
    char url[URL_MAX];
    choose_url(url);
    open_members(members, MEMBERS, all, 1);
    for (int i = 0; i < MEMBERS; i++) {
        memcpy(members[i].url, url, sizeof url);
        members[i].fn = operate;
    }
    run_members(members, MEMBERS);
    for (int i = 0; i < MEMBERS; i++)
        CHECK(members[i].status == DDL_OK, "rank %d: %s", i, members[i].message);
}

/* ------------------------------------------------------------------------------------- the wire */

static const char shown[] = "what is not to be seen on the wire";

/* Send the same words by operations and messages, short ones and long ones that use lanes. */
static void say_words(ddl_comm *comm, between *b)
{
    enum { LONG = 512 << 10 };
    static const int64_t lengths[] = {4096, LONG};
    char *words = malloc(LONG), *got = malloc(LONG);
    CHECK(words && got, "no memory");
    for (size_t i = 0; i < LONG; i++)
        words[i] = shown[i % sizeof shown];
    for (size_t i = 0; i < 2; i++) {
        int64_t n = lengths[i];
        OK(ddl_allreduce(comm, words, got, n, DDL_U8, DDL_MAX, NULL, NULL));
        if (ddl_comm_rank(comm))
            OK(ddl_send(comm, words, n, DDL_U8, 0, 1, NULL, NULL));
        else
            OK(ddl_recv(comm, got, n, DDL_U8, 1, 1, NULL, NULL, NULL));
    }
    free(words);
    free(got);
}

static void test_replay_guard(int32_t encrypt, unsigned sockets)
{
    const int32_t both[] = {encrypt, encrypt};
    member members[2];
    between b = {.words = shown, .n_words = sizeof shown};
    open_members(members, 2, both, sockets);
    put_between(members, &b);
    members[0].fn = members[1].fn = say_words;
    run_members(members, 2);
    take_away(&b);
    CHECK(members[0].status == DDL_OK && members[1].status == DDL_OK, "%s", members[0].message);
    CHECK(atomic_load(&b.found) == (encrypt < 0), "the words are %sseen",
          atomic_load(&b.found) ? "" : "not ");
}

/* Run operations until the altered byte has arrived. */
static void operate_until_dead(ddl_comm *comm, between *b)
{
    static float data[2][100000];
    ddl_status status = DDL_OK;
    int rank = ddl_comm_rank(comm);
    OK(ddl_barrier(comm, NULL, NULL));
    atomic_store(&b->alter, true);
    for (int i = 0; i < 1000 && status == DDL_OK; i++)
        status = ddl_allreduce(comm, NULL, data[rank], 100000, DDL_F32, DDL_SUM, NULL, NULL);
    CHECK(status == DDL_EPEER, "rank %d got %d \"%s\"", rank, status, ddl_last_error());
    CHECK(strstr(ddl_last_error(), "altered on its way"), "rank %d got \"%s\"", rank,
          ddl_last_error());
}

static void test_altered(unsigned sockets)
{
    static const int32_t both[] = {1, 1};
    member members[2];
    between b = {0};
    open_members(members, 2, both, sockets);
    put_between(members, &b);
    for (int i = 0; i < 2; i++) {
        members[i].fn = operate_until_dead;
        members[i].between = &b;
    }
    run_members(members, 2);
    take_away(&b);
    CHECK(members[0].status == DDL_OK && members[1].status == DDL_OK, "%s", members[0].message);
}

/* --------------------------------------------------------------------------------- disagreement */

static void test_disagreement(void)
{
    for (int32_t first = -1; first <= 1; first += 2) {
        const int32_t encrypt[] = {first, -first};
        const char *words = first > 0 ? "rank 0 encrypts (DDL_ENCRYPT=1), and rank 1 does not"
                                      : "rank 1 encrypts (DDL_ENCRYPT=1), and rank 0 does not";
        member members[2];
        open_members(members, 2, encrypt, 1);
        members[0].timeout_ms = 2000; /* no other rank connects */
        run_members(members, 2);
        CHECK(members[1].status == DDL_EREFUSED && members[0].status == DDL_ETIMEDOUT, "%d, %d",
              members[0].status, members[1].status);
        for (int i = 0; i < 2; i++)
            CHECK(strstr(members[i].message, words), "rank %d: \"%s\"", i, members[i].message);
    }
}

static void test_misuse(void)
{
    ddl_endpoint *endpoint;
    ddl_endpoint_config config = {.struct_size = sizeof config, .secret = "", .encrypt = 1};
    INVALID(ddl_endpoint_create(&config, &endpoint), "needs a secret");
    config.encrypt = 0;
    setenv("DDL_ENCRYPT", "1", 1);
    INVALID(ddl_endpoint_create(&config, &endpoint), "needs a secret");
    config.encrypt = -1;
    OK(ddl_endpoint_create(&config, &endpoint));
    ddl_endpoint_destroy(endpoint);
    setenv("DDL_ENCRYPT", "yes", 1);
    INVALID(ddl_endpoint_create(&config, &endpoint), "DDL_ENCRYPT=\"yes\": must be 1 or 0");
    setenv("DDL_ENCRYPT", "0", 1);
    config.encrypt = 0;
    OK(ddl_endpoint_create(&config, &endpoint));
    ddl_endpoint_destroy(endpoint);
    unsetenv("DDL_ENCRYPT");
}

int main(void)
{
    setenv("DDL_LOG", "off", 0);
    test_misuse();
    test_disagreement();
    for (int size = 2; size <= MEMBERS; size++)
        for (unsigned sockets = 1; sockets <= 3; sockets += 2)
            test_operations(size, sockets, operate);
    test_operations(2, 1, operate_large);
    test_operations(2, 3, operate_large);
    test_rendezvous();
    test_replay_guard(1, 1);
    test_replay_guard(1, 3);
    test_replay_guard(-1, 1); /* finds what is there */
    test_altered(1);
    test_altered(3);
}
