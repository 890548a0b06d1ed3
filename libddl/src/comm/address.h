/* address.h - where an endpoint can be reached: the bytes that members exchange. */
#ifndef DDL_COMM_ADDRESS_H
#define DDL_COMM_ADDRESS_H

#include <netinet/in.h>

#include "base/digest.h"
#include "base/status.h"

enum { DDL__IPS_MAX = 16, DDL__HOST_MAX = 64 };

typedef struct ddl__ip {
    uint8_t family; /* 4 or 6 */
    uint8_t bytes[16];
} ddl__ip;

typedef struct ddl__address {
    ddl__digest endpoint; /* random; also the abstract unix socket's name */
    uint16_t port;
    uint8_t n_ips;
    ddl__ip ips[DDL__IPS_MAX]; /* in the order in which to try them */
    char host[DDL__HOST_MAX];  /* for messages only */
} ddl__address;

/* This host's name and addresses, or only `host`. */
ddl_status ddl__address_fill(ddl__address *address, const char *host);

/* To and from the exchanged bytes. encode returns the length, at most DDL_ADDRESS_MAX; decode sets
 * the message. */
size_t ddl__address_encode(const ddl__address *address, unsigned char *bytes);
ddl_status ddl__address_decode(ddl__address *address, const void *bytes, size_t n);

/* As the kernel wants them; the length is returned. */
socklen_t ddl__address_ip(const ddl__address *address, unsigned i, struct sockaddr_storage *to);
socklen_t ddl__address_unix(const ddl__digest *endpoint, struct sockaddr_storage *to);

#endif
