/* SPDX-License-Identifier: Apache-2.0 */
/* Runs the survivors' agreement (membership/agreement.c) in the caller's thread. It holds the
 * detector's lock, except while it waits and while the next comm is created. */
#include "health/agreement.h"

#include "base/clock.h"
#include "base/thread.h"
#include "base/time_limits.h"
#include "health/health_state.h"

/* Return true for a failure of this rank alone. After any other failure, another attempt is
 * possible. */
static bool is_final(ddl_status status)
{
    return status != DDL_EPEER && status != DDL_EUNREACHABLE && status != DDL_EREFUSED &&
           status != DDL_ETIMEDOUT && status != DDL_EEXPIRED;
}

/* Fail if the attempt cannot succeed any more. */
static ddl_status creation_check(void *context)
{
    ddl__health *h = context;
    pthread_mutex_lock(&h->detector->lock);
    int rank = ddl__agreement_lost(h->membership);
    ddl_status status = DDL_OK;
    if (rank >= 0 && h->members[rank].cause[0])
        status = ddl__fail(DDL_EPEER, "%s is lost while the comm is being shrunk: %s",
                           h->names[rank], h->members[rank].cause);
    else if (rank >= 0)
        status = ddl__fail(DDL_EPEER, "%s has lost another survivor while the comm is being shrunk",
                           h->names[rank]);
    pthread_mutex_unlock(&h->detector->lock);
    return status;
}

/* Handle a survivor that answers this rank at none of its addresses. The next list of survivors
 * cannot contain both of them. */
static void creation_unreachable(void *context, int rank, bool was_accepted)
{
    ddl__health *h = context;
    pthread_mutex_lock(&h->detector->lock);
    ddl__member_cannot_connect(h->membership, h->survivors[rank], was_accepted, ddl__now());
    pthread_mutex_unlock(&h->detector->lock);
}

/* Create the next comm of the survivors. Releases the lock meanwhile. */
static ddl_status create_next(ddl__health *h, const ddl__agreement_handlers *next)
{
    ddl__membership *m = h->membership;
    ddl__until until = {m->deadline, creation_check, h, creation_unreachable};
    uint32_t attempt = m->attempt;
    int n = 0;
    for (int rank = 0; rank < h->size; rank++)
        if (ddl__agreement_has(m, rank))
            h->survivors[n++] = rank;
    pthread_mutex_unlock(&h->detector->lock);
    next->abandon(next->context); /* discard the comm of an earlier attempt, if there is one */
    ddl_status status = next->create(next->context, h->survivors, n, attempt, &until);
    pthread_mutex_lock(&h->detector->lock);
    return status;
}

static void wait_for_event(ddl__health *h)
{
    int64_t until = ddl__now() + DDL__AGREEMENT_POLL;
    until = until < h->membership->deadline ? until : h->membership->deadline;
    ddl__cond_wait_until(&h->detector->changed, &h->detector->lock, until);
}

static ddl_status describe_failure(const ddl__health *h)
{
    const char *self = h->names[h->rank];
    int rank;
    switch (ddl__agreement_why(h->membership, &rank)) {
    case DDL__FAILURE_EXPELLED:
        return ddl__fail(DDL_EMINORITY, "%s cannot continue: it was %s", self,
                         h->members[h->rank].cause);
    case DDL__FAILURE_LEFT_OUT:
        return ddl__fail(DDL_EMINORITY,
                         "%s cannot continue: the survivors shrank the comm without it", self);
    case DDL__FAILURE_NO_MAJORITY:
        return ddl__fail(DDL_EMINORITY,
                         "%s cannot continue: it cannot reach most of the ranks that may be alive",
                         self);
    case DDL__FAILURE_CUT_OFF:
        return ddl__fail(DDL_EMINORITY,
                         "%s cannot continue: it has lost ranks that the other survivors can reach",
                         self);
    case DDL__FAILURE_LATE:
        return ddl__fail(DDL_ETIMEDOUT, "%s is alive but did not shrink the comm in time",
                         rank >= 0 ? h->names[rank] : "a member");
    case DDL__FAILURE_NONE:
    case DDL__FAILURE_CREATION: break;
    }
    return DDL_OK;
}

/* Run the steps of the agreement. Called under the lock, which is released while this rank waits
 * and while a comm is created. */
static ddl_status agreement_loop(ddl__health *h, int64_t deadline,
                                 const ddl__agreement_handlers *next)
{
    ddl__membership *m = h->membership;
    ddl_status status = DDL_OK;
    ddl__agreement_begin(m, deadline);
    for (;;) {
        switch (ddl__agreement_advance(m, ddl__now())) {
        case DDL__STEP_WAIT: wait_for_event(h); break;
        case DDL__STEP_RETURN: return DDL_OK;
        case DDL__STEP_CREATE:
            status = create_next(h, next);
            if (ddl__agreement_created(m, status == DDL_OK,
                                       is_final(status) || ddl__now() >= deadline) !=
                DDL__STEP_FAIL)
                break;
            return status;
        case DDL__STEP_FAIL:
            pthread_mutex_unlock(&h->detector->lock);
            next->abandon(next->context);
            pthread_mutex_lock(&h->detector->lock);
            return describe_failure(h);
        }
    }
}

ddl_status ddl__agreement_run(ddl__health *h, int64_t deadline, const ddl__agreement_handlers *next)
{
    pthread_mutex_lock(&h->detector->lock);
    bool failed = ddl__agreement_may_begin(h->membership, ddl__engine_status(h->engine) != DDL_OK);
    ddl__health_settle(h);
    ddl_status status =
        failed ? DDL_OK
               : ddl__fail(DDL_ESTATE, "the comm is alive; it can be shrunk only after a failure");
    if (status == DDL_OK && h->shrinking)
        status = ddl__fail(DDL_ESTATE, "another thread is already shrinking the comm");
    if (status == DDL_OK) {
        h->shrinking = true;
        pthread_cond_broadcast(&h->detector->died); /* connect to the leader now */
        ddl__health_announce(h);
        ddl__health_poll_eagerly(h);
        status = agreement_loop(h, deadline, next);
        h->shrinking = false;
    }
    pthread_mutex_unlock(&h->detector->lock);
    return status;
}
