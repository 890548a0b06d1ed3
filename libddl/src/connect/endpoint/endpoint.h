/* SPDX-License-Identifier: Apache-2.0 */
/* endpoint.h - this process's listening ports, the thread that accepts connections on them, and the
 * slots from which comms take their accepted connections. The thread also runs the background tasks
 * of comms. */
#ifndef DDL_CONNECT_ENDPOINT_H
#define DDL_CONNECT_ENDPOINT_H

#include <stdbool.h>

#include "base/fences.h"
#include "connect/addresses/address.h"
#include "connect/endpoint/create_failures.h"
#include "connect/handshake/handshake.h"
#include "net/shm/regions.h"

/* A comm's slot at its endpoint. */
typedef struct ddl__comm_slot ddl__comm_slot;

/* The task that the endpoint's thread runs for a comm while no caller drives it. */
typedef struct ddl__background_task {
    void *context;
    int fd;                     /* readable when a task that waits can continue */
    bool (*run)(void *context); /* never blocks; returns true if the task waits for fd */
    bool (*was_driven)(
        void *context); /* returns true if a caller has driven the comm since the last call */
} ddl__background_task;

/* An incoming connection whose dialer has proven that it belongs to the job. */
typedef struct ddl__accepted {
    int fd;
    int passed; /* a descriptor that was sent with the proof, or -1 */
    ddl__hello hello;
    ddl__session session; /* owned by the receiver */
} ddl__accepted;

/* ---- endpoint.c ---- */

/* Create an endpoint. `links` are the default link kinds of its comms (ddl_link_kind bits). */
ddl_status ddl__endpoint_create(const ddl_endpoint_config *config, uint32_t links,
                                ddl_endpoint **endpoint);
void ddl__endpoint_destroy(ddl_endpoint *endpoint);
const ddl__address *ddl__endpoint_address(const ddl_endpoint *endpoint);

/* Return the number of sockets for each pair of interfaces. */
unsigned ddl__endpoint_sockets(const ddl_endpoint *endpoint);

/* Return true if members on this host can connect over a unix socket, which sharing memory
 * requires. */
bool ddl__endpoint_is_local(const ddl_endpoint *endpoint);

/* Return the fences for the arenas of its comms. */
const ddl__fences *ddl__endpoint_fences(const ddl_endpoint *endpoint);

/* Return the memory that the program has allocated for peers to read. */
ddl__regions *ddl__endpoint_regions(const ddl_endpoint *endpoint);

/* Return true if the endpoint was created before this process was forked, so that it cannot be used
 * here. */
bool ddl__endpoint_inherited(const ddl_endpoint *endpoint);

const ddl__job *ddl__endpoint_job(const ddl_endpoint *endpoint);

/* Set the endpoint's secret, unless the endpoint's creator has set one. Call this before its first
 * comm. */
ddl_status ddl__endpoint_take_secret(ddl_endpoint *endpoint, const char *secret);

/* Return a numbered hello to another endpoint. Send it at once, together with its proof. */
ddl__hello ddl__endpoint_begin_hello(ddl_endpoint *endpoint, uint8_t kind, int from, int to,
                                     int size);

/* Describe the last refused client that had sent a whole hello, and the reason; "" if there was
 * none. */
void ddl__endpoint_last_refusal(ddl_endpoint *endpoint, char *text, size_t size);

/* Return the paths to a peer (discover.h). Paths that are known to fail come last. */
ddl__paths ddl__endpoint_paths(ddl_endpoint *endpoint, const ddl__address *theirs);

/* Record whether this path to the peer answers. Returns true if no path over its interface has
 * failed before. */
bool ddl__endpoint_record_path(ddl_endpoint *endpoint, const ddl__address *theirs, ddl__path path,
                               bool answers);

/* Objects of other layers that the endpoint owns. */
typedef enum ddl__attached { DDL__ATTACHED_DETECTOR, DDL__N_ATTACHED } ddl__attached;

/* Return the endpoint's object of this kind, which the first call creates. Return NULL with the
 * message set on failure. */
void *ddl__endpoint_attach(ddl_endpoint *endpoint, ddl__attached kind,
                           void *(*create)(const ddl__digest *endpoint, const void *argument),
                           const void *argument, void (*destroy)(void *object));

/* ---- endpoint_slots.c ---- */

/* A number distinguishes the creations of one family (hello.h). The members agree on it while they
 * connect. Each member proposes a number above all that it has used or seen, and uses it at most
 * once, even if the creation fails. The highest proposal counts: a member that proposed a lower
 * number is superseded, and starts again. So after a failed creation the members meet again in a
 * later one, no matter which of them noticed the failure, and even if some of them joined only
 * after it. */

/* Propose a number for a creation of the family. `parent` is the new comm's parent, or all 0.
 * Returns 0 if out of memory. */
