/* SPDX-License-Identifier: Apache-2.0 */
/* graph.h - decides which members of a comm are connected from the start, and how often they
 * exchange heartbeats. The functions are pure, and return the same results on all members. */
#ifndef DDL_MEMBERSHIP_GRAPH_H
#define DDL_MEMBERSHIP_GRAPH_H

#include <stdbool.h>
#include <stdint.h>

/* Return true if not all pairs are connected in a comm of this size. */
bool ddl__is_sparse(int size);

/* Return true if the two are 1, 2, 4, 8 ... places apart in the ring of all ranks. */
bool ddl__are_neighbours(int one, int other, int size);

/* Return the largest number of neighbours of a rank. */
int ddl__neighbours_most(int size);

/* Return true if the two are at most two places apart in the ring of all ranks. Near members
 * exchange heartbeats at every beat. So whichever members become silent together, at least one
 * remaining member is near one of them. */
bool ddl__is_near(int one, int other, int size);

/* Return the number of beats between two heartbeats of members that are not near; 1 in a comm of up
 * to 16 members. The cost of heartbeats per rank then hardly grows with the comm. */
int ddl__far_beats(int size, int64_t heartbeat);

#endif
