/* SPDX-License-Identifier: Apache-2.0 */
/* path_memory.h - the paths over which an endpoint could not connect, though another path to the
 * same host worked: an interface that shares a network's number with other hosts, but leads
 * nowhere. They are not chosen again. */
#ifndef DDL_CONNECT_PATH_MEMORY_H
#define DDL_CONNECT_PATH_MEMORY_H

#include <stdbool.h>

#include "topo/interfaces.h"

/* A path by its ends: `theirs` is an IP, which the endpoints of one host share. */
typedef struct ddl__dead_path {
    int8_t ours;
    ddl__interface theirs;
} ddl__dead_path;

/* Zero-initialized. */
typedef struct ddl__path_memory {
    ddl__dead_path *dead;
    unsigned n_dead, capacity;
    bool answers[DDL__INTERFACES_MAX], fails[DDL__INTERFACES_MAX]; /* to any host, by `ours` */
} ddl__path_memory;

/* Record whether a path answers. `theirs` is an array of the peer's IPs. True if no path over this
 * local interface has failed before. */
bool ddl__path_memory_add(ddl__path_memory *memory, const ddl__interface *theirs, ddl__path path,
                          bool answers);

/* Put the paths that are known to fail last, and choose none of them, unless all chosen ones fail.
 * A path to a new host counts as failing if its local interface has reached no host so far. */
void ddl__path_memory_sort(const ddl__path_memory *memory, const ddl__interface *theirs,
                           ddl__paths *paths);

void ddl__path_memory_free(ddl__path_memory *memory);

#endif
