/* SPDX-License-Identifier: Apache-2.0 */
/* Design notes.
 *
 * In a sparse comm, most members have no connection to a given member, so other members report its
 * state. Each rank that receives a report for the first time forwards it to its neighbours
 * (graph.h). A rank has at least four neighbours, and the farthest ranks are log2(n) hops apart. In
 * other comms, all members receive messages directly, and little is forwarded.
 *
 * - DEAD, CONFIRM and EXPELLED are forwarded.
 * - LOST: a rank has declared another one dead by its own evidence. The report of one rank proves
 *   little, because its own network may be broken. Members that have no connection to the lost rank
 *   believe two reports, from two hosts or from the lost rank's host. They test the next leader of
 *   the agreement themselves, by dialing it (leader.c), because ranks with different leaders would
 *   wait for each other. In the agreement, a rank accuses others only by its own evidence.
 * - GONE: members that have left. One message names all of them, and is sent with the next
 *   heartbeats. */
#include "base/time_limits.h"
#include "membership/graph.h"
#include "membership/state.h"

bool ddl__member_is_far(const ddl__membership *m, int rank)
{
    return m->far_beats > 1 && !ddl__is_near(m->rank, rank, m->size);
}

bool ddl__gossip_reaches(const ddl__membership *m, int rank)
{
    return m->n_late ? ddl__are_neighbours(m->rank, rank, m->size) : !ddl__member_is_far(m, rank);
}

void ddl__gossip_pass_on(ddl__membership *m, int from, const ddl__member_msg *message)
{
    if (!ddl__is_sparse(m->size))
        return;
    for (int i = 0; i < m->size; i++)
        if (i != m->rank && i != from && ddl__is_alive(m, i) && ddl__gossip_reaches(m, i))
            ddl__member_send(m, i, message);
}

static bool has_late_pairs(const ddl__membership *m, int rank)
{
    return ddl__is_sparse(m->size) && m->ports->has_late_pairs(m->context, rank);
}

/* --------------------------------------------------------------------------------------- deaths */

void ddl__gossip_lost(ddl__membership *m, int rank)
{
    const ddl__peer *peer = &m->peers[rank];
    if (has_late_pairs(m, rank))
        ddl__member_broadcast(
            m, &(ddl__member_msg){.kind = DDL__LOST,
                                  .rank = rank,
                                  .by = m->rank,
                                  .state = peer->state,
                                  .silent_ms = (uint32_t)(peer->silent_ns / DDL__MS)});
}

/* Return true if the reports of two ranks about a third one cannot both be caused by one broken
 * connection between two hosts. */
static bool is_sufficient(const ddl__membership *m, int one, int other, int rank)
{
    uint64_t a = m->ports->network(m->context, one), b = m->ports->network(m->context, other);
    return a != b || !a || a == m->ports->network(m->context, rank);
}

/* Record the reporter if it is the first one, or if it makes the reports sufficient together with
 * the first one. Otherwise return false. */
static bool add_reporter(const ddl__membership *m, ddl__peer *peer, const ddl__member_msg *l)
{
    if (peer->n_reporters && ddl__member_is_dead(m, peer->reporters[0]))
        peer->n_reporters = 0;
    if (peer->n_reporters == 0 || (peer->n_reporters == 1 && peer->reporters[0] != l->by &&
                                   is_sufficient(m, peer->reporters[0], l->by, l->rank))) {
        peer->reporters[peer->n_reporters++] = l->by;
        peer->reported_silent = peer->reported_silent || l->state == DDL__SILENT;
        return true;
    }
    return false;
}

static bool is_valid(const ddl__membership *m, const ddl__member_msg *l)
{
    return l->rank >= 0 && l->rank < m->size && l->by >= 0 && l->by < m->size && l->by != m->rank &&
           l->by != l->rank && l->state >= DDL__KILLED && l->state <= DDL__SILENT;
}

void ddl__gossip_receive_lost(ddl__membership *m, int from, const ddl__member_msg *l, int64_t now)
{
    /* Ignore ranks that were declared dead: they may be on the other side of a broken network. */
    if (!is_valid(m, l) || ddl__member_is_dead(m, from) || ddl__member_is_dead(m, l->by))
        return;
    if (!m->peers[l->by].connected)
        m->peers[l->by].silent_ns = 0; /* the reporter is alive */
    if (l->rank == m->rank) {          /* another rank continues without this one */
        ddl__member_mark_continues(m, l->by, now);
        m->ports->end(m->context,
                      &(ddl__comm_end){DDL__END_LOST, l->by, l->state, l->silent_ms, NULL});
        return;
    }
    ddl__peer *peer = &m->peers[l->rank];
    if (peer->state == DDL__LEFT || !add_reporter(m, peer, l))
        return;
    ddl__gossip_pass_on(m, from, l);
    if (peer->state != DDL__ALIVE || peer->connected || peer->n_reporters < 2 ||
        l->rank == ddl__lowest_alive(m))
        return;
    peer->by_report = true;
    ddl__cause cause = {DDL__CAUSE_LOST_BY_TWO, .by = peer->reporters[0],
                        .other = peer->reporters[1]};
    ddl__member_mark_dead(m, l->rank, peer->reported_silent ? DDL__SILENT : DDL__DISCONNECTED,
                          &cause, now);
    ddl__member_watch(m, l->rank, now);
}

/* -------------------------------------------------------------------------------------- leaving */

void ddl__gossip_left(ddl__membership *m, int rank)
{
    if (has_late_pairs(m, rank)) /* a rank leaves once */
        ddl__gone(m)[m->n_gone++] = rank;
}

void ddl__gossip_send_gone(ddl__membership *m)
{
    if (m->n_gone)
        m->ports->send_gone(m->context, -1, ddl__gone(m), m->n_gone);
    m->n_gone = 0;
}

void ddl__gossip_send_all_gone(ddl__membership *m, int to)
{
    for (int32_t i = 0; i < m->size; i++)
        if (m->peers[i].state == DDL__LEFT)
            m->ports->send_gone(m->context, to, &i, 1);
}

void ddl__gossip_receive_gone(ddl__membership *m, const ddl__member_msg *message)
{
    if (message->rank < 0 || message->rank >= m->size || message->rank == m->rank)
        return;
    ddl__peer *peer = &m->peers[message->rank];
    if (peer->state == DDL__LEFT && !peer->connected && !message->attempt)
        peer->may_continue = false; /* this rank only knew that the connection had ended */
    if (peer->state != DDL__ALIVE || peer->connected)
        return;
    peer->joined = message->attempt > peer->joined ? message->attempt : peer->joined;
    ddl__member_leave(m, message->rank);
}
