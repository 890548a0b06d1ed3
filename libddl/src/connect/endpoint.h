/* SPDX-License-Identifier: Apache-2.0 */
/* endpoint.h - this process's listening ports, the thread that accepts connections at them, and the
 * slots at which comms receive their accepted connections. The thread also runs the background
 * tasks of comms. */
#ifndef DDL_CONNECT_ENDPOINT_H
#define DDL_CONNECT_ENDPOINT_H

#include <stdbool.h>

#include "base/fences.h"
#include "connect/address.h"
#include "connect/create_failures.h"
#include "connect/handshake.h"
#include "net/regions.h"

/* A comm's slot at its endpoint. */
typedef struct ddl__comm_slot ddl__comm_slot;

/* What the endpoint's thread runs for a comm while no caller does. */
typedef struct ddl__background_task {
    void *context;
    int fd;                            /* readable when a waiting task can continue */
    bool (*run)(void *context);        /* never blocks; true: the task waits for fd */
    bool (*was_driven)(void *context); /* by a caller, since the last call of this function */
} ddl__background_task;

/* An incoming connection whose dialer has proven that it belongs to our job. */
typedef struct ddl__accepted {
    int fd;
    int passed; /* a descriptor that was sent with the proof, or -1 */
    ddl__hello hello;
    ddl__session session; /* owned by the receiver */
} ddl__accepted;

/* ---- endpoint.c ---- */

/* `links`: the kinds that its comms may use (ddl_link_kind bits), unless they are given others. */
ddl_status ddl__endpoint_create(const ddl_endpoint_config *config, uint32_t links,
                                ddl_endpoint **endpoint);
void ddl__endpoint_destroy(ddl_endpoint *endpoint);
const ddl__address *ddl__endpoint_address(const ddl_endpoint *endpoint);

/* The number of sockets for each pair of interfaces. */
unsigned ddl__endpoint_sockets(const ddl_endpoint *endpoint);

/* True if members on this host can connect over a unix socket, and so share memory. */
bool ddl__endpoint_is_local(const ddl_endpoint *endpoint);

/* The fences for the arenas of its comms. */
const ddl__fences *ddl__endpoint_fences(const ddl_endpoint *endpoint);

/* The memory that its caller has allocated for peers to read. */
ddl__regions *ddl__endpoint_regions(const ddl_endpoint *endpoint);

/* True if the endpoint was created before this process was forked: it cannot be used here. */
bool ddl__endpoint_inherited(const ddl_endpoint *endpoint);

const ddl__job *ddl__endpoint_job(const ddl_endpoint *endpoint);

/* Give the endpoint this secret, if nothing was said of one when it was created. Before its first
 * comm. */
ddl_status ddl__endpoint_take_secret(ddl_endpoint *endpoint, const char *secret);

/* A numbered hello to another endpoint. Send it at once, together with its proof. */
ddl__hello ddl__endpoint_begin_hello(ddl_endpoint *endpoint, uint8_t kind, int from, int to,
                                     int size);

/* Which client the endpoint refused last, and why. "" if it has refused none that sent a whole
 * hello. */
void ddl__endpoint_last_refusal(ddl_endpoint *endpoint, char *text, size_t size);

/* The paths to a peer (discover.h), those last that are known to lead nowhere. */
ddl__paths ddl__endpoint_paths(ddl_endpoint *endpoint, const ddl__address *theirs);

/* Record whether a path of these answers. True if no path over its interface has failed before. */
bool ddl__endpoint_record_path(ddl_endpoint *endpoint, const ddl__address *theirs, ddl__path path,
                               bool answers);

/* Objects of other layers that live as long as the endpoint. */
typedef enum ddl__attached { DDL__ATTACHED_DETECTOR, DDL__N_ATTACHED } ddl__attached;

/* The object of this kind; the first caller creates it. NULL with the message set. */
void *ddl__endpoint_attach(ddl_endpoint *endpoint, ddl__attached kind,
                           void *(*create)(const ddl__digest *endpoint, const void *argument),
                           const void *argument, void (*destroy)(void *object));

/* ---- endpoint_slots.c ---- */

/* Creations of one family (hello.h) are told apart by a number on which the members agree while
 * they connect. Each proposes one above all that it has used or seen, and uses it at most once,
 * whether the creation succeeds or not. The highest proposal counts: a member that proposed a lower
 * one is superseded, and begins again. So the members find each other after any failed creation,
 * whichever of them noticed the failure, even if some of them come too late for it. */

/* Propose a number for a creation of the family. `parent`: the comm of which it is a child, else
 * all 0. Returns 0 without memory. */
