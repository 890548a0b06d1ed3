/* SPDX-License-Identifier: Apache-2.0 */
/* reach.h - tests if a member can be reached: one of its addresses accepts or refuses a connection.
 * There is no handshake, and no call blocks. So a caller can try many members at once. */
#ifndef DDL_CONNECT_REACH_H
#define DDL_CONNECT_REACH_H

#include "connect/wireup/wireup_state.h"

typedef struct ddl__reach {
    int rank;
    bool answers;
    int64_t since; /* the start of the attempts; 0: none so far */
    ddl__paths paths;
    int fds[2 * DDL__INTERFACES_MAX]; /* by path; -1: must be tried again */
} ddl__reach;

/* Start to try the member `rank`, which is not on this host. */
void ddl__reach_begin(const ddl__wireup *wireup, ddl__reach *reach);

/* Check for an answer. Paths that failed without an answer are tried again. While this process has
 * no descriptors to spare, nothing is known, so `since` is set to the current time. */
void ddl__reach_poll(const ddl__wireup *wireup, ddl__reach *reach);

/* Close the connections. */
void ddl__reach_end(ddl__reach *reach);

#endif
