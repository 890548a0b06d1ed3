/* SPDX-License-Identifier: Apache-2.0 */
/* interfaces.h - which network interfaces to use, and which local one with which of a peer.
 *
 * PURE: no I/O, no clock, no threads, no getenv.
 */
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
    uint8_t prefix; /* bits of the address that are its network's */
    bool loopback;  /* leads to this host only */
    char name[DDL__INTERFACE_NAME];
    uint32_t speed; /* Mbit/s; 0: not known */
    uint8_t bytes[16];
} ddl__interface;

/* The IP address in words, such as "10.0.0.1". */
void ddl__interface_ip(const ddl__interface *i, char ip[DDL__IP_TEXT]);

/* "eth0 10.0.0.1, eth1 10.1.0.1", as far as they fit. */
void ddl__interfaces_list(const ddl__interface *all, unsigned n, char *text, size_t size);

/* True if other hosts may reach it: its interface is not the loopback, or it is an address there
 * that may be routed to this host. */
bool ddl__interface_leads_out(const ddl__interface *i);

/* Keep those of *n <= DDL__ADDRESSES_MAX addresses that are to be used, at most
 * DDL__INTERFACES_MAX. The order is that in which to try them.
 *
 *   filter = item { "," item }          item = [ "^" ] ( name | address [ "/" bits ] )
 *
 * A name means all interfaces whose names begin with it; an address means its network. An interface
 * is used if an item without "^" names it and no item with "^" does. Of the loopback, addresses
 * that may be routed to this host lead to it from others only if they are named. If there are only
 * items with
 * "^", or the filter is "" or NULL, all other interfaces are used, except the bridges of containers
 * and virtual machines, and link-local addresses, if there are others. DDL_EINVAL for a malformed
 * item, and, with a list of the interfaces, if none is left. */
ddl_status ddl__interfaces_select(ddl__interface *all, unsigned *n, const char *filter);

/* From which local address (-1: the one that the route takes) to which of the peer's. */
typedef struct ddl__path {
    int8_t ours, theirs;
} ddl__path;

/* The paths to use at once, then those to try if the first one does not answer. */
typedef struct ddl__paths {
    unsigned n, at_once;
    ddl__path path[2 * DDL__INTERFACES_MAX];
} ddl__paths;

typedef enum ddl__where { DDL__WHERE_UNKNOWN, DDL__SAME_HOST, DDL__OTHER_HOST } ddl__where;

/* route[j] is the local address from which the system would reach theirs[j], or -1.
 *
 * Interfaces in one network are paired. If there are none, interfaces with a route between them
 * are, each once at most. A loopback address leads to no other host, and neither does an address
 * that both hosts have. An interface is left out if it is much slower than the fastest, where
 * speeds are known. Within a host one path is used, since several are no faster. */
ddl__paths ddl__paths_between(const ddl__interface *ours, unsigned n_ours,
                              const ddl__interface *theirs, unsigned n_theirs, ddl__where where,
                              const int8_t *route);

#endif
