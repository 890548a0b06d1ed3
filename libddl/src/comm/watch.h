/* watch.h - who is alive: the members of a comm watch each other over connections of their own, in
 * a thread of the endpoint that does nothing else. */
#ifndef DDL_COMM_WATCH_H
#define DDL_COMM_WATCH_H

#include "comm/endpoint.h"

/* The watched side of one comm. */
typedef struct ddl__control ddl__control;

/* When to worry; nanoseconds, DDL__NEVER: not at all. */
typedef struct ddl__limits {
    int64_t heartbeat, suspect, dead, stall;
} ddl__limits;

typedef struct ddl__control_config {
    ddl_endpoint *endpoint;
    ddl__seat *seat;
    ddl__engine *engine;
    ddl__digest comm;
    const ddl__address *addresses; /* by rank; as the names, they outlive the control */
    char *const *names;
    int rank, size;
    ddl__limits limits;
    const char *trace_dir; /* where a dead comm leaves its flight record; copied; NULL: nowhere */
    int64_t deadline;      /* of the opening */
} ddl__control_config;

/* Connect to all members, of whom each has finished its ddl__meet, and watch them from now on. */
ddl_status ddl__control_open(const ddl__control_config *config, ddl__control **control);

/* Say goodbye and end; when it returns, the engine is not touched any more. NULL is fine. */
void ddl__control_close(ddl__control *control);

/* The thread; it is started for the first comm. */
typedef struct ddl__watch ddl__watch;
ddl__watch *ddl__watch_create(void);
void ddl__watch_destroy(ddl__watch *watch);

/* The ranks known to be dead, ascending: up to capacity into ranks; how many there are. */
int ddl__control_failed(ddl__control *control, int *ranks, int capacity);

#endif
