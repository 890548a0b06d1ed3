/* SPDX-License-Identifier: Apache-2.0 */
/* near_members.h - how often the members of a comm send each other heartbeats. In a comm of many
 * members, ring neighbours do at every beat, and other pairs less often: what heartbeats cost a
 * rank then hardly grows with the comm. Pure functions, equal on all members. */
#ifndef DDL_HEALTH_NEAR_MEMBERS_H
#define DDL_HEALTH_NEAR_MEMBERS_H

#include <stdbool.h>
#include <stdint.h>

/* True if the two are neighbours, at most two places apart, in the ring of all ranks. So whichever
 * members become silent together, one of those that stay has a neighbour among them. */
bool ddl__is_near(int one, int other, int size);

/* The number of beats between two heartbeats of members that are not near; 1: at every beat, as in
 * a comm of up to 16 members. */
int ddl__far_beats(int size, int64_t heartbeat);

#endif
