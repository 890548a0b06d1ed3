#include "connect/address.h"

#include <arpa/inet.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/un.h>

enum { MAGIC = 0x61644464, FORMAT = 2 };

/* The layout is: magic, format, endpoint, network, port, host, IPs. Each number has a fixed width
 * and is little-endian. */
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

enum { FIXED = 4 + 2 + 16 + 8 + 2 + 1 + 1, IP_BYTES = 3 + DDL__INTERFACE_NAME + 4 + 16 };
_Static_assert(FIXED + DDL__HOST_MAX + DDL__INTERFACES_MAX * IP_BYTES <= DDL_ADDRESS_MAX, "fits");

static unsigned char *put_ip(unsigned char *at, const ddl__interface *ip)
{
    at = put(at, ip->family, 1);
    at = put(at, ip->prefix, 1);
    at = put(at, ip->loopback, 1);
    memcpy(at, ip->name, DDL__INTERFACE_NAME);
    at = put(at + DDL__INTERFACE_NAME, ip->speed, 4);
    memcpy(at, ip->bytes, 16);
    return at + 16;
}

/* True for a printable name that is padded with zeros. */
static bool is_name(const char *name)
{
    size_t n = strnlen(name, DDL__INTERFACE_NAME);
    for (size_t i = 0; i < DDL__INTERFACE_NAME; i++)
        if (i < n ? name[i] <= ' ' || name[i] > '~' : name[i] != 0)
            return false;
    return n < DDL__INTERFACE_NAME;
}

/* False if the bytes are not valid. */
static bool get_ip(const unsigned char **at, ddl__interface *ip)
{
    ip->family = (uint8_t)get(at, 1);
    ip->prefix = (uint8_t)get(at, 1);
    uint64_t loopback = get(at, 1);
    ip->loopback = loopback;
    memcpy(ip->name, *at, DDL__INTERFACE_NAME);
    *at += DDL__INTERFACE_NAME;
    ip->speed = (uint32_t)get(at, 4);
    memcpy(ip->bytes, *at, 16);
    *at += 16;
    return (ip->family == 4 || ip->family == 6) && ip->prefix <= (ip->family == 4 ? 32 : 128) &&
           loopback <= 1 && is_name(ip->name);
}

size_t ddl__address_encode(const ddl__address *address, unsigned char *bytes)
{
    size_t host = strnlen(address->host, DDL__HOST_MAX - 1);
    unsigned char *at = put(bytes, MAGIC, 4);
    at = put(at, FORMAT, 2);
    at = put(at, address->endpoint.words[0], 8);
    at = put(at, address->endpoint.words[1], 8);
    at = put(at, address->network, 8);
    at = put(at, address->port, 2);
    at = put(at, address->n_ips, 1);
    at = put(at, host, 1);
    memcpy(at, address->host, host);
    at += host;
    for (unsigned i = 0; i < address->n_ips; i++)
        at = put_ip(at, &address->ips[i]);
    return (size_t)(at - bytes);
}

ddl_status ddl__address_decode(ddl__address *address, const void *bytes, size_t n)
{
    const unsigned char *at = bytes;
    if (n < FIXED || get(&at, 4) != MAGIC)
        return ddl__fail(DDL_EINVAL, "these %zu bytes are not a libddl address", n);
    unsigned format = (unsigned)get(&at, 2);
    if (format != FORMAT)
        return ddl__fail(DDL_EINVAL, "an address has format %u, ours is %d", format, FORMAT);
    memset(address, 0, sizeof *address);
    address->endpoint.words[0] = get(&at, 8);
    address->endpoint.words[1] = get(&at, 8);
    address->network = get(&at, 8);
    address->port = (uint16_t)get(&at, 2);
    address->n_ips = (uint8_t)get(&at, 1);
    size_t host = get(&at, 1);
    if (address->n_ips > DDL__INTERFACES_MAX || host >= DDL__HOST_MAX ||
        n != FIXED + host + (size_t)address->n_ips * IP_BYTES)
        return ddl__fail(DDL_EINVAL, "an address of %zu bytes is damaged", n);
    memcpy(address->host, at, host);
    at += host;
    bool damaged = strlen(address->host) != host;
    for (unsigned i = 0; i < address->n_ips; i++)
        damaged = !get_ip(&at, &address->ips[i]) || damaged;
    if (damaged)
        return ddl__fail(DDL_EINVAL, "an address of %zu bytes is damaged", n);
    return DDL_OK;
}

socklen_t ddl__address_of(const ddl__interface *ip, uint16_t port, struct sockaddr_storage *to)
{
    memset(to, 0, sizeof *to);
    if (ip->family == 4) {
        struct sockaddr_in *v4 = (struct sockaddr_in *)to;
        v4->sin_family = AF_INET;
        v4->sin_port = htons(port);
        memcpy(&v4->sin_addr, ip->bytes, 4);
        return sizeof *v4;
    }
    struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)to;
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(port);
    memcpy(&v6->sin6_addr, ip->bytes, 16);
    return sizeof *v6;
}

socklen_t ddl__address_ip(const ddl__address *address, unsigned i, struct sockaddr_storage *to)
{
    return ddl__address_of(&address->ips[i], address->port, to);
}

int ddl__address_find(const ddl__address *address, const char *ip)
{
    char own[INET6_ADDRSTRLEN];
    for (int i = 0; i < address->n_ips; i++) {
        ddl__interface_ip(&address->ips[i], own);
        if (!strcmp(own, ip))
            return i;
    }
    return -1;
}

socklen_t ddl__address_unix(const ddl__digest *endpoint, struct sockaddr_storage *to)
{
    struct sockaddr_un *un = (struct sockaddr_un *)to;
    memset(to, 0, sizeof *to);
    un->sun_family = AF_UNIX;
    /* An abstract name begins with NUL, is in no file system, and ends with its socket. */
    int n =
        snprintf(un->sun_path + 1, sizeof un->sun_path - 1, "libddl-%016llx%016llx",
                 (unsigned long long)endpoint->words[0], (unsigned long long)endpoint->words[1]);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
}
