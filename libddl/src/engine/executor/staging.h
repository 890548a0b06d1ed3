/* SPDX-License-Identifier: Apache-2.0 */
/* staging.h - what happens to the buffers of a work before and after its plan: scaling, and packing
 * of bundles. */
#ifndef DDL_ENGINE_EXECUTOR_STAGING_H
#define DDL_ENGINE_EXECUTOR_STAGING_H

#include <stdlib.h>

#include "engine/executor/run.h"

bool ddl__stage_operands(const ddl__runner *runner, ddl_work *work);
void ddl__stage_result(const ddl__runner *runner, ddl_work *work);

/* Bring the operands to where the plan expects them. May turn the call into one out of place. False
 * when out of memory. */
static inline bool ddl__stage_in(const ddl__runner *runner, ddl_work *work)
{
    bool needed = work->call.bundle || work->call.prescale != 0;
    return !needed || ddl__stage_operands(runner, work);
}

/* Bring the result to where the caller wants it. */
static inline void ddl__stage_out(const ddl__runner *runner, ddl_work *work)
{
    if (work->call.bundle || work->call.postscale != 0)
        ddl__stage_result(runner, work);
}

/* Free what staging in has allocated, also after a failure. */
static inline void ddl__stage_drop(ddl_work *work)
{
    free(work->staged);
    work->staged = NULL;
}

#endif
