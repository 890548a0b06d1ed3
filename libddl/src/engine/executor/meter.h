/* SPDX-License-Identifier: Apache-2.0 */
/* meter.h - measures the time that operations take, by topology level. The time of a step counts
 * for the outermost level that it uses. */
#ifndef DDL_ENGINE_EXECUTOR_METER_H
#define DDL_ENGINE_EXECUTOR_METER_H

#include "engine/executor/run.h"

/* Times in nanoseconds. The driver updates them; any thread may read them. */
typedef struct ddl__meter {
    const unsigned char *levels; /* by rank, its distance: 0 same host, 1 same rack, ... */
    int64_t mark; /* the times count everything up to this time; 0: no operation is running */
    atomic_llong operations, spent[DDL__DIMENSIONS];
    atomic_llong waited; /* part of `spent` during which no step could continue */
} ddl__meter;

/* Run the work like ddl__run, and add the time since the last call to the level of the work's
 * current step. */
ddl__progress ddl__meter_run(ddl__meter *meter, ddl__runner *runner, ddl_work *work);

#endif
