/* descriptors.h - raises the limit on open descriptors (ulimit -n) for the sockets of a comm. */
#ifndef DDL_CONNECT_DESCRIPTORS_H
#define DDL_CONNECT_DESCRIPTORS_H

#include "connect/endpoint.h"

/* An upper bound on the descriptors that a comm of these members needs on this rank. */
uint64_t ddl__descriptors_needed(const ddl_endpoint *endpoint, const ddl__address *addresses,
                                 int rank, int size, uint32_t kinds);

/* Raise the soft limit if it leaves no room for this many more descriptors. It stays as it is
 * otherwise, since select() cannot handle descriptors above 1023. Fails if the hard limit is too
 * low. */
ddl_status ddl__descriptors_provide(uint64_t needed, int size);

#endif
