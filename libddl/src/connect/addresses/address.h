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
    uint64_t network;     /* equal for processes with the same interfaces; 0 if unknown */
    uint16_t port;
    uint32_t user;        /* the effective user; only members of this user share memory */
    bool shares_memory;   /* may share memory with members on its host, if the comm allows it */
    bool several_sockets; /* opens several connections to each peer */
    uint8_t n_ips;
    ddl__interface *ips;      /* in the order of the attempts; the caller owns the memory */
    char host[DDL__HOST_MAX]; /* name of the host, used only in messages */

    /* Not exchanged: the members of the comm that may share memory with this member, including
     * itself. `sharing` is their number, and `place` the member's index among them
     * (neighbours.h). */
    int place, sharing;
} ddl__address;

/* Convert to and from the exchanged bytes. ddl__address_encode returns their number, at most
 * DDL_ADDRESS_MAX. ddl__address_decode sets the message on failure; `ips` has room for
 * DDL__INTERFACES_MAX entries, and the decoded address points to it. */
size_t ddl__address_encode(const ddl__address *address, unsigned char *bytes);
ddl_status ddl__address_decode(ddl__address *address, ddl__interface *ips, const void *bytes,
                               size_t n);

/* Fill in a socket address for the kernel; returns its length. */
socklen_t ddl__address_ip(const ddl__address *address, unsigned i, struct sockaddr_storage *to);
socklen_t ddl__address_of(const ddl__interface *ip, uint16_t port, struct sockaddr_storage *to);
socklen_t ddl__address_unix(const ddl__digest *endpoint, struct sockaddr_storage *to);

/* Return the index of an IP, given as text, among the address's IPs, or -1. */
int ddl__address_find(const ddl__address *address, const char *ip);

#endif
