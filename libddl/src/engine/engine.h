/* SPDX-License-Identifier: Apache-2.0 */
/* engine.h - the works of one comm, and the thread that drives them. Runs plans over links. */
#ifndef DDL_ENGINE_ENGINE_H
#define DDL_ENGINE_ENGINE_H

#include "base/fences.h"
#include "engine/calls/group.h"
#include "engine/executor/choices.h"
#include "engine/executor/meter.h"
#include "engine/recorder/recorder.h"
#include "net/regions.h"

/* How soon the thread of the endpoint is to drive. */
typedef enum ddl__urgency {
    DDL__NOW,
    DDL__SOON /* if nobody waits by then: what could be done at once is done */
} ddl__urgency;

typedef struct ddl__engine_config {
    int rank, size;
    ddl__link **links;    /* by rank, NULL for the own rank; owned by the engine */
    ddl__link **messages; /* the same for messages; destroyed before the others */
    char **names;         /* by rank, as "rank 2 on host"; borrowed, they outlive the engine */
    int64_t segment_bytes;
    int64_t window;            /* see ddl__request */
    int64_t message_window;    /* the same for the message links */
    ddl__regions *regions;     /* of the endpoint; borrowed; or NULL */
    const ddl__fences *fences; /* heavy ones that its arena announces, or NULL */
    bool sharing_cores;        /* more members on this host than cores */
    /* A work is pending and nobody waits for it, so some thread must drive. Called by any thread,
     * with no lock held. */
    void (*need_progress)(void *context, ddl__urgency urgency);
    void *context;
} ddl__engine_config;

/* Takes ownership of the links in any case. NULL when a resource is refused (message set). */
ddl__engine *ddl__engine_create(const ddl__engine_config *config);

/* Close all links with a leave message, complete all works with DDL_EABORTED, free. */
void ddl__engine_destroy(ddl__engine *engine);

/* The links by rank: of ordered operations; of messages and named operations. */
ddl__link *const *ddl__engine_links(const ddl__engine *engine);
ddl__link *const *ddl__engine_message_links(const ddl__engine *engine);

/* Plan for ranks that all share memory from now on. Before any concurrent use. */
void ddl__engine_all_shared(ddl__engine *engine);

/* Plan for rings of so many bytes from now on. is_near: they stay in a core's second-level cache.
 * Before any concurrent use. */
void ddl__engine_set_window(ddl__engine *engine, int64_t window, bool is_near);

/* Plan for this topology from now on. It outlives the engine. Before any concurrent use. */
void ddl__engine_set_topology(ddl__engine *engine, const ddl__topology *topology);

/* Use the algorithms of these choices from now on, and for what they leave open, this one (none:
 * the costs choose). The choices outlive the engine. Before any concurrent use. */
void ddl__engine_set_choices(ddl__engine *engine, const ddl__choices *choices, ddl__algorithm by);

/* Measure ordered operations from now on. The meter outlives the engine. Before any concurrent use.
 */
void ddl__engine_set_meter(ddl__engine *engine, ddl__meter *meter);

/* The algorithms that are worth a comparison for this call: as ddl__plan_candidates. */
int ddl__engine_candidates(const ddl__engine *engine, const ddl__call *call,
                           ddl__candidate found[DDL__ALGORITHMS]);

/* Queue an operation. If work is NULL, run it to its end. Takes ownership of call->blocks in any
 * case. */
ddl_status ddl__engine_submit(ddl__engine *engine, const ddl__call *call, ddl_work **work);

/* Queue all operations of the group. `call` describes the whole. The group stays with the caller.
 */
ddl_status ddl__engine_submit_group(ddl__engine *engine, ddl_group *group, const ddl__call *call,
                                    ddl_work **work);

/* The results of the group's operations, which is `held`, are where the caller wants them, or will
 * not be: then with a status other than DDL_OK. Any thread. */
void ddl__engine_release_group(ddl__engine *engine, ddl_group *group, ddl_status status);

/* Its operation may start. Any thread. */
void ddl__engine_release_hold(ddl__engine *engine, ddl__hold *hold);

/* Whether the group is submitted and not complete. */
bool ddl__engine_holds_group(ddl__engine *engine, const ddl_group *group);

/* Free the group; if it is submitted, when it is complete. */
void ddl__engine_drop_group(ddl__engine *engine, ddl_group *group);

ddl_status ddl__engine_status(ddl__engine *engine);
void ddl__engine_abort(ddl__engine *engine, const char *reason);

/* End the comm everywhere for a cause that no link tells, such as a dead peer. The first cause
 * wins. Any thread; does not block. */
void ddl__engine_fail(ddl__engine *engine, ddl_status status, const char *text);

