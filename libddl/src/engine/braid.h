/* braid.h - steps of a wave that run together. */
#ifndef DDL_ENGINE_BRAID_H
#define DDL_ENGINE_BRAID_H

#include "engine/run.h"

/* When the steps of a plan for elements of so many bytes run together. */
ddl__braiding ddl__braids(const ddl__plan *plan, size_t element);

/* Run as many of the wave's steps as can run together, from the work's step on, which has not
 * begun. Returns how many, and leaves the work at the last of them; or 0 and the work as it was. */
unsigned ddl__braid(ddl__runner *runner, ddl_work *work);

#endif
