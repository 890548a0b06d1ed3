/* SPDX-License-Identifier: Apache-2.0 */
/* Unauthenticated clients: many at a time, slow ones, and ones that send a lot. An endpoint limits
 * their number and the time of each, and members can connect meanwhile. */
#include "clients.h"
#include "connect/endpoint/rate_limit.h"
#include "ranks.h"

enum { LIMIT_MS = 20000, HANDSHAKE_MS = 10000, SOON_MS = 8000 };
enum { NO_HELLO = 64, UNPROVEN = 1024 }; /* the limits of pending.c */

static double since(int64_t start)
{
    return 1e-9 * (double)(ddl__now() - start);
}

static bool is_closed(int fd)
{
    char bytes[512];
    ssize_t n;
    while ((n = recv(fd, bytes, sizeof bytes, MSG_DONTWAIT)) > 0)
        ;
    return n == 0 || errno != EAGAIN;
}

static unsigned count_closed(const int *fds, unsigned n)
{
    unsigned closed = 0;
    for (unsigned i = 0; i < n; i++)
        closed += is_closed(fds[i]);
    return closed;
}

/* Wait until `want` connections are closed because of their number, not of their age. */
static void await_closed(const int *fds, unsigned n, unsigned want)
{
    int64_t deadline = ddl__deadline(HANDSHAKE_MS / 2);
    while (count_closed(fds, n) < want) {
        CHECK(ddl__now() < deadline, "%u of %u are closed", count_closed(fds, n), want);
        usleep(1000);
    }
}

static ddl__hello right_hello(const ddl_endpoint *endpoint)
{
    ddl__hello hello = ddl__hello_begin(ddl__endpoint_job(endpoint), DDL__CONN_TCP, 1, 0, 2);
    hello.endpoint = ddl__endpoint_address(endpoint)->endpoint;
    return hello;
}

/* A client that knows everything except the secret, and that was challenged. */
static int dial_challenged(const ddl_endpoint *endpoint)
{
    int fd = dial(port_of(endpoint));
    ddl__hello hello = right_hello(endpoint), challenge;
    CHECK(ddl__send_all(fd, &hello, sizeof hello, ddl__deadline(LIMIT_MS)) &&
              ddl__recv_all(fd, &challenge, sizeof challenge, ddl__deadline(LIMIT_MS)) &&
              challenge.status == DDL_INPROGRESS,
          "no challenge");
    return fd;
}

static void check_open(const ddl_endpoint *endpoint)
{
    int64_t start = ddl__now();
    int fd = dial(port_of(endpoint));
    ddl__hello hello = right_hello(endpoint);
    ddl__session session;
    CHECK(ddl__handshake_initiate(ddl__endpoint_job(endpoint), fd, &hello, ddl__deadline(LIMIT_MS),
                                  &session) == DDL_OK,
          "a valid client is not admitted: %s", ddl__message());
    CHECK(since(start) < 1e-3 * SOON_MS, "admitted after %g s", since(start));
    close(fd);
}

/* ----------------------------------------------------------------------------------------- many */

static void test_many_silent(void)
{
    enum { MORE = 40 };
    int fds[NO_HELLO + MORE];
    ddl_endpoint *endpoint = open_endpoint("secret");
    int known = dial_challenged(endpoint);
    for (unsigned i = 0; i < NO_HELLO + MORE; i++)
        fds[i] = dial(port_of(endpoint));
    await_closed(fds, NO_HELLO + MORE, MORE);
    check_open(endpoint);
    CHECK(count_closed(fds, NO_HELLO + MORE) <= MORE + 1, "more are closed than need be");
    CHECK(!is_closed(known), "a challenged client was dropped for a silent one");
    close(known);
    for (unsigned i = 0; i < NO_HELLO + MORE; i++)
        close(fds[i]);
    ddl_endpoint_destroy(endpoint);
}

static void test_many_challenged(void)
{
    enum { MORE = 20, FDS = 2 * (UNPROVEN + MORE) + 200 };
    static int fds[UNPROVEN + MORE];
    struct rlimit limit;
    CHECK(!getrlimit(RLIMIT_NOFILE, &limit), "getrlimit");
    if (limit.rlim_max < FDS)
        return; /* both ends are in this process */
    limit.rlim_cur = limit.rlim_cur < FDS ? FDS : limit.rlim_cur;
    CHECK(!setrlimit(RLIMIT_NOFILE, &limit), "setrlimit");
    ddl_endpoint *endpoint = open_endpoint("secret");
    for (unsigned i = 0; i < UNPROVEN + MORE; i++)
        fds[i] = dial_challenged(endpoint);
    await_closed(fds, UNPROVEN + MORE, MORE);
    check_open(endpoint);
    for (unsigned i = 0; i < UNPROVEN + MORE; i++)
        close(fds[i]);
    ddl_endpoint_destroy(endpoint);
}

