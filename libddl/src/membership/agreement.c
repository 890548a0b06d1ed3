/* SPDX-License-Identifier: Apache-2.0 */
/* Design notes.
 *
 * Every rank that shrinks the comm sends JOIN to all others. JOIN names the rank's leader, which is
 * the lowest rank that it believes alive, and accuses the ranks that it believes dead. A leader
 * decides once all ranks that it believes alive follow it: its VERDICT is the list of survivors. If
 * one rank accuses another, and the leader has not found the accused rank dead within
 * DDL__EVIDENCE_LIMIT, the leader leaves out the rank with the most such disputes. So if a single
 * rank is cut off from the others, that rank is left out, not the others. If the leader itself is
 * cut off, it resigns by an empty VERDICT, and its followers agree under the next leader. VOUCH
 * messages show that a leader is cut off: a follower reports that a rank that the leader has lost
 * has joined the leader's attempt. A rank that follows another leader is left out, too, so two
 * leaders cannot both decide with the same ranks.
 *
 * Then the ranks of the list create their comm. If one of them dies meanwhile, the creation has
 * failed (ddl__agreement_lost), and another attempt follows. Attempts are numbered, and a rank that
 * receives a higher number joins that attempt. A rank that has created the comm sends DONE. When it
 * has received DONE from all ranks of the list, it sends DONE (committed) and returns the comm. So
 * when one rank returns the comm of an attempt, all others of the list have created it, too, and
 * are notified that it is final. If a member dies from then on, the new comm fails.
 *
 * The survivors must be a majority of the ranks that may be alive, or half of them including the
 * lowest. So if the network is partitioned, at most one side continues. A rank whose process is
 * known to have ended does not count (members.c lists the evidence). If evidence of a rank's end
 * could decide the vote, the leader waits for a witness. The comm of an abandoned attempt is closed
 * with EXPEL, not with LEAVE. A member that was abandoned together with that comm would take LEAVE
 * to mean that the ranks that continue elsewhere have left, and would not count them in a vote.
 *
 * In a sparse comm (graph.h), all ranks connect to the lowest rank that they believe alive
 * (leader.c). So a leader receives the messages of all ranks that may follow it, and all these
 * ranks receive the leader's messages. When a rank connects, it is sent the messages that it has
 * missed. Only the leader knows when all have created the next comm. Each rank that receives its
 * DONE (committed) forwards it. */
#include "base/time_limits.h"
#include "membership/graph.h"
#include "membership/state.h"

/* ------------------------------------------------------------------------------------- messages */

static void broadcast_done(ddl__membership *m, uint32_t attempt, bool committed)
{
    ddl__peer *self = &m->peers[m->rank];
    if (committed && self->committed == attempt) /* sent before */
        return;
    self->done = attempt;
    self->committed = committed ? attempt : self->committed;
    ddl__member_broadcast(
        m, &(ddl__member_msg){.kind = DDL__DONE, .attempt = attempt, .flag = committed});
}

static void broadcast_verdict(ddl__membership *m)
{
    ddl__member_broadcast(m, &(ddl__member_msg){.kind = DDL__VERDICT,
                                                .attempt = m->gathering,
                                                .set = ddl__verdict(m, m->rank)});
}

static bool is_empty(const ddl__membership *m, const unsigned char *set)
{
    for (size_t i = 0; i < m->set_bytes; i++)
        if (set[i])
            return false;
    return true;
}

static void receive_vouch(ddl__membership *m, int from, const ddl__member_msg *message)
{
    int rank = message->rank;
    if (rank < 0 || rank >= m->size || rank == m->rank || message->attempt < m->peers[rank].vouched)
        return;
    if (message->attempt > m->peers[rank].vouched)
        memset(ddl__vouchers(m, rank), 0, m->set_bytes);
    m->peers[rank].vouched = message->attempt;
    ddl__set_add(ddl__vouchers(m, rank), from);
}

