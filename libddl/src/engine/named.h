/* SPDX-License-Identifier: Apache-2.0 */
/* named.h - the named operations of a comm. */
#ifndef DDL_ENGINE_NAMED_H
#define DDL_ENGINE_NAMED_H

#include "engine/executor/stream.h"
#include "engine/named/names.h"

typedef struct ddl__named {
    /* Under the engine's lock. */
    ddl__names names;                          /* submitted and not complete */
    ddl_work *unannounced, **unannounced_tail; /* those not yet announced, linked by `next` */

    /* Used by the driver, except for the queue of the stream. */
    ddl__announcements announcements; /* of rank 0 */
    ddl__stream stream;               /* ordered by rank 0; runs over the message links */
    int64_t deadline;                 /* no work that waits for its turn has an earlier limit */
} ddl__named;

/* Under the lock: a named work was submitted. Refused while another of this name is under way. */
ddl_status ddl__named_admit(ddl__engine *engine, ddl_work *work);

/* Under the lock: it is complete. */
void ddl__named_remove(ddl__engine *engine, ddl_work *work);

/* Whether any are under way; also without the lock. */

/* Called by the driver: announce works, order them (rank 0), and queue what is ordered. False when
 * there is nothing to do. */
bool ddl__named_advance(ddl__engine *engine);

/* Called by the driver: fail if a work has waited for its turn past its limit, or waits for a rank
 * that has left. */
void ddl__named_check_limits(ddl__engine *engine);
void ddl__named_check_peers(ddl__engine *engine);

/* Under the lock: the comm is dead. */
void ddl__named_fail(ddl__engine *engine, ddl_status status);

#endif
