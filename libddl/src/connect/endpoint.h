/* endpoint.h - this process's listening ports, the thread that answers them, and the slots at which
 * comms receive who comes for them. The same thread drives comms in the background. */
#ifndef DDL_CONNECT_ENDPOINT_H
#define DDL_CONNECT_ENDPOINT_H

#include <stdbool.h>

#include "base/fences.h"
#include "connect/address.h"
#include "connect/handshake.h"

/* A comm's slot at its endpoint. */
typedef struct ddl__comm_slot ddl__comm_slot;

/* What the endpoint's thread runs for a comm while no caller does. */
typedef struct ddl__background_task {
    void *context;
    int fd;                            /* readable when a task that waits can go on */
    bool (*run)(void *context);        /* without blocking; true: it waits for fd */
    bool (*was_driven)(void *context); /* by a caller, since it was asked last */
} ddl__background_task;

/* Somebody who dialed us, and has proven that it belongs to our job. */
typedef struct ddl__accepted {
    int fd;
    int passed; /* descriptor that came along, or -1 */
    ddl__hello hello;
    ddl__session session; /* owned by the receiver */
} ddl__accepted;

/* A member cannot create a comm: the reason, as it says. */
typedef struct ddl__create_failure {
    ddl__digest comm;
    int from;
    uint32_t attempt;  /* which of its attempts it is that has failed */
    ddl_status status; /* DDL_OK: none, or none any more */
    char text[96];
} ddl__create_failure;

enum { DDL__CREATE_FAILURES_MAX = 64 };

typedef struct ddl__create_failures {
    ddl__create_failure list[DDL__CREATE_FAILURES_MAX];
    unsigned next;
} ddl__create_failures;

ddl_status ddl__endpoint_create(const ddl_endpoint_config *config, ddl_endpoint **endpoint);
void ddl__endpoint_destroy(ddl_endpoint *endpoint);
const ddl__address *ddl__endpoint_address(const ddl_endpoint *endpoint);

/* Sockets for each pair of interfaces. */
unsigned ddl__endpoint_sockets(const ddl_endpoint *endpoint);

/* Whether members of this host can come by a unix socket, and so share memory with it. */
bool ddl__endpoint_is_local(const ddl_endpoint *endpoint);

/* For the arenas of its comms. */
const ddl__fences *ddl__endpoint_fences(const ddl_endpoint *endpoint);

/* Whether it was made before this process was forked: then it cannot be used here. */
bool ddl__endpoint_inherited(const ddl_endpoint *endpoint);

const ddl__job *ddl__endpoint_job(const ddl_endpoint *endpoint);

/* Begin a hello to another endpoint, which is to be said at once with its proof. */
ddl__hello ddl__endpoint_begin_hello(ddl_endpoint *endpoint, uint8_t kind, int from, int to,
                                     int size);

/* The last client that the endpoint refused, and why; "" if nobody, or nobody who spoke our
 * protocol. */
void ddl__endpoint_last_refusal(ddl_endpoint *endpoint, char *text, size_t size);

/* How many comms were created over exactly this list before, counting from 1. */
uint64_t ddl__endpoint_count_creation(ddl_endpoint *endpoint, ddl__digest list);

/* The last one came to nothing: its members will count it again. */
void ddl__endpoint_uncount_creation(ddl_endpoint *endpoint, ddl__digest list);

/* Take a slot for a comm; refused while a comm of the same id is alive here. */
ddl_status ddl__endpoint_open_slot(ddl_endpoint *endpoint, ddl__digest comm, ddl__comm_slot **slot);

/* The next accepted connection of this comm; false at the deadline. Its descriptors are the
 * caller's. Control connections may come early, and wait until `control`. */
bool ddl__endpoint_accept(ddl_endpoint *endpoint, ddl__comm_slot *slot, bool control,
                          int64_t deadline, ddl__accepted *accepted);

/* Whether a member has said that it cannot create this comm. */
bool ddl__endpoint_find_create_failure(ddl_endpoint *endpoint, ddl__digest comm,
                                       ddl__create_failure *failure);

/* Another member has told it: when the member itself says it here, it is not new. */
void ddl__endpoint_ignore_create_failure(ddl_endpoint *endpoint, ddl__digest comm, int from,
                                         uint32_t attempt);

/* The attempt to create a comm has failed; it may have no slot. Who comes from now on comes for
 * the next one. Its number, which no other attempt of this endpoint has. */
uint32_t ddl__endpoint_fail_attempt(ddl_endpoint *endpoint, ddl__comm_slot *slot);

/* Nobody is to ask any more what members have said of this comm so far. Leaving a slot does it as
 * well. */
void ddl__endpoint_forget_create_failures(ddl_endpoint *endpoint, ddl__digest comm);

/* From now on the endpoint's thread runs this task when asked to: now, or soon if no caller has
 * driven it by then. */
ddl_status ddl__endpoint_set_task(ddl_endpoint *endpoint, ddl__comm_slot *slot,
                                  const ddl__background_task *task);
void ddl__endpoint_need_progress(ddl_endpoint *endpoint, ddl__comm_slot *slot, bool now);

/* The one object of another layer that lives as long as the endpoint; the first caller creates it.
 * NULL with the message set. */
void *ddl__endpoint_attach(ddl_endpoint *endpoint,
                           void *(*create)(const ddl__digest *endpoint, const void *argument),
                           const void *argument, void (*destroy)(void *object));

/* Give the slot up. When it returns, the thread does not touch the task any more. */
void ddl__endpoint_close_slot(ddl_endpoint *endpoint, ddl__comm_slot *slot);

#endif