void ddl__agreement_receive(ddl__membership *m, int from, const ddl__member_msg *message,
                            int64_t now)
{
    ddl__peer *peer = &m->peers[from];
    if (message->kind == DDL__JOIN) {
        memcpy(ddl__accused(m, from), message->set, m->set_bytes);
        m->disputed_until = 0; /* wait again: more evidence may arrive */
        peer->joined = message->attempt;
        peer->leader = message->leader;
    } else if (message->kind == DDL__VOUCH) {
        receive_vouch(m, from, message);
    } else if (message->kind == DDL__VERDICT && is_empty(m, message->set)) {
        peer->resigned = peer->joined && peer->leader == from && !peer->done;
        ddl__member_lose(m, from, &(ddl__cause){.kind = DDL__CAUSE_RESIGNED}, now);
    } else if (message->kind == DDL__VERDICT) {
        memcpy(ddl__verdict(m, from), message->set, m->set_bytes);
        peer->decided = message->attempt;
    } else {
        peer->done = message->attempt;
        peer->committed = message->flag ? message->attempt : peer->committed;
        if (message->flag && message->attempt != m->created_attempt) /* abandoned here */
            ddl__member_mark_continues(m, from, now);
        else if (message->flag)
            broadcast_done(m, message->attempt, true); /* before any report of leaving */
    }
}

void ddl__agreement_send_standing(ddl__membership *m, int to)
{
    const ddl__peer *self = &m->peers[m->rank];
    if (m->phase != DDL__AGREEMENT_IDLE && self->joined)
        ddl__member_send(m, to,
                         &(ddl__member_msg){.kind = DDL__JOIN,
                                            .attempt = self->joined,
                                            .leader = self->leader,
                                            .set = ddl__accused(m, m->rank)});
    if (self->done)
        ddl__member_send(m, to, &(ddl__member_msg){.kind = DDL__DONE, .attempt = self->done});
    if (self->committed)
        ddl__member_send(
            m, to, &(ddl__member_msg){.kind = DDL__DONE, .attempt = self->committed, .flag = true});
}

/* -------------------------------------------------------------------------------- the survivors */

/* Return true if the survivors may continue; see the design notes. */
static bool is_majority(const ddl__membership *m, const unsigned char *live, int64_t now)
{
    int possible = 0, surviving = 0, lowest = -1;
    bool waited = now >= m->evidence_until;
    for (int rank = 0; rank < m->size; rank++) {
        const ddl__peer *peer = &m->peers[rank];
        /* A rank that joined the agreement before it left, or was expelled, may have continued. */
        bool out = !peer->may_continue && (peer->state == DDL__LEFT || (peer->expelled && waited));
        bool ended = peer->state == DDL__KILLED || (out && !peer->joined);
        if (peer->resigned || (rank != m->rank && ended))
            continue;
        lowest = lowest < 0 ? rank : lowest;
        possible++;
        surviving += ddl__set_has(live, rank);
    }
    return 2 * surviving > possible || (2 * surviving == possible && ddl__set_has(live, lowest));
}

/* Find the ranks that this rank has declared dead by its own evidence. */
static void find_dead(const ddl__membership *m, unsigned char *dead)
{
    memset(dead, 0, m->set_bytes);
    for (int rank = 0; rank < m->size; rank++)
        if (!ddl__is_alive(m, rank) && !m->peers[rank].by_report)
            ddl__set_add(dead, rank);
}

/* Return true if a rank that this leader has lost may be alive, and continue. */
static bool can_continue(const ddl__membership *m, int rank)
{
    const ddl__peer *peer = &m->peers[rank];
    return (peer->state == DDL__DISCONNECTED || peer->state == DDL__SILENT) && !peer->by_report;
}

/* Return a rank that the leader still waits for; -1 if there is none. */
static int not_joined(const ddl__membership *m)
{
    for (int rank = 0; rank < m->size; rank++) {
        const ddl__peer *peer = &m->peers[rank];
        if (rank != m->rank && ddl__is_alive(m, rank) &&
            (peer->joined != m->gathering || peer->leader < m->rank))
            return rank;
    }
    return -1;
}

