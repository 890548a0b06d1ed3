/* SPDX-License-Identifier: Apache-2.0 */
/* world.h - the state of the model (model.h), for the files that implement it. */
#ifndef DDL_TESTS_EXPLORE_CREATION_WORLD_H
#define DDL_TESTS_EXPLORE_CREATION_WORLD_H

#include "explore/creation/model.h"
#include "membership/creation.h"

enum { QUEUE = 24, PARKED = 6 };

/* The status in CLOSE when a member leaves the child. */
#define LEFT ((ddl_status)1)

/* The phase of a member's call. */
typedef enum phase {
    IDLE,
    CONNECTING,
    EXCHANGING, /* connected to all: the settings are exchanged */
    COMMITTING,
    HAS,   /* the member has the child */
    DONE,  /* all calls are made */
    ENDED, /* the parent has failed, or too many calls have failed */
    DEAD
} phase;

typedef enum kind { HELLO = 1, ANSWER, CLOSE, SETTINGS, COMMIT, NOTICE } kind;

/* A message. `dial` is the connection's number at its dialer, the higher rank. */
typedef struct message {
    int16_t status;
    unsigned char kind, family, number, later, dial;
    signed char from;
} message;

typedef struct channel {
    message queue[QUEUE];
    unsigned char length, unused[7];
} channel;

typedef enum link_state { NONE, DIALED, OPEN, CLOSED } link_state;

typedef struct link {
    unsigned char state, dial;
    bool has_reason, unused;
    int16_t status;
    signed char from;
    unsigned char number;
} link;

typedef struct node {
    ddl__creation creation;
    int64_t now;
    uint64_t connected[FAMILIES]; /* numbers with which this member was connected to all */
    uint64_t numbers[FAMILIES];   /* numbers that it has used */
    link links[MOST];
    message parked[MOST][PARKED], notices[MOST];
    unsigned char ignored[MOST]; /* the number of each member's last failure that was relayed */
    unsigned char phase, call, family, retries, dials, attempts, settings, commits;
    unsigned char used[FAMILIES];
    bool knows; /* it knows that the parent has failed */
} node;

struct world {
    unsigned char faults, unused[4];
    bool failed;   /* the parent has failed */
    bool was_late; /* a limit has run out, or a member has failed by itself */
    bool was_left; /* a program no longer makes calls that the others wait for */
    node nodes[MOST];
    channel channels[MOST][MOST]; /* by receiver and sender */
};

static inline bool is_listed(const model *m, int family, int rank)
{
    return rank < m->n - (m->has_subset && family == 1);
}

static inline int family_of(const model *m, int rank, int call)
{
    return m->crossed && rank % 2 ? CALLS - 1 - call : call;
}

static inline int size_of(const model *m, int family)
{
    return m->n - (m->has_subset && family == 1);
}

static inline bool creates(const node *n)
{
    return n->phase >= CONNECTING && n->phase <= COMMITTING;
}

/* True if the channel has no earlier message of the same connection. A notice has its own. */
static inline bool is_next(const channel *c, int at)
{
    for (int i = 0; i < at; i++)
        if (c->queue[i].kind != NOTICE && c->queue[i].dial == c->queue[at].dial)
            return c->queue[at].kind == NOTICE;
    return true;
}

static inline bool is_of_pairs(int type)
{
    return type == DELIVER || type == ACCEPT;
}

/* True if the member's next look for facts would change something. */
bool check_is_due(const model *m, const world *w, int rank);

#endif
