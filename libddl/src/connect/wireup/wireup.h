/* SPDX-License-Identifier: Apache-2.0 */
/* wireup.h - connects every pair of a new comm's members by two links, one for collectives and one
 * for messages, and starts their control connections. */
#ifndef DDL_CONNECT_WIREUP_H
#define DDL_CONNECT_WIREUP_H

#include "base/until.h"
#include "connect/endpoint/endpoint.h"
#include "connect/wireup/first_use.h"
#include "membership/creation.h"
#include "net/shm/shm.h"
#include "net/tcp/tcp.h"

/* The control connection to a member, for the failure detector. Members that share memory keep the
 * connection over which they exchanged the memory. Over TCP, the control connection is dialed
 * together with the links, unless the links have lanes. */
typedef struct ddl__control_dial {
    int fd;               /* -1: none yet */
    bool late;            /* opened only if an agreement needs it: see neighbours.h */
    bool open;            /* both sides have opened the connection */
    ddl__seal *seal;      /* encrypts the open connection, or NULL */
    ddl__session session; /* with a lower rank: the session of the hello and proof that were sent;
                           * unused once open */
    uint64_t after; /* from a higher rank: the number of its link's hello. A control connection
                       with a lower number belongs to a failed attempt */
} ddl__control_dial;

/* ddl__controls_create returns NULL if out of memory. ddl__controls_destroy closes the remaining
 * connections; `controls` may be NULL. */
ddl__control_dial *ddl__controls_create(int size);
void ddl__controls_destroy(ddl__control_dial *controls, int size);
void ddl__control_dial_close(ddl__control_dial *control);

typedef struct ddl__wireup {
    ddl_endpoint *endpoint;
    ddl__comm_slot *slot;
    ddl__comm_id id;
    const ddl__address *addresses; /* by rank */
    int rank, size;
    uint32_t kinds; /* allowed kinds of links, as ddl_link_kind bits */
    bool has_cores; /* each member on this host has a core */
    int64_t begun, deadline;
    const ddl__until *until; /* the checks to make while waiting, with the same deadline; or NULL */
    int64_t
        *warn_at; /* when to warn about missing ranks; DDL__NEVER: no warning, or it was given */
    ddl__arena *arena; /* the arena of this rank, if shared memory is allowed */
    ddl__slots *slots;
    ddl__link **links, **messages; /* the links by rank, which the wireup creates */
    ddl__control_dial *controls;   /* the control connections by rank, which the wireup starts */
    ddl__first_use
        *first_use;          /* opens a large comm's links on first use; NULL: open all links now */
    ddl__creation *creation; /* the state of this attempt; NULL: the comm was created */
    int lost; /* the member whose link was lost first, if an engine owns the links; or -1 */
} ddl__wireup;

/* Dial the lower ranks, and accept the higher ones. On failure, the links created so far stay in
 * wireup->links and wireup->messages. */
ddl_status ddl__wireup_run(const ddl__wireup *wireup);

/* Look for the reason after a member was lost or could not be reached, and the operation failed
 * with `lost`, whose message is set. The member may have failed for a reason that has not arrived
 * yet. Returns the status of that reason, or `lost`. wireup->links must be NULL if an engine owns
 * the links already. */
ddl_status ddl__wireup_find_reason(const ddl__wireup *wireup, ddl_status lost);

/* Check once whether a member was lost for another reason than its death. If the result is not
 * DDL_OK, the creation fails for that reason. *is_over is set to true when no such reason is
 * expected any more. */
ddl_status ddl__wireup_look_for_reason(const ddl__wireup *wireup, bool *is_over);

/* Send the other members the reason why this member cannot create the comm. The reason is this
 * thread's message, which stays set. Linked members receive it over their links. Others receive a
 * create-failure notice at their endpoints, within DDL__CREATE_FAILURE_LIMIT. A reason that another
 * member has sent is forwarded only over links, because that member notifies the others itself.
 * Members without a link get no notice of a time-out, because they are late and this rank may try
 * again. They get no notice of DDL__SUPERSEDED either. */
void ddl__wireup_announce_failure(const ddl__wireup *wireup, ddl_status status);

#endif
