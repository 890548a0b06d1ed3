/* SPDX-License-Identifier: Apache-2.0 */
/* creation.h - the decisions of a comm's creation: which number it has, how members answer each
 * other, which failure counts, when a member begins again.
 *
 * Creations of one family are told apart by a number on which the members agree while they connect.
 * Each proposes one above all that it has used or seen, and uses it at most once. The highest
 * proposal counts: a member that proposed a lower one is superseded, and begins again.
 *
 * All functions are pure. connect/ and comm/ carry out what they decide. */
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

/* Why an attempt ends. If there are several causes, the first in this order is reported. */
typedef enum ddl__creation_cause {
    DDL__CREATION_IN_VAIN,  /* the parent has failed, or a member is known to be dead */
    DDL__CREATION_NOTICED,  /* a member has sent a create-failure notice */
    DDL__CREATION_ABORTED,  /* a member has closed its link with a reason */
    DDL__CREATION_OUTDATED, /* a member is at a later creation */
    DDL__CREATION_LOST, /* a member has closed its link without a reason: it waits for one of the
                           others before that counts */
    DDL__CREATION_CAUSES
} ddl__creation_cause;

/* What a member that fails with `status` sends to another one. `is_own`: it has failed itself; else
 * it passes on what a member has sent, which that one sends to all. */
typedef enum ddl__creation_audience {
    DDL__CREATION_TELL_NOTHING,
    DDL__CREATION_CLOSE_LINK, /* with the reason */
    DDL__CREATION_SEND_NOTICE
} ddl__creation_audience;
ddl__creation_audience ddl__creation_audience_of(ddl_status status, bool is_own, bool is_linked);

/* True if an attempt that ended with `status` is followed by another one. */
bool ddl__creation_begins_again(ddl_status status, int64_t now, int64_t deadline);

#endif
