/* engine.h - the works of one comm, and who drives them. Runs plans over links. */
#ifndef DDL_ENGINE_ENGINE_H
#define DDL_ENGINE_ENGINE_H

#include "base/fences.h"
#include "engine/choices.h"
#include "engine/group.h"
#include "engine/recorder.h"

/* How soon the endpoint's thread is to drive. */
typedef enum ddl__urgency {
    DDL__NOW,
    DDL__SOON /* if still nobody waits then: what could be done at once is done */
} ddl__urgency;

typedef struct ddl__engine_config {
    int rank, size;
    ddl__link **links;    /* by rank, NULL for our own; owned by the engine from here on */
    ddl__link **messages; /* the same for messages; they go before the others */
    char **names; /* by rank: "rank 2 on host" for messages; borrowed, outlives the engine */
    int64_t segment_bytes;
    int64_t window;            /* see ddl__request */
    int64_t message_window;    /* the same of the message links */
    const ddl__fences *fences; /* heavy ones that its arena promises, or NULL */
    bool sharing_cores;        /* more members on this host than cores */
    /* Somebody must drive: a work is pending and nobody waits for it. May be called by any thread,
     * with no lock held. */
    void (*need_progress)(void *context, ddl__urgency urgency);
    /* Exploring has found what to choose. Called by the driver, of rank 0 only. */
    void (*keep_choices)(void *context, const ddl__choices *choices);
    void *context;
} ddl__engine_config;

/* Takes the links in any case. NULL when a resource is refused (message set). */
ddl__engine *ddl__engine_create(const ddl__engine_config *config);

/* Close all links with goodbye, complete all works with DDL_EABORTED, free. */
void ddl__engine_destroy(ddl__engine *engine);

/* The links, by rank: of ordered operations; of messages and named operations. */
ddl__link *const *ddl__engine_links(const ddl__engine *engine);
ddl__link *const *ddl__engine_message_links(const ddl__engine *engine);

/* From now on plan for ranks that all share memory. Before any concurrent use. */
void ddl__engine_all_shared(ddl__engine *engine);

/* From now on plan for this topology, which outlives the engine. Before any concurrent use. */
void ddl__engine_set_topology(ddl__engine *engine, const ddl__topology *topology);

/* From now on choose algorithms as a mode has it (layout.h; 0: none) and these choices, and report
 * every so many operations (0: never) how long the topology's levels take. Before any concurrent
 * use. False when out of memory. */
bool ddl__engine_tune(ddl__engine *engine, char mode, int dump_iter, const ddl__choices *choices,
                      const ddl__topology *topology);

/* Queue an operation. work NULL: run it to its end. Takes call->blocks in any case. */
ddl_status ddl__engine_submit(ddl__engine *engine, const ddl__call *call, ddl_work **work);

/* Queue all that the group has collected; `call` holds what counts for the whole. The group stays
 * the caller's. */
ddl_status ddl__engine_submit_group(ddl__engine *engine, ddl_group *group, const ddl__call *call,
                                    ddl_work **work);

/* Whether the group is submitted and not complete. */
bool ddl__engine_holds_group(ddl__engine *engine, const ddl_group *group);

/* Free the group, if it is under way at its end. */
void ddl__engine_drop_group(ddl__engine *engine, ddl_group *group);

ddl_status ddl__engine_status(ddl__engine *engine);
void ddl__engine_abort(ddl__engine *engine, const char *reason);

/* End the comm everywhere for a cause that no link tells: a peer is dead, ... Any thread; does not
 * block. The first cause wins. */
void ddl__engine_fail(ddl__engine *engine, ddl_status status, const char *text);

/* The members watch each other from now on. Before that, whose link is lost ends the comm although
 * nothing waits for it, a moment later. */
void ddl__engine_created(ddl__engine *engine);

/* The process of this member has ended. A lost link alone may also be the work of a member that
 * ends the comm and has no room to say why: then its word comes in a moment. Any thread. */
void ddl__engine_peer_died(ddl__engine *engine, int rank);

/* Nothing runs on this comm, nor will: tell the peers why. */
void ddl__engine_close_links(ddl__engine *engine, ddl_status status, const char *text);

/* How it goes; any thread. */
typedef struct ddl__snapshot {
    ddl_status status;
    bool told;                  /* a caller knows of the failure */
    uint64_t pending, finished; /* works */
    uint64_t moves;             /* steps of operations that are under way */
    uint64_t passes;            /* in which messages got on: a long one takes many */
    uint64_t scratch;           /* bytes of memory that plans have wanted and the engine keeps */
    char text[DDL__MESSAGE_MAX];
} ddl__snapshot;
ddl__snapshot ddl__engine_snapshot(ddl__engine *engine);

/* An operation by name that waits for its turn. */
typedef struct ddl__waiting {
    char name[DDL_NAME_MAX];
    ddl__signature signature;
    int64_t submitted;
} ddl__waiting;

enum { DDL__WAITING_MAX = 32 };

/* The oldest of them, up to max (at most DDL__WAITING_MAX); how many. Any thread. */
int ddl__engine_waiting(ddl__engine *engine, ddl__waiting *waiting, int max);

/* On rank 0, which matches names: whether that rank has not called this one, as far as is known;
 * and, in any case, the name that it has called last, "" being none. Any thread. */
bool ddl__engine_name_is_missing(ddl__engine *engine, const char *name, int rank,
                                 char last[DDL_NAME_MAX]);

/* What has happened so far. */
const ddl__recorder *ddl__engine_recorder(const ddl__engine *engine);

/* Take in what peers have said, although nothing waits for them: a failure of theirs becomes
 * ours. Any thread; does not block. */
void ddl__engine_poll(ddl__engine *engine);

ddl_status ddl__engine_completed(ddl__engine *engine, ddl_work **works, void **users, int max,
                                 int64_t deadline, int *taken);

/* A descriptor that is readable while there are completed works to take; the engine's. */
ddl_status ddl__engine_report_fd(ddl__engine *engine, int *fd);

/* The work's result with its message in this thread, once complete or at the deadline. */
ddl_status ddl__work_wait(ddl_work *work, int64_t deadline);
ddl_status ddl__work_test(const ddl_work *work);
void ddl__work_destroy(ddl_work *work);

/* The endpoint's thread drives while nobody waits. */
typedef enum ddl__background {
    DDL__BACKGROUND_IDLE,   /* nothing pending, or somebody waits and drives */
    DDL__BACKGROUND_ASLEEP, /* call again when the fd is readable, or after a while */
} ddl__background;
ddl__background ddl__engine_background(ddl__engine *engine);

/* Whether a caller has driven by itself (DDL__SOON) since this was asked last: while it comes again
 * and again, the endpoint's thread would only take turns with it. */
bool ddl__engine_was_driven(ddl__engine *engine);
int ddl__engine_fd(const ddl__engine *engine);

#endif
