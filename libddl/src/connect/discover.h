/* discover.h - what this host's network looks like: the facts from which topo/interfaces.h chooses.
 */
#ifndef DDL_CONNECT_DISCOVER_H
#define DDL_CONNECT_DISCOVER_H

#include "connect/address.h"

/* This host's name, network, and the addresses to use: `host` alone, else what `filter` leaves. */
ddl_status ddl__discover(ddl__address *address, const char *host, const char *filter);

/* How to reach `theirs` from `ours`, by the networks that both have and by the system's routes. */
ddl__paths ddl__discover_paths(const ddl__address *ours, const ddl__address *theirs);

#endif
