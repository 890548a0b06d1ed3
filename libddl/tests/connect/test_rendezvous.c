/* SPDX-License-Identifier: Apache-2.0 */
/* A rendezvous that not all ranks join, or that some ranks join wrongly: which rank logs or returns
 * which message, and when. */
#include "net/socket.h"
#include "processes.h"
#include "ranks.h"

enum { TEXT_MAX = 4000 };

/* The way in which a rank joins. */
typedef struct client {
    int rank, size;
    const char *secret;
    bool encrypts;
    int delay_ms, timeout_ms, stall_warn_ms;
    int descriptors;                    /* limit of descriptors; 0: unchanged */
    bool hard;                          /* the limit is hard: the rank cannot raise it */
    void (*run)(const struct client *); /* NULL: run_client */
    pid_t pid;
    FILE *said;          /* what it wrote to stderr */
    char text[TEXT_MAX]; /* the same, followed by the failure's message */
    int status;          /* of the rendezvous, negated */
} client;

static char url[64];

static void run_client(const client *v)
{
    struct rlimit limit;
    ddl_endpoint_config own = {.struct_size = sizeof own,
                               .secret = v->secret,
                               .encrypt = v->encrypts ? 1 : -1,
                               .interfaces = "lo"};
    ddl_comm_config config = {.struct_size = sizeof config,
                              .timeout_ms = v->timeout_ms,
                              .stall_warn_ms = v->stall_warn_ms};
    ddl_endpoint *endpoint;
    ddl_comm *comm;
    if (v->descriptors) {
        CHECK(!getrlimit(RLIMIT_NOFILE, &limit), "getrlimit");
        limit.rlim_cur = (rlim_t)v->descriptors;
        limit.rlim_max = v->hard ? limit.rlim_cur : limit.rlim_max;
        CHECK(!setrlimit(RLIMIT_NOFILE, &limit), "setrlimit");
    }
    usleep((useconds_t)v->delay_ms * 1000);
    OK(ddl_endpoint_create(&own, &endpoint));
    ddl_status status = ddl_rendezvous(endpoint, url, v->rank, v->size, &config, &comm);
    if (status != DDL_OK)
        fprintf(stderr, "failed: %s\n", ddl_last_error());
    else
        ddl_comm_destroy(comm);
    ddl_endpoint_destroy(endpoint);
    fflush(stderr);
    _exit(-(int)status);
}

static void start(client *v)
{
    CHECK((v->said = tmpfile()), "%s", strerror(errno));
    fflush(NULL);
    v->pid = fork();
    CHECK(v->pid >= 0, "fork");
    if (v->pid)
        return;
    dup2(fileno(v->said), 2);
    (v->run ? v->run : run_client)(v);
}

static void finish(client *v)
{
    CHECK(waitpid(v->pid, &v->status, 0) == v->pid, "waitpid");
    CHECK(WIFEXITED(v->status), "rank %d ended with %#x", v->rank, (unsigned)v->status);
    v->status = -WEXITSTATUS(v->status);
    rewind(v->said);
    v->text[fread(v->text, 1, sizeof v->text - 1, v->said)] = 0;
    fclose(v->said);
}

static void run(client *clients, int n)
{
    snprintf(url, sizeof url, "tcp://127.0.0.1:%d", free_port());
    for (int i = 0; i < n; i++)
        start(&clients[i]);
    for (int i = 0; i < n; i++)
        finish(&clients[i]);
}

static int count(const char *text, const char *words)
{
    int n = 0;
    for (const char *at = text; (at = strstr(at, words)); at++)
        n++;
    return n;
}

#define SAYS(client, times, words)                                                                 \
    CHECK(count((client).text, words) == (times), "rank %d says \"%s\" %d times, not %d:\n%s",     \
          (client).rank, words, count((client).text, words), times, (client).text)

static void test_late(void)
{
    client v[3] = {{.rank = 0, .size = 3, .timeout_ms = 20000, .stall_warn_ms = 1000},
                   {.rank = 1, .size = 3, .timeout_ms = 20000, .stall_warn_ms = 1000},
                   {.rank = 2, .size = 3, .timeout_ms = 20000, .stall_warn_ms = 1000}};
    v[2].delay_ms = 3000;
    run(v, 3);
    for (int r = 0; r < 3; r++)
        CHECK(v[r].status == DDL_OK, "rank %d: %s", r, v[r].text);
    SAYS(v[0], 1, "the rendezvous has waited for ");
    SAYS(v[0], 1, "have ranks 0-1 of 3, waiting for 2");
    SAYS(v[1], 1, "the rendezvous has waited for ");
    SAYS(v[1], 1, "rank 0 says: have ranks 0-1 of 3, waiting for 2");
    SAYS(v[2], 0, "waited");
}

