/* SPDX-License-Identifier: Apache-2.0 */
/* race.h - connects to several endpoints at once, and to each over several paths. A path that does
 * not work delays only the endpoint's first creation of a comm, by DDL__PATH_LEAD, because
 * path_memory.h records which paths answer. */
#ifndef DDL_CONNECT_RACE_H
#define DDL_CONNECT_RACE_H

#include "base/until.h"
#include "connect/endpoint/endpoint.h"

typedef enum ddl__path_state {
    DDL__PATH_UNTRIED,
    DDL__PATH_DIALED,
    DDL__PATH_CONNECTED,
    DDL__PATH_FAILED
} ddl__path_state;

/* The attempts to connect to one endpoint. */
typedef struct ddl__race {
    const ddl__address *peer;
    /* After the race, the paths that have answered are first, and the failed paths are last. */
    ddl__paths paths;
    int fd;    /* after the race: the connection over the first path; -1 if no path answers */
    int error; /* errno of the path that failed last; 0 if there is no path */

    /* Used while the race runs. */
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

/* Start again without the first path, whose connection was unusable. */
void ddl__race_again(ddl__race *race);

/* Run the races until each has a connection or has failed on all paths. The check of `until` is
 * called from time to time. If it fails, all connections are closed and its status is returned. The
 * caller owns the descriptors. */
ddl_status ddl__race_run(ddl_endpoint *endpoint, ddl__race *races, int n, const ddl__until *until);

#endif
