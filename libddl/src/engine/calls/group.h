/* SPDX-License-Identifier: Apache-2.0 */
/* group.h - operations that are submitted as one: the collected calls, and the parts made from
 * them. */
#ifndef DDL_ENGINE_CALLS_GROUP_H
#define DDL_ENGINE_CALLS_GROUP_H

#include "engine/calls/work.h"

/* Small all-reduces of one group that run as one, packed into `scratch`. Each has its own scales.
 * If a device copies the buffers, the operands are in `scratch` from the start, and the device owns
 * the bundle. */
struct ddl__bundle {
    void *scratch;
    uint32_t n;
    ddl__call calls[];
};

/* One submitted work: a call or a bundle of calls. */
typedef struct ddl__part {
    ddl__call call; /* as collected; the call in `work` changes during the run */
    ddl_work work;
} ddl__part;

struct ddl_group {
    ddl__engine *engine;
    ddl_comm *comm;      /* the comm that created the group; not used by the engine */
    unsigned generation; /* generation of the process that created it */
    int64_t limit_ms;    /* default limit of a submission */
    uint32_t memory;     /* ddl_memory of the calls; not used by the engine */
    ddl__call *calls;    /* as collected */
    uint32_t n_calls, room;
    ddl__part *parts; /* NULL until arranged */
    uint32_t n_parts;

    /* These fields are guarded by the engine's lock. */
    ddl_work *work;     /* the work of the current submission; NULL: none */
    uint32_t left;      /* parts that are not complete */
    bool held;          /* the work completes only after ddl__engine_release_group, too */
    ddl_status outcome; /* the status from ddl__engine_release_group */
    bool destroyed;     /* the caller has destroyed it; freed on completion */
};

/* Create a group. Return NULL if out of memory (message set). */
ddl_group *ddl__group_create(ddl__engine *engine, int64_t limit_ms);

/* Add a checked call and take ownership of its blocks. The group must not be submitted. */
ddl_status ddl__group_add(ddl_group *group, const ddl__call *call);

/* Make the parts unless they exist. `wires`: some ranks are connected by TCP. */
ddl_status ddl__group_arrange(ddl_group *group, bool wires);

/* Choose calls[first] and all later calls that are packed with it: small all-reduces of one dtype
 * and op, of at most `most` bytes together. Skips calls that are marked in `taken`, and marks the
 * chosen calls. Returns their number, or 0 if calls[first] is not small. Ignores scales, because
 * each rank has its own. */
uint32_t ddl__calls_pack(const ddl__call *calls, uint32_t n, uint32_t first, size_t small,
                         size_t most, bool *taken, const ddl__call **packed);

/* Free a group that is not submitted. */
void ddl__group_free(ddl_group *group);

#endif
