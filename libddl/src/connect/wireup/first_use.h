/* SPDX-License-Identifier: Apache-2.0 */
/* first_use.h - opens links of a large comm when a pair first uses them: TCP links, and in a sparse
 * comm (neighbours.h) also links over shared memory. */
#ifndef DDL_CONNECT_FIRST_USE_H
#define DDL_CONNECT_FIRST_USE_H

#include "connect/endpoint/endpoint.h"
#include "net/link.h"
#include "net/tcp/slots.h"

struct ddl__wireup;

typedef struct ddl__first_use ddl__first_use;

/* Create the object for the comm of this wireup. Returns NULL if out of memory. Destroy it after
 * the links. */
ddl__first_use *ddl__first_use_create(const struct ddl__wireup *wireup);
void ddl__first_use_destroy(ddl__first_use *use);

/* During the wireup: create unopened links to a peer. */
bool ddl__first_use_add(ddl__first_use *use, int peer, ddl__slots *slots, ddl__link **link,
                        ddl__link **messages);
/* Create both unopened links to a peer that will share memory. Both use one connection.
 * ddl__first_use_remove forgets the links to a peer. */
bool ddl__first_use_add_shared(ddl__first_use *use, int peer, ddl__link **link,
                               ddl__link **messages);
void ddl__first_use_remove(ddl__first_use *use, int peer);

/* The events that any thread reports to the links' engine. The first two functions are called under
 * locks and must not block. */
struct ddl__engine;
typedef struct ddl__first_use_events {
    struct ddl__engine *engine;
    void (*opened)(struct ddl__engine *engine, ddl__link *link, int fd);
    void (*lapsed)(struct ddl__engine *engine); /* a link will never open */
    void (*unreachable)(struct ddl__engine *engine, int peer, const char *text);
} ddl__first_use_events;

/* Start to dial and accept. */
ddl_status ddl__first_use_start(ddl__first_use *use, const ddl__first_use_events *events);

/* Close the unopened links to a member that has left (DDL__LINK_LEFT) or is lost. Any thread may
 * call this. `use` may be NULL here and in ddl__first_use_stop. */
void ddl__first_use_gone(ddl__first_use *use, int peer, ddl__link_state state);

/* Stop dialing and accepting. The comm's slot must be closed before. */
void ddl__first_use_stop(ddl__first_use *use);

#endif