static bool accuses(const ddl__membership *m, int one, int other)
{
    return ddl__is_alive(m, one) && ddl__set_has(ddl__accused(m, one), other);
}

static bool are_in_dispute(const ddl__membership *m, int one, int other)
{
    return accuses(m, one, other) || accuses(m, other, one);
}

/* Return the rank with the most disputes, or -1 if there are none. If several ranks have the most,
 * return the highest. */
static int find_most_disputed(const ddl__membership *m)
{
    int found = -1, most = 1;
    for (int rank = 0; rank < m->size; rank++)
        if (m->peers[rank].disputes >= most) {
            most = m->peers[rank].disputes;
            found = rank;
        }
    return found;
}

/* Remove the rank with the most disputes from the set, until there are no disputes. */
static void settle(ddl__membership *m, unsigned char *live)
{
    for (int rank = 0; rank < m->size; rank++)
        for (int other = 0; other < rank && ddl__set_has(live, rank); other++)
            if (ddl__set_has(live, other) && are_in_dispute(m, rank, other)) {
                m->peers[rank].disputes++;
                m->peers[other].disputes++;
            }
    for (int worst; (worst = find_most_disputed(m)) >= 0;) {
        ddl__set_remove(live, worst);
        m->peers[worst].disputes = 0;
        for (int rank = 0; rank < m->size; rank++)
            if (ddl__set_has(live, rank) && are_in_dispute(m, rank, worst))
                m->peers[rank].disputes--;
    }
}

/* Compute the leader's verdict, after all ranks have joined. */
static void decide(ddl__membership *m, unsigned char *live)
{
    memset(live, 0, m->set_bytes);
    for (int rank = 0; rank < m->size; rank++)
        if (ddl__is_alive(m, rank) && (rank == m->rank || m->peers[rank].leader == m->rank))
            ddl__set_add(live, rank);
    settle(m, live);
}

/* Return true if a follower of this leader has not lost the rank `lost`, which the leader has
 * lost. */
static bool is_unseen(const ddl__membership *m, int lost)
{
    for (int rank = 0; rank < m->size; rank++)
        if (rank != m->rank && ddl__is_alive(m, rank) && !accuses(m, rank, lost) &&
            (!ddl__is_sparse(m->size) || ddl__are_neighbours(rank, lost, m->size)))
            return true;
    return false;
}

static int count(const ddl__membership *m, const unsigned char *set)
{
    int n = 0;
    for (int rank = 0; rank < m->size; rank++)
        n += ddl__set_has(set, rank);
    return n;
}

/* Return true if a follower vouches for the rank, and has not lost it since. */
static bool is_vouched(const ddl__membership *m, int lost)
{
    for (int rank = 0; m->peers[lost].vouched == m->gathering && rank < m->size; rank++)
        if (ddl__set_has(ddl__vouchers(m, lost), rank) && ddl__is_alive(m, rank) &&
            !accuses(m, rank, lost))
            return true;
    return false;
}

/* Decide and record whether this leader is cut off, that is, whether more than `least` ranks can
 * continue without it. The vote includes the leader itself, and the ranks that it has lost and for
 * which a follower vouches. A leader that has ever created a comm of this agreement does not
 * resign, because it may continue in that comm. A leader that has resigned never shrinks again. So
 * `done` and `left_out` must never be reset. */
static bool is_cut_off(ddl__membership *m, int least, int64_t now)
{
    ddl__peer *self = &m->peers[m->rank];
    unsigned char *live = ddl__scratch_set(m);
    memset(live, 0, m->set_bytes);
    for (int rank = 0; rank < m->size; rank++)
        if (ddl__is_alive(m, rank) || (can_continue(m, rank) && is_vouched(m, rank)))
            ddl__set_add(live, rank);
    settle(m, live);
    self->resigned = true; /* so that is_majority does not count this rank */
    self->resigned = !self->done && !ddl__is_sparse(m->size) && !ddl__set_has(live, m->rank) &&
                     count(m, live) > least && is_majority(m, live, now);
    return self->resigned;
}

/* Send EXPEL to the ranks that are left out. In a sparse comm, send it also to the ranks that were
 * declared dead, in case they are alive: they have no connection to most other ranks. */
