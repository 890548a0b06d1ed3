#include "comm/address.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/un.h>
#include <unistd.h>

enum { MAGIC = 0x61644464, FORMAT = 1 };

static void add_ip(ddl__address *address, int family, const void *bytes)
{
    if (address->n_ips == DDL__IPS_MAX)
        return;
    ddl__ip *ip = &address->ips[address->n_ips++];
    memset(ip, 0, sizeof *ip);
    ip->family = family == AF_INET ? 4 : 6;
    memcpy(ip->bytes, bytes, family == AF_INET ? 4 : 16);
}

static const void *ip_bytes(const struct sockaddr *from)
{
    return from->sa_family == AF_INET
               ? (const void *)&((const struct sockaddr_in *)from)->sin_addr
               : (const void *)&((const struct sockaddr_in6 *)from)->sin6_addr;
}

static bool usable(const struct ifaddrs *i, int family, bool loopback)
{
    if (!i->ifa_addr || i->ifa_addr->sa_family != family || !(i->ifa_flags & IFF_UP) ||
        !(i->ifa_flags & IFF_LOOPBACK) == loopback)
        return false;
    /* A link-local address means something on its own link only. */
    return family == AF_INET ||
           !IN6_IS_ADDR_LINKLOCAL(&((const struct sockaddr_in6 *)i->ifa_addr)->sin6_addr);
}

ddl_status ddl__address_fill(ddl__address *address, const char *host)
{
    if (gethostname(address->host, sizeof address->host - 1))
        strcpy(address->host, "?");
    address->n_ips = 0;
    if (host) {
        unsigned char ip[16];
        int family = strchr(host, ':') ? AF_INET6 : AF_INET;
        if (inet_pton(family, host, ip) != 1)
            return ddl__fail(DDL_EINVAL, "host \"%s\" is not an IP address", host);
        add_ip(address, family, ip);
        return DDL_OK;
    }
    struct ifaddrs *all;
    if (getifaddrs(&all))
        return ddl__fail(DDL_ESYSTEM, "cannot list the network interfaces: %s", strerror(errno));
    /* Loopback last: at another host it leads to that host itself. */
    for (int loopback = 0; loopback < 2; loopback++)
        for (int v6 = 0; v6 < 2; v6++)
            for (struct ifaddrs *i = all; i; i = i->ifa_next)
                if (usable(i, v6 ? AF_INET6 : AF_INET, loopback))
                    add_ip(address, i->ifa_addr->sa_family, ip_bytes(i->ifa_addr));
    freeifaddrs(all);
    return DDL_OK;
}

/* magic, format, endpoint, port, host, ips: each number in its fixed width, low byte first. */
static unsigned char *put(unsigned char *at, uint64_t value, int width)
{
    for (int i = 0; i < width; i++)
        *at++ = (unsigned char)(value >> 8 * i);
    return at;
}

static uint64_t get(const unsigned char **at, int width)
{
    uint64_t value = 0;
    for (int i = 0; i < width; i++)
        value |= (uint64_t) * (*at)++ << 8 * i;
    return value;
}

enum { FIXED = 4 + 2 + 16 + 2 + 1 + 1, IP_BYTES = 17 };

size_t ddl__address_encode(const ddl__address *address, unsigned char *bytes)
{
    size_t host = strnlen(address->host, DDL__HOST_MAX - 1);
    unsigned char *at = put(bytes, MAGIC, 4);
    at = put(at, FORMAT, 2);
    at = put(at, address->endpoint.words[0], 8);
    at = put(at, address->endpoint.words[1], 8);
    at = put(at, address->port, 2);
    at = put(at, address->n_ips, 1);
    at = put(at, host, 1);
    memcpy(at, address->host, host);
    at += host;
    for (unsigned i = 0; i < address->n_ips; i++, at += IP_BYTES) {
        at[0] = address->ips[i].family;
        memcpy(at + 1, address->ips[i].bytes, 16);
    }
    return (size_t)(at - bytes);
}

ddl_status ddl__address_decode(ddl__address *address, const void *bytes, size_t n)
{
    const unsigned char *at = bytes;
    if (n < FIXED || get(&at, 4) != MAGIC)
        return ddl__fail(DDL_EINVAL, "these %zu bytes are no libddl address", n);
    unsigned format = (unsigned)get(&at, 2);
    if (format != FORMAT)
        return ddl__fail(DDL_EINVAL, "an address has format %u, ours is %d", format, FORMAT);
    memset(address, 0, sizeof *address);
    address->endpoint.words[0] = get(&at, 8);
    address->endpoint.words[1] = get(&at, 8);
    address->port = (uint16_t)get(&at, 2);
    address->n_ips = (uint8_t)get(&at, 1);
    size_t host = get(&at, 1);
    if (address->n_ips > DDL__IPS_MAX || host >= DDL__HOST_MAX ||
        n != FIXED + host + (size_t)address->n_ips * IP_BYTES)
        return ddl__fail(DDL_EINVAL, "an address of %zu bytes is damaged", n);
    memcpy(address->host, at, host);
    at += host;
    bool damaged = strlen(address->host) != host;
    for (unsigned i = 0; i < address->n_ips; i++, at += IP_BYTES) {
        address->ips[i].family = at[0];
        memcpy(address->ips[i].bytes, at + 1, 16);
        damaged = damaged || (at[0] != 4 && at[0] != 6);
    }
    if (damaged)
        return ddl__fail(DDL_EINVAL, "an address of %zu bytes is damaged", n);
    return DDL_OK;
}

socklen_t ddl__address_ip(const ddl__address *address, unsigned i, struct sockaddr_storage *to)
{
    memset(to, 0, sizeof *to);
    if (address->ips[i].family == 4) {
        struct sockaddr_in *v4 = (struct sockaddr_in *)to;
        v4->sin_family = AF_INET;
        v4->sin_port = htons(address->port);
        memcpy(&v4->sin_addr, address->ips[i].bytes, 4);
        return sizeof *v4;
    }
    struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)to;
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(address->port);
    memcpy(&v6->sin6_addr, address->ips[i].bytes, 16);
    return sizeof *v6;
}

socklen_t ddl__address_unix(const ddl__digest *endpoint, struct sockaddr_storage *to)
{
    struct sockaddr_un *un = (struct sockaddr_un *)to;
    memset(to, 0, sizeof *to);
    un->sun_family = AF_UNIX;
    /* Abstract: begins with NUL, lives in no file system, ends with the socket. */
    int n =
        snprintf(un->sun_path + 1, sizeof un->sun_path - 1, "libddl-%016llx%016llx",
                 (unsigned long long)endpoint->words[0], (unsigned long long)endpoint->words[1]);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
}