static void test_late_rank_0(void)
{
    client v[2] = {{.rank = 0, .size = 2, .timeout_ms = 20000, .delay_ms = 3000},
                   {.rank = 1, .size = 2, .timeout_ms = 20000, .stall_warn_ms = 300}};
    run(v, 2);
    for (int r = 0; r < 2; r++)
        CHECK(v[r].status == DDL_OK, "rank %d: %s", r, v[r].text);
    SAYS(v[1], 1, "for rank 0 at the rendezvous tcp://127.0.0.1:");
    SAYS(v[1], 1, "Connection refused; check that rank 0 is running");
}

static void test_no_warnings(void)
{
    client v[2] = {
        {.rank = 0, .size = 2, .timeout_ms = 20000, .delay_ms = 400, .stall_warn_ms = -1},
        {.rank = 1, .size = 2, .timeout_ms = 20000, .stall_warn_ms = -1}};
    run(v, 2);
    for (int r = 0; r < 2; r++)
        CHECK(v[r].status == DDL_OK && !v[r].text[0], "rank %d: %s", r, v[r].text);
}

/* Another program listens at rank 0's address. */
static void test_no_answer(void)
{
    client v = {.rank = 1, .size = 2, .timeout_ms = 1000, .stall_warn_ms = 300};
    uint16_t port = 0;
    int silent = ddl__listen("127.0.0.1", &port);
    CHECK(silent >= 0, "no port");
    snprintf(url, sizeof url, "tcp://127.0.0.1:%u", port);
    start(&v);
    finish(&v);
    close(silent);
    CHECK(v.status == DDL_ETIMEDOUT, "%d: %s", v.status, v.text);
    SAYS(v, 1, "the listener there does not answer");
}

/* Rank 0 logs the refusal at once, not at its deadline, and the other rank gets the reason. */
static void test_refused(const char *secret, const char *why)
{
    client v[3] = {{.rank = 0, .size = 3, .timeout_ms = 4000, .secret = "ours"},
                   {.rank = 1, .size = 3, .timeout_ms = 20000, .secret = secret},
                   {.rank = 2, .size = 3, .timeout_ms = 20000, .secret = "ours"}};
    char words[200];
    v[0].stall_warn_ms = 2500;
    run(v, 3);
    CHECK(v[1].status == DDL_EREFUSED, "%d: %s", v[1].status, v[1].text);
    SAYS(v[1], 1, "failed: the rendezvous at tcp://127.0.0.1:");
    SAYS(v[1], 1, why);
    SAYS(v[0], 1, "the rendezvous refused rank 1 from 127.0.0.1: ");
    snprintf(words, sizeof words, "refused rank 1: %s", why);
    SAYS(v[0], 2, words); /* in the warning about missing ranks, and in the failure */
    SAYS(v[2], 2, "waiting for 1; it refused rank 1: ");
    const char *at_once = strstr(v[0].text, "from 127.0.0.1: "),
               *later = strstr(v[0].text, "has waited");
    CHECK(later && at_once < later, "%s", v[0].text);
}

/* Ranks that have joined receive the list of missing ranks, over encrypted connections, too. */
static void test_missing_encrypted(void)
{
    client v[2] = {{.rank = 0, .size = 4, .timeout_ms = 3000, .secret = "ours", .encrypts = true},
                   {.rank = 1, .size = 4, .timeout_ms = 20000, .secret = "ours", .encrypts = true}};
    v[0].stall_warn_ms = 1000;
    run(v, 2);
    for (int r = 0; r < 2; r++) {
        CHECK(v[r].status == DDL_ETIMEDOUT, "rank %d: %d: %s", r, v[r].status, v[r].text);
        SAYS(v[r], 1, "timed out: have ranks 0-1 of 4, waiting for 2-3");
    }
    SAYS(v[1], 1, "rank 0 says: have ranks 0-1 of 4, waiting for 2-3");
}

