/* SPDX-License-Identifier: Apache-2.0 */
/* Design notes.
 *
 * The evidence of a member's death, its fate, and whether it counts as possibly alive in the
 * survivors' vote (agreement.c):
 *
 * - Its unix socket ends without a last message: DDL__KILLED, does not count. The kernel of this
 *   host closed the socket with the process.
 * - Its TCP connection ends, and a witness confirms the end of its process at about that time:
 *   DDL__KILLED, does not count.
 * - Its TCP connection ends, and there is no witness: DDL__DISCONNECTED, counts. The network may
 *   have cut it off.
 * - It is silent, or the network reports an error: DDL__SILENT, counts, even if its process ends
 *   later. Until then it may have gone on with other ranks, which still do.
 * - It has expelled this rank, or has left after this rank had given it up: may_go_on, counts.
 * - A program has expelled it (ddl_comm_expel): DDL__SILENT, counts for DDL__EVIDENCE_LIMIT. Then
 *   it does not count, since the program vouches that it has ended, unless it has joined the
 *   agreement before. It is told, and does not go on.
 *
 * The end of a TCP connection proves nothing, since neither a reset nor a close is authenticated: a
 * firewall may reset all connections between two hosts that both go on. The witnesses are the
 * members on the dead member's host, which saw its unix socket close and send DDL__CONFIRM to all
 * others, and the launcher (witness.h). A witness is believed until DDL__EVIDENCE_LIMIT after the
 * end of the connection. If the process ended later, it may have gone on with other ranks before.
 *
 * A unix socket of the failure detector is closed only after a last message, DDL__LEAVE or
 * DDL__EXPEL, for which room is made. So if it ends without one, the process has ended.
 *
 * In all cases the comm ends in the same way and equally soon. The evidence only decides which
 * ranks may go on. docs/reliability.md has this table with the time bounds.
 *
 * Everything here runs under the detector's lock.
 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/time_limits.h"
#include "connect/hello.h"
#include "connect/neighbours.h"
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

/* It counts as killed unless it may have gone on before its end. Of a member without a connection
 * this is the first that is known. */
void ddl__member_confirm(ddl__health *h, int rank)
{
    ddl__member *member = &h->members[rank];
    member->confirmed = true;
    if (member->fate == DDL__ALIVE && member->late && member->conn.fd < 0) {
        /* Long after the comm's death it may have gone on with others before it ended. */
        int64_t at = member->confirmed_at ? member->confirmed_at : ddl__now();
        bool in_time = !h->announced || at - h->announced_at <= DDL__EVIDENCE_LIMIT;
        bool known = in_time && !member->reported_silent;
        member->may_go_on = member->may_go_on || !known;
        ddl__member_mark_ended(h, rank, known, 0);
        ddl__member_start_grace(h, rank);
        return;
    }
    if (member->fate != DDL__DISCONNECTED || member->may_go_on ||
        ddl__now() - member->disconnected_at > DDL__EVIDENCE_LIMIT)
        return;
    snprintf(member->cause, DDL__CAUSE, "its process ended");
    member->fate = DDL__KILLED;
    ddl__log(DDL__INFO, "%s: the process of %s has ended: a witness saw it", h->names[h->rank],
             h->names[rank]);
    pthread_cond_broadcast(&h->detector->changed);
}

void ddl__member_launcher_confirm(ddl__health *h, int rank)
{
    ddl__member *member = &h->members[rank];
    if (member->late && member->conn.fd < 0 && member->fate == DDL__ALIVE && !h->announced)
        member->confirmed_at = ddl__now();
    else
        ddl__member_confirm(h, rank);
}

/* Whether a member is left that would tell this rank if that one had left the comm. */
static bool may_hear_of(const ddl__health *h, int rank)
{
    for (int i = 0; i < h->size; i++)
        if (ddl__are_neighbours(i, rank, h->size) && h->members[i].conn.fd >= 0 &&
            h->members[i].fate == DDL__ALIVE)
            return true;
    return false;
}

