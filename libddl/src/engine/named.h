/* named.h - the operations of a comm that are matched by name. */
#ifndef DDL_ENGINE_NAMED_H
#define DDL_ENGINE_NAMED_H

#include "engine/names.h"
#include "engine/stream.h"

typedef struct ddl__named {
    /* Under the engine's lock. */
    ddl__names names; /* submitted and not complete */
    ddl_work *fresh;  /* of those, not yet announced; newest first, along `next` */

    /* The driver's, but for the stream's queue. */
    ddl__book book;     /* rank 0's */
    ddl__stream stream; /* ordered by rank 0; over the message links */
} ddl__named;

/* Under the lock: a work with a name was submitted. Refused when the name is under way. */
ddl_status ddl__named_admit(ddl__engine *engine, ddl_work *work);

/* The driver's: announce, order, run. False when there is nothing to do. */
bool ddl__named_advance(ddl__engine *engine);

/* The driver's, when nothing moves: fail when a name has run past its limit, or a rank that would
 * have to call it has left. */
void ddl__named_check(ddl__engine *engine);

/* Under the lock: the comm is dead. */
void ddl__named_fail(ddl__engine *engine, ddl_status status);

#endif
