/* SPDX-License-Identifier: Apache-2.0 */
/* witness.h - the launcher as a witness: it detects when a process on its host ends, and reports
 * that to the other processes of the job, on all hosts. Each process holds a connection to the
 * launcher, which the kernel closes when the process ends.
 *
 * $DDL_WITNESS names the launcher's abstract unix socket. A record has a type of eight characters
 * and 16 bytes, usually an endpoint's id:
 *
 *   "ddlwitn1"  from a process: registers its endpoint
 *   "ddlcontn"  from a process: it may continue without members of a comm; with the first half of
 *               the comm's id, and the agreement's attempt. From the launcher, 0 and the highest
 *               number stand for all comms
 *   "ddlleave"  from a process: it destroys the endpoint in good order
 *   "ddlended"  from the launcher: the endpoint's process has ended; sent after the "ddlcontn"
 *               records of that process */
#ifndef DDL_HEALTH_WITNESS_H
#define DDL_HEALTH_WITNESS_H

#include <stdbool.h>

#include "base/digest.h"

typedef struct ddl__witness ddl__witness;

/* Register this endpoint with the launcher. Returns NULL if `name` is NULL, or, after a warning, if
 * there is no connection: the library works without a witness. */
ddl__witness *ddl__witness_open(const ddl__digest *endpoint, const char *name);

/* Unregister the endpoint. `witness` may be NULL. */
void ddl__witness_close(ddl__witness *witness);

/* Return a descriptor that is readable when a record has arrived; -1 once the launcher has
 * exited. */
int ddl__witness_fd(const ddl__witness *witness);

/* Report that this process may continue in the next comm, on which this comm's survivors agreed in
 * this attempt. `witness` may be NULL. */
void ddl__witness_continues(const ddl__witness *witness, const ddl__digest *comm, uint32_t attempt);

/* Take the next endpoint whose process has ended. Returns false if there is none. */
bool ddl__witness_next(ddl__witness *witness, ddl__digest *ended);

/* Return true if the process of this endpoint is among the last processes reported as ended. Stores
 * the last attempt by which it may have continued without members of the comm; 0: none. `witness`
 * may be NULL. */
bool ddl__witness_saw(const ddl__witness *witness, const ddl__digest *endpoint,
                      const ddl__digest *comm, uint32_t *attempt);

#endif
