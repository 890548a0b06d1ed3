/* SPDX-License-Identifier: Apache-2.0 */
/* The sockets of endpoints, and connections between ranks over TCP: interfaces, ports, IPv6, and
 * several sockets to each peer. */
#include <ifaddrs.h>
#include <netinet/in.h>

#include "comm/comm.h"
#include "ranks.h"

static ddl__address address_of(const ddl_endpoint *endpoint)
{
    unsigned char bytes[DDL_ADDRESS_MAX];
    size_t n;
    static ddl__interface ips[DDL__INTERFACES_MAX];
    ddl__address address;
    OK(ddl_endpoint_address(endpoint, bytes, sizeof bytes, &n));
    OK(ddl__address_decode(&address, ips, bytes, n));
    return address;
}

static bool has_ip(const char *ip)
{
    ddl_endpoint *endpoint;
    ddl_endpoint_config config = {.struct_size = sizeof config, .interfaces = ip};
    if (ddl_endpoint_create(&config, &endpoint) != DDL_OK)
        return false;
    ddl_endpoint_destroy(endpoint);
    return true;
}

/* -------------------------------------------------------------------------------------- options */

static void test_refused(void)
{
    ddl_endpoint *endpoint;
    ddl_endpoint_config config = {.struct_size = sizeof config, .interfaces = "nonesuch"};
    INVALID(ddl_endpoint_create(&config, &endpoint), "this host has");
    config.interfaces = "10.0.0.0/40";
    INVALID(ddl_endpoint_create(&config, &endpoint), "\"10.0.0.0/40\"");
    config.interfaces = "lo";
    config.host = "127.0.0.1";
    INVALID(ddl_endpoint_create(&config, &endpoint), "set only one of them");
    static const char *const ports[] = {"x", "0", "70000", "200-100", "1-", "1-2-3", "1 "};
    for (size_t i = 0; i < sizeof ports / sizeof *ports; i++) {
        config = (ddl_endpoint_config){.struct_size = sizeof config, .ports = ports[i]};
        INVALID(ddl_endpoint_create(&config, &endpoint), "20000-20100");
    }
    config = (ddl_endpoint_config){.struct_size = sizeof config, .sockets = 17};
    INVALID(ddl_endpoint_create(&config, &endpoint), "sockets is 17");
    setenv("DDL_SOCKETS", "two", 1);
    INVALID(ddl_endpoint_create(NULL, &endpoint), "DDL_SOCKETS=\"two\"");
    unsetenv("DDL_SOCKETS");
    setenv("DDL_INTERFACES", "nonesuch", 1);
    INVALID(ddl_endpoint_create(NULL, &endpoint), "this host has");
    unsetenv("DDL_INTERFACES");
}

