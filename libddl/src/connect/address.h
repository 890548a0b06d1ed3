/* SPDX-License-Identifier: Apache-2.0 */
/* address.h - the address of an endpoint, as members exchange it. */
#ifndef DDL_CONNECT_ADDRESS_H
#define DDL_CONNECT_ADDRESS_H

#include <netinet/in.h>
#include <stdbool.h>

#include "base/digest.h"
#include "base/status.h"
#include "topo/interfaces.h"

enum { DDL__HOST_MAX = 64 };

typedef struct ddl__address {
    ddl__digest endpoint; /* random; also the abstract unix socket's name */
    uint64_t network;     /* equal for processes that have the same interfaces; 0: not known */
    uint16_t port;
    uint32_t user;        /* the effective user, who alone shares its memory */
    bool shares_memory;   /* with members of its host, where a comm allows it */
    bool several_sockets; /* it opens several connections to each peer */
    uint8_t n_ips;
    ddl__interface *ips;      /* in the order in which to try them; in memory of its user */
    char host[DDL__HOST_MAX]; /* for messages only */

    /* Not exchanged: its place among the members of its comm that may share its memory, and their
     * number (neighbours.h). */
    int place, sharing;
} ddl__address;

/* Convert to and from the exchanged bytes. encode returns the length, at most DDL_ADDRESS_MAX;
 * decode sets the message. `ips` has room for DDL__INTERFACES_MAX, and becomes the address's. */
size_t ddl__address_encode(const ddl__address *address, unsigned char *bytes);
ddl_status ddl__address_decode(ddl__address *address, ddl__interface *ips, const void *bytes,
                               size_t n);

/* Fill in a socket address for the kernel; returns its length. */
socklen_t ddl__address_ip(const ddl__address *address, unsigned i, struct sockaddr_storage *to);
socklen_t ddl__address_of(const ddl__interface *ip, uint16_t port, struct sockaddr_storage *to);
socklen_t ddl__address_unix(const ddl__digest *endpoint, struct sockaddr_storage *to);

/* Which of the address's IPs this one in words is, or -1. */
int ddl__address_find(const ddl__address *address, const char *ip);

#endif
