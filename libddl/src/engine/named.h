/* named.h - the operations of a comm that are matched by name. */
#ifndef DDL_ENGINE_NAMED_H
#define DDL_ENGINE_NAMED_H

#include "engine/names.h"
#include "engine/stream.h"

typedef struct ddl__named {
    /* Under the engine's lock. */
    ddl__names names;                          /* submitted and not complete */
    ddl_work *unannounced, **unannounced_tail; /* of those, not yet announced; along `next` */

    /* The driver's, but for the stream's queue. */
    ddl__announcements announcements; /* rank 0's */
    ddl__stream stream;               /* ordered by rank 0; over the message links */
    int64_t deadline; /* no work that waits for its turn runs past its limit before */
} ddl__named;

/* Under the lock: a work with a name was submitted. Refused when the name is under way. */
ddl_status ddl__named_admit(ddl__engine *engine, ddl_work *work);

/* Under the lock: it is complete. */
void ddl__named_remove(ddl__engine *engine, ddl_work *work);

/* Whether any are under way; also without the lock. */
bool ddl__named_pending(const ddl__engine *engine);

/* The driver's: announce, order, run. False when there is nothing to do. */
bool ddl__named_advance(ddl__engine *engine);

/* The driver's: fail when one has waited for its turn past its limit; when one waits for a rank
 * that has left. */
void ddl__named_check_limits(ddl__engine *engine);
void ddl__named_check_peers(ddl__engine *engine);

/* Under the lock: the comm is dead. */
void ddl__named_fail(ddl__engine *engine, ddl_status status);

#endif
