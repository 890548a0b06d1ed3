/* SPDX-License-Identifier: Apache-2.0 */
/* location.h - where this process runs: the machine, and the cores that it may use. */
#ifndef DDL_COMM_LOCATION_H
#define DDL_COMM_LOCATION_H

#include "topo/topology.h"

/* Read the location from the system's files under `root` ("" except in tests): the machine, the
 * number of cores that control groups allow, the cores on which this process may run, the NUMA node
 * that has all of them, and the second-level cache of the first one. Unknown values are 0. */
ddl__location ddl__location_find(const char *root);

/* Return where this process runs now. The files are read again only if the process was bound to
 * other cores since the last call, because reading them takes as long as connecting to several
 * members. */
ddl__location ddl__location_own(void);

#endif
