/* group.h - operations that are submitted as one: what was collected, and the parts it becomes. */
#ifndef DDL_ENGINE_GROUP_H
#define DDL_ENGINE_GROUP_H

#include "engine/work.h"

/* Small all-reduces of one group that travel as one: in `scratch`, one behind the other. */
struct ddl__bundle {
    void *scratch;
    uint32_t n;
    ddl__call calls[];
};

struct ddl_group {
    ddl__engine *engine;
    unsigned generation; /* of the process that made it */
    int64_t limit_ms;    /* where a submission names none */
    ddl__call *calls;    /* as collected */
    uint32_t n_calls, room;
    ddl_work *parts; /* as submitted: single calls and bundles; NULL: to be made */
    uint32_t n_parts;

    /* Under the engine's lock. */
    ddl_work *work; /* the one of the present submission; NULL: none is under way */
    uint32_t left;  /* parts that are not complete */
    bool doomed;    /* destroyed while under way: freed at its end */
};

/* NULL when out of memory (message set). */
ddl_group *ddl__group_create(ddl__engine *engine, int64_t limit_ms);

/* Collect a checked call; its layout belongs to the group from here on. Not while under way. */
ddl_status ddl__group_add(ddl_group *group, const ddl__call *call);

/* Make the parts if that is still to do. `wires`: not all ranks share memory. */
ddl_status ddl__group_arrange(ddl_group *group, bool wires);

/* Free what is not under way. */
void ddl__group_free(ddl_group *group);

/* Between a bundle's scratch and its calls' buffers. */
void ddl__bundle_pack(const ddl__bundle *bundle);
void ddl__bundle_unpack(const ddl__bundle *bundle);

#endif
