/* wireup.h - connects every pair of a new comm's members by two links: one for collectives, one for
 * messages. */
#ifndef DDL_CONNECT_WIREUP_H
#define DDL_CONNECT_WIREUP_H

#include "base/until.h"
#include "connect/endpoint.h"
#include "net/close_reason.h"
#include "net/shm.h"
#include "net/tcp.h"

typedef struct ddl__wireup {
    ddl_endpoint *endpoint;
    ddl__comm_slot *slot;
    ddl__digest comm;
    const ddl__address *addresses; /* by rank */
    int rank, size;
    uint32_t kinds; /* ddl_link_kind bits */
    int64_t begun, deadline;
    const ddl__until *until; /* of this deadline; or NULL */
    int64_t
        *warn_at; /* when to warn about missing ranks; DDL__NEVER: no warning, or it was given */
    ddl__arena *arena; /* this rank's, if shared memory is allowed */
    ddl__slots *slots;
    ddl__link **links, **messages; /* by rank: created by the wireup */
    ddl__reason *peer_reason; /* set if the wireup fails for a reason that a member has sent, or
                               that all members know */
} ddl__wireup;

/* Dial the lower ranks, accept the higher ones. On failure the links made so far stay in links. */
ddl_status ddl__wireup_run(const ddl__wireup *wireup);

/* This member cannot create the comm: send the others the reason, which is the message set; it
 * stays set. Linked members receive it over their links. The others receive a create-failure notice
 * at their endpoints, within DDL__CREATE_FAILURE_LIMIT. A reason that another member has sent is
 * passed on over links only, since that member notifies the others itself. A time-out is not sent
 * to members without a link: they are late, and this rank may try again. */
void ddl__wireup_announce_failure(const ddl__wireup *wireup, ddl_status status);

#endif
