/* SPDX-License-Identifier: Apache-2.0 */
/* engine.h - the works of one comm, and the thread that drives them. Runs plans over links. */
#ifndef DDL_ENGINE_ENGINE_H
#define DDL_ENGINE_ENGINE_H

#include "base/fences.h"
#include "engine/calls/group.h"
#include "engine/executor/choices.h"
#include "engine/executor/meter.h"
#include "engine/recorder/recorder.h"
#include "net/shm/regions.h"

/* The urgency with which the endpoint's thread should drive. */
typedef enum ddl__urgency {
    DDL__NOW,
    /* soon, unless a thread waits by then; all progress that was possible at once is already
     * made */
    DDL__SOON
} ddl__urgency;

typedef struct ddl__engine_config {
    int rank, size;
    ddl__link **links;    /* by rank, NULL for this rank; owned by the engine */
    ddl__link **messages; /* the message links by rank; destroyed before `links` */
    char **names;         /* "rank 2 on host", by rank; borrowed, outlive the engine */
    int64_t segment_bytes;
    int64_t window;            /* `window` of each ddl__request */
    int64_t message_window;    /* the window of the message links */
    ddl__regions *regions;     /* the endpoint's regions; borrowed; or NULL */
    const ddl__fences *fences; /* heavy fences that the engine announces in its arena; or NULL */
    bool sharing_cores;        /* this host has more members than cores */
    /* Called, by any thread and without locks, if a work is pending and no thread waits for it:
     * another thread must then drive. */
    void (*need_progress)(void *context, ddl__urgency urgency);
    void *context;
} ddl__engine_config;

/* Create an engine. Takes ownership of the links in any case. Returns NULL if a resource is
 * unavailable (message set). */
ddl__engine *ddl__engine_create(const ddl__engine_config *config);

/* Close all links with a leave message, complete all works with DDL_EABORTED, and free the
 * engine. */
void ddl__engine_destroy(ddl__engine *engine);

/* Return, by rank, the links of ordered operations, and the links of messages and named
 * operations. */
ddl__link *const *ddl__engine_links(const ddl__engine *engine);
ddl__link *const *ddl__engine_message_links(const ddl__engine *engine);

/* Plan for ranks that all share memory. Call this before any concurrent use. */
void ddl__engine_all_shared(ddl__engine *engine);

/* Plan for rings of `window` bytes. `is_near` means that they stay in a core's second-level cache.
 * Call this before any concurrent use. */
void ddl__engine_set_window(ddl__engine *engine, int64_t window, bool is_near);

/* Plan for this topology, which must outlive the engine. Call this before any concurrent use. */
void ddl__engine_set_topology(ddl__engine *engine, const ddl__topology *topology);

/* Use the algorithms of these choices, and `by` where they leave the algorithm open (0: the costs
 * choose). The choices must outlive the engine. Call this before any concurrent use. */
void ddl__engine_set_choices(ddl__engine *engine, const ddl__choices *choices, ddl__algorithm by);

/* Add floats and complex numbers in this order of the ranks, which must outlive the engine. Call
 * this before any concurrent use. */
void ddl__engine_set_order(ddl__engine *engine, ddl_order *order);

/* Let calls with a wire format be packed. Return false if the hosts do not allow it. Call this
 * after ddl__engine_set_topology and ddl__engine_set_window, and before any concurrent use. */
bool ddl__engine_allow_packing(ddl__engine *engine);

/* Measure ordered operations. The meter must outlive the engine. Call this before any concurrent
 * use. */
void ddl__engine_set_meter(ddl__engine *engine, ddl__meter *meter);

/* Store the algorithms worth comparing for this call, and return their number, like
 * ddl__plan_candidates. */
int ddl__engine_candidates(const ddl__engine *engine, const ddl__call *call,
                           ddl__candidate found[DDL__ALGORITHMS]);

/* Queue an operation. If work is NULL, run it to completion. Takes ownership of call->blocks in any
 * case. */
ddl_status ddl__engine_submit(ddl__engine *engine, const ddl__call *call, ddl_work **work);

/* Queue all operations of the group. `call` describes the group. The caller keeps the group. */
ddl_status ddl__engine_submit_group(ddl__engine *engine, ddl_group *group, const ddl__call *call,
                                    ddl_work **work);

/* Let a held group complete. status is DDL_OK if the results are in the caller's buffers, else the
 * reason why they will not be. Any thread may call this. */
void ddl__engine_release_group(ddl__engine *engine, ddl_group *group, ddl_status status);

/* Let the operation that waits for this hold start. Any thread may call this. */
void ddl__engine_release_hold(ddl__engine *engine, ddl__hold *hold);

/* Return true if the group is submitted and not complete. */
bool ddl__engine_holds_group(ddl__engine *engine, const ddl_group *group);

/* Free the group, or if it is submitted, let it be freed on completion. */
void ddl__engine_drop_group(ddl__engine *engine, ddl_group *group);

ddl_status ddl__engine_status(ddl__engine *engine);
void ddl__engine_abort(ddl__engine *engine, const char *reason);

/* End the comm on all members, for a cause that no link reports, such as a death that the failure
 * detector has found. The first cause wins. Any thread may call this; it does not block. */
void ddl__engine_fail(ddl__engine *engine, ddl_status status, const char *text);

/* Append the reason why this rank still waits, such as ": not called by rank 1; ...", or nothing if
 * it is unknown. An operation that is matched by order is given by `operation`, a named operation
 * by `name` (`operation` is NULL). The driver calls this function without the engine's lock. */
