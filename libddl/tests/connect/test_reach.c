/* SPDX-License-Identifier: Apache-2.0 */
/* Checks which of many members answer at their addresses: one that listens and one that refuses do,
 * one whose backlog is full does not. */
#include "base/clock.h"
#include "base/time_limits.h"
#include "check.h"
#include "connect/wireup/reach.h"
#include "entries.h"
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

/* Try all ranks but this one, for a limited time. Check that no descriptor is leaked. */
static void try_all(int64_t limit, int before)
{
    const ddl__wireup w = make_wireup();
    ddl__reach reach[SIZE - 1] = {{.rank = SILENT}, {.rank = REFUSES}, {.rank = LISTENS}};
    int64_t begun = ddl__now();
    for (int i = 0; i < SIZE - 1; i++)
        ddl__reach_begin(&w, &reach[i]);
    for (int rounds = 0; rounds < 2 || ddl__now() < begun + limit; rounds++) {
        usleep(50000);
        for (int i = 0; i < SIZE - 1; i++)
            ddl__reach_poll(&w, &reach[i]);
    }
    int64_t ended = ddl__now();
    for (int i = 0; i < SIZE - 1; i++) {
        CHECK(reach[i].answers == (reach[i].rank != SILENT), "rank %d: %d", reach[i].rank,
              reach[i].answers);
        CHECK(reach[i].since >= begun && reach[i].since < ended, "other times");
        ddl__reach_end(&reach[i]);
    }
    for (int64_t end = ddl__now() + 10 * DDL__S; count_descriptors() != before; usleep(1000))
        CHECK(ddl__now() < end, "%d descriptors before, %d after", before, count_descriptors());
}

/* Without spare descriptors, nothing is learned, and some are left for others. */
static void run_out_of_descriptors(void)
{
    struct rlimit limit, low;
    const ddl__wireup w = make_wireup();
    ddl__reach reach = {.rank = LISTENS};
    CHECK(!getrlimit(RLIMIT_NOFILE, &limit), "no limit");
    int next = dup(0);
    close(next);
    low = (struct rlimit){(rlim_t)next + 60, limit.rlim_max};
    CHECK(!setrlimit(RLIMIT_NOFILE, &low), "limit");
    ddl__reach_begin(&w, &reach);
    usleep(20000);
    int64_t before = ddl__now();
    ddl__reach_poll(&w, &reach);
    CHECK(!reach.answers && reach.since >= before, "it is known");
    CHECK(!setrlimit(RLIMIT_NOFILE, &limit), "limit");
    for (int64_t end = before + 10 * DDL__S; !reach.answers; usleep(1000)) {
        CHECK(ddl__now() < end, "no answer");
        ddl__reach_poll(&w, &reach);
    }
}

int main(void)
{
    ddl_endpoint_config config = {.struct_size = sizeof config, .host = "127.0.0.1"};
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    CHECK(ddl_endpoint_create(&config, &endpoint) == DDL_OK, "%s", ddl__message());
    for (int i = 0; i < SIZE; i++)
        addresses[i] = *ddl__endpoint_address(endpoint);

    int bound = socket(AF_INET, SOCK_STREAM, 0); /* no process listens at its port, now or later */
    CHECK(!bind(bound, (struct sockaddr *)&to, sizeof to), "bind");
    addresses[REFUSES].port = ddl__socket_port(bound);

    int full =
        socket(AF_INET, SOCK_STREAM, 0); /* its backlog is one connection, which is opened here */
    CHECK(!bind(full, (struct sockaddr *)&to, sizeof to) && !listen(full, 0), "listen");
    addresses[SILENT].port = ddl__socket_port(full);
    to.sin_port = htons(addresses[SILENT].port);
    int first = ddl__dial((struct sockaddr *)&to, sizeof to, ddl__now() + 5 * DDL__S);
    CHECK(first >= 0, "dial");

    int descriptors = count_descriptors();
    try_all(300 * DDL__MS, descriptors);
    run_out_of_descriptors();
    addresses[SILENT].n_ips = 0; /* no address leads there */
    try_all(100 * DDL__MS, descriptors);

    /* There is room again: the address that was tried before answers. */
    const ddl__wireup w = make_wireup();
    ddl__reach reach = {.rank = SILENT};
    addresses[SILENT].n_ips = addresses[SELF].n_ips;
    ddl__reach_begin(&w, &reach);
    ddl__reach_poll(&w, &reach);
    CHECK(!reach.answers, "too early");
    close(accept(full, NULL, NULL));
    for (int64_t end = ddl__now() + 20 * DDL__S; !reach.answers; usleep(1000)) {
        CHECK(ddl__now() < end, "no answer");
        ddl__reach_poll(&w, &reach);
    }
    close(first);
    close(full);
    close(bound);
    ddl_endpoint_destroy(endpoint);
}
