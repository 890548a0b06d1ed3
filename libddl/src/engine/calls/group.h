/* SPDX-License-Identifier: Apache-2.0 */
/* group.h - operations that are submitted as one: the collected calls, and the parts made of them.
 */
#ifndef DDL_ENGINE_CALLS_GROUP_H
#define DDL_ENGINE_CALLS_GROUP_H

#include "engine/calls/work.h"

/* Small all-reduces of one group that travel as one, packed into `scratch`. Each has scales of its
 * own. Those of a device lie there already, and the bundle is the device's. */
struct ddl__bundle {
    void *scratch;
    uint32_t n;
    ddl__call calls[];
};

/* One submitted work: a call or a bundle of calls. */
typedef struct ddl__part {
    ddl__call call; /* as collected; the call of the work is changed on the way */
    ddl_work work;
} ddl__part;

struct ddl_group {
    ddl__engine *engine;
    ddl_comm *comm;      /* to which it belongs; the engine does not use it */
    unsigned generation; /* of the process that created it */
    int64_t limit_ms;    /* default limit of a submission */
    uint32_t memory;     /* ddl_memory of the calls; the engine does not use it */
    ddl__call *calls;    /* as collected */
    uint32_t n_calls, room;
    ddl__part *parts; /* NULL: not made yet */
    uint32_t n_parts;

    /* Under the engine's lock. */
    ddl_work *work;     /* the work of the current submission; NULL: none */
    uint32_t left;      /* parts that are not complete */
    bool held;          /* it is complete when ddl__engine_release_group is called as well, ... */
    ddl_status outcome; /* ... with this */
    bool destroyed;     /* destroyed while under way: freed at the end */
};

/* NULL when out of memory (message set). */
ddl_group *ddl__group_create(ddl__engine *engine, int64_t limit_ms);

/* Collect a checked call. Its blocks belong to the group from here on. Not while under way. */
ddl_status ddl__group_add(ddl_group *group, const ddl__call *call);

/* Make the parts unless they exist. `wires`: not all ranks share memory. */
ddl_status ddl__group_arrange(ddl_group *group, bool wires);

/* Choose calls[first] and all later calls that travel with it: small all-reduces of one dtype and
 * op, of at most so many bytes together. Marks them as taken, and leaves out those that are.
 * Returns how many there are; 0: calls[first] is not small. Scales do not matter: each rank has its
 * own. */
uint32_t ddl__calls_pack(const ddl__call *calls, uint32_t n, uint32_t first, size_t small,
                         size_t most, bool *taken, const ddl__call **packed);

/* Free a group that is not under way. */
void ddl__group_free(ddl_group *group);

#endif
