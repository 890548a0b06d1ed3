/* SPDX-License-Identifier: Apache-2.0 */
/* late_dial.h - dials a member of an existing comm, for a connection that the pair did not open
 * before: for a link (first_use.h), or for control messages. */
#ifndef DDL_CONNECT_LATE_DIAL_H
#define DDL_CONNECT_LATE_DIAL_H

#include "connect/wireup/wireup_state.h"

typedef struct ddl__late_target {
    const ddl__wireup *wireup; /* the wireup, without links and deadline */
    int peer;
    bool local;   /* use the unix socket; without `passed`, use TCP if the socket fails */
    uint8_t kind; /* DDL__CONN_FIRST_USE, DDL__CONN_FIRST_MEMORY or DDL__CONN_LATE_CONTROL */
    unsigned lane;
    bool (*goes_on)(void *context); /* called repeatedly; returns false to stop the attempt */
    void *context;
    int *passed; /* in: a placeholder, which is closed just before the answer is received, so that a
                    descriptor number is free. Out: the descriptor received with the answer, or -1.
                    NULL: none is expected */
} ddl__late_target;

/* Dial the peer over each path in turn, and wait for the answer of its comm. Returns
 *   DDL_OK            if *d is connected
 *   DDL_INPROGRESS, DDL_EPEER, DDL_EMINORITY or DDL_ESTATE  if that is the peer's answer
 *   DDL_EUNREACHABLE  if no path works; d->error is ECONNREFUSED if all paths refuse, and
 *                     EHOSTUNREACH if no path answers
 *   DDL_ETIMEDOUT     if the peer does not answer
 * The caller cancels *d. */
ddl_status ddl__late_dial(const ddl__late_target *target, ddl__dial_attempt *d);

#endif
