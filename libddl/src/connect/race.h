/* SPDX-License-Identifier: Apache-2.0 */
/* race.h - connects to several endpoints at once, and to each over all paths that are to be used:
 * one that leads nowhere holds up nothing but the first creation of an endpoint's comms, by
 * DDL__PATH_LEAD. Which paths answer is recorded (path_memory.h). */
#ifndef DDL_CONNECT_RACE_H
#define DDL_CONNECT_RACE_H

#include "base/until.h"
#include "connect/endpoint.h"

typedef enum ddl__path_state {
    DDL__PATH_UNTRIED,
    DDL__PATH_DIALED,
    DDL__PATH_CONNECTED,
    DDL__PATH_FAILED
} ddl__path_state;

/* The connecting to one endpoint. */
typedef struct ddl__race {
    const ddl__address *peer;
    ddl__paths
        paths; /* afterwards: first those to use, which have answered, last the failed ones */
    int fd;    /* afterwards: connected over the first path; -1: no path answers */
    int error; /* the errno of the path that failed last; 0: there is no path */

    /* While it runs. */
    bool ended;
    unsigned n_tried;
    int64_t tried_at, connected_at; /* the last attempt; the first connection, or 0 */
    struct {
        ddl__path_state state;
        int fd, error;
        int64_t deadline;
    } tries[2 * DDL__INTERFACES_MAX]; /* by path */
} ddl__race;

/* Find the paths to `peer`, which is borrowed. */
void ddl__race_begin(ddl_endpoint *endpoint, const ddl__address *peer, ddl__race *race);

/* The connection over its first path was no good: begin again with the others. */
void ddl__race_again(ddl__race *race);

/* Run the races until each has a connection or has failed on all paths. If the check of `until`
 * fails, which is called from time to time, all connections are closed and its status is returned.
 * The caller owns the descriptors. */
ddl_status ddl__race_run(ddl_endpoint *endpoint, ddl__race *races, int n, const ddl__until *until);

#endif