/* Nothing is read after a wrong beginning. */
static void test_talkative(void)
{
    static const char words[1 << 16] = "GET / HTTP/1.1\r\n";
    ddl_endpoint *endpoint = open_endpoint("secret");
    int fd = dial(port_of(endpoint));
    int64_t deadline = ddl__deadline(LIMIT_MS);
    bool heard = true;
    for (int i = 0; heard && i < 1024; i++)
        heard = ddl__send_all(fd, words, sizeof words, deadline);
    CHECK(!heard && errno != ETIMEDOUT, "64 MiB are taken");
    close(fd);
    check_open(endpoint);
    ddl_endpoint_destroy(endpoint);
}

/* ----------------------------------------------------------------------------------------- slow */

typedef struct side {
    ddl_endpoint *endpoint;
    const char *url;
    int rank;
    pthread_t thread;
} side;

static void *connect_member(void *argument)
{
    const side *s = argument;
    ddl_comm *comm;
    ddl_comm_config config = {
        .struct_size = sizeof config, .links = DDL_LINK_TCP, .timeout_ms = LIMIT_MS};
    OK(ddl_rendezvous(s->endpoint, s->url, s->rank, 2, &config, &comm));
    ddl_comm_destroy(comm);
    return NULL;
}

static void begin(side *s)
{
    CHECK(!pthread_create(&s->thread, NULL, connect_member, s), "no thread");
}

/* Each client sends a byte of a valid hello or proof now and then. Such clients connect to the
 * endpoint's listeners and to the rendezvous, where they outnumber the slots. Two members connect
 * meanwhile. */
static void test_slow(void)
{
    enum { HELLOS = 30, PROOFS = 30, SLOW = HELLOS + PROOFS, CALLERS = 300, EACH_US = 50000 };
    int slow[SLOW], callers[CALLERS];
    char url[URL_MAX];
    uint16_t port = choose_url(url);
    side sides[2] = {{open_endpoint("secret"), url, 0, 0}, {open_endpoint("secret"), url, 1, 0}};
    ddl__hello hello = right_hello(sides[0].endpoint);
    int64_t start = ddl__now();
    for (int i = 0; i < SLOW; i++)
        slow[i] =
            i < HELLOS ? dial(port_of(sides[0].endpoint)) : dial_challenged(sides[0].endpoint);
    begin(&sides[0]);
    for (int i = 0; i < CALLERS; i++)
        callers[i] = dial(port);
    int64_t begun = ddl__now();
    begin(&sides[1]);
    for (int i = 0; i < 2; i++)
        pthread_join(sides[i].thread, NULL);
    CHECK(since(begun) < 1e-3 * SOON_MS, "met after %g s", since(begun));
    for (size_t said = 0; count_closed(slow, SLOW) < SLOW; said++) {
        CHECK(since(start) < 1.5e-3 * HANDSHAKE_MS, "still heard after %g s", since(start));
        for (int i = 0; i < SLOW; i++)
            send(slow[i], (char *)&hello + (i < HELLOS ? said % sizeof hello : 0),
                 said < (i < HELLOS ? sizeof hello : DDL__KEY) - 1, MSG_NOSIGNAL | MSG_DONTWAIT);
        usleep(EACH_US);
    }
    CHECK(since(start) > 0.9e-3 * HANDSHAKE_MS, "not heard any more after %g s", since(start));
    check_open(sides[0].endpoint);
    for (int i = 0; i < SLOW; i++)
        close(slow[i]);
    for (int i = 0; i < CALLERS; i++)
        close(callers[i]);
    for (int i = 0; i < 2; i++)
        ddl_endpoint_destroy(sides[i].endpoint);
}

/* ---------------------------------------------------------------------------- the rate limit */

static void test_rate_limit(void)
{
    enum { SECONDS = 60 };
    const int64_t second = 1000000000;
    ddl__rate_limit rate_limit = {0};
    int64_t now = 5 * second;
    for (int i = 0; i < DDL__RATE_LIMIT_BURST; i++)
        ddl__rate_limit_count(&rate_limit, now);
    CHECK(!ddl__rate_limit_is_exceeded(&rate_limit, now), "%d at once exceed it",
          DDL__RATE_LIMIT_BURST);
    ddl__rate_limit_count(&rate_limit, now);
    CHECK(ddl__rate_limit_is_exceeded(&rate_limit, now), "%d do not exceed it",
          DDL__RATE_LIMIT_BURST + 1);
    CHECK(!ddl__rate_limit_is_exceeded(&rate_limit, now += second), "and a second later exceed it");
    for (int i = 0; i < SECONDS * DDL__RATE_LIMIT_PER_SECOND; i++) {
        ddl__rate_limit_count(&rate_limit, now += second / DDL__RATE_LIMIT_PER_SECOND);
        CHECK(!ddl__rate_limit_is_exceeded(&rate_limit, now), "%d a second exceed it",
              DDL__RATE_LIMIT_PER_SECOND);
    }
    for (int i = 0; i < SECONDS * 1000; i++)
        ddl__rate_limit_count(&rate_limit, now += second / 1000);
    CHECK(ddl__rate_limit_is_exceeded(&rate_limit, now), "a thousand a second do not exceed it");
    CHECK(!ddl__rate_limit_is_exceeded(&rate_limit, now + 2 * second),
          "a long flood is not forgotten");
}

