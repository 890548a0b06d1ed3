/* SPDX-License-Identifier: Apache-2.0 */
/* first_use.h - opens links of a large comm when a pair first uses them: those over TCP, and in a
 * sparse comm (neighbours.h) also those over shared memory. */
#ifndef DDL_CONNECT_FIRST_USE_H
#define DDL_CONNECT_FIRST_USE_H

#include "connect/endpoint.h"
#include "net/link.h"
#include "net/slots.h"

struct ddl__wireup;

typedef struct ddl__first_use ddl__first_use;

/* Comms of so many ranks and more. Smaller ones open all links when they are created: they would
 * open them anyway, and operations then take no longer the first time. */
bool ddl__first_use_is_for(int size);

/* For the comm of this wireup; NULL without memory. Destroy it after the links. */
ddl__first_use *ddl__first_use_create(const struct ddl__wireup *wireup);
void ddl__first_use_destroy(ddl__first_use *use);

/* During the wireup: create the links with a peer, unopened; or forget them. */
bool ddl__first_use_add(ddl__first_use *use, int peer, ddl__slots *slots, ddl__link **link,
                        ddl__link **messages);
/* The same for links that will share memory, which both get one connection. */
bool ddl__first_use_add_shared(ddl__first_use *use, int peer, ddl__link **link,
                               ddl__link **messages);
void ddl__first_use_remove(ddl__first_use *use, int peer);

/* What the engine of the links is told, by any thread. The first two are called under locks and
 * must not block. */
struct ddl__engine;
typedef struct ddl__first_use_events {
    struct ddl__engine *engine;
    void (*opened)(struct ddl__engine *engine, ddl__link *link, int fd);
    void (*lapsed)(struct ddl__engine *engine); /* a link will never open */
    void (*unreachable)(struct ddl__engine *engine, int peer, const char *text);
} ddl__first_use_events;

/* Dial and accept from now on. */
ddl_status ddl__first_use_start(ddl__first_use *use, const ddl__first_use_events *events);

/* A member has left (DDL__LINK_LEFT) or is lost: links that it has not opened will never open. Any
 * thread. Both may be called with NULL. */
void ddl__first_use_gone(ddl__first_use *use, int peer, ddl__link_state state);

/* Neither dial nor accept any more. The comm's slot is closed before. */
void ddl__first_use_stop(ddl__first_use *use);

#endif
