/* SPDX-License-Identifier: Apache-2.0 */
/* neighbours.h - which members of a comm are connected when it is created. In a small comm all
 * pairs are. In a sparse one, a member has links and control connections to its neighbours only,
 * whose number grows with the logarithm of the ranks. The others are opened when they are used.
 * Pure functions, equal on all members. */
#ifndef DDL_CONNECT_NEIGHBOURS_H
#define DDL_CONNECT_NEIGHBOURS_H

#include "connect/address.h"
#include "membership/graph.h"

/* Give each address its place among those of its host. */
void ddl__find_places(ddl__address *addresses, int size);

/* True if the two may share memory: their addresses prove that they are of one host and user. */
bool ddl__may_share_memory(const ddl__address *one, const ddl__address *other);

/* True if this pair of a comm that uses links of these kinds (ddl_link_kind bits) is connected when
 * the comm is created: it is one of neighbours in the ring of all ranks, or in that of its host; or
 * it is of two hosts, and uses several sockets or interfaces; or it is not known whether it shares
 * memory. */
bool ddl__are_connected_early(const ddl__address *addresses, int size, uint32_t kinds, int one,
                              int other);

/* The neighbour that comes next on the way from one rank to the other, by which messages of pairs
 * without a connection are routed between rank 0 and another one; -1: `from` is not on that way. */
int ddl__next_hop(int from, int to);

#endif
