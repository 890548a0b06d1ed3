/* plans.h - a cache of plans: a training step repeats the same few operations. */
#ifndef DDL_ENGINE_PLANS_H
#define DDL_ENGINE_PLANS_H

#include "plan/plan.h"

enum { DDL__PLANS = 64 };

typedef struct ddl__plans {
    struct {
        ddl__request request;
        ddl__plan *plan;
    } entries[DDL__PLANS];
    uint64_t explained[DDL__ALLTOALL + 1]; /* by kind: bits of the size classes that were logged */
    ddl__plan *uneven;                     /* the last one only: uneven counts seldom repeat */
} ddl__plans;

/* The plan for this request, valid until the next call. NULL when out of memory. */
const ddl__plan *ddl__plans_get(ddl__plans *plans, const ddl__request *request);
void ddl__plans_clear(ddl__plans *plans);

#endif