void ddl__member_check_confirmed(ddl__health *h, int rank, int64_t now)
{
    const ddl__member *member = &h->members[rank];
    if (member->confirmed_at && !member->confirmed &&
        (h->announced || (now - member->confirmed_at >= h->position_limit && may_hear_of(h, rank))))
        ddl__member_confirm(h, rank);
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
    vsnprintf(member->cause, DDL__CAUSE, format, args);
    va_end(args);
    member->fate = fate;
    member->disconnected_at = ddl__now();
    h->n_deaths++;
    if (member->silent_ns > h->detection_ns)
        h->detection_ns = member->silent_ns;
    ddl__log(DDL__INFO, "%s: %s is dead: %s", h->names[h->rank], h->names[rank], member->cause);
    if (member->confirmed || member->confirmed_at)
        ddl__member_confirm(h, rank);
    pthread_cond_broadcast(&h->detector->changed);
    pthread_cond_broadcast(&h->detector->died);
}

void ddl__member_leave(ddl__health *h, int rank)
{
    ddl__member *member = &h->members[rank];
    member->fate = DDL__LEFT;
    snprintf(member->cause, DDL__CAUSE, "it left the comm");
    ddl__gossip_left(h, rank);
    ddl__first_use_gone(h->config.first_use, rank, DDL__LINK_LEFT);
    if (h->config.first_use)
        ddl__engine_wake(h->engine);
    pthread_cond_broadcast(&h->detector->died);
}

void ddl__member_mark_gone_on(ddl__health *h, int rank)
{
    h->members[rank].may_go_on = true;
    if (h->members[rank].fate == DDL__ALIVE)
        ddl__member_mark_dead(h, rank, DDL__SILENT, "it goes on without rank %d", h->rank);
}

void ddl__member_expel(ddl__health *h, int rank)
{
    ddl__member *member = &h->members[rank];
    ddl__control_conn_send(&member->conn, DDL__EXPEL, member->cause, strlen(member->cause));
    ddl__health_end(h, DDL_EPEER, "%s is dead: %s", h->names[rank], member->cause);
}

/* ------------------------------------------------------------------------------------ expulsion */

/* The content of DDL__EXPELLED. The reason is sent without its NUL. */
typedef struct expulsion {
    int32_t rank, by;
    char reason[128];
} expulsion;

/* The program of rank `by` vouches that the member does not go on. */
static void member_mark_expelled(ddl__health *h, int by, int rank, const char *reason)
{
    ddl__member *member = &h->members[rank];
    if (member->fate == DDL__LEFT)
        return;
    member->expelled = true;
    h->evidence_until = ddl__now() + DDL__EVIDENCE_LIMIT;
    if (member->fate != DDL__ALIVE)
        return;
    ddl__member_mark_dead(h, rank, DDL__SILENT, "expelled by %s: %s", h->names[by], reason);
    ddl__member_expel(h, rank);
}

/* This rank is expelled: it does not go on, even if the others are out of reach later. */
static void mark_self_expelled(ddl__health *h, int by, const char *reason)
{
    ddl__member *self = &h->members[h->rank];
    self->expelled = true;
    snprintf(self->cause, DDL__CAUSE, "expelled by %s: %s", h->names[by], reason);
    ddl__member_mark_gone_on(h, by);
    ddl__health_end(h, DDL_EPEER, "%s was %s", h->names[h->rank], self->cause);
}

void ddl__member_receive_expelled(ddl__health *h, int from, const unsigned char *content,
                                  size_t bytes)
{
    expulsion e = {.rank = -1, .by = -1};
    if (bytes < offsetof(expulsion, reason) || bytes >= sizeof e)
        return;
    memcpy(&e, content, bytes);
    ddl__sanitize_text(e.reason, sizeof e.reason);
    if (e.rank < 0 || e.rank >= h->size || e.by < 0 || e.by >= h->size || e.rank == e.by ||
        e.by == h->rank || h->members[e.rank].expelled || h->members[e.rank].fate == DDL__LEFT)
        return;
    ddl__gossip_pass_on(h, from, DDL__EXPELLED, content, bytes);
    if (e.rank == h->rank)
        mark_self_expelled(h, e.by, e.reason);
    else
        member_mark_expelled(h, e.by, e.rank, e.reason);
}

/* The word of a rank that is expelled counts, too, since of two that expel each other not all
 * members hear in the same order. A rank that knows that it is expelled is refused. */
