/* costs.h - what costs are made of where nothing is described: seconds, and bytes per second.
 *
 * Fitted once to all-reduces over TCP (docs/performance.md); no program measures them anew. */
#ifndef DDL_PLAN_COSTS_H
#define DDL_PLAN_COSTS_H

/* Of the cores at a message's two ends. */
#define DDL__WIRE_MESSAGE 6.5e-6
#define DDL__WIRE_BYTE    0.3e-9
#define DDL__SWITCH       1.5e-6 /* until a rank that shares its core notices a message */

/* Of the wire. Ranks of one machine need none; of others nothing is known but that 10 Gbit/s and
 * 10 us are common. */
#define DDL__NEAR_LATENCY   1.5e-6
#define DDL__NEAR_BANDWIDTH 3e9
#define DDL__FAR_LATENCY    10e-6
#define DDL__FAR_BANDWIDTH  1.2e9

/* Of a wire's time: for each sender beyond the first at once to one receiver; for each level of
 * wires beyond the first, since they never overlap completely. */
#define DDL__WIRE_JAM   0.005
#define DDL__WIRE_LEVEL 0.05

#define DDL__SHARED_LATENCY 0.25e-6
#define DDL__SHARED_MESSAGE 0.05e-6
#define DDL__MEMORY_BYTE    0.1e-9 /* of a pass */

/* Of what is short in shared memory: a byte that another core's cache has; a hop beyond the first
 * where ranks share cores, until all have had their turn. */
#define DDL__CACHED_BYTE   0.024e-9
#define DDL__SHARED_SWITCH 5e-6

#endif
