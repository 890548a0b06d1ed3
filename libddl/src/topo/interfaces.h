/* SPDX-License-Identifier: Apache-2.0 */
/* interfaces.h - chooses network interfaces, and pairs of local and peer interfaces.
 *
 * PURE: no I/O, no clock, no threads, no getenv. */
#ifndef DDL_TOPO_INTERFACES_H
#define DDL_TOPO_INTERFACES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

enum {
    DDL__INTERFACES_MAX = 16, /* addresses that are used */
    DDL__ADDRESSES_MAX = 256, /* addresses from which they are selected */
    DDL__INTERFACE_NAME = 16,
    DDL__IP_TEXT = 46
};

/* One address of an interface. */
typedef struct ddl__interface {
    uint8_t family; /* 4 or 6 */
    uint8_t prefix; /* bits of the address that identify its network */
    bool loopback;  /* leads to this host only */
    char name[DDL__INTERFACE_NAME];
    uint32_t speed; /* Mbit/s; 0: unknown */
    uint8_t bytes[16];
} ddl__interface;

/* Write the IP address as text, such as "10.0.0.1". */
void ddl__interface_ip(const ddl__interface *i, char ip[DDL__IP_TEXT]);

/* Write "eth0 10.0.0.1, eth1 10.1.0.1", as far as they fit. */
void ddl__interfaces_list(const ddl__interface *all, unsigned n, char *text, size_t size);

/* Return true if other hosts may reach the address: its interface is not the loopback, or the
 * address may be routed to this host. */
bool ddl__interface_leads_out(const ddl__interface *i);

/* Keep the addresses to use from *n <= DDL__ADDRESSES_MAX addresses, at most DDL__INTERFACES_MAX,
 * in the order in which to try them.
 *
 *   filter = item { "," item }          item = [ "^" ] ( name | address [ "/" bits ] )
 *
 * A name matches all interfaces whose names begin with it; an address matches its network. An
 * interface is used if an item without "^" matches it and no item with "^" does. Addresses of the
 * loopback that may be routed to this host are reachable from other hosts only if an item matches
 * them. If there are only items with "^", or if the filter is "" or NULL, all other interfaces are
 * used, except the bridges of containers and virtual machines, and link-local addresses, if there
 * are others. Return DDL_EINVAL for a malformed item, and, with a list of the interfaces, if none
 * is left. */
ddl_status ddl__interfaces_select(ddl__interface *all, unsigned *n, const char *filter);

/* A pair of a local address (-1: the address that the route uses) and a peer's address. */
typedef struct ddl__path {
    int8_t ours, theirs;
} ddl__path;

/* The paths to use in parallel, then the paths to try if the first path does not answer. */
typedef struct ddl__paths {
    unsigned n, at_once;
    ddl__path path[2 * DDL__INTERFACES_MAX];
} ddl__paths;

typedef enum ddl__where { DDL__WHERE_UNKNOWN, DDL__SAME_HOST, DDL__OTHER_HOST } ddl__where;

/* Return the paths. route[j] is the local address from which the system would reach theirs[j], or
 * -1.
 *
 * Interfaces in one network are paired. If there are none, interfaces with a route between them are
 * paired, each at most once. A loopback address does not lead to another host, nor does an address
 * that both hosts have. An interface is not used if it is known to be much slower than the fastest.
 * Within a host one path is used, because several are not faster. */
ddl__paths ddl__paths_between(const ddl__interface *ours, unsigned n_ours,
                              const ddl__interface *theirs, unsigned n_theirs, ddl__where where,
                              const int8_t *route);

#endif
