/* health.h - who is alive: the members of a comm monitor each other over connections of their
 * own, in a thread of the endpoint that does nothing else. */
#ifndef DDL_HEALTH_HEALTH_H
#define DDL_HEALTH_HEALTH_H

#include "base/text.h"
#include "connect/endpoint.h"
#include "engine/engine.h"

/* The watched side of one comm. */
typedef struct ddl__health ddl__health;

/* When to worry; nanoseconds, DDL__NEVER: not at all. */
typedef struct ddl__limits {
    int64_t heartbeat, suspect, dead, stall;
} ddl__limits;

typedef struct ddl__health_config {
    ddl_endpoint *endpoint;
    ddl__comm_slot *slot;
    ddl__engine *engine;
    ddl__digest comm;
    const ddl__address *addresses; /* by rank; as the names, they outlive it */
    char *const *names;
    int rank, size;
    ddl__limits limits;
    const char *witness;   /* the launcher's socket, or NULL */
    const char *trace_dir; /* where a dead comm leaves its flight record; copied; NULL: nowhere */
    int64_t deadline;      /* of the opening */
} ddl__health_config;

/* Dial the members with lower ranks, without waiting for their answers: a part of the creation of a
 * comm, after our ddl__wireup_run. It is the caller's to close. */
ddl_status ddl__health_connect(const ddl__health_config *config, ddl__health **health);

/* Be connected to all members, of whom each has finished its ddl__wireup_run, and detector them
 * from now on.
 */
ddl_status ddl__health_open(ddl__health *health);

/* Say goodbye and end; when it returns, the engine is not touched any more. `difference` says what
 * is known to differ between the members' operations, if no caller knows it yet; else "". NULL is
 * fine. */
void ddl__health_close(ddl__health *health, char difference[DDL__MESSAGE_MAX]);

/* It is going to be closed, since its members go on in another comm. Who still counts on it learns
 * that, and so cannot take them for gone. */
void ddl__health_abandon(ddl__health *health);

/* The thread of the endpoint with this id; it is started for the first comm. */
typedef struct ddl__detector ddl__detector;
ddl__detector *ddl__detector_create(const ddl__digest *endpoint, const char *witness);
void ddl__detector_destroy(ddl__detector *detector);

/* The part of a report that only the detector knows: an array of members, and whom we wait for. */
void ddl__health_report(ddl__health *health, ddl__text *to);
void ddl__health_add_counters(ddl__health *health, ddl_counters *counters); /* deaths */

/* The id of its comm. */
ddl__digest ddl__health_comm(const ddl__health *health);

/* The ranks known to be dead, ascending: up to capacity into ranks; how many there are. */
int ddl__health_failed(ddl__health *health, int *ranks, int capacity);

#endif
