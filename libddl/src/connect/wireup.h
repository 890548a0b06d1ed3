/* SPDX-License-Identifier: Apache-2.0 */
/* wireup.h - connects every pair of a new comm's members by two links, one for collectives and one
 * for messages, and begins their control connections. */
#ifndef DDL_CONNECT_WIREUP_H
#define DDL_CONNECT_WIREUP_H

#include "base/until.h"
#include "connect/endpoint.h"
#include "connect/first_use.h"
#include "membership/creation.h"
#include "net/shm.h"
#include "net/tcp.h"

/* The control connection to a member, for the failure detector. Where members share memory it is
 * the connection over which they did that. Over TCP it is dialed together with the links, unless
 * these have lanes. */
typedef struct ddl__control_dial {
    int fd;               /* -1: none yet */
    bool late;            /* there is none unless an agreement needs it: see neighbours.h */
    bool open;            /* both sides have it */
    ddl__seal *seal;      /* if open: encrypts it; or NULL */
    ddl__session session; /* else, with a lower rank: hello and proof were sent */
    uint64_t after;       /* from a higher rank: the number of its link's hello. A connection with a
                             lower one is of an attempt that failed */
} ddl__control_dial;

/* NULL: no memory. Destroying closes those that are left; `controls` may be NULL. */
ddl__control_dial *ddl__controls_create(int size);
void ddl__controls_destroy(ddl__control_dial *controls, int size);
void ddl__control_dial_close(ddl__control_dial *control);

typedef struct ddl__wireup {
    ddl_endpoint *endpoint;
    ddl__comm_slot *slot;
    ddl__comm_id id;
    const ddl__address *addresses; /* by rank */
    int rank, size;
    uint32_t kinds; /* ddl_link_kind bits */
    bool has_cores; /* each member on this host has a core */
    int64_t begun, deadline;
    const ddl__until *until; /* of this deadline; or NULL */
    int64_t
        *warn_at; /* when to warn about missing ranks; DDL__NEVER: no warning, or it was given */
    ddl__arena *arena; /* this rank's, if shared memory is allowed */
    ddl__slots *slots;
    ddl__link **links, **messages; /* by rank: created by the wireup */
    ddl__control_dial *controls;   /* by rank: begun by the wireup */
    ddl__first_use
        *first_use; /* opens the TCP links of a large comm when used; NULL: all are opened */
    ddl__creation *creation; /* the state of this attempt; NULL: the comm was created */
    int lost; /* if the links belong to an engine: the member whose link was lost first; or -1 */
} ddl__wireup;

/* Dial the lower ranks, accept the higher ones. On failure the links made so far stay in links. */
ddl_status ddl__wireup_run(const ddl__wireup *wireup);

/* A member was lost, or could not be reached, and the operation failed with `lost`, whose message
 * is set. It may have failed itself for a reason that has not arrived yet: look for that. Returns
 * its status, or `lost`. Without links, if they belong to an engine already. */
ddl_status ddl__wireup_find_reason(const ddl__wireup *wireup, ddl_status lost);

/* This member cannot create the comm: send the others the reason, which is the message set; it
 * stays set. Linked members receive it over their links. The others receive a create-failure notice
 * at their endpoints, within DDL__CREATE_FAILURE_LIMIT. A reason that another member has sent is
 * passed on over links only, since that member notifies the others itself. A time-out is not sent
 * to members without a link: they are late, and this rank may try again. Nor is DDL__SUPERSEDED. */
void ddl__wireup_announce_failure(const ddl__wireup *wireup, ddl_status status);

#endif
