/* SPDX-License-Identifier: Apache-2.0 */
/* Connects ranks to the leader of the agreement in a sparse comm. In a sparse comm, most pairs have
 * no control connection, so every rank opens one to the lowest rank that it believes alive: the
 * leader.
 *
 * A leader that cannot be reached, or does not answer, is declared dead, by this rank's own
 * evidence. The limit is shorter if other ranks have lost it, too, or if its host refuses the
 * connection. Ranks on its host that other ranks have lost are declared dead with it, because they
 * are behind the same network. A leader declares a rank dead that does not connect in time. */
#include "base/time_limits.h"
#include "membership/state.h"

int64_t ddl__leader_limit(const ddl__membership *m, int leader, ddl__dialed result)
{
    const ddl__peer *peer = &m->peers[leader];
    if (result == DDL__DIALED_REFUSED)
        return peer->n_reporters ? 0 : DDL__REFUSED_LEADER_LIMIT;
    if (peer->n_reporters > 1 || (peer->n_reporters && result != DDL__DIALED_UNANSWERED))
        return DDL__LOST_LEADER_LIMIT;
    /* If silence never counts as death, do not limit the wait for a leader that was reached: its
     * neighbours monitor it, unless all of them are dead. */
    if (result == DDL__DIALED_UNANSWERED && m->dead == INT64_MAX)
        return INT64_MAX;
    return DDL__LEADER_LIMIT + (result == DDL__DIALED_UNANSWERED ? m->dead : 0);
}

static void mark_unreachable(ddl__membership *m, int rank, ddl__member_state state,
                             const ddl__cause *cause, int64_t now)
{
    ddl__member_mark_dead(m, rank, state, cause, now);
    m->evidence_until = now + DDL__EVIDENCE_LIMIT;
    ddl__gossip_lost(m, rank);
}

void ddl__leader_unreachable(ddl__membership *m, int rank, const char *text, int64_t now)
{
    ddl__cause cause = {DDL__CAUSE_NOT_REACHED, .text = text};
    mark_unreachable(m, rank, DDL__SILENT, &cause, now);
}

/* Declare the leader dead, and with it the ranks on its host that other ranks have lost. */
static void give_up(ddl__membership *m, int leader, bool refused, const char *text,
                    bool (*answers)(const void *context, int rank), const void *context,
                    int64_t now)
{
    ddl__cause cause = {DDL__CAUSE_NOT_REACHED, .text = text};
    uint64_t network = m->ports->network(m->context, leader);
    mark_unreachable(m, leader, refused ? DDL__DISCONNECTED : DDL__SILENT, &cause, now);
    for (int i = leader + 1; !refused && network && i < m->size; i++) {
        const ddl__peer *peer = &m->peers[i];
        if (peer->state != DDL__ALIVE || peer->connected || !peer->n_reporters || i == m->rank ||
            m->ports->network(m->context, i) != network || answers(context, i))
            continue;
        ddl__cause behind = {DDL__CAUSE_HOST_UNREACHABLE, .by = peer->reporters[0]};
        mark_unreachable(m, i, DDL__SILENT, &behind, now);
    }
}

void ddl__leader_dialed(ddl__membership *m, int leader, ddl__dialed result, int64_t elapsed,
                        const char *text, bool (*answers)(const void *context, int rank),
                        const void *context, int64_t now)
{
    if (m->peers[leader].state != DDL__ALIVE)
        return;
    switch (result) {
    case DDL__DIALED_LEFT: /* the leader may have continued with other ranks before it left */
        m->peers[leader].may_continue = true;
        ddl__member_leave(m, leader);
        return;
    case DDL__DIALED_LEFT_OUT: m->left_out = true; /* fall through */
    case DDL__DIALED_LOST: ddl__member_mark_continues(m, leader, now); return;
    case DDL__DIALED_REFUSED:
    case DDL__DIALED_SILENT:
    case DDL__DIALED_UNANSWERED:
    case DDL__DIALED_FAILED:
        if (elapsed >= ddl__leader_limit(m, leader, result))
            give_up(m, leader, result == DDL__DIALED_REFUSED, text, answers, context, now);
    }
}

void ddl__leader_connected(ddl__membership *m, int leader)
{
    if (m->peers[leader].state != DDL__ALIVE)
        ddl__member_give_up(m, leader);
}

ddl_status ddl__leader_answer(const ddl__membership *m, int from)
{
    const ddl__peer *peer = &m->peers[from];
    if (!peer->late || (peer->connected && !peer->is_new))
        return DDL_EREFUSED;
    return peer->state == DDL__ALIVE            ? DDL_OK
           : peer->cause == DDL__CAUSE_LEFT_OUT ? DDL_EMINORITY
                                                : DDL_EPEER;
}

void ddl__leader_check_silence(ddl__membership *m, int rank, int64_t elapsed, int64_t now)
{
    ddl__peer *peer = &m->peers[rank];
    bool is_ended = peer->n_reporters && !peer->reported_silent;
    if (!m->announced || !peer->late || peer->state != DDL__ALIVE ||
        (m->dead == INT64_MAX && !is_ended) || ddl__lowest_alive(m) != m->rank)
        return;
    peer->silent_ns += elapsed;
    int64_t limit = peer->n_reporters ? DDL__LOST_LEADER_LIMIT : DDL__LEADER_LIMIT;
    if (!peer->n_reporters || peer->reported_silent)
        limit += m->dead;
    /* The rank may first have to detect that the previous leader is silent. */
    limit += (m->far_beats - 1) * m->heartbeat;
    if (peer->silent_ns < limit)
        return;
    ddl__member_mark_dead(m, rank, DDL__SILENT, &(ddl__cause){.kind = DDL__CAUSE_NOT_CONNECTED},
                          now);
    ddl__gossip_lost(m, rank);
}

bool ddl__leader_is_unneeded(const ddl__membership *m)
{
    const ddl__peer *self = &m->peers[m->rank];
    return m->phase == DDL__AGREEMENT_IDLE && self->committed && self->committed == m->attempt;
}