typedef void ddl__explain_fn(void *context, const ddl__signature *operation, const char *name,
                             char *text, size_t size);

/* Set the function that explains waits; NULL: none. When this returns, no call of the previous
 * function is running. Any thread may call this. */
void ddl__engine_set_explainer(ddl__engine *engine, ddl__explain_fn *explain, void *context);

/* Record that the comm is created and that its failure detector runs. Before this call, a lost link
 * ends the comm only after ddl__engine_peer_died, but then even if no operation waits for that
 * link. */
void ddl__engine_created(ddl__engine *engine);
bool ddl__engine_is_created(const ddl__engine *engine);

/* Note that the process of this member has exited, or that no other reason for its lost link will
 * arrive. A lost link alone proves less: a member that ends the comm may have no room to send the
 * reason, which then arrives a little later. Any thread may call this. */
void ddl__engine_peer_died(ddl__engine *engine, int rank);

/* Record that this member sends nothing any more, because it has left the comm, or its process has
 * exited without leaving. Any thread may call this. */
void ddl__engine_peer_gone(ddl__engine *engine, int rank);

/* Watch this descriptor of a link that was unopened until now. Any thread may call this. */
void ddl__engine_watch(ddl__engine *engine, ddl__link *link, int fd);

/* End the comm because no link to this peer can be opened. Any thread may call this. */
void ddl__engine_peer_unreachable(ddl__engine *engine, int peer, const char *text);

/* The result of checking whether a peer is the reason for the end of the comm. */
typedef enum ddl__finding {
    DDL__PEER_FINE,
    DDL__PEER_DOUBTED, /* its link was lost during the creation, perhaps not because of its death */
    DDL__PEER_LOST,
    DDL__PEER_UNREACHABLE
} ddl__finding;
ddl__finding ddl__engine_find_peer(const ddl__engine *engine, int peer);

/* Call `run` in this thread, which is the driver meanwhile. Waits until the current driver has
 * stopped. Used to change links. Any thread may call this. */
void ddl__engine_as_driver(ddl__engine *engine, void (*run)(void *context), void *context);

/* Make the driver check its links again if it sleeps. Any thread may call this. */
void ddl__engine_wake(ddl__engine *engine);

/* Close all links and send the peers the reason. No operation runs on this comm, now or later. */
void ddl__engine_close_links(ddl__engine *engine, ddl_status status, const char *text);

/* A snapshot of the progress, which any thread may take. */
typedef struct ddl__snapshot {
    ddl_status status;
    bool told;                  /* a caller has received the comm's failure */
    uint64_t pending, finished; /* counts of works */
    uint64_t moves;             /* passes in which an operation made progress without completing */
    uint64_t passes;  /* passes in which messages made progress; a long message takes many */
    uint64_t scratch; /* bytes of scratch memory kept for plans */
    uint64_t lent;    /* bytes that peers have read or stored in place */
    char text[DDL__MESSAGE_MAX];
} ddl__snapshot;
ddl__snapshot ddl__engine_snapshot(ddl__engine *engine);

/* A named operation that waits to run. */
typedef struct ddl__waiting {
    char name[DDL_NAME_MAX];
    ddl__signature signature;
    int64_t submitted, deadline;
} ddl__waiting;

enum { DDL__WAITING_MAX = 32 };

/* Store the oldest waiting named operations, up to max (at most DDL__WAITING_MAX). Return their
 * number. Any thread may call this. */
int ddl__engine_waiting(ddl__engine *engine, ddl__waiting *waiting, int max);

/* On rank 0, which matches names: return true if that rank is not known to have called this name.
 * In any case `last` becomes the last name that it called, "" if none. Any thread may call this. */
bool ddl__engine_name_is_missing(ddl__engine *engine, const char *name, int rank,
                                 char last[DDL_NAME_MAX]);

const ddl__recorder *ddl__engine_recorder(const ddl__engine *engine);

/* Receive data that peers have sent, even if no operation waits for it, so that a failure of a peer
 * ends this comm. Any thread may call this; it does not block. */
void ddl__engine_poll(ddl__engine *engine);

ddl_status ddl__engine_completed(ddl__engine *engine, ddl_work **works, void **users, int max,
                                 int64_t deadline, int *taken);

/* Return a descriptor that is readable while there are completed works. The engine owns it. */
ddl_status ddl__engine_report_fd(ddl__engine *engine, int *fd);

/* Wait until the work is complete or the deadline passes. Return its result, with its message in
 * this thread. */
ddl_status ddl__work_wait(ddl_work *work, int64_t deadline);
ddl_status ddl__work_test(const ddl_work *work);
void ddl__work_destroy(ddl_work *work);

/* The state of the engine after the endpoint's thread has driven it, which that thread does while
 * no caller waits. */
typedef enum ddl__background {
    DDL__BACKGROUND_IDLE,   /* nothing is pending, or a waiter drives */
    DDL__BACKGROUND_ASLEEP, /* call again when the descriptor is readable, or after a while */
} ddl__background;
ddl__background ddl__engine_background(ddl__engine *engine);

/* Return true if a caller has driven (DDL__SOON) since the last call of this function. While
 * callers drive again and again, the endpoint's thread would only alternate with them. */
bool ddl__engine_was_driven(ddl__engine *engine);
int ddl__engine_fd(const ddl__engine *engine);

#endif
