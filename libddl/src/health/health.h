/* SPDX-License-Identifier: Apache-2.0 */
/* health.h - the failure detector: the members of a comm monitor each other over control
 * connections, in a separate thread of the endpoint. */
#ifndef DDL_HEALTH_HEALTH_H
#define DDL_HEALTH_HEALTH_H

#include "base/text.h"
#include "base/until.h"
#include "connect/endpoint/endpoint.h"
#include "connect/wireup/wireup.h"
#include "engine/engine.h"

/* The health of one comm's members. */
typedef struct ddl__health ddl__health;

/* The detector's intervals in nanoseconds; DDL__NEVER disables one. */
typedef struct ddl__limits {
    int64_t heartbeat, suspect, dead, stall;
} ddl__limits;

typedef struct ddl__health_config {
    ddl_endpoint *endpoint;
    ddl__comm_slot *slot;
    ddl__engine *engine;
    ddl__digest comm;
    const ddl__address *addresses; /* by rank; addresses and names outlive the health */
    char *const *names;
    ddl__first_use *first_use;   /* notified of lost members; outlives the health; or NULL */
    ddl__control_dial *controls; /* by rank: the control connections that the wireup has started */
    int rank, size;
    uint32_t kinds; /* kinds of links that the comm uses (ddl_link_kind bits) */
    ddl__limits limits;
    const char *witness;      /* the launcher's socket, or NULL */
    const char *trace_dir;    /* the folder for the flight record of a dead comm; copied; or NULL */
    const char *timeline_dir; /* the folder for the record of all operations; copied; or NULL */
    int64_t deadline;         /* the creation's deadline */
    const ddl__until *until;  /* has the same deadline; used until ddl__health_open returns */
} ddl__health_config;

/* Create the health, and dial the lower ranks whose control connections were not started, without
 * waiting for their answers. Called after ddl__wireup_run in the creation of a comm. Takes over
 * config->controls, even on failure. The caller closes the health, even if ddl__health_open
 * fails. */
ddl_status ddl__health_connect(const ddl__health_config *config, ddl__health **health);

/* Send the reason why the comm cannot be created to all members with an open control connection,
 * and close these connections. Takes over `controls`, which may be NULL. */
void ddl__health_refuse(ddl__control_dial *controls, int size, ddl_status status, const char *why);

/* Complete the control connections to all members, and monitor the members from now on. */
ddl_status ddl__health_open(ddl__health *health);

/* Record that all members have created the comm. `health` may be NULL. */
void ddl__health_created(ddl__health *health);

/* Send a leave message. When this returns, the detector no longer uses the engine. The connections
 * to members on this host stay open until ddl__health_destroy or the end of this process: their end
 * must follow the closing of the links over shared memory. `difference` describes a difference
 * between the members' operations that was not reported to a caller yet, or is "". `health` may be
 * NULL. */
void ddl__health_close(ddl__health *health, char difference[DDL__MESSAGE_MAX]);

/* Close the remaining connections, and free the health. Call this after closing the links. */
void ddl__health_destroy(ddl__health *health);

/* Record that the comm is closed because its members continue in another comm. Closing then sends
 * EXPEL instead of a leave message, so that other members do not treat this rank as having left. */
void ddl__health_abandon(ddl__health *health);

/* Add the detector's part of a report: the members, and the ranks that this rank waits for. */
void ddl__health_report(ddl__health *health, ddl__text *to);
void ddl__health_add_counters(ddl__health *health, ddl_counters *counters); /* adds deaths */

/* Fail if one of these members is dead. */
ddl_status ddl__health_check(ddl__health *health, const int *ranks, int n);

/* Expel a member. `reason` is the program's text, and may be NULL. */
ddl_status ddl__health_expel(ddl__health *health, int rank, const char *reason);

/* Return the id of the comm. */
ddl__digest ddl__health_comm(const ddl__health *health);

/* Write the ranks that are known to be dead, ascending, at most `capacity`. Returns their number.
 */
int ddl__health_failed(ddl__health *health, int *ranks, int capacity);

#endif