/* Append why this rank still waits, as ": rank 1 not there yet; ...", or nothing: for an operation
 * by order, or (NULL) for the one with this name. Called by the driver without the engine's lock.
 */
typedef void ddl__explain_fn(void *context, const ddl__signature *operation, const char *name,
                             char *text, size_t size);

/* Explain by this function from now on; NULL: not. When this returns, no call of the earlier
 * function runs. Any thread. */
void ddl__engine_set_explainer(ddl__engine *engine, ddl__explain_fn *explain, void *context);

/* The comm is created, and its failure detector runs. Before that, a lost link soon ends the comm
 * even if nothing waits for it. */
void ddl__engine_created(ddl__engine *engine);

/* The process of this member has ended. A lost link alone proves less: a member that ends the comm
 * may have no room to say why, and its reason then comes a little later. Any thread. */
void ddl__engine_peer_died(ddl__engine *engine, int rank);

/* This member sends nothing any more; it has left the comm, or its process has ended before it
 * could. Any thread. */
void ddl__engine_peer_gone(ddl__engine *engine, int rank);

/* A link that was unopened has this descriptor now: watch it. Any thread. */
void ddl__engine_watch(ddl__engine *engine, ddl__link *link, int fd);

/* No link to this peer can be opened: end the comm. Any thread. */
void ddl__engine_peer_unreachable(ddl__engine *engine, int peer, const char *text);

/* Whether the comm has ended because of this peer. */
typedef enum ddl__finding { DDL__PEER_FINE, DDL__PEER_LOST, DDL__PEER_UNREACHABLE } ddl__finding;
ddl__finding ddl__engine_find_peer(const ddl__engine *engine, int peer);

/* The driver is to look at its links again, if it sleeps. Any thread. */
void ddl__engine_wake(ddl__engine *engine);

/* Close all links and tell the peers why. Nothing runs on this comm, nor will. */
void ddl__engine_close_links(ddl__engine *engine, ddl_status status, const char *text);

/* The progress so far. Any thread. */
typedef struct ddl__snapshot {
    ddl_status status;
    bool told;                  /* a caller has been told of the failure */
    uint64_t pending, finished; /* works */
    uint64_t moves;             /* steps that operations have made */
    uint64_t passes;            /* passes in which messages moved: a long message takes many */
    uint64_t scratch;           /* bytes of scratch memory that the engine keeps for plans */
    uint64_t lent;              /* bytes that peers have read or stored where they lie */
    char text[DDL__MESSAGE_MAX];
} ddl__snapshot;
ddl__snapshot ddl__engine_snapshot(ddl__engine *engine);

/* A named operation that waits for its turn. */
typedef struct ddl__waiting {
    char name[DDL_NAME_MAX];
    ddl__signature signature;
    int64_t submitted, deadline;
} ddl__waiting;

enum { DDL__WAITING_MAX = 32 };

/* Get the oldest of these, up to max (at most DDL__WAITING_MAX). Returns how many. Any thread. */
int ddl__engine_waiting(ddl__engine *engine, ddl__waiting *waiting, int max);

/* On rank 0, which matches names: whether that rank is not known to have called this one. In any
 * case `last` is the name that it called last, "" if none. Any thread. */
bool ddl__engine_name_is_missing(ddl__engine *engine, const char *name, int rank,
                                 char last[DDL_NAME_MAX]);

const ddl__recorder *ddl__engine_recorder(const ddl__engine *engine);

/* Receive what peers have said although nothing waits for them: a failure of theirs becomes a
 * failure of this comm. Any thread; does not block. */
void ddl__engine_poll(ddl__engine *engine);

ddl_status ddl__engine_completed(ddl__engine *engine, ddl_work **works, void **users, int max,
                                 int64_t deadline, int *taken);

/* A descriptor that is readable while there are completed works to take. The engine owns it. */
ddl_status ddl__engine_report_fd(ddl__engine *engine, int *fd);

/* The result of the work, with its message in this thread, once it is complete or at the deadline.
 */
ddl_status ddl__work_wait(ddl_work *work, int64_t deadline);
ddl_status ddl__work_test(const ddl_work *work);
void ddl__work_destroy(ddl_work *work);

/* The thread of the endpoint drives while nobody waits. */
typedef enum ddl__background {
    DDL__BACKGROUND_IDLE,   /* nothing is pending, or a waiter drives */
    DDL__BACKGROUND_ASLEEP, /* call again when the fd is readable, or after a while */
} ddl__background;
ddl__background ddl__engine_background(ddl__engine *engine);

/* Whether a caller has driven by itself (DDL__SOON) since the last call. If callers come again and
 * again, the thread of the endpoint would only alternate with them. */
bool ddl__engine_was_driven(ddl__engine *engine);
int ddl__engine_fd(const ddl__engine *engine);

#endif
