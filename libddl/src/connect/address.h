/* address.h - where an endpoint can be reached: the bytes that members exchange. */
#ifndef DDL_CONNECT_ADDRESS_H
#define DDL_CONNECT_ADDRESS_H

#include <netinet/in.h>

#include "base/digest.h"
#include "base/status.h"
#include "topo/interfaces.h"

enum { DDL__HOST_MAX = 64 };

typedef struct ddl__address {
    ddl__digest endpoint; /* random; also the abstract unix socket's name */
    uint64_t network;     /* the same for all who have the same interfaces; 0: not known */
    uint16_t port;
    uint8_t n_ips;
    ddl__interface ips[DDL__INTERFACES_MAX]; /* in the order in which to try them */
    char host[DDL__HOST_MAX];                /* for messages only */
} ddl__address;

/* To and from the exchanged bytes. encode returns the length, at most DDL_ADDRESS_MAX; decode sets
 * the message. */
size_t ddl__address_encode(const ddl__address *address, unsigned char *bytes);
ddl_status ddl__address_decode(ddl__address *address, const void *bytes, size_t n);

/* As the kernel wants them; the length is returned. */
socklen_t ddl__address_ip(const ddl__address *address, unsigned i, struct sockaddr_storage *to);
socklen_t ddl__address_of(const ddl__interface *ip, uint16_t port, struct sockaddr_storage *to);
/* The bytes of an IP address of the kernel's form. */
const void *ddl__address_bytes(const struct sockaddr *address);
socklen_t ddl__address_unix(const ddl__digest *endpoint, struct sockaddr_storage *to);

#endif
