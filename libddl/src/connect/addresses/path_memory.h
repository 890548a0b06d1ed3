/* SPDX-License-Identifier: Apache-2.0 */
/* path_memory.h - the paths over which an endpoint could not connect, although another path to the
 * same host worked. The reason may be an interface that has the network number of other hosts but
 * does not reach them. These paths are tried last from then on. */
#ifndef DDL_CONNECT_PATH_MEMORY_H
#define DDL_CONNECT_PATH_MEMORY_H

#include <stdbool.h>

#include "topo/interfaces.h"

/* A path that failed. All endpoints of a host share the IP `theirs`. */
typedef struct ddl__dead_path {
    int8_t ours;
    ddl__interface theirs;
} ddl__dead_path;

/* The failed paths of an endpoint. Zero-initialized. */
typedef struct ddl__path_memory {
    ddl__dead_path *dead;
    unsigned n_dead, capacity;
    /* by local interface: a path over it to any host has answered, or has failed */
    bool answers[DDL__INTERFACES_MAX], fails[DDL__INTERFACES_MAX];
} ddl__path_memory;

/* Record whether a path answers. `theirs` is an array of the peer's IPs. Returns true if no path
 * over this local interface has failed before. */
bool ddl__path_memory_add(ddl__path_memory *memory, const ddl__interface *theirs, ddl__path path,
                          bool answers);

/* Sort the paths that are known to fail behind the others, and remove them from the chosen paths.
 * If all chosen paths are known to fail, choose one path. A path to a new host counts as failing if
 * paths over its local interface have failed, and none has answered. */
void ddl__path_memory_sort(const ddl__path_memory *memory, const ddl__interface *theirs,
                           ddl__paths *paths);

void ddl__path_memory_free(ddl__path_memory *memory);

#endif
