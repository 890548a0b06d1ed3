/* SPDX-License-Identifier: Apache-2.0 */
/* costs.h - how long an algorithm is predicted to take, and the parts of which its file adds it up.
 *
 * The result is the larger of two times: that of the longest chain of messages, in which each waits
 * for the one before, and that of the cores, which send and receive all messages. Ranks that share
 * a core add up there.
 *
 * It serves to compare algorithms, not to predict a clock. It is a pure function of what all
 * members know, and uses only + - * / and comparisons, so all members get the same result. */
#ifndef DDL_PLAN_COSTS_H
#define DDL_PLAN_COSTS_H

#include "plan/plan.h"

/* Seconds, and bytes per second, where the topology describes nothing. They were fitted once to
 * all-reduces over TCP (docs/lab/experiments.md). */

/* A message over a wire: what the cores at both ends spend on it, and on each byte. */
#define DDL__WIRE_MESSAGE 6.5e-6
#define DDL__WIRE_BYTE    0.3e-9
#define DDL__SWITCH       1.5e-6 /* until a rank that shares its core notices a message */

/* A wire between ranks of one machine, and one between machines. Of the latter nothing is known
 * except that 10 Gbit/s and 10 us are common. */
#define DDL__NEAR_LATENCY   1.5e-6
#define DDL__NEAR_BANDWIDTH 3e9
#define DDL__FAR_LATENCY    10e-6
#define DDL__FAR_BANDWIDTH  1.2e9

/* Parts of a wire's time to add for each sender to one receiver and each level beyond the first. */
#define DDL__WIRE_JAM   0.005
#define DDL__WIRE_LEVEL 0.05

/* Shared memory: a hop, a message, a byte of a pass. */
#define DDL__SHARED_LATENCY 0.25e-6
#define DDL__SHARED_MESSAGE 0.05e-6
#define DDL__MEMORY_BYTE    0.1e-9

/* Short messages in shared memory: a byte that another core's cache has; and, where ranks share
 * cores, each hop beyond the first, until all ranks have had their turn. */
#define DDL__CACHED_BYTE   0.024e-9
#define DDL__SHARED_SWITCH 5e-6

/* Named after the formulas in docs/algorithms.md. */
typedef struct ddl__cost {
    const ddl__request *request;
    double n;       /* bytes of the buffer, or of all blocks of an all-gather or a reduce-scatter */
    double p, x;    /* ranks; ranks of the largest host */
    int h;          /* hosts */
    double segment; /* bytes */
    ddl__speed wire; /* the slowest between any two ranks */
    double path;     /* seconds of the messages in the longest chain ... */
    double wires;    /* ... of its bytes on wires, and ... */
    double memory;   /* ... of its passes over memory; long messages overlap these two */
    double work;     /* seconds of the cores, for a rank on average */
    double hops;     /* messages over wires in the longest chain */
} ddl__cost;

struct ddl__algorithm_descriptor;
double ddl__cost_seconds(const struct ddl__algorithm_descriptor *algorithm,
                         const ddl__request *request);

/* Bytes of a segment, as asked for or chosen; the same on all ranks. */
int64_t ddl__cost_segment(const struct ddl__algorithm_descriptor *algorithm,
                          const ddl__request *request);

/* ---- The parts of a cost. ---- */

/* A chain of `hops` messages over wires. Its busiest rank sends `messages` of `bytes` in all, and
 * its busiest wire carries `wire` bytes. */
void ddl__cost_add_chain(ddl__cost *cost, double hops, double messages, double bytes, double wire);

/* What a rank sends over wires on average; as much is received. */
void ddl__cost_add_work(ddl__cost *cost, double messages, double bytes);

/* A hop in shared memory: so many messages, and passes over so many bytes. */
void ddl__cost_add_memory(ddl__cost *cost, double messages, double bytes);

/* Passes of every rank over so many bytes of its own. */
void ddl__cost_add_passes(ddl__cost *cost, double bytes);

/* Each rank sends `n` bytes to every other rank, or only one rank sends or receives (`rooted`). */
void ddl__cost_add_direct(ddl__cost *cost, double n, bool rooted);

/* The buffer passes from rank to rank over wires, segment by segment. */
void ddl__cost_add_pipeline(ddl__cost *cost, int ranks);

/* Within the hosts: a leader exchanges the buffer with the other ranks, `ways` times. */
void ddl__cost_add_leaders(ddl__cost *cost, double ways);

/* Segments of a message of so many bytes; at least one. */
double ddl__cost_segments(const ddl__cost *cost, double bytes);

/* The base-2 logarithm, rounded up. */
double ddl__cost_log2(int n);

/* The most ranks of a host; with `crossing`, of those whose next rank is on another host. */
int ddl__cost_most_on_a_host(const ddl__topology *topology, bool crossing);

#endif
