/* wireup.h - joining every pair of a new comm's members by two links: for collectives and for
 * messages. */
#ifndef DDL_CONNECT_WIREUP_H
#define DDL_CONNECT_WIREUP_H

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
    int64_t *warn_at;  /* when to warn of who is missing; DDL__NEVER: not, or done */
    ddl__arena *arena; /* our own, where shared memory is allowed */
    ddl__slots *slots;
    ddl__link **links, **messages; /* by rank: made here */
    ddl__reason *peer_reason;      /* set where it fails because of what another member tells all */
} ddl__wireup;

/* Dial the lower ranks, receive the higher ones. On failure the links made so far stay in links. */
ddl_status ddl__wireup_run(const ddl__wireup *wireup);

#endif
