/* SPDX-License-Identifier: Apache-2.0 */
/* Ends a comm: ddl__health_end records the reason, and ddl__health_settle ends the comm later. Also
 * handles the grace period after a process has ended, in which pending operations may still
 * complete. Everything here runs under the detector's lock. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/time_limits.h"
#include "health/health_state.h"

void ddl__health_end(ddl__health *h, ddl_status status, const char *format, ...)
{
    va_list args;
    if (h->end.status != DDL_OK)
        return;
    h->end.status = status;
    va_start(args, format);
    vsnprintf(h->end.text, sizeof h->end.text, format, args);
    va_end(args);
}

void ddl__health_settle(ddl__health *h)
{
    if (h->end.status == DDL_OK)
        return;
    ddl__end end = h->end;
    h->end.status = DDL_OK;
    h->n_ending++;
    pthread_mutex_unlock(&h->detector->lock);
    ddl__engine_fail(h->engine, end.status, end.text);
    pthread_mutex_lock(&h->detector->lock);
    h->n_ending--;
    pthread_cond_broadcast(&h->detector->changed);
}

/* Return true if the ongoing creation of the comm decides whether the member counts as dead. Only
 * its connection has ended, and the reason may still arrive in another way. */
static bool is_doubtful(const ddl__health *h, int rank)
{
    return !ddl__engine_is_created(h->engine) && h->members[rank].peer->state != DDL__KILLED;
}

/* Start the grace period after a member's process has ended: data that it sent may still arrive
 * (see the design notes in health_state.h). */
void ddl__grace_start(ddl__health *h, int rank)
{
    if (is_doubtful(h, rank))
        ddl__engine_wake(h->engine);
    else
        ddl__engine_peer_died(h->engine, rank);
    if (h->grace_rank >= 0)
        return;
    ddl__snapshot snapshot = ddl__engine_snapshot(h->engine);
    h->grace_rank = rank;
    h->died_at = h->moved_at = ddl__now();
    h->grace_poll_at = h->died_at + DDL__GRACE_POLL;
    h->grace_begun = snapshot.finished + snapshot.pending;
    h->grace_finished = snapshot.finished;
    h->grace_moves = snapshot.moves + snapshot.passes;
}

void ddl__grace_check(ddl__health *h, int64_t now)
{
    ddl__snapshot snapshot = ddl__engine_snapshot(h->engine);
    uint64_t moves = snapshot.moves + snapshot.passes;
    /* The doubt has a time limit, because a reason may never arrive, for example if the data link
     * stays open. */
    bool doubtful = is_doubtful(h, h->grace_rank) && now - h->died_at < DDL__EVIDENCE_LIMIT;
    if (snapshot.finished != h->grace_finished || moves != h->grace_moves || doubtful)
        h->moved_at = now;
    h->grace_finished = snapshot.finished;
    h->grace_moves = moves;
    h->grace_poll_at = now + DDL__GRACE_POLL;
    /* Only the number of finished operations is compared, because messages and named operations may
     * end out of order. So the grace period may end a little early, but a message that does not
     * involve the dead member never prolongs it. */
    bool over = !doubtful && snapshot.finished >= h->grace_begun && now - h->died_at >= DDL__GRACE;
    bool stands = now - h->moved_at >= DDL__GRACE;
    if (snapshot.status != DDL_OK || over || stands)
        h->grace_poll_at = DDL__NEVER;
    if (snapshot.status == DDL_OK && (over || stands))
        ddl__health_end(h, DDL_EPEER, "%s is dead: %s", h->names[h->grace_rank],
                        h->members[h->grace_rank].cause);
}
