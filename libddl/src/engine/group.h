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

/* What is submitted: a call or a bundle of calls. */
typedef struct ddl__part {
    ddl__call call; /* as it was collected; the work's own is changed on the way */
    ddl_work work;
} ddl__part;

struct ddl_group {
    ddl__engine *engine;
    unsigned generation; /* of the process that made it */
    int64_t limit_ms;    /* where a submission names none */
    ddl__call *calls;    /* as collected */
    uint32_t n_calls, room;
    ddl__part *parts; /* NULL: to be made */
    uint32_t n_parts;

    /* Under the engine's lock. */
    ddl_work *work; /* the one of the present submission; NULL: none is under way */
    uint32_t left;  /* parts that are not complete */
    bool destroyed; /* destroyed while under way: freed at its end */
};

/* NULL when out of memory (message set). */
ddl_group *ddl__group_create(ddl__engine *engine, int64_t limit_ms);

/* Collect a checked call; its layout belongs to the group from here on. Not while under way. */
ddl_status ddl__group_add(ddl_group *group, const ddl__call *call);

/* Make the parts if that is still to do. `wires`: not all ranks share memory. */
ddl_status ddl__group_arrange(ddl_group *group, bool wires);

/* Free what is not under way. */
void ddl__group_free(ddl_group *group);

#endif
