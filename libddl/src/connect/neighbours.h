/* SPDX-License-Identifier: Apache-2.0 */
/* neighbours.h - which members of a comm are connected when it is created. In a small comm all
 * pairs are. In a sparse one, a member has control connections to its neighbours only, whose number
 * grows with the logarithm of the ranks, and to the members of its host whose memory it shares.
 * Pure functions, equal on all members. */
#ifndef DDL_CONNECT_NEIGHBOURS_H
#define DDL_CONNECT_NEIGHBOURS_H

#include "connect/address.h"

/* True for comms of so many ranks that not all pairs are connected. */
bool ddl__is_sparse(int size);

/* True if the two are 1, 2, 4, 8 ... places apart in the ring of all ranks. */
bool ddl__are_neighbours(int one, int other, int size);

/* How many neighbours a rank has at most. */
int ddl__neighbours_most(int size);

/* True if the links of this pair are opened when the comm is created: both ends may share memory,
 * or use several sockets or interfaces. */
bool ddl__is_linked_early(const ddl__address *one, const ddl__address *other);

/* The neighbour that comes next on the way from one rank to the other, by which messages of pairs
 * without a connection are routed between rank 0 and another one; -1: `from` is not on that way. */
int ddl__next_hop(int from, int to);

#endif
