/* SPDX-License-Identifier: Apache-2.0 */
/* meter.h - where the time of operations goes, by the outermost level of the topology that a step
 * reaches. */
#ifndef DDL_ENGINE_EXECUTOR_METER_H
#define DDL_ENGINE_EXECUTOR_METER_H

#include "engine/executor/run.h"

/* Times in nanoseconds. The driver counts up, any thread may read. */
typedef struct ddl__meter {
    const unsigned char *levels; /* by rank: 0 same host, 1 same rack, ... */
    int64_t mark; /* the time until which all is accounted for; 0: no operation is under way */
    atomic_llong operations, spent[DDL__DIMENSIONS];
    atomic_llong waited; /* of that, with nothing to do */
} ddl__meter;

/* As ddl__run. The time since the last call belongs to the step that the work has stood at. */
ddl__progress ddl__meter_run(ddl__meter *meter, ddl__runner *runner, ddl_work *work);

#endif
