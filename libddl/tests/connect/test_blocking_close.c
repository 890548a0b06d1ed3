/* SPDX-License-Identifier: Apache-2.0 */
/* Unauthenticated clients on this host send descriptors whose closing blocks. They delay neither a
 * creation nor the end of an endpoint. */
#include <netinet/in.h>

#include "base/clock.h"
#include "base/time_limits.h"
#include "connect/endpoint/endpoint_state.h"
#include "entries.h"
#include "net/socket.h"
#include "ranks.h"

enum { RANKS = 2, CLIENTS = 12, ATTACKS = 4, LINGER_S = 30, LIMIT_MS = 10000 };

/* Return a TCP socket with unsent data, which takes LINGER_S to close. The other end is never
 * read. */
static int make_lingering(int listener)
{
    static const char bytes[1 << 16];
    struct linger linger = {1, LINGER_S};
    struct sockaddr_storage to;
    socklen_t length = sizeof to;
    CHECK(!getsockname(listener, (struct sockaddr *)&to, &length), "%s", strerror(errno));
    int fd = ddl__dial((struct sockaddr *)&to, length, ddl__deadline(LIMIT_MS));
    CHECK(fd >= 0, "%s", strerror(errno));
    while (send(fd, bytes, sizeof bytes, MSG_DONTWAIT | MSG_NOSIGNAL) > 0)
        ;
    CHECK(!setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof linger), "linger");
    return fd;
}

static int dial_local(const ddl_endpoint *endpoint)
{
    struct sockaddr_storage to;
    socklen_t length = ddl__address_unix(&ddl__endpoint_address(endpoint)->endpoint, &to);
    int fd = ddl__dial((struct sockaddr *)&to, length, ddl__deadline(LIMIT_MS));
    CHECK(fd >= 0, "%s", strerror(errno));
    return fd;
}

/* Send the descriptor with a single byte, a hello, or a hello and a proof. */
static void attack(const ddl_endpoint *endpoint, int listener, int how)
{
    int passed = make_lingering(listener), fd = dial_local(endpoint);
    ddl__hello hello = ddl__hello_begin(ddl__endpoint_job(endpoint), DDL__CONN_SHM, 1, 0, 2);
    unsigned char proof[DDL__KEY] = {1};
    hello.endpoint = ddl__endpoint_address(endpoint)->endpoint;
    if (how == 2)
        ddl__send_all(fd, &hello, sizeof hello, ddl__deadline(LIMIT_MS));
    if (how == 0)
        ddl__send_with_fd(fd, "x", 1, passed, ddl__deadline(LIMIT_MS));
    else if (how == 1)
        ddl__send_with_fd(fd, &hello, sizeof hello, passed, ddl__deadline(LIMIT_MS));
    else
        ddl__send_with_fd(fd, proof, sizeof proof, passed, ddl__deadline(LIMIT_MS));
}

/* Run each client as a process that exits after sending, because the exit of a process does not
 * block: the endpoint then holds the last reference. The listener stays open here, and with it the
 * other ends, so the data stay unsent. */
static void run_attack(ddl_endpoint *const *endpoints, int listener, bool as_nobody)
{
    pid_t clients[CLIENTS];
    for (int i = 0; i < CLIENTS; i++) {
        clients[i] = fork();
        CHECK(clients[i] >= 0, "fork");
        if (clients[i])
            continue;
        if (as_nobody && (setgid(65534) || setuid(65534)))
            _exit(1);
        attack(endpoints[i % RANKS], listener, i / RANKS % 3);
        _exit(0);
    }
    for (int i = 0; i < CLIENTS; i++) {
        int status;
        CHECK(waitpid(clients[i], &status, 0) == clients[i] && !status, "a client failed");
    }
}

/* A thread that polls the listeners all the time, like a thread that creates a comm. The kernel
 * must not let it close what the endpoint's thread drops meanwhile. */