uint32_t ddl__endpoint_propose_creation(ddl_endpoint *endpoint, ddl__digest family,
                                        ddl__digest parent);

/* A member is at this creation of the family: propose no lower number from now on. */
void ddl__endpoint_raise_creation(ddl_endpoint *endpoint, ddl__digest family, uint32_t number);

/* The comm is destroyed: forget the numbers of its children, and close the connections that wait
 * for one. */
void ddl__endpoint_forget_children(ddl_endpoint *endpoint, ddl__digest parent);

/* Find a later creation of the slot's family, of which a member has connected here that is missing
 * (`is_missing`) in the slot's. Returns its number, and stores the member; 0: there is none.
 * Refuses the members that have connected for an earlier one. */
uint32_t ddl__endpoint_find_later(ddl_endpoint *endpoint, const ddl__comm_slot *slot,
                                  bool (*is_missing)(const void *context, int rank),
                                  const void *context, int *member);

/* Open a slot for a comm. DDL_ESTATE while a comm with the same id is alive here. */
ddl_status ddl__endpoint_open_slot(ddl_endpoint *endpoint, const ddl__comm_id *id,
                                   ddl__comm_slot **slot);

/* Each member on this host has a core: who waits for this slot's connections may stay awake. */
void ddl__endpoint_grant_cores(ddl_endpoint *endpoint, ddl__comm_slot *slot);

/* Close the slot. When this returns, the thread no longer touches the slot's task. */
void ddl__endpoint_close_slot(ddl_endpoint *endpoint, ddl__comm_slot *slot);

/* Wait for the comm's next accepted connection; false at the deadline. The caller owns its
 * descriptors. Control connections may arrive early; they are held back until `control` is true. */
bool ddl__endpoint_accept(ddl_endpoint *endpoint, ddl__comm_slot *slot, bool control,
                          int64_t deadline, ddl__accepted *accepted);

/* Give each connection of this kind, DDL__CONN_LATE_CONTROL or DDL__CONN_FIRST_USE (which stands
 * for DDL__CONN_FIRST_MEMORY, too), to `take`, those that have come already, too: it owns the
 * descriptors and a copy of the session, and runs under the endpoint's lock. Until the slot is
 * closed, or `take` is NULL. */
typedef void ddl__take_fn(void *context, const ddl__accepted *accepted);
void ddl__endpoint_divert(ddl_endpoint *endpoint, ddl__comm_slot *slot, uint8_t kind,
                          ddl__take_fn *take, void *context);

/* Take a member's notice that it cannot create this comm, which then no longer counts; false if
 * there is none. */
bool ddl__endpoint_take_create_failure(ddl_endpoint *endpoint, const ddl__comm_id *id,
                                       ddl__create_failure *failure);

/* Another member has relayed this notice: ignore the direct one. */
void ddl__endpoint_ignore_create_failure(ddl_endpoint *endpoint, const ddl__comm_id *id, int from,
                                         uint32_t attempt);

/* This rank's attempt to create a comm has failed; the comm has no slot (NULL) if it failed early.
 * Connections accepted from now on belong to the next attempt. `keeps_waiting`: so do those that
 * were accepted before (ddl__creation_keeps_waiting). Returns the attempt's number, which is unique
 * at this endpoint. */
uint32_t ddl__endpoint_fail_attempt(ddl_endpoint *endpoint, ddl__comm_slot *slot,
                                    bool keeps_waiting);

/* Discard the create-failure notices about this comm. Closing its slot does so as well. */
void ddl__endpoint_forget_create_failures(ddl_endpoint *endpoint, const ddl__comm_id *id);

/* Give the slot its background task, which runs when ddl__endpoint_need_progress asks for it: at
 * once (`now`), or after DDL__PROGRESS_SOON if no caller has driven it by then. */
ddl_status ddl__endpoint_set_task(ddl_endpoint *endpoint, ddl__comm_slot *slot,
                                  const ddl__background_task *task);
void ddl__endpoint_need_progress(ddl_endpoint *endpoint, ddl__comm_slot *slot, bool now);

/* ---- descriptors.c ---- */

/* Raise the soft limit if it leaves no room for the descriptors that a comm of these members may
 * need on this rank. It stays as it is otherwise, since select() cannot handle descriptors above
 * 1023. Fails if the hard limit is too low. */
ddl_status ddl__descriptors_provide(const ddl_endpoint *endpoint, const ddl__address *addresses,
                                    int rank, int size, uint32_t kinds);

/* The same for the root of a rendezvous, which has a connection of each rank. */
void ddl__descriptors_provide_clients(int size);

#endif
