/* SPDX-License-Identifier: Apache-2.0 */
#include "connect/addresses/discover.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "net/socket.h"

static bool interface_is_usable(const struct ifaddrs *i)
{
    if (!i->ifa_addr || !(i->ifa_flags & IFF_UP))
        return false;
    /* A link-local address is valid on its own link only. */
    return i->ifa_addr->sa_family == AF_INET ||
           (i->ifa_addr->sa_family == AF_INET6 &&
            !IN6_IS_ADDR_LINKLOCAL(&((const struct sockaddr_in6 *)i->ifa_addr)->sin6_addr));
}

/* Return true if the cable is plugged in. Dialing an interface without a carrier would time out. */
static bool interface_has_carrier(const struct ifaddrs *i)
{
    return i->ifa_flags & (IFF_RUNNING | IFF_LOOPBACK);
}

/* Return true if any interface has a carrier. If none has one, carriers are ignored, because the
 * kernel may not have detected the carrier of an interface that has just come up. */
static bool any_carrier_known(const struct ifaddrs *list)
{
    for (const struct ifaddrs *i = list; i; i = i->ifa_next)
        if (interface_is_usable(i) && interface_has_carrier(i) && !(i->ifa_flags & IFF_LOOPBACK))
            return true;
    return false;
}

static const void *ip_bytes(const struct sockaddr *address)
{
    return address->sa_family == AF_INET
               ? (const void *)&((const struct sockaddr_in *)address)->sin_addr
               : (const void *)&((const struct sockaddr_in6 *)address)->sin6_addr;
}

static uint8_t interface_prefix(const struct ifaddrs *i)
{
    uint8_t bits = 0;
    if (!i->ifa_netmask)
        return 0;
    const unsigned char *mask = ip_bytes(i->ifa_netmask);
    unsigned width = i->ifa_addr->sa_family == AF_INET ? 32 : 128;
    while (bits < width && mask[bits / 8] >> (7 - bits % 8) & 1)
        bits++;
    return bits;
}

/* Return the driver's speed in Mbit/s; 0 if it is unknown. /sys is not used, because it shows the
 * network namespace of the process that mounted it. */
static uint32_t interface_speed(const char *name)
{
    struct ethtool_cmd command = {.cmd = ETHTOOL_GSET};
    struct ifreq request = {.ifr_data = (char *)&command};
    snprintf(request.ifr_name, sizeof request.ifr_name, "%s", name);
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    bool known = fd >= 0 && !ioctl(fd, SIOCETHTOOL, &request);
    if (fd >= 0)
        close(fd);
    uint32_t speed = known ? (uint32_t)command.speed_hi << 16 | command.speed : 0;
    return speed == (uint32_t)SPEED_UNKNOWN ? 0 : speed;
}

static unsigned read_interfaces(const struct ifaddrs *list, ddl__interface *to)
{
    unsigned n = 0;
    bool carriers_known = any_carrier_known(list);
    for (const struct ifaddrs *i = list; i && n < DDL__ADDRESSES_MAX; i = i->ifa_next) {
        if (!interface_is_usable(i) || (carriers_known && !interface_has_carrier(i)))
            continue;
        ddl__interface *ip = &to[n++];
        memset(ip, 0, sizeof *ip);
        ip->family = i->ifa_addr->sa_family == AF_INET ? 4 : 6;
        ip->prefix = interface_prefix(i);
        ip->loopback = i->ifa_flags & IFF_LOOPBACK;
        snprintf(ip->name, sizeof ip->name, "%s", i->ifa_name);
        memcpy(ip->bytes, ip_bytes(i->ifa_addr), ip->family == 4 ? 4 : 16);
    }
    return n;
}

