/* SPDX-License-Identifier: Apache-2.0 */
/* first_use.h - opens the TCP links of a large comm when a pair first uses them. Pairs that never
 * send each other anything have their control connection only. */
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
void ddl__first_use_remove(ddl__first_use *use, int peer);

/* What the user of the links is told, by any thread. */
typedef struct ddl__first_use_events {
    void *context;
    void (*opened)(void *context, ddl__link *link, int fd); /* the link has this connection now;
                                                               called under locks: must not block */
    void (*lapsed)(void *context);                          /* a link will never open; likewise */
    void (*failed)(void *context, int peer, const char *text); /* it cannot be reached */
} ddl__first_use_events;

/* Dial and accept from now on. */
ddl_status ddl__first_use_start(ddl__first_use *use, const ddl__first_use_events *events);

/* A member has left (DDL__LINK_LEFT) or is lost: links that it has not opened will never open. Any
 * thread. Both may be called with NULL. */
void ddl__first_use_gone(ddl__first_use *use, int peer, ddl__link_state state);

/* Neither dial nor accept any more. The comm's slot is closed before. */
void ddl__first_use_stop(ddl__first_use *use);

#endif
