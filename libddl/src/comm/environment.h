/* environment.h - the only place that reads environment variables, but for the log's. */
#ifndef DDL_COMM_ENVIRONMENT_H
#define DDL_COMM_ENVIRONMENT_H

#include "base/status.h"
#include "comm/layout.h"

enum { DDL__SECRET_MAX = 4096 };

/* What the config leaves at its default: secret, encryption, interfaces, ports and sockets from
 * $DDL_SECRET or the file $DDL_SECRET_FILE, $DDL_ENCRYPT, $DDL_INTERFACES, $DDL_PORTS and
 * $DDL_SOCKETS. DDL_EINVAL for what is none of these, and for a file that cannot be read, or can by
 * others. The config may then point into `secret`, which is to be forgotten. */
ddl_status ddl__environment_endpoint(ddl_endpoint_config *config, char secret[DDL__SECRET_MAX]);

/* $DDL_LINKS, a list of inproc, shm and tcp separated by commas, as ddl_link_kind bits; all of them
 * when unset. DDL_EINVAL for another value. */
ddl_status ddl__environment_links(uint32_t *links);

/* $DDL_OPTIONS, "-mode A:X[xY[xZ[xW]]] -dump_iter N -dbg_level L", and $DDL_TOPOLOGY, whose meaning
 * topo/topology.h has; and where this process runs. DDL_EINVAL for an option, algorithm or number
 * that is none, naming it. What the original DDL had and is of no use here is warned of. */
ddl_status ddl__environment_layout(ddl__layout *layout);

/* Put $DDL_HEARTBEAT_MS, $DDL_SUSPECT_MS, $DDL_DEAD_MS and $DDL_STALL_WARN_MS, or their defaults,
 * in place of what is 0 in the config. DDL_EINVAL for what is no number, and for limits that do not
 * fit together. */
ddl_status ddl__environment_limits(ddl_comm_config *config);

/* $DDL_TRACE_DIR, or NULL. */
const char *ddl__environment_trace_dir(void);

/* $DDL_WITNESS, or NULL. */
const char *ddl__environment_witness(void);

/* $DDL_PLAN_FILE, or NULL. */
const char *ddl__environment_plan_file(void);

/* $DDL_RENDEZVOUS, $DDL_RANK and $DDL_SIZE as ddlrun sets them; without the first, NULL, 0 and 1.
 */
ddl_status ddl__environment_world(const char **url, int *rank, int *size);

/* $DDL_LAUNCHER, if this rendezvous is the one of all ranks that it has started; else NULL. */
const char *ddl__environment_launcher(const char *url, int rank, int size);

#endif
