/* SPDX-License-Identifier: Apache-2.0 */
/* creation.h - the decisions of a comm's creation on one member: its number, the answers to other
 * members, the fact that ends it, the members to notify, and when to start again.
 *
 * A number distinguishes the creations of one family. The members agree on it while they connect.
 * Each member proposes a number above all that it has used or seen, and uses it at most once. The
 * highest proposal counts: a member that proposed a lower number is superseded, and starts again.
 *
 * One call to create a comm makes a sequence of attempts on a member, each with a larger number.
 * The state of an attempt (ddl__creation) changes with facts: messages of other members, states of
 * links, and the time. The first fact that ends the attempt is its reason, and is forwarded to
 * other members.
 *
 * All functions are pure. connect/ and comm/ carry out their decisions. tests/explore/creation
 * explores them. */
#ifndef DDL_MEMBERSHIP_CREATION_H
#define DDL_MEMBERSHIP_CREATION_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

/* Return the number of the next creation. `used` is the highest number that this member has used or
 * knows to be too low. `seen` is the highest number with which a member has connected and waits for
 * an answer, or 0. */
uint32_t ddl__creation_propose(uint32_t used, uint32_t seen);

/* Return the new value of `used` after another member was found at creation `number`, so that this
 * member may still propose that number. */
uint32_t ddl__creation_raise(uint32_t used, uint32_t number);

/* The reaction of a member at creation `own` to a peer that connects for creation `theirs`.
 * `is_missing` is true if `own` has no open link with the peer. */
typedef enum ddl__creation_verdict {
    DDL__CREATION_JOIN,   /* answer: the peer is at the same creation */
    DDL__CREATION_REFUSE, /* answer with `own`: the peer's creation is superseded */
    DDL__CREATION_YIELD,  /* this member's creation is superseded: the peer will not join it */
    DDL__CREATION_KEEP    /* the peer is at its next creation: keep the connection for that */
} ddl__creation_verdict;
ddl__creation_verdict ddl__creation_judge(uint32_t own, uint32_t theirs, bool is_missing);

/* Return true if a member that failed at creation `failed` will not join creation `own` either. */
bool ddl__creation_concerns(uint32_t failed, uint32_t own);

/* The cause of an attempt's end. If there are several, the first in this order counts. */
typedef enum ddl__creation_cause {
    DDL__CREATION_IN_VAIN,  /* the parent has failed, or a member is known to be dead */
    DDL__CREATION_NOTICED,  /* a member has sent a create-failure notice */
    DDL__CREATION_ABORTED,  /* a member has closed its link with a reason */
    DDL__CREATION_OUTDATED, /* a member is at a later creation */
    DDL__CREATION_LOST, /* a member has closed its link without a reason; counts only if no other
                           cause becomes known in time */
    DDL__CREATION_CAUSES
} ddl__creation_cause;

/* The reason why an attempt ends. */
typedef struct ddl__creation_end {
    ddl_status status;
    int from;        /* the member whose attempt failed first; -1: no attempt has failed, or the
                        member had connected to all */
    uint32_t number; /* number of the failed attempt at the endpoint of `from`. With DDL__SUPERSEDED
                        and `from` -1: number of the later creation */
} ddl__creation_end;

/* One attempt. */
typedef struct ddl__creation {
    uint32_t number;       /* its number in the family; 0: the comm's tag makes it unique */
    bool is_witnessed;     /* its members have another comm, which detects their deaths */
    int64_t deadline;      /* deadline of the call */
    int64_t doubted_until; /* after a loss: deadline for a fact that explains it; otherwise 0 */
    ddl__creation_end end; /* status DDL_OK: no other member has ended the attempt */
} ddl__creation;

/* The action after a fact. */
typedef enum ddl__creation_action {
    DDL__CREATION_CONTINUE = 0,
    DDL__CREATION_FAIL = 1,   /* the attempt has ended */
    DDL__CREATION_RAISE = 2,  /* propose no number below end.number: ddl__creation_raise */
    DDL__CREATION_IGNORE = 4, /* ignore the notice of end.from, which follows */
    DDL__CREATION_LOOK = 8    /* look for facts that explain the loss, and call again */
} ddl__creation_action;

/* Handle a new fact of this kind. `fact` is the content of a member's message; for
 * DDL__CREATION_LOST only the status counts. Returns the actions, as bits. */
unsigned ddl__creation_handle(ddl__creation *c, ddl__creation_cause cause,
                              const ddl__creation_end *fact, int64_t now);

/* Handle a member's answer to the hello of this attempt. If the member refused, `theirs` is the
 * creation number in its answer. Returns the actions, as bits. */
unsigned ddl__creation_handle_answer(ddl__creation *c, ddl_status answer, uint32_t theirs);

/* Return true if another member has ended the attempt, so this member has not failed by itself. */
bool ddl__creation_is_told(const ddl__creation *c);

/* Return true if a failure with this status may have a reason that is not known yet. */
bool ddl__creation_is_doubtful(const ddl__creation *c, ddl_status status);

/* Return true if the call's deadline has passed, not only the limit of the doubt. */
bool ddl__creation_is_late(const ddl__creation *c, int64_t now);

/* Return the reason with which this member closes its links. `own_rank` is its rank, `own_number`
 * the number of its attempt at its endpoint. */
ddl__creation_end ddl__creation_reason(const ddl__creation *c, ddl_status status, int own_rank,
                                       uint32_t own_number);

/* The way in which a member whose creation failed informs another member. */
typedef enum ddl__creation_audience {
    DDL__CREATION_TELL_NOTHING,
    DDL__CREATION_CLOSE_LINK, /* send the reason */
    DDL__CREATION_SEND_NOTICE
} ddl__creation_audience;
ddl__creation_audience ddl__creation_audience_of(const ddl__creation *c, ddl_status status,
                                                 bool is_linked);

/* Return true if the connections that wait for an answer are kept after an attempt that ended with
 * `status`: the next attempt then answers with its number. Otherwise they are closed. */
bool ddl__creation_keeps_waiting(const ddl__creation *c, ddl_status status);

/* Return true if another attempt follows an attempt that ended with `status`. */
bool ddl__creation_begins_again(ddl_status status, int64_t now, int64_t deadline);

#endif
