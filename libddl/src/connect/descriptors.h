/* descriptors.h - room for the sockets of a comm, of which a process may have so many: ulimit -n.
 */
#ifndef DDL_CONNECT_DESCRIPTORS_H
#define DDL_CONNECT_DESCRIPTORS_H

#include "connect/endpoint.h"

/* How many descriptors a comm of these members takes on this rank at most. */
uint64_t ddl__descriptors_needed(const ddl_endpoint *endpoint, const ddl__address *addresses,
                                 int rank, int size, uint32_t kinds);

/* Raise the soft limit if a comm that needs so many has no room under it. Only then: select() does
 * not know descriptors from 1024 on. Fails where the hard limit does not allow it. */
ddl_status ddl__descriptors_provide(uint64_t needed, int size);

#endif
