/* staging.h - what happens to the buffers of a work before and after its plan: scaling, and packing
 * of bundles. */
#ifndef DDL_ENGINE_STAGING_H
#define DDL_ENGINE_STAGING_H

#include "engine/run.h"

/* Bring the operands to where the plan expects them. May turn the call into one out of place. False
 * when out of memory. */
bool ddl__stage_in(const ddl__runner *runner, ddl_work *work);

/* Bring the result to where the caller wants it. */
void ddl__stage_out(const ddl__runner *runner, ddl_work *work);

/* Free what staging in has allocated, also after a failure. */
void ddl__stage_drop(ddl_work *work);

#endif
