/* SPDX-License-Identifier: Apache-2.0 */
/* staging.h - prepares a work's buffers before its plan and finishes them after it: scaling, and
 * packing of bundles. */
#ifndef DDL_ENGINE_EXECUTOR_STAGING_H
#define DDL_ENGINE_EXECUTOR_STAGING_H

#include <stdlib.h>

#include "engine/executor/run.h"

bool ddl__stage_operands(const ddl__runner *runner, ddl_work *work);
void ddl__stage_result(const ddl__runner *runner, ddl_work *work);

/* Prepare the operands as the plan expects them. May change an in-place call into one out of place.
 * Return false if out of memory. */
static inline bool ddl__stage_in(const ddl__runner *runner, ddl_work *work)
{
    bool needed = work->call.bundle || work->call.prescale != 0 || work->call.residual;
    return !needed || ddl__stage_operands(runner, work);
}

/* Move the result to the caller's buffers. */
static inline void ddl__stage_out(const ddl__runner *runner, ddl_work *work)
{
    if (work->call.bundle || work->call.postscale != 0)
        ddl__stage_result(runner, work);
}

/* Free the memory that ddl__stage_in has allocated, even after a failure. */
static inline void ddl__stage_drop(ddl_work *work)
{
    free(work->staged);
    work->staged = NULL;
}

#endif