uint32_t ddl__endpoint_propose_creation(ddl_endpoint *endpoint, ddl__digest family,
                                        ddl__digest parent);

/* Record that a member takes part in this creation of the family, so that this rank proposes no
 * lower number later. */
void ddl__endpoint_raise_creation(ddl_endpoint *endpoint, ddl__digest family, uint32_t number);

/* Forget the numbers of a destroyed comm's children, and close the connections that wait for a
 * child. */
void ddl__endpoint_forget_children(ddl_endpoint *endpoint, ddl__digest parent);

/* Find a later creation of the slot's family for which a member has connected. Considers only
 * members that have not connected for the slot's creation (`is_missing`). Returns the creation's
 * number and stores the member, or returns 0. Refuses members that have connected for an earlier
 * creation. */
uint32_t ddl__endpoint_find_later(ddl_endpoint *endpoint, const ddl__comm_slot *slot,
                                  bool (*is_missing)(const void *context, int rank),
                                  const void *context, int *member);

/* Open a slot for a comm. Returns DDL_ESTATE if a comm with the same id exists here. */
ddl_status ddl__endpoint_open_slot(ddl_endpoint *endpoint, const ddl__comm_id *id,
                                   ddl__comm_slot **slot);

/* Record that each member on this host has its own core, so that a thread that waits for this
 * slot's connections may poll without sleeping. */
void ddl__endpoint_grant_cores(ddl_endpoint *endpoint, ddl__comm_slot *slot);

/* Close the slot. When this returns, the thread no longer touches the slot's task. */
void ddl__endpoint_close_slot(ddl_endpoint *endpoint, ddl__comm_slot *slot);

/* Wait for the comm's next accepted connection. Returns false at the deadline. The caller owns its
 * descriptors. Control connections may arrive early; they are not returned until `control` is
 * true. */
bool ddl__endpoint_accept(ddl_endpoint *endpoint, ddl__comm_slot *slot, bool control,
                          int64_t deadline, ddl__accepted *accepted);

/* Pass each connection of this kind to `take`, including those that have arrived already, until the
 * slot is closed or `take` is set to NULL. The kind is DDL__CONN_LATE_CONTROL, or
 * DDL__CONN_FIRST_USE, which includes DDL__CONN_FIRST_MEMORY. `take` owns the descriptors and a
 * copy of the session. It runs under the endpoint's lock. */
typedef void ddl__take_fn(void *context, const ddl__accepted *accepted);
void ddl__endpoint_divert(ddl_endpoint *endpoint, ddl__comm_slot *slot, uint8_t kind,
                          ddl__take_fn *take, void *context);

/* Take a member's notice that it cannot create this comm. Returns false if there is none. The
 * notice no longer counts afterwards. */
bool ddl__endpoint_take_create_failure(ddl_endpoint *endpoint, const ddl__comm_id *id,
                                       ddl__create_failure *failure);

/* Ignore the direct notice of an attempt, because another member has relayed it. */
void ddl__endpoint_ignore_create_failure(ddl_endpoint *endpoint, const ddl__comm_id *id, int from,
                                         uint32_t attempt);

/* Record that this rank's attempt to create a comm has failed. The slot is NULL if it failed early.
 * Connections accepted from now on belong to the next attempt. With `keeps_waiting`, connections
 * accepted before do, too (ddl__creation_keeps_waiting). Returns the attempt's number, which is
 * unique at this endpoint. */
uint32_t ddl__endpoint_fail_attempt(ddl_endpoint *endpoint, ddl__comm_slot *slot,
                                    bool keeps_waiting);

/* Discard the create-failure notices about this comm. Closing its slot also does this. */
void ddl__endpoint_forget_create_failures(ddl_endpoint *endpoint, const ddl__comm_id *id);

/* Set the slot's background task. ddl__endpoint_need_progress makes it run at once (`now`), or
 * after DDL__PROGRESS_SOON if no caller has driven it by then. */
ddl_status ddl__endpoint_set_task(ddl_endpoint *endpoint, ddl__comm_slot *slot,
                                  const ddl__background_task *task);
void ddl__endpoint_need_progress(ddl_endpoint *endpoint, ddl__comm_slot *slot, bool now);

/* ---- descriptors.c ---- */

/* Raise the soft limit if it leaves no room for the descriptors that a comm of these members may
 * need on this rank. Otherwise keep it, because select() cannot handle descriptors above 1023.
 * Fails if the hard limit is too low. */
ddl_status ddl__descriptors_provide(const ddl_endpoint *endpoint, const ddl__address *addresses,
                                    int rank, int size, uint32_t kinds);

/* Raise the soft limit for the root of a rendezvous, which has a connection from each rank. */
void ddl__descriptors_provide_clients(int size);

#endif
