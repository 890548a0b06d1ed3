/* Design notes.
 *
 * What shows that a member is dead, its fate then, and whether it counts in the vote of a shrink
 * (shrink.c) as one that may be alive:
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

void ddl__health_end(ddl__health *c, ddl_status status, const char *format, ...)
{
    va_list args;
    if (c->end.status != DDL_OK)
        return;
    c->end.status = status;
    va_start(args, format);
    vsnprintf(c->end.text, sizeof c->end.text, format, args);
    va_end(args);
}

void ddl__health_settle(ddl__health *c)
{
    if (c->end.status == DDL_OK)
        return;
    ddl__end end = c->end;
    c->end.status = DDL_OK;
    c->ending++;
    pthread_mutex_unlock(&c->detector->lock);
    ddl__engine_fail(c->engine, end.status, end.text);
    pthread_mutex_lock(&c->detector->lock);
    c->ending--;
    pthread_cond_broadcast(&c->detector->changed);
}

/* --------------------------------------------------------------------------------------- deaths */

/* What was a presumption is certain now, if the member cannot have gone on meanwhile. */
static void prove(ddl__health *c, int rank)
{
    ddl__member *member = &c->members[rank];
    member->confirmed = true;
    if (member->fate != DDL__DISCONNECTED || member->may_go_on ||
        ddl__now() - member->disconnected_at > DDL__EVIDENCE_LIMIT)
        return;
    snprintf(member->cause, sizeof member->cause, "its process ended");
    member->fate = DDL__KILLED;
    ddl__log(DDL__INFO, "%s: the process of %s has ended: a witness saw it", c->names[c->rank],
             c->names[rank]);
    pthread_cond_broadcast(&c->detector->changed);
}

bool ddl__is_dead(const ddl__health *c, int rank)
{
    ddl__fate fate = c->members[rank].fate;
    return fate == DDL__KILLED || fate == DDL__DISCONNECTED || fate == DDL__SILENT;
}

void ddl__member_dead(ddl__health *c, int rank, ddl__fate fate, const char *format, ...)
{
    ddl__member *member = &c->members[rank];
    va_list args;
    va_start(args, format);
    vsnprintf(member->cause, sizeof member->cause, format, args);
    va_end(args);
    member->fate = fate;
    member->disconnected_at = ddl__now();
    c->detected++;
    if (member->silent > c->detection_ns)
        c->detection_ns = member->silent;
    ddl__log(DDL__INFO, "%s: %s is dead: %s", c->names[c->rank], c->names[rank], member->cause);
    if (member->confirmed)
        prove(c, rank);
    pthread_cond_broadcast(&c->detector->changed);
}

void ddl__member_expel(ddl__health *c, int rank)
{
    ddl__member *member = &c->members[rank];
    ddl__control_conn_send(&member->conn, DDL__EXPEL, member->cause, strlen(member->cause));
    ddl__health_end(c, DDL_EPEER, "%s is dead: %s", c->names[rank], member->cause);
}

/* What it sent before may still arrive: see the design notes of health_state.h. */
void ddl__member_start_grace(ddl__health *c, int rank)
{
    ddl__engine_peer_died(c->engine, rank);
    c->evidence_until = ddl__now() + DDL__EVIDENCE_LIMIT;
    if (c->grace_rank >= 0)
        return;
    ddl__snapshot snapshot = ddl__engine_snapshot(c->engine);
    c->grace_rank = rank;
    c->died_at = c->moved_at = ddl__now();
    c->look_at = c->died_at + DDL__GRACE_POLL;
    c->begun_then = snapshot.finished + snapshot.pending;
    c->finished_last = snapshot.finished;
    c->moves_last = snapshot.moves + snapshot.passes;
}

void ddl__health_check_grace(ddl__health *c, int64_t now)
{
    ddl__snapshot snapshot = ddl__engine_snapshot(c->engine);
    uint64_t moves = snapshot.moves + snapshot.passes;
    if (snapshot.finished != c->finished_last || moves != c->moves_last)
        c->moved_at = now;
    c->finished_last = snapshot.finished;
    c->moves_last = moves;
    c->look_at = now + DDL__GRACE_POLL;
    /* As many as were under way then, not just these: messages, and what is called by name, may end
     * before others that began earlier. So this may be a little early, and never too late, as it
     * would be where a message is waited for that has nothing to do with the dead one. */
    bool over = snapshot.finished >= c->begun_then && now - c->died_at >= DDL__GRACE;
    bool stands = now - c->moved_at >= DDL__GRACE;
    if (snapshot.status != DDL_OK || over || stands)
        c->look_at = DDL__NEVER;
    if (snapshot.status == DDL_OK && (over || stands))
        ddl__health_end(c, DDL_EPEER, "%s is dead: %s", c->names[c->grace_rank],
                        c->members[c->grace_rank].cause);
}

/* ------------------------------------------------------------------------------------- evidence */

void ddl__member_confirm(ddl__health *c, int rank)
{
    if (c->members[rank].fate == DDL__LEFT)
        return;
    if (!c->members[rank].confirmed)
        prove(c, rank);
}

/* Our own kernel ran it, so we are a witness for the others. */
void ddl__member_announce_end(ddl__health *c, int rank)
{
    int32_t ended = rank;
    ddl__health_broadcast(c, DDL__CONFIRM, &ended, sizeof ended);
}

void ddl__member_ended(ddl__health *c, int rank, int error)
{
    ddl__member *member = &c->members[rank];
    bool local = member->conn.local, known = local || member->confirmed;
    if (member->fate == DDL__ALIVE) {
        ddl__member_dead(c, rank, known ? DDL__KILLED : DDL__DISCONNECTED, "its %s ended%s",
                         known ? "process" : "connection", error ? ": connection reset" : "");
        ddl__member_start_grace(c, rank);
    }
    if (local && member->fate == DDL__KILLED)
        ddl__member_announce_end(c, rank);
}

void ddl__member_unreachable(ddl__health *c, int rank, int error)
{
    char text[128];
    if (c->members[rank].fate != DDL__ALIVE)
        return;
    ddl__member_dead(c, rank, DDL__SILENT, "%s", ddl__seal_error(error, text, sizeof text));
    ddl__member_expel(c, rank);
}
