/* SPDX-License-Identifier: Apache-2.0 */
/* model.h - the members of one comm in one process: libddl's own state machine (membership/) for
 * each, over a model of their hosts, network and programs.
 *
 * Design notes. A world is one block of memory without pointers into itself, so that a search can
 * copy it. Everything that can happen next is an event, and the caller chooses one.
 * - A channel leads from each member to each other member. It keeps the order of messages. It may
 *   be cut, and may heal.
 * - A timer may run out at any point: WAIT lets all limits of a member run out, except the limit of
 *   its shrink. LATE lets that one run out, too.
 * - A program shrinks its comm when it has failed, and may then destroy the old comm. The comm that
 *   a shrink creates is not modelled, but the outcome of its creation on each member is. */
#ifndef DDL_TESTS_EXPLORE_MODEL_H
#define DDL_TESTS_EXPLORE_MODEL_H

#include "membership/membership.h"

enum { MOST = 64, DEADLINE_S = 1000, EVENTS = 16384 };

typedef enum event_type {
    DELIVER,        /* member a receives the next message of b */
    ADVANCE,        /* a's shrinking thread runs */
    SHRINK,         /* a's program shrinks the failed comm */
    CREATED,        /* a's creation of the next comm succeeds */
    UNCREATED,      /* a's creation of the next comm fails */
    CLOSE,          /* a's program destroys the old comm, after its shrink */
    GRACE,          /* a's comm ends, some time after a member's process has ended */
    SILENCE,        /* a has received nothing from b for dead_ms */
    WITNESS,        /* a's launcher reports the end of b's process */
    BELIEVE,        /* a, whose comm is dead, uses WITNESS about a b without connection */
    WAIT,           /* a's waiting time for evidence runs out */
    DIAL,           /* a dials b, the leader of a sparse comm */
    MISS,           /* the leader a gives up waiting for b's connection */
    UNREACHED,      /* a gets no answer from b's host while it creates the next comm */
    HEAL,           /* the hosts of a and b are connected again */
    RESUME,         /* a continues after it was stopped */
    NATURAL,        /* the number of events above, which are not faults */
    KILL = NATURAL, /* a's process ends; flag: its unread TCP messages are lost */
    CUT,   /* the network between the hosts of a and b is cut; flag: connections are reset */
    STOP,  /* a is stopped */
    ABORT, /* a's program aborts the comm */
    EXPEL, /* a's program expels b */
    LEAVE, /* a's program destroys the comm without a shrink */
    LATE,  /* a's limit of the shrink runs out */
    TYPES
} event_type;

typedef struct event {
    unsigned char type, a, b, flag;
} event;

typedef struct model {
    int n;
    unsigned char host[MOST]; /* each member's host */
    bool launcher;            /* a launcher reports the end of processes on all hosts */
    bool heals;               /* cut hosts may be connected again, stopped members may continue */
    bool sparse;              /* only neighbours are connected, even with few members */
    unsigned faults;          /* the maximum number of faults in a schedule */
    unsigned kinds;           /* bits of the faults' event types that may happen */
} model;

typedef struct world world;

size_t world_bytes(const model *m);
void world_init(const model *m, world *w);
void world_copy(const model *m, world *to, const world *from);

/* The number of events, without faults, that can happen next, and one of them. */
int world_count(const model *m, world *w);
event world_choose(const model *m, world *w, int number);

/* True if faults are left. */
bool world_may_fail(const model *m, const world *w);

/* List the faults of this type that can happen next. Returns their number. */
int world_faults(const model *m, const world *w, event_type type, event *events);

/* List the events that can happen next. Returns their number. */
int world_events(const model *m, world *w, event *events, bool faults);

/* True if the event can happen now. */
bool world_allows(const model *m, world *w, event e);

/* Apply an event. Returns NULL, or the invariant that is broken. */
const char *world_apply(const model *m, world *w, event e);

/* Check the invariants at the end of a schedule, when only faults can happen. */
const char *world_check_end(const model *m, const world *w);

/* ---- reduce.c: see the design notes there ---- */

/* Replace the state by its normal form, which has the same future. Returns NULL, or the invariant
 * that an event on the way breaks. */
const char *world_reduce(const model *m, world *w);

/* The hash of a state in normal form. */
uint64_t world_hash(const model *m, world *w);

/* The highest attempt that a member creates, or has created. */
int world_attempt(const model *m, const world *w);

/* True if a member continued while a message to it was on its way, which excuses it from L3. */
bool world_is_hasty(const world *w);
void world_set_hasty(world *w, bool hasty);

/* ---- views.c ---- */

/* The state of a member that its process must report when it carries out the schedule. */
typedef enum member_phase {
    IS_RUNNING,
    IS_SHRINKING,
    HAS_RETURNED,
    HAS_FAILED,
    HAS_ENDED
} member_phase;
typedef struct member_view {
    member_phase phase;
    bool ended;                 /* its comm has failed */
    bool creates;               /* it creates the next comm */
    bool may_create;            /* all others of its list create it, or have created it */
    uint64_t list;              /* the members of the comm that it creates or has returned */
    unsigned char states[MOST]; /* its view of the members' states */
} member_view;
member_view world_view(const model *m, const world *w, int rank);

/* The kind of the next message of a channel: a ddl__control_msg or END_OF_CONNECTION; 0: none. */
enum { END_OF_CONNECTION = 200 };
int world_next_kind(const model *m, const world *w, int to, int from);

/* ---- print.c ---- */

void world_print(const model *m, world *w);
void event_print(event e);

#endif
