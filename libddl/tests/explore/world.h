/* SPDX-License-Identifier: Apache-2.0 */
/* world.h - the state of the model (model.h), for the files that implement it. */
#ifndef DDL_TESTS_EXPLORE_WORLD_H
#define DDL_TESTS_EXPLORE_WORLD_H

#include <string.h>

#include "base/time_limits.h"
#include "explore/model.h"
#include "membership/graph.h"
#include "membership/state.h"

/* Where a member's program is. */
typedef enum phase { RUNNING, SHRINKING, CREATING, RETURNED, FAILED, CLOSED, DEAD } phase;

/* A message, and the next one of its channel. */
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
    bool failed;           /* its shrink has */
    unsigned char attempt; /* that it creates, or has returned */
    unsigned char created; /* the attempt whose comm it has; 0: none */
    unsigned char made;    /* the last attempt that it has created */
    unsigned char unused[6];
    uint64_t list;      /* of that attempt */
    uint64_t witnessed; /* ends that its launcher has reported */
    uint64_t link;      /* members with which it has an open connection */
    uint64_t cut;       /* members from which nothing gets through */
    uint64_t pending;   /* members whose channels to it hold messages */
} node;

/* The events, without faults, that a member takes part in as `a`. Sets of the members b. */
typedef struct able {
    uint64_t deliver, silence, witness, believe, miss, unreached, heal;
    uint16_t single; /* bits of the events without b, and of DIAL */
    uint16_t count;
    uint16_t leader; /* of DIAL */
    bool leads;      /* the agreement of a sparse comm */
    bool waits;      /* for a limit */
} able;

struct world {
    unsigned char faults;
    bool was_cut, was_expelled, was_stopped, was_late, was_left;
    bool was_hasty; /* a member has not waited for a message that was on its way */
    bool unused;
    uint64_t expelled;              /* members that a program has expelled */
    uint64_t stopped, closed, dead; /* members: sums of what the nodes say; closed or dead */
    uint64_t stale;                 /* members whose `able` may have changed */
    uint64_t leading;               /* members that lead the agreement of a sparse comm */
    uint64_t waiting;               /* members that wait for a limit */
    uint64_t touched;               /* members whose state has changed since the last hash */
    uint16_t free, used;            /* cells: the first free one, and the number ever used */
    uint32_t machine_bytes;
    uint64_t n_events; /* the sum of the counts */
    node nodes[]; /* then able[n], the hashes[n], the machines, the channels by receiver and sender,
                     and the cells; a cell's number 0 stands for none */
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

/* The time of a member. Only what it has waited for counts: a limit is set to a time in the future,
 * and to a time in the past when it has run out. */
static inline int64_t now_of(const node *n)
{
    return n->late ? DEADLINE_S * DDL__S : 1;
}

static inline bool waits(const node *n, const ddl__membership *self)
{
    return now_of(n) < self->evidence_until || now_of(n) < self->disputed_until;
}

/* Members whose next message a can receive. A reset gets through a cut, since what cuts the hosts
 * apart sends it. */
uint64_t receivable(const model *m, const world *w, int a);

/* True if a message is on its way. */
bool is_busy(const model *m, const world *w);

/* True if all of the list have begun to create it: then it may succeed on each. */
bool creation_may_succeed(const world *w, int a);

const char *check_one_group(const model *m, const world *w);
const char *check_return(const model *m, const world *w, int i);

/* Drop the next message of a channel, which is not empty. */
void drop_first(const model *m, world *w, int to, int from);

#endif