static void expel_others(ddl__membership *m)
{
    for (int rank = 0; rank < m->size; rank++) {
        ddl__peer *peer = &m->peers[rank];
        bool alive = ddl__is_alive(m, rank);
        if (rank == m->rank || ddl__agreement_has(m, rank) || (!alive && !m->n_late))
            continue;
        ddl__member_send(m, rank, &(ddl__member_msg){.kind = DDL__EXPEL, .flag = true});
        if (!alive)
            continue;
        peer->state = DDL__SILENT;
        peer->cause = DDL__CAUSE_LEFT_OUT;
        m->ports->died(m->context, rank, &(ddl__cause){.kind = DDL__CAUSE_LEFT_OUT});
    }
}

static bool is_committed(const ddl__membership *m)
{
    for (int rank = 0; m->created_attempt && rank < m->size; rank++)
        if (m->peers[rank].committed == m->created_attempt)
            return true;
    return false;
}

/* Send JOIN if the attempt or the accused ranks have changed. */
static void join(ddl__membership *m, int leader)
{
    ddl__peer *self = &m->peers[m->rank];
    unsigned char *dead = ddl__scratch_set(m), *sent = ddl__accused(m, m->rank);
    for (int rank = 0; rank < m->size; rank++)
        if ((rank == m->rank || ddl__is_alive(m, rank)) && m->peers[rank].joined > m->gathering)
            m->gathering = m->peers[rank].joined;
    find_dead(m, dead);
    if (m->has_sent && self->joined == m->gathering && !memcmp(dead, sent, m->set_bytes))
        return;
    memcpy(sent, dead, m->set_bytes);
    m->has_sent = true;
    self->joined = m->gathering;
    self->leader = leader;
    ddl__member_broadcast(
        m, &(ddl__member_msg){
               .kind = DDL__JOIN, .attempt = m->gathering, .leader = leader, .set = sent});
}

/* Vouch to the leader for each rank that the leader has lost, but that has joined the leader's
 * attempt. */
static void vouch(ddl__membership *m, int leader)
{
    if (ddl__is_sparse(m->size) || m->peers[leader].joined != m->gathering)
        return;
    for (int rank = 0; rank < m->size; rank++) {
        ddl__peer *peer = &m->peers[rank];
        if (rank == m->rank || !accuses(m, leader, rank) || !ddl__is_alive(m, rank) ||
            peer->joined != m->gathering ||
            (peer->vouched_at == m->gathering && peer->vouched_to == leader))
            continue;
        peer->vouched_at = m->gathering;
        peer->vouched_to = leader;
        ddl__member_send(
            m, leader,
            &(ddl__member_msg){.kind = DDL__VOUCH, .rank = rank, .attempt = m->gathering});
    }
}

static ddl__agreement_step fail(ddl__membership *m, ddl__agreement_failure why, int rank)
{
    m->phase = DDL__AGREEMENT_IDLE;
    m->attempt = m->gathering;
    m->created_attempt = 0;
    m->why = (unsigned char)why;
    m->late_rank = rank;
    return DDL__STEP_FAIL;
}

static ddl__agreement_step complete(ddl__membership *m)
{
    broadcast_done(m, m->created_attempt, true);
    m->phase = DDL__AGREEMENT_IDLE;
    return DDL__STEP_RETURN;
}

static ddl__agreement_step begin_creation(ddl__membership *m)
{
    m->attempt = m->gathering;
    m->created_attempt = 0;
    expel_others(m);
    m->phase = DDL__AGREEMENT_CREATING;
    return DDL__STEP_CREATE;
}

/* End this leader's part in the agreement by an empty verdict. Its followers then continue without
 * it. */
static ddl__agreement_step resign(ddl__membership *m)
{
    memset(ddl__verdict(m, m->rank), 0, m->set_bytes);
    broadcast_verdict(m);
    m->left_out = true;
    return fail(m, DDL__FAILURE_CUT_OFF, -1);
}

