/* Design notes.
 *
 * What shows that a member is dead, its fate then, and whether it counts in the vote of a shrink
 * (shrink.h) as one that may be alive:
 *
 * - Its unix socket ends without a last message: DDL__KILLED, does not count. The kernel of this
 * host closed the socket with the process.
 * - Its TCP connection ends, and a witness confirms its end at about that time: DDL__KILLED, does
 *   not count.
 * - Its TCP connection ends, no witness: DDL__DISCONNECTED, counts. A network may have cut it off.
 * - Silence, or an error of the network: DDL__SILENT, counts, also when its process ends later.
 *   Until then it may have gone on with others, who still do.
 * - It has expelled this rank, or said goodbye after this rank had given it up: may_go_on, counts.
 *
 * A TCP connection that is reset or closed proves nothing, since neither is authenticated: a
 * firewall may reset all connections between two hosts that both go on. Witnesses are members on
 * the dead one's host, which saw its unix socket close and tell all others (DDL__CONFIRM), and the
 * launcher (witness.h). They are believed for DDL__EVIDENCE_LIMIT after the connection ended:
 * later, its process may have gone on with others before it ended.
 *
 * A unix socket of the failure detector is closed only behind a last message, DDL__LEAVE or
 * DDL__EXPEL, with room made for it. So its end without one is the process's.
 *
 * In all cases the comm ends in the same way and just as soon; the evidence only decides who may go
 * on. docs/reliability.md has this table with the bounds.
 *
 * Everything here is under the detector's lock.
 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/time_limits.h"
#include "health/health_state.h"
#include "net/socket.h"

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

/* --------------------------------------------------------------------------------------- deaths */

/* What was a presumption is certain now, if the member cannot have gone on meanwhile. */
static void member_confirm_killed(ddl__health *h, int rank)
{
    ddl__member *member = &h->members[rank];
    member->confirmed = true;
    if (member->fate != DDL__DISCONNECTED || member->may_go_on ||
        ddl__now() - member->disconnected_at > DDL__EVIDENCE_LIMIT)
        return;
    snprintf(member->cause, sizeof member->cause, "its process ended");
    member->fate = DDL__KILLED;
    ddl__log(DDL__INFO, "%s: the process of %s has ended: a witness saw it", h->names[h->rank],
             h->names[rank]);
    pthread_cond_broadcast(&h->detector->changed);
}

bool ddl__member_is_dead(const ddl__health *h, int rank)
{
    ddl__fate fate = h->members[rank].fate;
    return fate == DDL__KILLED || fate == DDL__DISCONNECTED || fate == DDL__SILENT;
}

void ddl__member_mark_dead(ddl__health *h, int rank, ddl__fate fate, const char *format, ...)
{
    ddl__member *member = &h->members[rank];
    va_list args;
    va_start(args, format);
    vsnprintf(member->cause, sizeof member->cause, format, args);
    va_end(args);
    member->fate = fate;
    member->disconnected_at = ddl__now();
    h->n_deaths++;
    if (member->silent_ns > h->detection_ns)
        h->detection_ns = member->silent_ns;
    ddl__log(DDL__INFO, "%s: %s is dead: %s", h->names[h->rank], h->names[rank], member->cause);
    if (member->confirmed)
        member_confirm_killed(h, rank);
    pthread_cond_broadcast(&h->detector->changed);
}

void ddl__member_expel(ddl__health *h, int rank)
{
    ddl__member *member = &h->members[rank];
    ddl__control_conn_send(&member->conn, DDL__EXPEL, member->cause, strlen(member->cause));
    ddl__health_end(h, DDL_EPEER, "%s is dead: %s", h->names[rank], member->cause);
}

/* What it sent before may still arrive: see the design notes of health_state.h. */
void ddl__member_start_grace(ddl__health *h, int rank)
{
    ddl__engine_bereave(h->engine, rank);
    h->evidence_until = ddl__now() + DDL__EVIDENCE_LIMIT;
    if (h->grace_rank >= 0)
        return;
    ddl__pulse pulse = ddl__engine_pulse(h->engine);
    h->grace_rank = rank;
    h->died_at = h->moved_at = ddl__now();
    h->grace_poll_at = h->died_at + DDL__GRACE_POLL;
    h->grace_begun = pulse.finished + pulse.pending;
    h->grace_finished = pulse.finished;
    h->grace_moves = pulse.moves + pulse.passes;
}

void ddl__health_check_grace(ddl__health *h, int64_t now)
{
    ddl__pulse pulse = ddl__engine_pulse(h->engine);
    uint64_t moves = pulse.moves + pulse.passes;
    if (pulse.finished != h->grace_finished || moves != h->grace_moves)
        h->moved_at = now;
    h->grace_finished = pulse.finished;
    h->grace_moves = moves;
    h->grace_poll_at = now + DDL__GRACE_POLL;
    /* As many as were under way then, not just these: messages, and what is called by name, may end
     * before others that began earlier. So this may be a little early, and never too late, as it
     * would be where a message is waited for that has nothing to do with the dead one. */
    bool over = pulse.finished >= h->grace_begun && now - h->died_at >= DDL__GRACE;
    bool stands = now - h->moved_at >= DDL__GRACE;
    if (pulse.status != DDL_OK || over || stands)
        h->grace_poll_at = DDL__NEVER;
    if (pulse.status == DDL_OK && (over || stands))
        ddl__health_end(h, DDL_EPEER, "%s is dead: %s", h->names[h->grace_rank],
                        h->members[h->grace_rank].cause);
}

/* ------------------------------------------------------------------------------------- evidence */

void ddl__member_confirm(ddl__health *h, int rank)
{
    if (h->members[rank].fate == DDL__LEFT)
        return;
    if (!h->members[rank].confirmed)
        member_confirm_killed(h, rank);
}

/* Our own kernel ran it, so we are a witness for the others. */
void ddl__member_announce_end(ddl__health *h, int rank)
{
    int32_t ended = rank;
    ddl__health_broadcast(h, DDL__CONFIRM, &ended, sizeof ended);
}

void ddl__member_ended(ddl__health *h, int rank, int error)
{
    ddl__member *member = &h->members[rank];
    bool local = member->conn.local, known = local || member->confirmed;
    if (member->fate == DDL__ALIVE) {
        ddl__member_mark_dead(h, rank, known ? DDL__KILLED : DDL__DISCONNECTED, "its %s ended%s",
                              known ? "process" : "connection", error ? ": connection reset" : "");
        ddl__member_start_grace(h, rank);
    }
    if (local && member->fate == DDL__KILLED)
        ddl__member_announce_end(h, rank);
}

void ddl__member_unreachable(ddl__health *h, int rank, int error)
{
    char text[128];
    if (h->members[rank].fate != DDL__ALIVE)
        return;
    ddl__member_mark_dead(h, rank, DDL__SILENT, "%s", ddl__stream_error(error, text, sizeof text));
    ddl__member_expel(h, rank);
}
