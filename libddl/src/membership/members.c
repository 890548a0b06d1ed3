/* SPDX-License-Identifier: Apache-2.0 */
/* Design notes.
 *
 * The evidence of a member's death, its state, and if it counts as possibly alive in the survivors'
 * vote (agreement.c):
 *
 * - Its unix socket ends without a last message: DDL__KILLED, does not count. The kernel of this
 *   host closed the socket with the process.
 * - Its TCP connection ends, and a witness confirms the end of its process: DDL__KILLED, does not
 *   count, unless the member had created a next comm that the witness knows but this rank does not.
 *   The member may have continued in that comm, with ranks that still run.
 * - Its TCP connection ends, and there is no witness: DDL__DISCONNECTED, counts. The network may
 *   have cut it off.
 * - It is silent, or the network reports an error: DDL__SILENT, counts, even if its process ends
 *   later. Before its end, the member may have continued with other ranks, which still run.
 * - It has expelled this rank, or has left after this rank declared it dead: may_continue, counts.
 * - A program has expelled it (ddl_comm_expel): DDL__SILENT, counts for DDL__EVIDENCE_LIMIT. After
 *   that it does not count, because the program guarantees that it has ended; but it counts if it
 *   joined the agreement before, or may continue. It is sent EXPELLED, and does not continue.
 *
 * The end of a TCP connection proves nothing, because neither a reset nor a close is authenticated.
 * A firewall may reset all connections between two hosts that both continue. The witnesses are the
 * launcher (witness.h) and the members on the dead member's host, which detected the end of its
 * unix socket and send DDL__CONFIRM to all others. Both know the last next comm that the member
 * created, because a rank reports that before it sends DONE.
 *
 * The failure detector closes a unix socket only after a last message, DDL__LEAVE or DDL__EXPEL,
 * for which it makes room. So if the socket ends without a last message, the process has ended.
 *
 * In all cases the comm ends in the same way and equally soon. The evidence only decides which
 * ranks may continue. docs/reliability.md has this table with the time bounds. */
#include "base/time_limits.h"
#include "membership/graph.h"
#include "membership/state.h"

/* After this many heartbeat intervals of silence, a member's process may be stopped. */
enum { BEATS = 3 };

/* Return the offset of the ranks for GONE, after the members and the sets. */
static size_t gone_at(size_t n)
{
    size_t sets = (3 * n + 1) * ((n + 7) / 8);
    return sizeof(ddl__membership) + n * sizeof(ddl__peer) + (sets + 3) / 4 * 4;
}

size_t ddl__membership_bytes(int size)
{
    return gone_at((size_t)size) + (size_t)size * sizeof(int32_t);
}

void ddl__membership_init(ddl__membership *m, const ddl__member_ports *ports, void *context,
                          int rank, int size)
{
    size_t n = (size_t)size;
    m->ports = ports;
    m->context = context;
    m->rank = rank;
    m->size = size;
    m->far_beats = 1;
    m->set_bytes = (n + 7) / 8;
    m->sets_at = sizeof *m + n * sizeof *m->peers;
    m->gone_at = gone_at(n);
}

bool ddl__member_is_dead(const ddl__membership *m, int rank)
{
    return m->peers[rank].state >= DDL__KILLED;
}

int ddl__lowest_alive(const ddl__membership *m)
{
    int rank = 0;
    while (rank != m->rank && !ddl__is_alive(m, rank))
        rank++;
    return rank;
}

void ddl__member_broadcast(ddl__membership *m, const ddl__member_msg *message)
{
    for (int i = 0; i < m->size; i++)
        if (i != m->rank && ddl__is_alive(m, i))
            ddl__member_send(m, i, message);
}

/* --------------------------------------------------------------------------------------- deaths */

static void mark_ended(ddl__membership *m, int rank, bool known, int error, int64_t now)
{
    ddl__cause cause = {known ? DDL__CAUSE_PROCESS_ENDED : DDL__CAUSE_CONNECTION_ENDED,
                        .error = error};
    ddl__member_mark_dead(m, rank, known ? DDL__KILLED : DDL__DISCONNECTED, &cause, now);
}

/* Return true if a witness has proven that the member's process has ended, and that the process had
 * not created a next comm that this rank does not know. */
static bool is_proven(const ddl__peer *peer)
{
    return peer->confirmed && peer->confirmed_attempt <= peer->done && !peer->may_continue;
}

/* Handle a witness's evidence that the process has ended. For a member without a connection, this
 * is the first evidence. */
