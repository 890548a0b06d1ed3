/* staging.h - what happens to a work's buffers before its plan runs and after it: scaling, and the
 * packing of bundles. */
#ifndef DDL_ENGINE_STAGING_H
#define DDL_ENGINE_STAGING_H

#include "engine/run.h"

/* Bring the operands to where the plan will find them; may turn the call into one out of place.
 * False when out of memory. */
bool ddl__stage_in(const ddl__runner *runner, ddl_work *work);

/* Bring the result to where the caller wants it. */
void ddl__stage_out(const ddl__runner *runner, ddl_work *work);

/* Free what staging in has taken, also after a failure. */
void ddl__stage_drop(ddl_work *work);

#endif
