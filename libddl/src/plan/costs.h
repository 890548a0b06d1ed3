/* SPDX-License-Identifier: Apache-2.0 */
/* costs.h - the predicted time of an algorithm, and the functions that add up its parts.
 *
 * The result is the larger of two times: the time of the longest chain of messages, in which each
 * waits for the previous one, and the time of the cores, which send and receive all messages. The
 * times of ranks that share a core are added.
 *
 * The result serves to compare algorithms, not to predict measured times. It is a pure function of
 * data that all members have, and uses only + - * / and comparisons, so all members get the same
 * result. */
#ifndef DDL_PLAN_COSTS_H
#define DDL_PLAN_COSTS_H

#include "plan/plan.h"

/* Seconds, and bytes per second, for levels that the topology does not describe. They were fitted
 * once to all-reduces over TCP (docs/lab/experiments.md). */

/* Cost of a message over a wire: seconds of the cores at both ends, and seconds per byte. */
#define DDL__WIRE_MESSAGE 6.5e-6
#define DDL__WIRE_BYTE    0.3e-9
#define DDL__SWITCH       1.5e-6 /* seconds until a rank that shares a core notices a message */

/* Latency and bandwidth of a wire between ranks on one machine (NEAR), and of a wire between
 * machines (FAR). The values for FAR are only common ones: 10 us and 10 Gbit/s. */
#define DDL__NEAR_LATENCY   1.5e-6
#define DDL__NEAR_BANDWIDTH 3e9
#define DDL__FAR_LATENCY    10e-6
#define DDL__FAR_BANDWIDTH  1.2e9

/* Fractions of a wire's time that are added for each sender to the same receiver, and for each
 * level beyond the first. */
#define DDL__WIRE_JAM   0.005
#define DDL__WIRE_LEVEL 0.05

/* Shared memory: seconds of a hop, of a message, and of a byte of a pass. */
#define DDL__SHARED_LATENCY 0.25e-6
#define DDL__SHARED_MESSAGE 0.05e-6
#define DDL__MEMORY_BYTE    0.1e-9

/* Short messages in shared memory: seconds for each byte in another core's cache. If ranks share
 * cores: seconds for each hop after the first, until all ranks have run. */
#define DDL__CACHED_BYTE   0.024e-9
#define DDL__SHARED_SWITCH 5e-6

/* Fields are named after the formulas in docs/algorithms.md. */
typedef struct ddl__cost {
    const ddl__request *request;
    double n;       /* bytes of the buffer, or of all blocks of an all-gather or a reduce-scatter */
    double p, x;    /* number of ranks; number of ranks of the largest host */
    int h;          /* number of hosts */
    double segment; /* bytes */
    ddl__speed wire; /* the slowest wire between any two ranks */
    double path;     /* longest chain: all other seconds, such as latencies */
    double wires;    /* longest chain: seconds to send its bytes over wires */
    /* longest chain: seconds of its passes over memory; long messages overlap these with wires */
    double memory;
    double work; /* seconds of the cores, for an average rank */
    double hops; /* longest chain: messages over wires */
} ddl__cost;

struct ddl__algorithm_descriptor;
double ddl__cost_seconds(const struct ddl__algorithm_descriptor *algorithm,
                         const ddl__request *request);

/* Return the bytes of a segment, which is the same on all ranks: the requested size, or the chosen
 * one. */
int64_t ddl__cost_segment(const struct ddl__algorithm_descriptor *algorithm,
                          const ddl__request *request);

/* ---- The parts of a cost. ---- */

/* Add a chain of `hops` messages over wires. Its busiest rank sends `messages` messages and `bytes`
 * bytes in total, and its busiest wire carries `wire` bytes. */
void ddl__cost_add_chain(ddl__cost *cost, double hops, double messages, double bytes, double wire);

/* Add the messages and bytes that an average rank sends over wires. It receives the same number. */
void ddl__cost_add_work(ddl__cost *cost, double messages, double bytes);

/* Add a hop in shared memory, given its messages and the bytes that its passes read or write. */
void ddl__cost_add_memory(ddl__cost *cost, double messages, double bytes);

/* Add the passes of every rank over this many bytes of its own memory. */
void ddl__cost_add_passes(ddl__cost *cost, double bytes);

/* Add messages of `n` bytes from each rank to every other rank; `rooted`: only one rank sends, or
 * only one receives. */
void ddl__cost_add_direct(ddl__cost *cost, double n, bool rooted);

/* Add an exchange between `c` groups: each sends every other group its part of `n` bytes, in
 * `pieces`, `ways` times. The ranks of a host share its wire. */
void ddl__cost_add_exchange(ddl__cost *cost, double ways, int c, double n, double pieces);

/* Add a pipeline: the buffer is forwarded from rank to rank over wires, segment by segment. */
void ddl__cost_add_pipeline(ddl__cost *cost, int ranks);

/* Add exchanges within hosts: each leader exchanges the buffer with its host's other ranks, `ways`
 * times. */
void ddl__cost_add_leaders(ddl__cost *cost, double ways);

/* Return the number of segments of a message of this many bytes; at least one. */
double ddl__cost_segments(const ddl__cost *cost, double bytes);

/* Return the base-2 logarithm, rounded up. */
double ddl__cost_log2(int n);

/* Return the largest number of ranks on one host; with `crossing`, count only ranks whose next rank
 * is on another host. */
int ddl__cost_most_on_a_host(const ddl__topology *topology, bool crossing);

#endif