static void test_few_descriptors(void)
{
    client v[3] = {{.rank = 0, .size = 3, .timeout_ms = 5000, .descriptors = 64},
                   {.rank = 1, .size = 3, .timeout_ms = 5000, .descriptors = 64},
                   {.rank = 2, .size = 3, .timeout_ms = 5000, .descriptors = 64}};
    run(v, 3);
    for (int r = 0; r < 3; r++)
        CHECK(v[r].status == DDL_OK, "rank %d: %d: %s", r, v[r].status, v[r].text);
}

/* Rank 0 has descriptors for itself and only a few other ranks. */
static void test_too_few_descriptors(void)
{
    enum { SIZE = 12 };
    client v[SIZE];
    memset(v, 0, sizeof v);
    for (int r = 0; r < SIZE; r++)
        v[r] = (client){.rank = r, .size = SIZE, .timeout_ms = 3000};
    v[0].descriptors = 14;
    v[0].hard = true;
    run(v, SIZE);
    CHECK(v[0].status == DDL_ETIMEDOUT, "%d: %s", v[0].status, v[0].text);
    SAYS(v[0], 1, "raise ulimit -n");
}

/* Rank 0 has a descriptor for each other rank after it has raised its limit. */
static void test_many_descriptors(void)
{
    enum { SIZE = 12 };
    client v[SIZE];
    memset(v, 0, sizeof v);
    for (int r = 0; r < SIZE; r++)
        v[r] = (client){.rank = r, .size = SIZE, .timeout_ms = 20000};
    v[0].descriptors = 14;
    run(v, SIZE);
    for (int r = 0; r < SIZE; r++)
        CHECK(v[r].status == DDL_OK, "rank %d: %d: %s", r, v[r].status, v[r].text);
}

/* No process listens at the port, and the kernel may assign it to the dialing socket itself. */
static void test_self_connect(void)
{
    uint16_t port = 0;
    int listener = ddl__listen("127.0.0.1", &port);
    CHECK(listener >= 0, "no port");
    close(listener);
    struct sockaddr_in at = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = ddl__dial_from((struct sockaddr *)&at, (struct sockaddr *)&at, sizeof at, INT64_MAX);
    CHECK(fd < 0 && errno == ECONNREFUSED, "connected to itself: %d, %s", fd, strerror(errno));
    listener = ddl__listen("127.0.0.1", &port);
    CHECK(listener >= 0, "the port is taken: %s", strerror(errno));
    close(listener);
}

/* A comm of two ranks is created from addresses, and the other rank does not connect. */
static void create_alone(const client *v)
{
    ddl_endpoint *endpoints[2];
    unsigned char bytes[2][DDL_ADDRESS_MAX];
    const void *addresses[2] = {bytes[0], bytes[1]};
    size_t lengths[2];
    ddl_comm_config config = {.struct_size = sizeof config,
                              .timeout_ms = v->timeout_ms,
                              .stall_warn_ms = v->stall_warn_ms};
    ddl_comm *comm;
    for (int i = 0; i < 2; i++) {
        OK(ddl_endpoint_create(NULL, &endpoints[i]));
        OK(ddl_endpoint_address(endpoints[i], bytes[i], DDL_ADDRESS_MAX, &lengths[i]));
    }
    ddl_status status =
        ddl_comm_create(endpoints[v->rank], addresses, lengths, v->rank, 2, &config, &comm);
    for (int i = 0; i < 2; i++)
        ddl_endpoint_destroy(endpoints[i]);
    fflush(stderr);
    _exit(-(int)status);
}

static void test_creation(int rank)
{
    char words[100];
    client v = {
        .rank = rank, .size = 2, .timeout_ms = 1000, .stall_warn_ms = 300, .run = create_alone};
    start(&v);
    finish(&v);
    CHECK(v.status == DDL_ETIMEDOUT, "%d: %s", v.status, v.text);
    snprintf(words, sizeof words, "not connected yet: rank %d on ", !rank);
    SAYS(v, 1, "the creation of a comm of 2 ranks has waited for ");
    SAYS(v, 1, words);
}

int main(void)
{
    test_self_connect();
    test_late();
    test_late_rank_0();
    test_no_warnings();
    test_no_answer();
    test_refused("theirs", "another job: the secrets differ");
    test_refused("", "rank 0 has a secret (DDL_SECRET), and rank 1 has none");
    test_missing_encrypted();
    test_few_descriptors();
    test_too_few_descriptors();
    test_many_descriptors();
    test_creation(0);
    test_creation(1);
}