/* End the agreement of this leader and its followers, which are no majority. */
static ddl__agreement_step give_up(ddl__membership *m)
{
    memset(ddl__verdict(m, m->rank), 0, m->set_bytes);
    ddl__set_add(ddl__verdict(m, m->rank), m->rank); /* so that no follower waits */
    broadcast_verdict(m);
    return fail(m, DDL__FAILURE_NO_MAJORITY, -1);
}

/* Return true if a rank accuses another one, and this leader believes both alive. */
static bool is_disputed(const ddl__membership *m)
{
    for (int rank = 0; rank < m->size; rank++)
        for (int other = 0; other < rank; other++)
            if (ddl__is_alive(m, rank) && ddl__is_alive(m, other) && are_in_dispute(m, rank, other))
                return true;
    return false;
}

/* Return true if this leader has lost a rank that a follower has not lost. Then this leader may be
 * cut off from the lost rank, which may be alive. Or, if this leader has created the last comm, the
 * lost rank may have committed that comm, and its message may still reach the follower, which would
 * then continue in that comm. */
static bool is_loss_unseen(const ddl__membership *m)
{
    bool votes = !ddl__is_sparse(m->size);
    for (int lost = 0; lost < m->size; lost++) {
        bool counts = m->created_attempt ? ddl__member_is_dead(m, lost) : can_continue(m, lost);
        if (counts && (votes || m->created_attempt) && is_unseen(m, lost))
            return true;
    }
    return false;
}

/* Return true while evidence about a rank's death may be on its way to this leader or to its
 * followers. */
static bool awaits_news(ddl__membership *m, int64_t now)
{
    if (!is_disputed(m) && !is_loss_unseen(m))
        m->disputed_until = 0;
    else if (!m->disputed_until)
        m->disputed_until = now + DDL__EVIDENCE_LIMIT;
    return now < m->disputed_until && now < m->deadline;
}

/* Agree on the list of survivors. */
static ddl__agreement_step gather(ddl__membership *m, int64_t now)
{
    int leader = ddl__lowest_alive(m);
    const ddl__peer *leading = &m->peers[leader];
    unsigned char *live = ddl__verdict(m, m->rank);
    if (is_committed(m)) /* a survivor has committed, so the comm of `created_attempt` counts */
        return complete(m);
    join(m, leader);
    if (m->peers[m->rank].expelled)
        return fail(m, DDL__FAILURE_EXPELLED, -1);
    if (m->left_out)
        return fail(m, DDL__FAILURE_LEFT_OUT, -1);
    if (leader == m->rank && not_joined(m) < 0 && !awaits_news(m, now)) {
        bool waited = now >= m->evidence_until || now >= m->deadline;
        decide(m, live);
        bool may_continue = is_majority(m, live, now);
        if (waited && is_cut_off(m, may_continue ? count(m, live) : 0, now))
            return resign(m);
        if (may_continue) {
            broadcast_verdict(m);
            return begin_creation(m);
        }
        if (waited)
            return give_up(m);
    }
    if (leader != m->rank)
        vouch(m, leader);
    if (leader != m->rank && leading->decided == m->gathering) {
        memcpy(live, ddl__verdict(m, leader), m->set_bytes);
        bool gives_up = ddl__set_has(live, leader) && count(m, live) == 1;
        return ddl__set_has(live, m->rank) ? begin_creation(m)
               : gives_up                  ? fail(m, DDL__FAILURE_NO_MAJORITY, -1)
                                           : fail(m, DDL__FAILURE_LEFT_OUT, -1);
    }
    if (now >= m->deadline)
        return fail(m, DDL__FAILURE_LATE, leader == m->rank ? not_joined(m) : leader);
    return DDL__STEP_WAIT;
}

/* -------------------------------------------------------------------------------- the new comm */

bool ddl__agreement_has(const ddl__membership *m, int rank)
{
    return ddl__set_has(ddl__verdict(m, m->rank), rank);
}

/* Return true if the member has created the comm of the current attempt. */
static bool has_done(const ddl__membership *m, int rank)
{
    return m->peers[rank].done >= m->attempt && !m->peers[rank].may_continue;
}