/* Reduce the list to `host`, with the data of its interface if one has this IP. */
static ddl_status select_host(ddl__interface *all, unsigned *n, const char *host)
{
    ddl__interface only = {.family = strchr(host, ':') ? 6 : 4};
    if (inet_pton(only.family == 4 ? AF_INET : AF_INET6, host, only.bytes) != 1)
        return ddl__fail(DDL_EINVAL, "host \"%s\" is not an IP address", host);
    only.prefix = only.family == 4 ? 32 : 128;
    for (unsigned i = 0; i < *n; i++)
        if (all[i].family == only.family && !memcmp(all[i].bytes, only.bytes, sizeof only.bytes))
            only = all[i];
    only.loopback = !ddl__interface_leads_out(&only);
    all[0] = only;
    *n = 1;
    return DDL_OK;
}

/* Return an id of the effective user and its user namespace: in another container, the same number
 * may mean another user. */
static uint32_t user_id(void)
{
    struct stat users;
    uint32_t inode = stat("/proc/self/ns/user", &users) ? 0 : (uint32_t)users.st_ino;
    return (uint32_t)geteuid() + inode * UINT32_C(2654435761);
}

/* Return an id of this boot and network namespace, or 0 if the system does not provide them. */
static uint64_t network_id(void)
{
    char boot[64];
    struct stat space;
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, boot, sizeof boot) : -1;
    if (fd >= 0)
        close(fd);
    if (n <= 0 || stat("/proc/self/ns/net", &space))
        return 0;
    ddl__digest digest = {{0, 0}};
    uint64_t number = space.st_ino;
    ddl__digest_add(&digest, boot, (size_t)n);
    ddl__digest_add(&digest, &number, sizeof number);
    return digest.words[0];
}

/* Replace other characters by '?'. Peers accept only printable names, but Linux allows nearly any
 * byte in them. */
static void make_printable(char *name)
{
    for (; *name; name++)
        if (*name < '!' || *name > '~')
            *name = '?';
}

ddl_status ddl__discover(ddl__address *address, const char *host, const char *filter)
{
    ddl__interface all[DDL__ADDRESSES_MAX];
    struct ifaddrs *list;
    if (gethostname(address->host, sizeof address->host - 1))
        strcpy(address->host, "?");
    if (getifaddrs(&list))
        return ddl__fail(DDL_ESYSTEM, "cannot list the network interfaces: %s", strerror(errno));
    unsigned n = read_interfaces(list, all);
    freeifaddrs(list);
    ddl_status status = host ? select_host(all, &n, host) : ddl__interfaces_select(all, &n, filter);
    if (status != DDL_OK)
        return status;
    for (unsigned i = 0; i < n; i++) {
        address->ips[i] = all[i];
        address->ips[i].speed =
            all[i].loopback || !all[i].name[0] ? 0 : interface_speed(all[i].name);
        make_printable(address->ips[i].name);
    }
    address->n_ips = (uint8_t)n;
    address->network = network_id();
    address->user = user_id();
    return DDL_OK;
}

/* Return the index of the local interface over which the system routes to address j of the peer, or
 * -1. */
static int8_t find_route(const ddl__address *ours, const ddl__address *theirs, unsigned j)
{
    struct sockaddr_storage to;
    char from[INET6_ADDRSTRLEN] = "?";
    socklen_t length = ddl__address_ip(theirs, j, &to);
    int fd = socket(to.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0); /* connect() sends nothing */
    if (fd < 0)
        return -1;
    if (!connect(fd, (struct sockaddr *)&to, length))
        ddl__socket_ip(fd, false, from);
    close(fd);
    return (int8_t)ddl__address_find(ours, from);
}

ddl__paths ddl__discover_paths(const ddl__address *ours, const ddl__address *theirs)
{
    int8_t route[DDL__INTERFACES_MAX];
    ddl__where where = !ours->network || !theirs->network ? DDL__WHERE_UNKNOWN
                       : ours->network == theirs->network ? DDL__SAME_HOST
                                                          : DDL__OTHER_HOST;
    for (unsigned j = 0; j < theirs->n_ips; j++)
        route[j] = where == DDL__SAME_HOST ? -1 : find_route(ours, theirs, j);
    return ddl__paths_between(ours->ips, ours->n_ips, theirs->ips, theirs->n_ips, where, route);
}