static void confirm(ddl__membership *m, int rank, uint32_t attempt, int64_t now)
{
    ddl__peer *peer = &m->peers[rank];
    peer->confirmed = true;
    peer->confirmed_attempt = attempt > peer->confirmed_attempt ? attempt : peer->confirmed_attempt;
    if (peer->state == DDL__ALIVE && peer->late && !peer->connected) {
        mark_ended(m, rank, is_proven(peer), 0, now);
        ddl__member_watch(m, rank, now);
    } else if (peer->state == DDL__DISCONNECTED && is_proven(peer)) {
        peer->state = DDL__KILLED;
        peer->cause = DDL__CAUSE_CONFIRMED;
        m->ports->died(m->context, rank, &(ddl__cause){.kind = DDL__CAUSE_CONFIRMED});
    }
}

void ddl__member_mark_dead(ddl__membership *m, int rank, ddl__member_state state,
                           const ddl__cause *cause, int64_t now)
{
    ddl__peer *peer = &m->peers[rank];
    peer->cause = (unsigned char)cause->kind;
    peer->state = (unsigned char)state;
    m->disputed_until = 0; /* evidence of this death may be on its way */
    m->n_deaths++;
    if (peer->silent_ns > m->detection_ns)
        m->detection_ns = peer->silent_ns;
    m->ports->died(m->context, rank, cause);
    if (peer->confirmed || peer->confirmed_at)
        confirm(m, rank, peer->confirmed_attempt, now);
}

void ddl__member_mark_continues(ddl__membership *m, int rank, int64_t now)
{
    m->peers[rank].may_continue = true;
    if (ddl__is_alive(m, rank))
        ddl__member_mark_dead(m, rank, DDL__SILENT, &(ddl__cause){.kind = DDL__CAUSE_CONTINUES},
                              now);
}

void ddl__member_leave(ddl__membership *m, int rank)
{
    m->peers[rank].state = DDL__LEFT;
    m->peers[rank].cause = DDL__CAUSE_LEFT;
    ddl__gossip_left(m, rank);
    m->ports->left(m->context, rank);
}

void ddl__member_watch(ddl__membership *m, int rank, int64_t now)
{
    m->evidence_until = now + DDL__EVIDENCE_LIMIT;
    m->ports->watch(m->context, rank);
}

void ddl__member_give_up(ddl__membership *m, int rank)
{
    ddl__member_send(m, rank, &(ddl__member_msg){.kind = DDL__EXPEL});
    m->ports->end(m->context, &(ddl__comm_end){.kind = DDL__END_DEAD, .rank = rank});
}

void ddl__member_lose(ddl__membership *m, int rank, const ddl__cause *cause, int64_t now)
{
    ddl__member_mark_dead(m, rank, DDL__SILENT, cause, now);
    ddl__gossip_lost(m, rank);
    ddl__member_give_up(m, rank);
}

/* As a witness, report to the other members that a process on this host has ended. */
static void announce_end(ddl__membership *m, int rank)
{
    ddl__member_broadcast(
        m, &(ddl__member_msg){.kind = DDL__CONFIRM, .rank = rank, .attempt = m->peers[rank].done});
}

void ddl__member_ended(ddl__membership *m, int rank, bool local, int error, int64_t now)
{
    ddl__peer *peer = &m->peers[rank];
    if (peer->state == DDL__ALIVE) {
        mark_ended(m, rank, local || is_proven(peer), error, now);
        ddl__gossip_lost(m, rank);
        ddl__member_watch(m, rank, now);
    }
    if (local && peer->state == DDL__KILLED)
        announce_end(m, rank);
}

void ddl__member_unreachable(ddl__membership *m, int rank, int error, int64_t now)
{
    if (!ddl__is_alive(m, rank))
        return;
    ddl__member_lose(m, rank, &(ddl__cause){DDL__CAUSE_UNREACHABLE, .error = error}, now);
}

bool ddl__member_check_silence(ddl__membership *m, int rank, int64_t elapsed, int64_t interval,
                               int64_t now)
{
    ddl__peer *peer = &m->peers[rank];
    peer->silent_ns += elapsed;
    if (peer->silent_ns - interval < m->dead)
        return false;
    ddl__member_lose(m, rank, &(ddl__cause){.kind = DDL__CAUSE_SILENT}, now);
    return true;
}

void ddl__member_left_early(ddl__membership *m, int rank)
{
    m->peers[rank].state = DDL__LEFT;
}

void ddl__member_ended_early(ddl__membership *m, int rank, bool known, int64_t now)
{
    mark_ended(m, rank, known, 0, now);
}

void ddl__member_start(ddl__membership *m, int rank, int64_t now)
{
    unsigned char state = m->peers[rank].state;
    if (state == DDL__KILLED || state == DDL__DISCONNECTED)
        ddl__member_watch(m, rank, now);
    if (state == DDL__KILLED)
        announce_end(m, rank);
}