/* Return true if the rank accuses a survivor. */
static bool accuses_survivor(const ddl__membership *m, int rank)
{
    const unsigned char *list = ddl__verdict(m, m->rank), *accused = ddl__accused(m, rank);
    for (size_t i = 0; i < m->set_bytes; i++)
        if (list[i] & accused[i])
            return true;
    return false;
}

/* Return a member that makes the creation impossible: it died before it created the comm, it has
 * joined a later attempt, or it accuses a survivor. -1: there is none. */
static int lost_member(const ddl__membership *m)
{
    /* If a member is dead only by the reports of other ranks, only the leader ends the creation. */
    bool leads = ddl__lowest_alive(m) == m->rank;
    for (int rank = 0; rank < m->size; rank++) {
        const ddl__peer *peer = &m->peers[rank];
        if (rank == m->rank || !ddl__agreement_has(m, rank))
            continue;
        bool dead = !ddl__is_alive(m, rank) && (!peer->by_report || leads);
        if (peer->joined > m->attempt || (dead && !has_done(m, rank)) ||
            (peer->joined == m->attempt && accuses_survivor(m, rank)))
            return rank;
    }
    return -1;
}

int ddl__agreement_lost(const ddl__membership *m)
{
    return m->peers[m->rank].expelled ? m->rank : lost_member(m);
}

/* Start another attempt. */
static void gather_again(ddl__membership *m)
{
    m->phase = DDL__AGREEMENT_GATHERING;
    m->gathering = m->attempt + 1;
    m->has_sent = false;
    m->disputed_until = 0;
}

static ddl__agreement_step await_all_done(ddl__membership *m, int64_t now)
{
    bool all = true;
    for (int rank = 0; rank < m->size; rank++)
        all = all && (rank == m->rank || !ddl__agreement_has(m, rank) || has_done(m, rank));
    if (all || is_committed(m))
        return complete(m);
    if (ddl__agreement_lost(m) < 0 && now < m->deadline)
        return DDL__STEP_WAIT;
    gather_again(m);
    return gather(m, now);
}

/* -------------------------------------------------------------------------------------- events */

bool ddl__agreement_may_begin(ddl__membership *m, bool failed)
{
    for (int rank = 0; rank < m->size; rank++) {
        bool dead = ddl__member_is_dead(m, rank), joins = m->peers[rank].joined > m->attempt;
        if (rank == m->rank || (!dead && !joins))
            continue;
        failed = true;
        m->ports->end(m->context, &(ddl__comm_end){.kind = dead ? DDL__END_DEAD : DDL__END_SHRINKS,
                                                   .rank = rank});
    }
    return failed;
}

void ddl__agreement_begin(ddl__membership *m, int64_t deadline)
{
    m->deadline = deadline;
    m->created_attempt = 0;
    m->why = DDL__FAILURE_NONE;
    gather_again(m);
}

ddl__agreement_step ddl__agreement_advance(ddl__membership *m, int64_t now)
{
    return m->phase == DDL__AGREEMENT_GATHERING  ? gather(m, now)
           : m->phase == DDL__AGREEMENT_AWAITING ? await_all_done(m, now)
                                                 : DDL__STEP_WAIT;
}

ddl__agreement_step ddl__agreement_created(ddl__membership *m, bool created, bool final)
{
    if (!created && final)
        return fail(m, DDL__FAILURE_CREATION, -1);
    if (!created) {
        gather_again(m);
        return DDL__STEP_WAIT;
    }
    m->created_attempt = m->attempt;
    m->phase = DDL__AGREEMENT_AWAITING;
    /* Report this to the launcher before DONE is sent, because other ranks may continue after
     * DONE. */
    m->ports->continues(m->context, m->attempt);
    broadcast_done(m, m->attempt, false);
    return DDL__STEP_WAIT;
}

ddl__agreement_failure ddl__agreement_why(const ddl__membership *m, int *rank)
{
    *rank = m->late_rank;
    return (ddl__agreement_failure)m->why;
}