/* The endpoint listens only on the chosen interfaces. */
static void test_listens_there_only(void)
{
    ddl_endpoint *endpoint;
    ddl_endpoint_config config = {.struct_size = sizeof config, .interfaces = "127.0.0.0/8"};
    OK(ddl_endpoint_create(&config, &endpoint));
    ddl__address address = address_of(endpoint);
    CHECK(address.n_ips == 1 && !strcmp(address.ips[0].name, "lo") && address.ips[0].prefix == 8,
          "%u addresses", address.n_ips);
    struct sockaddr_in there = {.sin_family = AF_INET,
                                .sin_port = htons(address.port),
                                .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct sockaddr_in elsewhere = there;
    elsewhere.sin_addr.s_addr = htonl(INADDR_LOOPBACK + 1);
    int fd = socket(AF_INET, SOCK_STREAM, 0), other = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(!connect(fd, (struct sockaddr *)&there, sizeof there), "%s", strerror(errno));
    CHECK(connect(other, (struct sockaddr *)&elsewhere, sizeof elsewhere), "it listens elsewhere");
    close(fd);
    close(other);
    ddl_endpoint_destroy(endpoint);
}

/* A range of three ports has room for three endpoints, and for another after one was destroyed. */
static void test_ports(void)
{
    ddl_endpoint *endpoints[3], *more;
    /* above the range of free_port, and below the ports of outgoing connections */
    unsigned first = 30000 + (unsigned)getpid() % 1000;
    char ports[32];
    snprintf(ports, sizeof ports, "%u-%u", first, first + 2);
    ddl_endpoint_config config = {.struct_size = sizeof config, .interfaces = "lo", .ports = ports};
    for (int i = 0; i < 3; i++) {
        OK(ddl_endpoint_create(&config, &endpoints[i]));
        unsigned port = address_of(endpoints[i]).port;
        CHECK(port >= first && port <= first + 2, "port %u", port);
    }
    REFUSED(ddl_endpoint_create(&config, &more), DDL_ESYSTEM, ports);
    ddl_endpoint_destroy(endpoints[1]);
    OK(ddl_endpoint_create(&config, &endpoints[1]));
    for (int i = 0; i < 3; i++)
        ddl_endpoint_destroy(endpoints[i]);
}

/* ----------------------------------------------------------------------------------- operations */

static float *numbers(int64_t n, int rank)
{
    float *x = malloc((size_t)n * sizeof *x);
    for (int64_t i = 0; i < n; i++)
        x[i] = (float)(i % 1000 + rank);
    return x;
}

static void reduce_and_check(ddl_comm *comm, int64_t n)
{
    int rank = ddl_comm_rank(comm), size = ddl_comm_size(comm);
    float *x = numbers(n, rank);
    OK(ddl_allreduce(comm, NULL, x, n, DDL_F32, DDL_SUM, NULL, NULL));
    for (int64_t i = 0; i < n; i++)
        CHECK(x[i] == (float)(i % 1000 * size + size * (size - 1) / 2), "%lld of %lld: %g",
              (long long)i, (long long)n, (double)x[i]);
    free(x);
}

/* Send a long message around, as long and short ones mixed. */
static void pass_round(ddl_comm *comm, int64_t n)
{
    int rank = ddl_comm_rank(comm), size = ddl_comm_size(comm);
    int next = (rank + 1) % size, last = (rank + size - 1) % size;
    float *out = numbers(n, rank), *in = malloc((size_t)n * sizeof *in);
    OK(ddl_sendrecv(comm, out, n, next, 1, in, n, last, 1, DDL_F32, NULL, NULL));
    for (int64_t i = 0; i < n; i++)
        CHECK(in[i] == (float)(i % 1000 + last), "%lld of %lld: %g", (long long)i, (long long)n,
              (double)in[i]);
    free(out);
    free(in);
}

static void operate(ddl_comm *comm, void *argument)
{
    static const int64_t counts[] = {1,     1000,  16000,  16384,  16385,
                                     65536, 65537, 131072, 500001, 3000000};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        reduce_and_check(comm, counts[i]);
        pass_round(comm, counts[i]);
    }
    OK(ddl_barrier(comm, NULL, NULL));
}

static int queue_of(const ddl__link *link)
{
    int bytes = 0;
    socklen_t length = sizeof bytes;
    CHECK(!getsockopt(ddl__tcp_link_socket(link), SOL_SOCKET, SO_SNDBUF, &bytes, &length), "%s",
          strerror(errno));
    return bytes;
}

/* Members of one machine have short queues for each other; the kernel doubles the requested
 * size. */
static void check_queues(ddl_comm *comm, void *argument)
{
    int peer = !ddl_comm_rank(comm), most = 2 * 128 * 1024;
    int ordered = queue_of(ddl__engine_links(comm->engine)[peer]),
        named = queue_of(ddl__engine_message_links(comm->engine)[peer]);
    CHECK(ordered == most && named == most, "%d and %d bytes", ordered, named);
    OK(ddl_barrier(comm, NULL, NULL));
}

static void run_with(int size, const char *name, const char *value)
{
    setenv(name, value, 1);
    run_ranks(size, DDL_LINK_TCP, operate, NULL);
    unsetenv(name);
}

int main(void)
{
    test_refused();
    test_listens_there_only();
    test_ports();
    run_ranks(2, DDL_LINK_TCP, check_queues, NULL);
    run_with(2, "DDL_SOCKETS", "2");
    run_with(4, "DDL_SOCKETS", "3");
    run_with(2, "DDL_INTERFACES", "127.0.0.1");
    if (has_ip("::1"))
        run_with(3, "DDL_INTERFACES", "::1");
    else
        printf("no IPv6 loopback here\n");
}