ddl_status ddl__health_expel(ddl__health *h, int rank, const char *reason)
{
    expulsion e = {.rank = rank, .by = h->rank};
    snprintf(e.reason, sizeof e.reason, "%s", reason && reason[0] ? reason : "no reason given");
    ddl__sanitize_text(e.reason, sizeof e.reason);
    size_t bytes = offsetof(expulsion, reason) + strlen(e.reason);
    const ddl__member *self = &h->members[h->rank];
    pthread_mutex_lock(&h->detector->lock);
    ddl_status status = DDL_OK;
    if (self->expelled)
        status = ddl__fail(DDL_EMINORITY, "%s cannot expel %s: it was %s itself", h->names[h->rank],
                           h->names[rank], self->cause);
    bool left = h->members[rank].fate == DDL__LEFT;
    for (int i = 0; status == DDL_OK && !left && i < h->size; i++)
        ddl__control_conn_send(&h->members[i].conn, DDL__EXPELLED, &e, bytes);
    if (status == DDL_OK)
        member_mark_expelled(h, h->rank, rank, e.reason);
    ddl__health_settle(h);
    pthread_mutex_unlock(&h->detector->lock);
    return status;
}

/* --------------------------------------------------------------------------------------- grace */

/* The data that the member sent may still arrive: see the design notes of health_state.h. */
void ddl__member_start_grace(ddl__health *h, int rank)
{
    ddl__first_use_gone(h->config.first_use, rank, DDL__LINK_LOST);
    ddl__engine_peer_died(h->engine, rank);
    h->evidence_until = ddl__now() + DDL__EVIDENCE_LIMIT;
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

void ddl__health_check_grace(ddl__health *h, int64_t now)
{
    ddl__snapshot snapshot = ddl__engine_snapshot(h->engine);
    uint64_t moves = snapshot.moves + snapshot.passes;
    if (snapshot.finished != h->grace_finished || moves != h->grace_moves)
        h->moved_at = now;
    h->grace_finished = snapshot.finished;
    h->grace_moves = moves;
    h->grace_poll_at = now + DDL__GRACE_POLL;
    /* Only the number of pending operations is compared, not their identity, since messages and
     * named operations may end out of order. So the grace period may end a little early. It is
     * never prolonged by a message that has nothing to do with the dead member. */
    bool over = snapshot.finished >= h->grace_begun && now - h->died_at >= DDL__GRACE;
    bool stands = now - h->moved_at >= DDL__GRACE;
    if (snapshot.status != DDL_OK || over || stands)
        h->grace_poll_at = DDL__NEVER;
    if (snapshot.status == DDL_OK && (over || stands))
        ddl__health_end(h, DDL_EPEER, "%s is dead: %s", h->names[h->grace_rank],
                        h->members[h->grace_rank].cause);
}

/* ------------------------------------------------------------------------------------- evidence */

/* Our kernel ran the member's process, so this rank is a witness for the others. */
void ddl__member_announce_end(ddl__health *h, int rank)
{
    int32_t ended = rank;
    ddl__health_broadcast(h, DDL__CONFIRM, &ended, sizeof ended);
}

void ddl__member_mark_ended(ddl__health *h, int rank, bool known, int error)
{
    ddl__member_mark_dead(h, rank, known ? DDL__KILLED : DDL__DISCONNECTED, "its %s ended%s",
                          known ? "process" : "connection", error ? ": connection reset" : "");
}

void ddl__member_ended(ddl__health *h, int rank, int error)
{
    ddl__member *member = &h->members[rank];
    bool local = member->conn.local;
    if (member->fate == DDL__ALIVE) {
        ddl__member_mark_ended(h, rank, local || member->confirmed, error);
        ddl__gossip_lost(h, rank);
        ddl__member_start_grace(h, rank);
    } else if (member->fate == DDL__LEFT) {
        ddl__engine_peer_gone(h->engine, rank); /* which has closed its links, or cannot any more */
    }
    if (local && member->fate == DDL__KILLED)
        ddl__member_announce_end(h, rank);
}

void ddl__member_unreachable(ddl__health *h, int rank, int error)
{
    char text[128];
    if (h->members[rank].fate != DDL__ALIVE)
        return;
    ddl__member_mark_dead(h, rank, DDL__SILENT, "%s", ddl__seal_error(error, text, sizeof text));
    ddl__gossip_lost(h, rank);
    ddl__member_expel(h, rank);
}
