/* SPDX-License-Identifier: Apache-2.0 */
/* world.h - the state of the model (model.h), for the files that implement it. */
#ifndef DDL_TESTS_EXPLORE_WORLD_H
#define DDL_TESTS_EXPLORE_WORLD_H

#include <string.h>

#include "base/time_limits.h"
#include "explore/model.h"
#include "membership/graph.h"
#include "membership/state.h"

/* The phase of a member's program. */
typedef enum phase { RUNNING, SHRINKING, CREATING, RETURNED, FAILED, CLOSED, DEAD } phase;

/* A message, linked to the next one of its channel. */
typedef struct message {
    uint64_t set;
    unsigned char kind; /* ddl__control_msg, or one of the ends below */
    signed char rank, by;
    unsigned char leader, attempt;
    unsigned char state : 7, flag : 1;
    uint16_t next; /* 0: it is the last one */
} message;

enum { END_LOCAL = 200, END_REMOTE, RESET };

typedef struct node {
    unsigned char phase;
    bool stopped, ended, watches, dirty, late;
    bool failed;           /* its shrink has failed */
    unsigned char attempt; /* the attempt that it creates, or has returned */
    unsigned char created; /* the attempt whose comm it has; 0: none */
    unsigned char made;    /* the last attempt that it has created */
    unsigned char unused[6];
    uint64_t list;      /* the members of `attempt` */
    uint64_t witnessed; /* members whose end its launcher has reported */
    uint64_t link;      /* members with which it has an open connection */
    uint64_t cut;       /* members whose messages do not arrive */
    uint64_t pending;   /* members whose channels to it hold messages */
} node;

/* The possible events, without faults, in which a member is `a`: for each type the set of members
 * b. */
typedef struct able {
    uint64_t deliver, silence, witness, believe, miss, unreached, heal;
    uint16_t single; /* bits of the event types without b, and of DIAL */
    uint16_t count;
    uint16_t leader; /* the leader that DIAL dials */
    bool leads;      /* it leads the agreement of a sparse comm */
    bool waits;      /* it waits for a limit */
} able;

struct world {
    unsigned char faults;
    bool was_cut, was_expelled, was_stopped, was_late, was_left;
    bool was_hasty; /* L3 and L4 do not apply, for example since a member's wait for evidence ended
                       before that evidence came */
    bool unused;
    uint64_t shared;                /* hosts that all cuts have in common */
    uint64_t expelled;              /* members that a program has expelled */
    uint64_t stopped, closed, dead; /* members in these states; `closed` includes dead ones */
    uint64_t stale;                 /* members whose `able` may have changed */
    uint64_t leading;               /* members that lead the agreement of a sparse comm */
    uint64_t waiting;               /* members that wait for a limit */
    uint64_t touched;               /* members whose state has changed since the last hash */
    uint16_t free, used;            /* the first free cell; the number of cells ever used */
    uint32_t machine_bytes;
    uint64_t n_events; /* the sum of the members' `count` */
    node nodes[];      /* followed by able[n], hashes[n], the machines, the channels by receiver and
                          sender, and the cells; cell number 0 means none */
};

typedef struct channel {
    uint16_t first, last;
} channel;

static inline able *ables(const model *m, const world *w)
{
    return (able *)(w->nodes + m->n);
}

static inline uint64_t *hashes(const model *m, const world *w)
{
    return (uint64_t *)(ables(m, w) + m->n);
}

static inline ddl__membership *machine(const model *m, const world *w, int rank)
{
    return (ddl__membership *)((unsigned char *)(hashes(m, w) + m->n) +
                               (size_t)rank * w->machine_bytes);
}

static inline channel *channel_of(const model *m, const world *w, int to, int from)
{
    return (channel *)machine(m, w, m->n) + (to * m->n + from);
}

static inline message *cells(const model *m, const world *w)
{
    return (message *)(channel_of(m, w, m->n, 0) + (m->n & 1));
}

static inline uint64_t bit(int rank)
{
    return UINT64_C(1) << rank;
}

static inline bool is_cut(const world *w, int a, int b)
{
    return w->nodes[a].cut >> b & 1;
}

static inline bool is_open(const node *n)
{
    return n->phase < CLOSED;
}

static inline bool runs(const node *n)
{
    return n->phase < CLOSED && !n->stopped;
}

/* The time of a member. The model has no real time: a limit is set to a time in the future, and to
 * a time in the past when it runs out. */
static inline int64_t now_of(const node *n)
{
    return n->late ? DEADLINE_S * DDL__S : 1;
}

static inline bool waits(const node *n, const ddl__membership *self)
{
    return now_of(n) < self->evidence_until || now_of(n) < self->disputed_until;
}

/* The members whose next message a can receive. A reset arrives despite a cut, because the device
 * that cuts the network sends it. */
uint64_t receivable(const model *m, const world *w, int a);

/* True if a message is on its way. */
bool is_busy(const model *m, const world *w);

/* The members from which a receives nothing more, and that it has not declared dead. */
uint64_t find_silent(const model *m, const world *w, int a);

/* True if a member has not yet shrunk the failed comm, or has not declared such a member dead, or
 * has not reported a death to the others. */
bool is_silence_unreported(const model *m, const world *w);

/* True if all members of a's list have started to create the comm, so that each may succeed. */
bool creation_may_succeed(const world *w, int a);

const char *check_one_group(const model *m, const world *w);
const char *check_return(const model *m, const world *w, int i);

/* The members that a leader believes alive, and that follow it. */
uint64_t find_followers(const model *m, const ddl__membership *self);

/* Check the list of a leader that had these followers. S4: it leaves out followers only because of
 * disputes, and only one if a single member takes part in all of them. S5: it keeps no two members
 * in dispute. */
const char *check_verdict(const model *m, const ddl__membership *self, uint64_t followers,
                          uint64_t list);

/* Drop the next message of a channel, which is not empty. */
void drop_first(const model *m, world *w, int to, int from);

#endif
