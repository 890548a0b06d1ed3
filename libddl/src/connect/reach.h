/* SPDX-License-Identifier: Apache-2.0 */
/* reach.h - whether a member can be reached at all: something at one of its addresses accepts a
 * connection, or refuses it. There is no handshake, and no call blocks, so that many members can be
 * tried at once. */
#ifndef DDL_CONNECT_REACH_H
#define DDL_CONNECT_REACH_H

#include "connect/wireup_state.h"

typedef struct ddl__reach {
    int rank;
    bool answers;
    int64_t since; /* it has been tried since then; 0: not yet */
    ddl__paths paths;
    int fds[2 * DDL__INTERFACES_MAX]; /* by path; -1: to be tried anew */
} ddl__reach;

/* Begin to try its rank, which is not on this host. */
void ddl__reach_begin(const ddl__wireup *wireup, ddl__reach *reach);

/* Look for an answer. What has failed without one is tried anew. While this process has no
 * descriptors to spare, nothing is known, and `since` is now. */
void ddl__reach_poll(const ddl__wireup *wireup, ddl__reach *reach);

/* Close its connections. */
void ddl__reach_end(ddl__reach *reach);

/* Whether an error of connect is an answer; whether it tells nothing about the peer. */
bool ddl__reach_is_answer(int error);
bool ddl__reach_is_own_error(int error);

#endif
