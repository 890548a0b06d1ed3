/* SPDX-License-Identifier: Apache-2.0 */
/* discover.h - finds this host's network interfaces and routes, from which topo/interfaces.h
 * chooses. */
#ifndef DDL_CONNECT_DISCOVER_H
#define DDL_CONNECT_DISCOVER_H

#include "connect/addresses/address.h"

/* Find this host's name and network, and the IPs to use: only `host` if it is given, else the IPs
 * that `filter` selects. */
ddl_status ddl__discover(ddl__address *address, const char *host, const char *filter);

/* Return the paths from `ours` to `theirs`, from the networks that both have and from the system's
 * routes. */
ddl__paths ddl__discover_paths(const ddl__address *ours, const ddl__address *theirs);

#endif
