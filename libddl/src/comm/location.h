/* location.h - where this process runs: on which machine, on which of its cores. */
#ifndef DDL_COMM_LOCATION_H
#define DDL_COMM_LOCATION_H

#include "topo/topology.h"

/* As the files of the system under `root` ("" but for a test) tell: the machine, its cores as far
 * as control groups let us use them, the cores on which this process may run and the NUMA node on
 * which all of these lie. What they do not tell is 0. */
ddl__location ddl__location_find(const char *root);

/* Where this process runs now. The files are read again only when the process has been bound to
 * other cores since: reading them takes as long as joining several members. */
ddl__location ddl__location_own(void);

#endif
