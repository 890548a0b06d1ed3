/* SPDX-License-Identifier: Apache-2.0 */
/* late_dial.h - dials a member of a comm that was created before, for a connection that the two did
 * not have: a link's (first_use.h), or a control connection. */
#ifndef DDL_CONNECT_LATE_DIAL_H
#define DDL_CONNECT_LATE_DIAL_H

#include "connect/wireup_state.h"

typedef struct ddl__late_target {
    const ddl__wireup *wireup; /* has neither links nor a deadline */
    int peer;
    bool local;   /* over its unix socket; without `passed` over TCP if that does not work */
    uint8_t kind; /* DDL__CONN_FIRST_USE, DDL__CONN_FIRST_MEMORY or DDL__CONN_LATE_CONTROL */
    unsigned lane;
    bool (*goes_on)(void *context); /* whether there still is a point in it; asked often */
    void *context;
    int *passed; /* the descriptor that comes with the answer; before, one that is reserved for it,
                    or -1. NULL: none comes */
} ddl__late_target;

/* Dial the peer over each path in turn, up to the answer of its comm. DDL_OK: *d is connected.
 * DDL_INPROGRESS, DDL_EPEER, DDL_EMINORITY and DDL_ESTATE: that is the answer. DDL_EUNREACHABLE: no
 * path leads to it; d->error is ECONNREFUSED if all refuse, and EHOSTUNREACH if nothing answers on
 * any. DDL_ETIMEDOUT: it does not answer. The caller cancels *d. */
ddl_status ddl__late_dial(const ddl__late_target *target, ddl__dial_attempt *d);

#endif