/* All clients are answered in time, even if the endpoint polls its listeners only now and then. */
static void test_flood(void)
{
    enum { FLOOD = 600, LOOK = 2 * 16, BEAT_MS = 10, WORST_MS = 10000 };
    static const char words[4096] = "GET / HTTP/1.1\r\n";
    int fds[FLOOD];
    ddl_endpoint *endpoint = open_endpoint("secret");
    int64_t start = ddl__now();
    for (int i = 0; i < FLOOD; i++) {
        fds[i] = dial(port_of(endpoint));
        send(fds[i], words, sizeof words, MSG_NOSIGNAL | MSG_DONTWAIT);
    }
    for (unsigned closed = 0; closed < FLOOD; usleep(1000)) {
        closed = count_closed(fds, FLOOD);
        double ms = 1e3 * since(start);
        CHECK(closed < DDL__RATE_LIMIT_BURST + LOOK * (3 + ms / BEAT_MS), "%u after %g ms", closed,
              ms);
        CHECK(ms < WORST_MS, "%u are not heard after %g ms", FLOOD - closed, ms);
    }
    check_open(endpoint);
    for (int i = 0; i < FLOOD; i++)
        close(fds[i]);
    ddl_endpoint_destroy(endpoint);
}

/* An endless flood of clients at the listeners of two endpoints. They send garbage, or know
 * everything except the secret. */
typedef struct flood {
    ddl_endpoint *const *at;
    bool speaks;
    atomic_bool stop;
    unsigned n;
    pthread_t thread;
} flood;

static void *send_flood(void *argument)
{
    enum { PAUSE_US = 200 };
    static const char words[4096] = "GET / HTTP/1.1\r\n";
    flood *f = argument;
    ddl__job wrong;
    ddl__session session;
    OK(ddl__job_open(&wrong, "another secret", false));
    for (; !atomic_load(&f->stop); f->n++) {
        const ddl_endpoint *endpoint = f->at[f->n % 2];
        int fd = dial(port_of(endpoint));
        ddl__hello hello = right_hello(endpoint);
        if (!f->speaks)
            send(fd, words, sizeof words, MSG_NOSIGNAL | MSG_DONTWAIT);
        else
            CHECK(ddl__handshake_initiate(&wrong, fd, &hello, ddl__deadline(LIMIT_MS), &session) !=
                      DDL_OK,
                  "admitted without the secret");
        close(fd);
        usleep(PAUSE_US);
    }
    ddl__job_close(&wrong);
    return NULL;
}

/* Members connect repeatedly meanwhile, and each time quickly. */
static void test_wireup_in_flood(bool speaks)
{
    enum { TIMES = 5, OVERSUBSCRIBED = 2 * DDL__RATE_LIMIT_BURST + 100 };
    char url[URL_MAX];
    choose_url(url);
    side sides[2] = {{open_endpoint("secret"), url, 0, 0}, {open_endpoint("secret"), url, 1, 0}};
    ddl_endpoint *const at[2] = {sides[0].endpoint, sides[1].endpoint};
    flood f = {.at = at, .speaks = speaks};
    CHECK(!pthread_create(&f.thread, NULL, send_flood, &f), "no thread");
    for (int i = 0; i < TIMES; i++) {
        usleep(200000);
        int64_t begun = ddl__now();
        begin(&sides[0]);
        begin(&sides[1]);
        for (int r = 0; r < 2; r++)
            pthread_join(sides[r].thread, NULL);
        CHECK(since(begun) < 1e-3 * SOON_MS, "met after %g s", since(begun));
    }
    atomic_store(&f.stop, true);
    pthread_join(f.thread, NULL);
    CHECK(speaks || f.n > OVERSUBSCRIBED, "%u are no flood", f.n);
    for (int r = 0; r < 2; r++)
        ddl_endpoint_destroy(sides[r].endpoint);
}

int main(void)
{
    setenv("DDL_LOG", "off", 0);
    test_rate_limit();
    test_flood();
    test_wireup_in_flood(false);
    test_wireup_in_flood(true);
    test_many_silent();
    test_many_challenged();
    test_talkative();
    test_slow();
}
