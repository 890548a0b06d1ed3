/* SPDX-License-Identifier: Apache-2.0 */
/* named.h - the named operations of a comm. */
#ifndef DDL_ENGINE_NAMED_H
#define DDL_ENGINE_NAMED_H

#include "engine/executor/stream.h"
#include "engine/named/names.h"

typedef struct ddl__named {
    /* These fields are guarded by the engine's lock. */
    ddl__names names; /* submitted and not complete */
    /* the works that are not announced, linked by `next` */
    ddl_work *unannounced, **unannounced_tail;

    /* Used by the driver, except for the queue of the stream. */
    ddl__announcements announcements; /* on rank 0 */
    ddl__stream stream;               /* runs over the message links in the order of rank 0 */
    int64_t deadline;                 /* lower bound of the waiting works' deadlines */
} ddl__named;

/* Under the lock: register a submitted named work. Fails while another work of this name is
 * pending. */
ddl_status ddl__named_admit(ddl__engine *engine, ddl_work *work);

/* Under the lock: remove a completed work. */
void ddl__named_remove(ddl__engine *engine, ddl_work *work);

/* Called by the driver: announce works, order them (rank 0), and queue the ordered works. Return
 * false if there is nothing to do. */
bool ddl__named_advance(ddl__engine *engine);

/* Called by the driver: fail if a work has waited past its limit, or waits for a rank that has
 * left. */
void ddl__named_check_limits(ddl__engine *engine);
void ddl__named_check_peers(ddl__engine *engine);

/* Under the lock: fail all works because the comm is dead. */
void ddl__named_fail(ddl__engine *engine, ddl_status status);

#endif
