/* SPDX-License-Identifier: Apache-2.0 */
/* model.h - the members of a comm that create children of it: libddl's own decisions
 * (membership/creation.h) for each, over a model of their connections and programs.
 *
 * Design notes. Each program makes the same calls; odd ranks may make them in another order. A call
 * that times out, or fails because a child was aborted, is repeated. A world is one block of memory
 * without pointers, so that a search can copy it. Each dial is a separate connection: the network
 * keeps the order of messages within a connection, but not between connections. A member handles
 * messages and checks facts one at a time, in any order. On each member, the knowledge of the
 * parent's failure is an event: explore/model.h explores its details. */
#ifndef DDL_TESTS_EXPLORE_CREATION_MODEL_H
#define DDL_TESTS_EXPLORE_CREATION_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { MOST = 6, CALLS = 2, FAMILIES = 2, RETRIES = 6, NUMBERS = 64 };

typedef enum event_type {
    DELIVER, /* a receives message `which` of b */
    CALL,    /* a's program creates a child */
    ACCEPT,  /* a answers b, which is at the same creation */
    CHECK,   /* a checks if its creation has ended */
    LEAVE,   /* a's program destroys the child */
    KNOW,    /* a detects that the parent has failed */
    GIVE_UP, /* a stops waiting for a fact that explains a loss */
    TIME_UP, /* a's limit runs out because another member is in another call */
    NATURAL,
    KILL = NATURAL, /* a's process ends */
    ABORT,          /* a's program aborts the parent */
    ABORT_CHILD,    /* a's program aborts its child */
    LATE,           /* a's limit runs out */
    REFUSE,         /* a fails for its own reason, such as lack of memory */
    TYPES
} event_type;

typedef struct event {
    unsigned char type, a, b, which;
} event;

typedef struct model {
    int n;
    bool crossed;    /* odd ranks make the calls in another order */
    bool has_subset; /* the second child is without the last rank */
    unsigned faults; /* the maximum number in a schedule */
} model;

typedef struct world world;

size_t world_bytes(void);
void world_init(const model *m, world *w);

/* List the events that can happen next. Returns their number. */
int world_events(const model *m, const world *w, event *events, int capacity, bool faults);
bool world_allows(const model *m, const world *w, event e);

/* Apply an event. Returns NULL, or the invariant that is broken. */
const char *world_apply(const model *m, world *w, event e);

/* Check the invariants at the end of a schedule, when only faults can happen. */
const char *world_check_end(const model *m, const world *w);

uint64_t world_hash(const world *w);
void world_print(const model *m, const world *w);
void event_print(event e);

#endif