typedef struct poller {
    pthread_t thread;
    int fd;
    atomic_bool stop;
    int64_t longest;
} poller;

static void *poll_listeners(void *context)
{
    poller *p = context;
    while (!atomic_load(&p->stop)) {
        struct pollfd listeners = {.fd = p->fd, .events = POLLIN};
        int64_t start = ddl__now();
        poll(&listeners, 1, 0);
        int64_t took = ddl__now() - start;
        p->longest = took > p->longest ? took : p->longest;
    }
    return NULL;
}

static void attack_while_polling(ddl_endpoint *const *endpoints, int listener, bool as_nobody)
{
    poller pollers[RANKS];
    for (int i = 0; i < RANKS; i++) {
        pollers[i] = (poller){.fd = endpoints[i]->listeners};
        CHECK(!pthread_create(&pollers[i].thread, NULL, poll_listeners, &pollers[i]), "thread");
    }
    for (int i = 0; i < ATTACKS; i++)
        run_attack(endpoints, listener, as_nobody);
    for (int i = 0; i < RANKS; i++) {
        atomic_store(&pollers[i].stop, true);
        pthread_join(pollers[i].thread, NULL);
        CHECK(pollers[i].longest < LINGER_S / 2 * DDL__S, "held up for %g s",
              1e-9 * (double)pollers[i].longest);
    }
}

static void *create(void *argument)
{
    rank_thread *self = argument;
    const void *addresses[RANKS] = {self->all->addresses[0], self->all->addresses[1]};
    ddl_comm *comm;
    ddl_comm_config config = {.struct_size = sizeof config, .timeout_ms = LIMIT_MS};
    OK(ddl_comm_create(self->all->endpoints[self->rank], addresses, self->all->lengths, self->rank,
                       RANKS, &config, &comm));
    ddl_comm_destroy(comm);
    return NULL;
}

static void test(const char *name, bool as_nobody)
{
    static ranks all;
    rank_thread threads[RANKS];
    uint16_t port = 0;
    int before = count_descriptors();
    int listener = ddl__listen("127.0.0.1", &port);
    CHECK(listener >= 0, "%s", ddl__message());
    all.size = RANKS;
    for (int i = 0; i < RANKS; i++) {
        OK(ddl_endpoint_create(NULL, &all.endpoints[i]));
        OK(ddl_endpoint_address(all.endpoints[i], all.addresses[i], DDL_ADDRESS_MAX,
                                &all.lengths[i]));
    }
    run_attack(all.endpoints, listener, as_nobody);
    int64_t start = ddl__now();
    for (int i = 0; i < RANKS; i++) {
        threads[i] = (rank_thread){.all = &all, .rank = i};
        CHECK(!pthread_create(&threads[i].thread, NULL, create, &threads[i]), "thread");
    }
    for (int i = 0; i < RANKS; i++)
        pthread_join(threads[i].thread, NULL);
    double created = 1e-9 * (double)(ddl__now() - start);
    attack_while_polling(all.endpoints, listener, as_nobody);
    start = ddl__now();
    for (int i = 0; i < RANKS; i++)
        ddl_endpoint_destroy(all.endpoints[i]);
    double ended = 1e-9 * (double)(ddl__now() - start);
    printf("%s: created in %.3f s, endpoints destroyed in %.3f s\n", name, created, ended);
    CHECK(created < LINGER_S / 2 && ended < LINGER_S / 2, "held up");
    close(listener); /* resets the lingering sockets */
    for (int64_t end = ddl__deadline(LIMIT_MS); count_descriptors() > before && ddl__now() < end;)
        usleep(1000);
    CHECK(count_descriptors() <= before, "%d descriptors, and %d before", count_descriptors(),
          before);
}

int main(void)
{
    setenv("DDL_LOG", "off", 0);
    test("the same user", false);
    if (geteuid() == 0)
        test("another user", true);
}
