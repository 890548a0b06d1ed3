/* SPDX-License-Identifier: Apache-2.0 */
/* neighbours.h - decides which pairs of members are connected when a comm is created. In a small
 * comm, all pairs are. In a sparse comm, a member has links and control connections only to its
 * neighbours, whose number grows with the logarithm of the size. Other connections are opened on
 * first use. The functions are pure, with the same results on all members. */
#ifndef DDL_CONNECT_NEIGHBOURS_H
#define DDL_CONNECT_NEIGHBOURS_H

#include "connect/addresses/address.h"
#include "membership/graph.h"

/* Set each address's place among the addresses of its host. */
void ddl__find_places(ddl__address *addresses, int size);

/* Return true if the two may share memory, that is, if their addresses show the same host and
 * user. */
bool ddl__may_share_memory(const ddl__address *one, const ddl__address *other);

/* Return true if this pair is connected when the comm is created. That is so if the two are
 * neighbours in the ring of all ranks or in the ring of their host, if they are on two hosts and
 * use several sockets or interfaces, or if it is unknown whether they share memory. `kinds` are the
 * kinds of the comm's links (ddl_link_kind bits). */
bool ddl__are_connected_early(const ddl__address *addresses, int size, uint32_t kinds, int one,
                              int other);

/* Return true if a comm of this size opens TCP links on first use (first_use.h). Smaller comms open
 * all links when they are created: they would use all of them anyway, and so their first operations
 * take no longer than later ones. */
bool ddl__first_use_is_for(int size);

/* Return the next hop from `from` on the route to `to`; -1 if `from` is not on the route. Messages
 * between rank 0 and ranks without a connection to it are routed over these hops. */
int ddl__next_hop(int from, int to);

#endif
