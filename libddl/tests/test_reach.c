/* SPDX-License-Identifier: Apache-2.0 */
/* Which of many members answers at its address: one that listens and one that refuses do, one whose
 * backlog is full does not. */
#include <arpa/inet.h>
#include <fcntl.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/time_limits.h"
#include "check.h"
#include "connect/reach.h"
#include "net/socket.h"

enum { SELF, LISTENS, REFUSES, SILENT, SIZE };

static ddl_endpoint *endpoint;
static ddl__address addresses[SIZE];
static const ddl__wireup wireup = {.addresses = addresses, .rank = SELF, .size = SIZE};

static ddl__wireup make_wireup(void)
{
    ddl__wireup w = wireup;
    w.endpoint = endpoint;
    return w;
}

static bool always(void *context)
{
    (void)context;
    return true;
}

/* Whether this is the third question. */
static bool twice(void *context)
{
    return ++*(int *)context < 3;
}

/* The endpoint has some, too, until it sees that a connection has ended. */
static int count_descriptors(void)
{
    int n = 0;
    for (int fd = 0; fd < 1024; fd++)
        n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

/* Try all but this rank, and compare. */
static void expect(int64_t limit, bool (*goes_on)(void *), void *context, ddl__reached silent)
{
    const ddl__reached expected[SIZE] = {
        [LISTENS] = DDL__REACH_ANSWERS, [REFUSES] = DDL__REACH_ANSWERS, [SILENT] = silent};
    const ddl__wireup w = make_wireup();
    ddl__reach reach[SIZE - 1] = {{.rank = SILENT}, {.rank = REFUSES}, {.rank = LISTENS}};
    int before = count_descriptors();
    CHECK(ddl__reach_begin(&w, reach, SIZE - 1) == SIZE - 1, "no descriptors");
    usleep(100000); /* the answers come */
    ddl__reach_end(reach, SIZE - 1, ddl__now() + limit, goes_on, context);
    for (int i = 0; i < SIZE - 1; i++)
        CHECK(reach[i].reached == expected[reach[i].rank], "rank %d: %d", reach[i].rank,
              reach[i].reached);
    for (int64_t end = ddl__now() + 10 * DDL__S; count_descriptors() != before; usleep(1000))
        CHECK(ddl__now() < end, "%d descriptors before, %d after", before, count_descriptors());
}

/* With room for one more descriptor, one member is tried. */
static void run_out_of_descriptors(void)
{
    struct rlimit limit, low;
    const ddl__wireup w = make_wireup();
    ddl__reach reach[2] = {{.rank = LISTENS}, {.rank = LISTENS}};
    CHECK(!getrlimit(RLIMIT_NOFILE, &limit), "no limit");
    int next = dup(0);
    close(next);
    low = (struct rlimit){(rlim_t)next + 1, limit.rlim_max};
    CHECK(!setrlimit(RLIMIT_NOFILE, &low), "limit");
    int begun = ddl__reach_begin(&w, reach, 2);
    CHECK(!setrlimit(RLIMIT_NOFILE, &limit), "limit");
    CHECK(begun == 1, "%d were tried", begun);
    ddl__reach_end(reach, begun, ddl__now() + DDL__S, always, NULL);
    CHECK(reach[0].reached == DDL__REACH_ANSWERS, "%d", reach[0].reached);
}

int main(void)
{
    ddl_endpoint_config config = {.struct_size = sizeof config, .host = "127.0.0.1"};
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    setenv("DDL_LOG", "off", 0); /* the endpoint runs out of descriptors on purpose */
    CHECK(ddl_endpoint_create(&config, &endpoint) == DDL_OK, "%s", ddl__message());
    for (int i = 0; i < SIZE; i++)
        addresses[i] = *ddl__endpoint_address(endpoint);

    int bound = socket(AF_INET, SOCK_STREAM, 0); /* nobody listens at its port, nor will */
    CHECK(!bind(bound, (struct sockaddr *)&to, sizeof to), "bind");
    addresses[REFUSES].port = ddl__socket_port(bound);

    int full =
        socket(AF_INET, SOCK_STREAM, 0); /* its backlog is one connection, which comes here */
    CHECK(!bind(full, (struct sockaddr *)&to, sizeof to) && !listen(full, 0), "listen");
    addresses[SILENT].port = ddl__socket_port(full);
    to.sin_port = htons(addresses[SILENT].port);
    int first = ddl__dial((struct sockaddr *)&to, sizeof to, ddl__now() + 5 * DDL__S);
    CHECK(first >= 0, "dial");

    expect(300 * DDL__MS, always, NULL, DDL__REACH_SILENT);
    expect(0, always, NULL, DDL__REACH_SILENT); /* answers that are there count */
    int questions = 0;
    expect(600 * DDL__S, twice, &questions, DDL__REACH_UNKNOWN);
    run_out_of_descriptors();

    addresses[SILENT].n_ips = 0; /* no address leads there: known without waiting */
    expect(600 * DDL__S, always, NULL, DDL__REACH_SILENT);

    close(first);
    close(full);
    close(bound);
    ddl_endpoint_destroy(endpoint);
    return 0;
}
