/* SPDX-License-Identifier: Apache-2.0 */
#include "membership/creation.h"

#include "base/time_limits.h"

uint32_t ddl__creation_propose(uint32_t used, uint32_t seen)
{
    return seen > used ? seen : used + 1;
}

uint32_t ddl__creation_raise(uint32_t used, uint32_t number)
{
    return number && used < number - 1 ? number - 1 : used;
}

ddl__creation_verdict ddl__creation_judge(uint32_t own, uint32_t theirs, bool is_missing)
{
    return theirs == own  ? DDL__CREATION_JOIN
           : theirs < own ? DDL__CREATION_REFUSE
           : is_missing   ? DDL__CREATION_YIELD
                          : DDL__CREATION_KEEP;
}

bool ddl__creation_concerns(uint32_t failed, uint32_t own)
{
    return failed >= own;
}

/* Handle the loss of a member, by waiting for a fact that explains it: the member may have failed
 * because another member died, and the end of its link may be noticed before the evidence of that
 * death arrives. */
static unsigned doubt(ddl__creation *c, int64_t now)
{
    int64_t limit = c->is_witnessed ? DDL__EVIDENCE_LIMIT : DDL__CREATE_FAILURE_EACH;
    if (!c->doubted_until)
        c->doubted_until = limit < c->deadline - now ? now + limit : c->deadline;
    return now < c->doubted_until ? DDL__CREATION_LOOK : DDL__CREATION_FAIL;
}

unsigned ddl__creation_handle(ddl__creation *c, ddl__creation_cause cause,
                              const ddl__creation_end *fact, int64_t now)
{
    if (cause == DDL__CREATION_LOST)
        return doubt(c, now);
    unsigned actions = DDL__CREATION_FAIL;
    c->end = *fact;
    if (fact->status == DDL__SUPERSEDED)
        actions |= DDL__CREATION_RAISE;
    if (cause == DDL__CREATION_ABORTED &&
        fact->from >= 0) /* a notice of `from` itself will follow */
        actions |= DDL__CREATION_IGNORE;
    return actions;
}

unsigned ddl__creation_handle_answer(ddl__creation *c, ddl_status answer, uint32_t theirs)
{
    if (answer == DDL_OK)
        return DDL__CREATION_CONTINUE;
    if (theirs <= c->number)
        return DDL__CREATION_FAIL; /* the peer reports its own reason */
    return ddl__creation_handle(c, DDL__CREATION_OUTDATED,
                                &(ddl__creation_end){DDL__SUPERSEDED, -1, theirs}, 0);
}

bool ddl__creation_is_told(const ddl__creation *c)
{
    return c->end.status != DDL_OK;
}

bool ddl__creation_is_doubtful(const ddl__creation *c, ddl_status status)
{
    return !ddl__creation_is_told(c) && (status == DDL_EPEER || status == DDL_EUNREACHABLE);
}

bool ddl__creation_is_late(const ddl__creation *c, int64_t now)
{
    return now >= c->deadline || c->doubted_until == c->deadline;
}

ddl__creation_end ddl__creation_reason(const ddl__creation *c, ddl_status status, int own_rank,
                                       uint32_t own_number)
{
    return ddl__creation_is_told(c) ? (ddl__creation_end){status, c->end.from, c->end.number}
                                    : (ddl__creation_end){status, own_rank, own_number};
}

/* Return true if a member that fails with this status may try again: it was late, or its creation
 * was superseded. */
static bool may_come(ddl_status status)
{
    return status == DDL_ETIMEDOUT || status == DDL_EEXPIRED || status == DDL__SUPERSEDED;
}

ddl__creation_audience ddl__creation_audience_of(const ddl__creation *c, ddl_status status,
                                                 bool is_linked)
{
    /* If another member has sent the reason, it notifies all members itself. */
    bool is_final = !ddl__creation_is_told(c) && !may_come(status);
    return is_linked  ? DDL__CREATION_CLOSE_LINK
           : is_final ? DDL__CREATION_SEND_NOTICE
                      : DDL__CREATION_TELL_NOTHING;
}

bool ddl__creation_keeps_waiting(const ddl__creation *c, ddl_status status)
{
    return c->number && may_come(status);
}

bool ddl__creation_begins_again(ddl_status status, int64_t now, int64_t deadline)
{
    return status == DDL__SUPERSEDED && now < deadline;
}
