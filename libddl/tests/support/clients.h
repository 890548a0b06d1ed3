/* SPDX-License-Identifier: Apache-2.0 */
/* clients.h - sockets of tests that speak libddl's protocols themselves, to endpoints of the
 * loopback interface. */
#ifndef DDL_TESTS_CLIENTS_H
#define DDL_TESTS_CLIENTS_H

#include "base/clock.h"
#include "check.h"
#include "connect/endpoint/endpoint.h"
#include "net/socket.h"

enum { URL_MAX = 64, DIAL_MS = 20000 };

/* Connect to a port, at which a process may not listen yet. */
static inline int dial(uint16_t port)
{
    struct sockaddr_in to = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = -1;
    for (int64_t deadline = ddl__deadline(DIAL_MS); fd < 0 && ddl__now() < deadline;)
        if ((fd = ddl__dial((struct sockaddr *)&to, sizeof to, deadline)) < 0)
            usleep(1000);
    CHECK(fd >= 0, "%s", strerror(errno));
    return fd;
}

static inline int listen_at(uint16_t *port)
{
    int listener = ddl__listen("127.0.0.1", port);
    CHECK(listener >= 0, "%s", ddl__message());
    return listener;
}

/* Choose the URL of a rendezvous at a free port, which is returned. */
static inline uint16_t choose_url(char url[URL_MAX])
{
    uint16_t port = 0;
    close(listen_at(&port));
    snprintf(url, URL_MAX, "tcp://127.0.0.1:%u", port);
    return port;
}

static inline uint16_t port_of(const ddl_endpoint *endpoint)
{
    return ddl__endpoint_address(endpoint)->port;
}

static inline ddl_endpoint *open_endpoint(const char *secret)
{
    ddl_endpoint_config config = {
        .struct_size = sizeof config, .secret = secret, .host = "127.0.0.1"};
    ddl_endpoint *endpoint;
    OK(ddl_endpoint_create(&config, &endpoint));
    return endpoint;
}

#endif
