/* SPDX-License-Identifier: Apache-2.0 */
#include "connect/endpoint/endpoint_state.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"
#include "net/socket.h"

enum { ATTEMPTS = 64 /* number of attempts to find a port that is free on all interfaces */ };

typedef struct range {
    unsigned first, n;
} range;

static bool parse_port(const char **at, unsigned *port)
{
    char *end;
    if (**at < '0' || **at > '9')
        return false;
    unsigned long n = strtoul(*at, &end, 10);
    *at = end;
    *port = (unsigned)n;
    return n >= 1 && n <= 65535;
}

static ddl_status parse_ports(const char *text, range *ports)
{
    unsigned last;
    const char *at = text;
    *ports = (range){0, 0};
    if (!*text)
        return DDL_OK;
    bool right = parse_port(&at, &ports->first);
    last = ports->first;
    if (right && *at == '-') {
        at++;
        right = parse_port(&at, &last);
    }
    if (!right || *at || last < ports->first)
        return ddl__fail(DDL_EINVAL, "ports \"%s\" is not a range such as 20000-20100", text);
    ports->n = last - ports->first + 1;
    return DDL_OK;
}

/* Listen on this port of all IPs; 0 means any port that is free on the first IP. Return the number
 * of IPs on which listening succeeded, up to the first failure. After a failure, errno is set and
 * all sockets are closed again. */
static unsigned listen_on_port(ddl__address *address, unsigned port, int *fds)
{
    for (unsigned i = 0; i < address->n_ips; i++) {
        struct sockaddr_storage to;
        socklen_t length = ddl__address_of(&address->ips[i], (uint16_t)port, &to);
        fds[i] = ddl__listen_at((struct sockaddr *)&to, length);
        if (fds[i] < 0) {
            int error = errno;
            for (unsigned j = 0; j < i; j++)
                close(fds[j]);
            errno = error;
            return i;
        }
        port = ddl__socket_port(fds[i]);
    }
    address->port = (uint16_t)port;
    return address->n_ips;
}

/* Remove an IP on which listening is not possible. */
static void address_remove_ip(ddl__address *address, unsigned i)
{
    char text[INET6_ADDRSTRLEN];
    ddl__interface_ip(&address->ips[i], text);
    ddl__log(DDL__WARN, "cannot listen on %s of %s: %s", text, address->ips[i].name,
             strerror(errno));
    address->n_ips--;
    memmove(&address->ips[i], &address->ips[i + 1], (address->n_ips - i) * sizeof address->ips[i]);
}

/* If a port is in use, the next one is tried. Each endpoint starts at a different port. */
ddl_status ddl__listen_all(ddl__address *address, const char *text, int *fds)
{
    range ports;
    char line[400], ip[INET6_ADDRSTRLEN];
    ddl_status status = parse_ports(text, &ports);
    if (status != DDL_OK)
        return status;
    unsigned attempts = ports.n ? ports.n : ATTEMPTS, failed = 0;
    for (unsigned i = 0; i < attempts;) {
        unsigned turn = (unsigned)((address->endpoint.words[0] + i) % attempts);
        failed = listen_on_port(address, ports.n ? ports.first + turn : 0, fds);
        if (failed == address->n_ips) {
            ddl__interfaces_list(address->ips, address->n_ips, line, sizeof line);
            ddl__log(DDL__INFO, "listening on port %u of %s", address->port,
                     line[0] ? line : "no interface");
            return DDL_OK;
        }
        if (errno == EADDRNOTAVAIL && address->n_ips > 1)
            address_remove_ip(address, failed);
        else if (errno == EADDRINUSE)
            i++;
        else
            break;
    }
    int error = errno;
    ddl__interface_ip(&address->ips[failed], ip);
    return ddl__fail(DDL_ESYSTEM, "cannot listen on %s, %s%s: %s", ip,
                     ports.n ? "ports " : "any port", text, strerror(error));
}

int ddl__listen_local(const ddl__digest *endpoint)
{
    struct sockaddr_storage address;
    socklen_t length = ddl__address_unix(endpoint, &address);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd >= 0 && !bind(fd, (struct sockaddr *)&address, length) && !listen(fd, SOMAXCONN))
        return fd;
    ddl__fail(DDL_ESYSTEM, "cannot listen on an abstract unix socket: %s", strerror(errno));
    if (fd >= 0)
        close(fd);
    return -1;
}
