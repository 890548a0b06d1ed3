/* listen.h - an endpoint's TCP listeners: one for each of its addresses, all on one port. */
#ifndef DDL_CONNECT_LISTEN_H
#define DDL_CONNECT_LISTEN_H

#include "connect/address.h"

/* Listen on all IPs of the address, on one port of the range `ports` ("20000-20100"; "": any). The
 * port is stored in the address; fds has room for DDL__INTERFACES_MAX. An IP that is no longer
 * available is removed from the address, unless it is the only one. */
ddl_status ddl__listen_all(ddl__address *address, const char *ports, int *fds);

/* Listen on the unix socket named after the endpoint; -1 with the message set. */
int ddl__listen_local(const ddl__digest *endpoint);

#endif