void ddl__member_link_failed(ddl__membership *m, int rank, bool lost, int64_t now)
{
    if (!ddl__is_alive(m, rank) || m->peers[rank].connected)
        return;
    ddl__cause cause = {.kind = lost ? DDL__CAUSE_LINK_ENDED : DDL__CAUSE_LINK_UNREACHABLE};
    ddl__member_mark_dead(m, rank, lost ? DDL__DISCONNECTED : DDL__SILENT, &cause, now);
    m->evidence_until = now + DDL__EVIDENCE_LIMIT;
    ddl__gossip_lost(m, rank);
}

/* Return the longest silence with which a member is still known to have run while it was dialed for
 * DDL__ADDRESS_LIMIT. */
static int64_t silence_while_dialed(const ddl__membership *m, int rank)
{
    int64_t limit = BEATS * m->heartbeat * (ddl__member_is_far(m, rank) ? m->far_beats : 1);
    return limit < DDL__ADDRESS_LIMIT / 2 ? limit : DDL__ADDRESS_LIMIT / 2;
}

void ddl__member_cannot_connect(ddl__membership *m, int rank, bool was_accepted, int64_t now)
{
    ddl__peer *peer = &m->peers[rank];
    bool has_heartbeats = peer->connected && peer->silent_ns <= silence_while_dialed(m, rank);
    /* If the member has no connection to this rank but is in the leader's list, it has just joined
     * the agreement, so it runs. But if its host has accepted a connection since then, the process
     * may be stopped. */
    bool has_joined =
        peer->late && !peer->connected && !was_accepted && ddl__agreement_has(m, rank);
    if ((!has_heartbeats && !has_joined) || m->dead == INT64_MAX)
        return;
    if (peer->state == DDL__ALIVE) {
        ddl__member_lose(m, rank, &(ddl__cause){.kind = DDL__CAUSE_LINK_UNREACHABLE}, now);
    } else if (peer->by_report && ddl__member_is_dead(m, rank)) {
        peer->by_report = false; /* from now on, the evidence is this rank's own */
        ddl__gossip_lost(m, rank);
    }
}

/* ------------------------------------------------------------------------------------ witnesses */

void ddl__member_launcher_confirm(ddl__membership *m, int rank, uint32_t attempt, int64_t now)
{
    ddl__peer *peer = &m->peers[rank];
    if (peer->late && !peer->connected && peer->state == DDL__ALIVE && !m->announced) {
        peer->confirmed_at = now;
        peer->confirmed_attempt = attempt;
    } else {
        confirm(m, rank, attempt, now);
    }
}

/* Return true if this rank is connected to a neighbour of `rank`, which would report that `rank`
 * had left the comm. */
static bool may_hear_of(const ddl__membership *m, int rank)
{
    for (int i = 0; i < m->size; i++)
        if (ddl__are_neighbours(i, rank, m->size) && m->peers[i].connected && ddl__is_alive(m, i))
            return true;
    return false;
}

void ddl__member_check_confirmed(ddl__membership *m, int rank, int64_t now)
{
    const ddl__peer *peer = &m->peers[rank];
    if (peer->confirmed_at && !peer->confirmed &&
        (m->announced || (now - peer->confirmed_at >= m->position_limit && may_hear_of(m, rank))))
        confirm(m, rank, peer->confirmed_attempt, now);
}

/* ------------------------------------------------------------------------------------ expulsion */

/* Mark a member as expelled: the program of rank `by` vouches that it does not continue. */
static void mark_expelled(ddl__membership *m, int by, int rank, const char *reason, int64_t now)
{
    ddl__peer *peer = &m->peers[rank];
    if (peer->state == DDL__LEFT)
        return;
    peer->expelled = true;
    m->evidence_until = now + DDL__EVIDENCE_LIMIT;
    if (peer->state != DDL__ALIVE)
        return;
    ddl__cause cause = {.kind = DDL__CAUSE_EXPELLED, .by = by, .text = reason};
    ddl__member_mark_dead(m, rank, DDL__SILENT, &cause, now);
    ddl__member_give_up(m, rank);
}

/* Mark this rank as expelled: it does not continue, even if it cannot reach the others later. */
static void mark_self_expelled(ddl__membership *m, int by, const char *reason, int64_t now)
{
    m->peers[m->rank].expelled = true;
    m->ports->end(m->context, &(ddl__comm_end){DDL__END_EXPELLED, .rank = by, .text = reason});
    ddl__member_mark_continues(m, by, now);
}

static void receive_expelled(ddl__membership *m, int from, const ddl__member_msg *e, int64_t now)
{
    if (e->rank < 0 || e->rank >= m->size || e->by < 0 || e->by >= m->size || e->rank == e->by ||
        e->by == m->rank || m->peers[e->rank].expelled || m->peers[e->rank].state == DDL__LEFT)
        return;
    /* Forward the message, because its sender may have died before it had sent it to all members.
     * Members without the message would count the expelled rank in the vote. */
    if (ddl__is_sparse(m->size))
        ddl__gossip_pass_on(m, from, e);
    else
        ddl__member_broadcast(m, e);
    if (e->rank == m->rank)
        mark_self_expelled(m, e->by, e->text, now);
    else
        mark_expelled(m, e->by, e->rank, e->text, now);
}

