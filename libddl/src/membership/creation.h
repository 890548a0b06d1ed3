/* SPDX-License-Identifier: Apache-2.0 */
/* creation.h - a comm's creation on one member: which number it has, how members answer each other,
 * which fact ends it, who is told of that, and when a member begins again.
 *
 * Creations of one family are told apart by a number on which the members agree while they connect.
 * Each proposes one above all that it has used or seen, and uses it at most once. The highest
 * proposal counts: a member that proposed a lower one is superseded, and begins again.
 *
 * A call on one member is a sequence of attempts, each with a larger number. An attempt is a state
 * (ddl__creation) that facts change: what others have sent, what has become of the links, and the
 * time. The first fact that ends it counts, and is passed on.
 *
 * All functions are pure. connect/ and comm/ carry out what they decide. tests/explore/creation.c
 * explores them. */
#ifndef DDL_MEMBERSHIP_CREATION_H
#define DDL_MEMBERSHIP_CREATION_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

/* The number of the next creation. `used`: the highest that this member has used, or that it knows
 * to be too low; `seen`: the highest of the members that wait here to be answered, or 0. */
uint32_t ddl__creation_propose(uint32_t used, uint32_t seen);

/* `used`, after a member was seen at the creation `number`: that one may still be joined. */
uint32_t ddl__creation_raise(uint32_t used, uint32_t number);

/* What a member at creation `own` does with one that connects for `theirs`. `is_missing`: there is
 * no open link with it in `own`. */
typedef enum ddl__creation_verdict {
    DDL__CREATION_JOIN,   /* answer it: it is at the same creation */
    DDL__CREATION_REFUSE, /* answer with the own number: its creation is superseded */
    DDL__CREATION_YIELD,  /* the own creation is superseded: it never comes to that */
    DDL__CREATION_KEEP    /* it is at its next creation already: keep it for that */
} ddl__creation_verdict;
ddl__creation_verdict ddl__creation_judge(uint32_t own, uint32_t theirs, bool is_missing);

/* True if a member that failed at creation `failed` does not come to creation `own` either. */
bool ddl__creation_concerns(uint32_t failed, uint32_t own);

/* Why an attempt ends. If there are several causes, the first in this order counts. */
typedef enum ddl__creation_cause {
    DDL__CREATION_IN_VAIN,  /* the parent has failed, or a member is known to be dead */
    DDL__CREATION_NOTICED,  /* a member has sent a create-failure notice */
    DDL__CREATION_ABORTED,  /* a member has closed its link with a reason */
    DDL__CREATION_OUTDATED, /* a member is at a later creation */
    DDL__CREATION_LOST, /* a member has closed its link without a reason: it waits for one of the
                           others before that counts */
    DDL__CREATION_CAUSES
} ddl__creation_cause;

/* The reason why an attempt ends. */
typedef struct ddl__creation_end {
    ddl_status status;
    int from;        /* the member whose attempt failed first; -1: no attempt has failed, or the
                        member had connected to all */
    uint32_t number; /* that attempt's number at its endpoint. With DDL__SUPERSEDED and from -1, the
                        number of the later creation */
} ddl__creation_end;

/* One attempt. */
typedef struct ddl__creation {
    uint32_t number;       /* in its family; 0: the comm's tag makes it unique */
    bool is_witnessed;     /* its members have a comm already, which learns of their deaths */
    int64_t deadline;      /* of the call */
    int64_t doubted_until; /* a member is lost: until then another fact may say why; 0: none is */
    ddl__creation_end end; /* status DDL_OK: no fact of another member has ended the attempt */
} ddl__creation;

/* What to do after a fact. */
typedef enum ddl__creation_action {
    DDL__CREATION_CONTINUE = 0,
    DDL__CREATION_FAIL = 1,   /* the attempt has ended */
    DDL__CREATION_RAISE = 2,  /* propose no number below end.number: ddl__creation_raise */
    DDL__CREATION_IGNORE = 4, /* ignore the notice of end.from, which follows */
    DDL__CREATION_LOOK = 8    /* look for the facts that may say why, and come again */
} ddl__creation_action;

/* A fact of this kind has become known. `fact`: what a member has sent; of DDL__CREATION_LOST only
 * the status counts. Returns the actions, as bits. */
unsigned ddl__creation_handle(ddl__creation *c, ddl__creation_cause cause,
                              const ddl__creation_end *fact, int64_t now);

/* A member has answered the hello of this attempt. `theirs`: its number, if it has refused. */
unsigned ddl__creation_handle_answer(ddl__creation *c, ddl_status answer, uint32_t theirs);

/* True if another member has ended the attempt: this one has not failed by itself. */
bool ddl__creation_is_told(const ddl__creation *c);

/* True if a failure with this status may have a reason that is not known yet. */
bool ddl__creation_is_doubtful(const ddl__creation *c, ddl_status status);

/* True if the time of the call is up, not only that of the doubt. */
bool ddl__creation_is_late(const ddl__creation *c, int64_t now);

/* The reason that this member closes its links with. `own`: its rank, and the number of its attempt
 * at its endpoint. */
ddl__creation_end ddl__creation_reason(const ddl__creation *c, ddl_status status, int own_rank,
                                       uint32_t own_number);

/* What a member that fails with `status` sends to another one. */
typedef enum ddl__creation_audience {
    DDL__CREATION_TELL_NOTHING,
    DDL__CREATION_CLOSE_LINK, /* with the reason */
    DDL__CREATION_SEND_NOTICE
} ddl__creation_audience;
ddl__creation_audience ddl__creation_audience_of(const ddl__creation *c, ddl_status status,
                                                 bool is_linked);

/* True if the members that wait for an answer of an attempt that ended with `status` are kept: the
 * next one answers them with its number. Else their connections are closed. */
bool ddl__creation_keeps_waiting(const ddl__creation *c, ddl_status status);

/* True if an attempt that ended with `status` is followed by another one. */
bool ddl__creation_begins_again(ddl_status status, int64_t now, int64_t deadline);

#endif
