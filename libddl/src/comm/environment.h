/* SPDX-License-Identifier: Apache-2.0 */
/* environment.h - reads all environment variables, except the log's. */
#ifndef DDL_COMM_ENVIRONMENT_H
#define DDL_COMM_ENVIRONMENT_H

#include "base/status.h"
#include "comm/layout.h"

enum { DDL__SECRET_MAX = 4096 };

/* Fill in the fields that the config leaves at their defaults: secret, encryption, interfaces,
 * ports and sockets from $DDL_SECRET or the file $DDL_SECRET_FILE, $DDL_ENCRYPT, $DDL_INTERFACES,
 * $DDL_PORTS and $DDL_SOCKETS. Return DDL_EINVAL for an invalid value, and for a file that cannot
 * be read or that other users can read. The config may then point into `secret`; erase it after
 * use. The config's secret stays NULL if there is none. */
ddl_status ddl__environment_endpoint(ddl_endpoint_config *config, char secret[DDL__SECRET_MAX]);

/* Read $DDL_LINKS, a comma-separated list of inproc, shm, tcp and ucx, as ddl_link_kind bits; all
 * but ucx if it is not set. Return DDL_EINVAL for other values. */
ddl_status ddl__environment_links(uint32_t *links);

/* Read $DDL_OPTIONS, "-mode A:X[xY[xZ[xW]]] -dump_iter N -dbg_level L", and $DDL_TOPOLOGY
 * (topo/topology.h), and find where this process runs. The message of DDL_EINVAL names the invalid
 * option, algorithm or number. Options of the original DDL that libddl does not use cause a
 * warning. */
ddl_status ddl__environment_layout(ddl__layout *layout);

/* Replace limits that are 0 in the config by $DDL_HEARTBEAT_MS, $DDL_SUSPECT_MS, $DDL_DEAD_MS and
 * $DDL_STALL_WARN_MS, or by their defaults. Return DDL_EINVAL for an invalid number, and for limits
 * that contradict each other. */
ddl_status ddl__environment_limits(ddl_comm_config *config);

/* Replace 0 by $DDL_INVARIANT, or by its default. Return DDL_EINVAL for other values. */
ddl_status ddl__environment_invariant(int32_t *invariant);

/* Replace 0 by $DDL_WIRE, or by DDL_WIRE_F32. Return DDL_EINVAL for other values. */
ddl_status ddl__environment_wire(uint32_t *wire);

/* Read $DDL_GPU_DIRECT_BYTES, 0 for never, and $DDL_GPU_NCCL, or their defaults. Return DDL_EINVAL
 * for other values. */
ddl_status ddl__environment_gpu(uint64_t *direct_bytes, bool *uses_nccl);

/* Return the variable's value. ddl__environment_text returns NULL if it is empty or not set,
 * ddl__environment_variable only if it is not set. */
const char *ddl__environment_text(const char *name);
const char *ddl__environment_variable(const char *name);

#endif