/* EXPELLED from an expelled rank counts, too: if two ranks expel each other, members may receive
 * the two messages in different orders. A rank that knows that it is expelled cannot expel. */
ddl_status ddl__member_expel(ddl__membership *m, int rank, const char *reason, int64_t now)
{
    if (m->peers[m->rank].expelled)
        return DDL_EMINORITY;
    if (m->peers[rank].state == DDL__LEFT)
        return DDL_OK;
    ddl__member_msg e = {.kind = DDL__EXPELLED, .rank = rank, .by = m->rank, .text = reason};
    for (int i = 0; i < m->size; i++)
        if (i != m->rank)
            ddl__member_send(m, i, &e);
    mark_expelled(m, m->rank, rank, reason, now);
    return DDL_OK;
}

/* ------------------------------------------------------------------------------------- messages */

static void receive_expel(ddl__membership *m, int from, const ddl__member_msg *message, int64_t now)
{
    bool was_alive = ddl__is_alive(m, from);
    /* In a sparse comm, most survivors have no connection to this rank, so one EXPEL of a rank
     * whose verdict leaves out this rank is enough. */
    m->left_out = m->left_out || (m->n_late && message->flag);
    ddl__member_mark_continues(m, from, now);
    if (was_alive && !message->flag)
        ddl__gossip_lost(m, from);
    m->ports->end(m->context,
                  &(ddl__comm_end){DDL__END_GIVEN_UP, .rank = from, .text = message->text});
}

/* Handle the report of a member that the process of another member on its host has ended. */
static void receive_confirm(ddl__membership *m, int from, const ddl__member_msg *message,
                            int64_t now)
{
    if (message->rank < 0 || message->rank >= m->size || message->rank == m->rank)
        return;
    const ddl__peer *peer = &m->peers[message->rank];
    if (!peer->confirmed || message->attempt > peer->confirmed_attempt)
        ddl__gossip_pass_on(m, from, message);
    confirm(m, message->rank, message->attempt, now);
}

void ddl__member_receive(ddl__membership *m, int from, const ddl__member_msg *message, int64_t now)
{
    switch (message->kind) {
    case DDL__LEAVE:
        if (ddl__is_alive(m, from))
            ddl__member_leave(m, from);
        else
            m->peers[from].may_continue = true;
        break;
    case DDL__EXPEL: receive_expel(m, from, message, now); break;
    case DDL__JOIN:
    case DDL__VERDICT:
    case DDL__DONE:
    case DDL__VOUCH:
        if (ddl__is_alive(m, from)) /* a rank that is not alive takes no part in the agreement */
            ddl__agreement_receive(m, from, message, now);
        break;
    case DDL__CONFIRM: receive_confirm(m, from, message, now); break;
    case DDL__EXPELLED: receive_expelled(m, from, message, now); break;
    case DDL__LOST: ddl__gossip_receive_lost(m, from, message, now); break;
    case DDL__GONE: ddl__gossip_receive_gone(m, message); break;
    case DDL__DEAD:
    case DDL__HEARTBEAT:
    case DDL__ASK:
    case DDL__ANSWER:
    case DDL__ASK_NAME:
    case DDL__ANSWER_NAME: break; /* these messages change no member's state */
    }
}

void ddl__membership_announce(ddl__membership *m, bool was_told)
{
    if (m->announced)
        return;
    m->announced = true;
    ddl__gossip_send_gone(m);
    for (int i = 0; i < m->size; i++)
        if (i != m->rank && ddl__is_alive(m, i) && (!was_told || ddl__gossip_reaches(m, i)))
            ddl__member_send(m, i, &(ddl__member_msg){.kind = DDL__DEAD});
}

void ddl__member_note_last(ddl__membership *m, int rank, ddl__control_msg message)
{
    ddl__peer *peer = &m->peers[rank];
    if (peer->state != DDL__ALIVE)
        return;
    if (message == DDL__LEAVE)
        peer->state = DDL__LEFT;
    else if (message == DDL__DEAD || message == DDL__EXPEL)
        peer->state = DDL__SILENT;
}

void ddl__member_connected(ddl__membership *m, int rank)
{
    ddl__peer *peer = &m->peers[rank];
    peer->connected = true;
    peer->silent_ns = 0;
    if (m->announced)
        ddl__member_send(m, rank, &(ddl__member_msg){.kind = DDL__DEAD});
    ddl__gossip_send_all_gone(m, rank);
    ddl__agreement_send_standing(m, rank);
}
