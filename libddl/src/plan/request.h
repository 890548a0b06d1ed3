/* SPDX-License-Identifier: Apache-2.0 */
/* request.h - properties of a request: the part of a buffer that belongs to each rank, and
 * conditions for the algorithms. For the files of this folder and its tests. */
#ifndef DDL_PLAN_REQUEST_H
#define DDL_PLAN_REQUEST_H

#include "plan/plan.h"

/* Shares begin at multiples of a cache line, so that no two ranks write to the same line. */
enum { DDL__LINE = 64 };

/* Return the quotient, rounded up. */
static inline int64_t ddl__quotient(int64_t a, int64_t b)
{
    return a / b + (a % b != 0);
}

/* Return the rank `distance` after this one, modulo the size; before it if negative. */
static inline int ddl__rank_at(const ddl__request *request, int64_t distance)
{
    int64_t rank = (request->rank + distance) % request->size;
    return (int)(rank < 0 ? rank + request->size : rank);
}

/* ddl__block_to returns the part of the send buffer that is sent to rank `i`; ddl__block_from
 * returns the part of the recv buffer that is received from rank `i`. */
ddl__share ddl__block_to(const ddl__request *request, int i);
ddl__share ddl__block_from(const ddl__request *request, int i);

/* Return the part that rank `i` owns. In a reduce-scatter or an all-gather it is the rank's block;
 * else an equal part of the buffer, which starts on a cache line. */
ddl__share ddl__share_of(const ddl__request *request, int i);

/* Return part `i` of `n` equal parts of a range, which starts on a cache line. Parts begin on cache
 * lines and differ by at most a line; the longer parts come last. */
ddl__share ddl__part_of(const ddl__request *request, ddl__share whole, int n, int i);

/* Sets of operations, as bits. */
#define DDL__KIND(kind)     (1u << DDL__##kind)
#define DDL__PAIRWISE_KINDS (DDL__KIND(GATHER) | DDL__KIND(SCATTER) | DDL__KIND(ALLTOALL))
#define DDL__ROOTED_KINDS   (DDL__KIND(BROADCAST) | DDL__KIND(REDUCE_TO_ROOT))
#define DDL__BLOCK_KINDS    (DDL__KIND(ALLGATHER) | DDL__KIND(REDUCE_SCATTER))

static inline bool ddl__request_is(const ddl__request *request, unsigned kinds)
{
    return kinds >> request->kind & 1;
}

/* Return true if the topology has more than one level (NUMA nodes, hosts, racks or aisles),
 * declares the hosts by a mode string, or has ranks that do not share memory. */
static inline bool ddl__request_has_levels(const ddl__request *request)
{
    const ddl__topology *t = request->topology;
    return t &&
           (t->declared || t->node || ddl__topology_is_hierarchical(t) || !request->all_shared);
}

/* Return true if wires connect several hosts, at least one of which has several ranks. Hosts that
 * only a mode string declares do not count. */
static inline bool ddl__request_has_hosts(const ddl__request *request)
{
    const ddl__topology *t = request->topology;
    return t && !request->all_shared && t->groups[DDL__HOSTS] > 1 &&
           t->groups[DDL__HOSTS] < t->size;
}

/* Return true if wires connect any two ranks, or if a mode string declares this. */
static inline bool ddl__request_has_wires(const ddl__request *request)
{
    const ddl__topology *t = request->topology;
    return !request->all_shared || (t && t->groups[DDL__HOSTS] > 1);
}

/* Return true if ranks can forward other ranks' blocks, for which they must know the lengths of
 * these blocks. */
static inline bool ddl__request_forwards_blocks(const ddl__request *request)
{
    const ddl__topology *t = request->topology;
    return !request->sent && !request->all_shared && (!t || t->groups[DDL__HOSTS] > 1);
}

#endif
