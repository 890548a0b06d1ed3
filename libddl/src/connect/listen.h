/* listen.h - an endpoint's TCP listeners: one for each of its addresses, all on one port. */
#ifndef DDL_CONNECT_LISTEN_H
#define DDL_CONNECT_LISTEN_H

#include "connect/address.h"

/* Listen on all of the address's IPs, on a port of `ports` ("20000-20100", or "" for any), which is
 * stored in the address; fds has room for DDL__INTERFACES_MAX. An IP that cannot be listened on is
 * taken out, unless it is the only one. */
ddl_status ddl__listen_all(ddl__address *address, const char *ports, int *fds);

/* Listen on the unix socket by which an endpoint is found on its host; -1 with the message set. */
int ddl__listen_local(const ddl__digest *endpoint);

#endif
