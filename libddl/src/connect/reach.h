/* SPDX-License-Identifier: Apache-2.0 */
/* reach.h - whether members can be reached at all, asked of many at once: something at one of their
 * addresses accepts a connection, or refuses it. There is no handshake. */
#ifndef DDL_CONNECT_REACH_H
#define DDL_CONNECT_REACH_H

#include "connect/wireup_state.h"

typedef enum ddl__reached {
    DDL__REACH_UNKNOWN,
    DDL__REACH_ANSWERS,
    DDL__REACH_SILENT
} ddl__reached;

typedef struct ddl__reach {
    int rank;
    ddl__reached reached;
    int n_fds, fds[2 * DDL__INTERFACES_MAX]; /* one for each path; -1: it has failed */
} ddl__reach;

/* Begin to connect to ranks that are not on this host, one after the other in `reach`. Returns for
 * how many it has begun: fewer than `n` if there are no more descriptors. */
int ddl__reach_begin(const ddl__wireup *wireup, ddl__reach *reach, int n);

/* Wait until all have answered, or until the deadline; it is asked often whether that still has a
 * point. Then close all connections. Who has not answered is silent at the deadline, and unknown
 * before. */
void ddl__reach_end(ddl__reach *reach, int n, int64_t deadline, bool (*goes_on)(void *context),
                    void *context);

#endif
