/* SPDX-License-Identifier: Apache-2.0 */
/* reach.h - tests if a member can be reached: one of its addresses accepts or refuses a connection.
 * There is no handshake, and no call blocks, so a caller can try many members at once. */
#ifndef DDL_CONNECT_REACH_H
#define DDL_CONNECT_REACH_H

#include "connect/wireup/wireup_state.h"

typedef struct ddl__reach {
    int rank;
    bool answers;
    int64_t since; /* time of the first attempt; 0 if there is none */
    ddl__paths paths;
    int fds[2 * DDL__INTERFACES_MAX]; /* sockets by path; -1 if the path must be tried again */
} ddl__reach;

/* Start to try the member `rank`, which is not on this host. */
void ddl__reach_begin(const ddl__wireup *wireup, ddl__reach *reach);

/* Check for an answer. Paths that failed without an answer are tried again. While this process has
 * too few free descriptors, the member cannot be tried, so `since` is set to the current time. */
void ddl__reach_poll(const ddl__wireup *wireup, ddl__reach *reach);

/* Close the connections. */
void ddl__reach_end(ddl__reach *reach);

#endif
