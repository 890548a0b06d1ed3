/* SPDX-License-Identifier: Apache-2.0 */
#include "connect/addresses/address.h"

#include <arpa/inet.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/un.h>

#include "connect/handshake/hello.h"

enum { MAGIC = 0x61644464, FORMAT = 3 };

enum { SHARES_MEMORY = 1, SEVERAL_SOCKETS = 2 };

/* An encoded address consists of a head, the host's name, and the IPs. Numbers are little-endian,
 * as on all machines on which this library runs. */
typedef struct __attribute__((packed)) encoded_head {
    uint32_t magic;
    uint16_t format;
    ddl__digest endpoint;
    uint64_t network;
    uint16_t port;
    uint8_t flags, n_ips, host; /* host: the length of the host's name */
    uint32_t user;
} encoded_head;

typedef struct __attribute__((packed)) encoded_ip {
    uint8_t family, prefix, loopback;
    char name[DDL__INTERFACE_NAME];
    uint32_t speed;
    uint8_t bytes[16];
} encoded_ip;
_Static_assert(sizeof(encoded_head) + DDL__HOST_MAX + DDL__INTERFACES_MAX * sizeof(encoded_ip) <=
                   DDL_ADDRESS_MAX,
               "fits");

/* Return true for a printable name that is padded with zeros. */
static bool is_name(const char *name)
{
    size_t n = strnlen(name, DDL__INTERFACE_NAME);
    for (size_t i = 0; i < DDL__INTERFACE_NAME; i++)
        if (i < n ? name[i] <= ' ' || name[i] > '~' : name[i] != 0)
            return false;
    return n < DDL__INTERFACE_NAME;
}

static bool is_valid(const encoded_ip *ip)
{
    return (ip->family == 4 || ip->family == 6) && ip->prefix <= (ip->family == 4 ? 32 : 128) &&
           ip->loopback <= 1 && is_name(ip->name);
}

size_t ddl__address_encode(const ddl__address *address, unsigned char *bytes)
{
    size_t host = strnlen(address->host, DDL__HOST_MAX - 1);
    unsigned flags = (address->shares_memory ? SHARES_MEMORY : 0U) |
                     (address->several_sockets ? SEVERAL_SOCKETS : 0U);
    encoded_head head = {MAGIC,         FORMAT,         address->endpoint, address->network,
                         address->port, (uint8_t)flags, address->n_ips,    (uint8_t)host,
                         address->user};
    unsigned char *at = mempcpy(bytes, &head, sizeof head);
    at = mempcpy(at, address->host, host);
    for (unsigned i = 0; i < address->n_ips; i++) {
        const ddl__interface *from = &address->ips[i];
        encoded_ip ip = {.family = from->family,
                         .prefix = from->prefix,
                         .loopback = from->loopback,
                         .speed = from->speed};
        memcpy(ip.name, from->name, sizeof ip.name);
        memcpy(ip.bytes, from->bytes, sizeof ip.bytes);
        at = mempcpy(at, &ip, sizeof ip);
    }
    return (size_t)(at - bytes);
}

ddl_status ddl__address_decode(ddl__address *address, ddl__interface *ips, const void *bytes,
                               size_t n)
{
    const unsigned char *at = bytes;
    encoded_head head = {0};
    memcpy(&head, at, n < sizeof head ? 0 : sizeof head);
    if (head.magic == __builtin_bswap32(MAGIC))
        return ddl__fail(DDL_EINVAL, "an address cannot be used: " DDL__OTHER_ENDIAN);
    if (head.magic != MAGIC)
        return ddl__fail(DDL_EINVAL, "the address of %zu bytes is not a libddl address", n);
    if (head.format != FORMAT)
        return ddl__fail(DDL_EINVAL,
                         "an address has format %u, but this libddl uses format %d: install one "
                         "version on all hosts",
                         head.format, FORMAT);
    *address = (ddl__address){.endpoint = head.endpoint,
                              .network = head.network,
                              .port = head.port,
                              .user = head.user,
                              .shares_memory = head.flags & SHARES_MEMORY,
                              .several_sockets = head.flags & SEVERAL_SOCKETS,
                              .n_ips = head.n_ips,
                              .ips = ips};
    if (head.flags > (SHARES_MEMORY | SEVERAL_SOCKETS) || head.n_ips > DDL__INTERFACES_MAX ||
        head.host >= DDL__HOST_MAX ||
        n != sizeof head + head.host + head.n_ips * sizeof(encoded_ip))
        return ddl__fail(DDL_EINVAL, "the address of %zu bytes is damaged", n);
    memcpy(address->host, at + sizeof head, head.host);
    at += sizeof head + head.host;
    bool damaged = strlen(address->host) != head.host;
    for (unsigned i = 0; i < head.n_ips; i++, at += sizeof(encoded_ip)) {
        ddl__interface *to = &ips[i];
        encoded_ip ip;
        memcpy(&ip, at, sizeof ip);
        damaged = damaged || !is_valid(&ip);
        to->family = ip.family;
        to->prefix = ip.prefix;
        to->loopback = ip.loopback;
        to->speed = ip.speed;
        memcpy(to->name, ip.name, sizeof to->name);
        memcpy(to->bytes, ip.bytes, sizeof to->bytes);
    }
    if (damaged)
        return ddl__fail(DDL_EINVAL, "the address of %zu bytes is damaged", n);
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
    /* The name is abstract: it begins with NUL, is not in a file system, and disappears with its
     * socket. */
    int n =
        snprintf(un->sun_path + 1, sizeof un->sun_path - 1, "libddl-%016llx%016llx",
                 (unsigned long long)endpoint->words[0], (unsigned long long)endpoint->words[1]);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
}
