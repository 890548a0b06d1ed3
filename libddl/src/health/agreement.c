/* SPDX-License-Identifier: Apache-2.0 */
/* Design notes.
 *
 * Every rank that shrinks the comm sends JOIN to all others. It names its leader, which is the
 * lowest rank that it believes alive, and accuses the ranks that it believes dead. A leader decides
 * once all ranks that it believes alive follow it: its VERDICT is the list of survivors. If one
 * rank accuses another, the higher of the two is left out. A rank that follows another leader is
 * left out, too. Two leaders cannot both be followed by all ranks that they believe alive.
 *
 * Then the ranks of the list create their comm. If one dies meanwhile, the creation is in vain
 * (creation_check), and there is another attempt. Attempts are numbered, and a rank that receives a
 * higher number goes on to that attempt. A rank that has created its comm sends DONE. When all have
 * sent DONE, it sends DONE (committed) and returns the comm. So when one rank returns the comm of
 * an attempt, all others of the list have created it, too, and learn that it counts. If a member is
 * dead again by then, that is the next failure.
 *
 * The survivors must be a majority of the ranks that may be alive, or half of them including the
 * lowest. So if a network is cut in two, at most one side goes on. A rank whose process is known to
 * have ended does not count (peer_death.c lists the evidence); if that could decide the vote, the
 * leader waits for a witness. The comm of an attempt that is given up is closed with EXPEL, not
 * with LEAVE: otherwise a member that has created it, and was given up with it, would not count the
 * ranks that went on.
 *
 * In a sparse comm (connect/neighbours.h) all ranks connect to the lowest one that they believe
 * alive (late_control.c). So a leader hears all who may follow it, and all hear their leader; what
 * one of them has missed is told when it connects. That all have created the next comm is seen by
 * the leader alone; its word is passed on by each rank that believes it.
 */
#include "health/agreement.h"

#include <string.h>

#include "base/clock.h"
#include "base/thread.h"
#include "base/time_limits.h"
#include "health/health_state.h"

typedef struct agreement_head {
    uint32_t attempt, leader;
} agreement_head;

static bool set_has(const unsigned char *set, int rank)
{
    return set[rank / 8] >> rank % 8 & 1;
}

static void set_add(unsigned char *set, int rank)
{
    set[rank / 8] |= (unsigned char)(1 << rank % 8);
}

/* ------------------------------------------------------------------------------------- messages */

/* Send it to one member, or to all (-1). */
static void tell(ddl__health *h, int to, ddl__control_msg message, uint32_t attempt, uint32_t value,
                 const unsigned char *set)
{
    agreement_head head = {attempt, value};
    unsigned char content[sizeof head + DDL__CONTROL_MSG_MAX / 2];
    size_t sets = set ? ddl__set_bytes(h) : 0;
    memcpy(content, &head, sizeof head);
    if (sets)
        memcpy(content + sizeof head, set, sets);
    if (to < 0)
        ddl__health_broadcast(h, message, content, sizeof head + sets);
    else
        ddl__control_conn_send(&h->members[to].conn, message, content, sizeof head + sets);
}

static void broadcast(ddl__health *h, ddl__control_msg message, uint32_t attempt, uint32_t value,
                      const unsigned char *set)
{
    tell(h, -1, message, attempt, value, set);
}

static void broadcast_done(ddl__health *h, uint32_t attempt, bool committed)
{
    ddl__member *self = &h->members[h->rank];
    if (committed && self->committed == attempt) /* when the first one said so */
        return;
    self->done = attempt;
    self->committed = committed ? attempt : self->committed;
    broadcast(h, DDL__DONE, attempt, committed, NULL);
}

void ddl__agreement_receive(ddl__health *h, int from, ddl__control_msg message,
                            const unsigned char *content, size_t bytes)
{
    ddl__member *member = &h->members[from];
    agreement_head head;
    size_t sets = bytes - sizeof head;
    if (bytes < sizeof head || (message != DDL__DONE && sets != ddl__set_bytes(h)))
        return;
    memcpy(&head, content, sizeof head);
    content += sizeof head;
    if (message == DDL__JOIN) {
        memcpy(member->accused, content, sets);
        member->joined = head.attempt;
        member->leader = (int)head.leader;
    } else if (message == DDL__VERDICT) {
        memcpy(member->verdict, content, sets);
        member->decided = head.attempt;
    } else if (message == DDL__DONE) {
        member->done = head.attempt;
        member->committed = head.leader ? head.attempt : member->committed;
        if (head.leader && head.attempt != h->created_attempt) /* this rank has given it up */
            ddl__member_mark_gone_on(h, from);
        else if (head.leader && h->members[h->rank].committed != head.attempt)
            broadcast_done(h, head.attempt, true); /* at once: before the news that a rank leaves */
    }
}

void ddl__agreement_tell_standing(ddl__health *h, int rank)
{
    const ddl__member *self = &h->members[h->rank];
    if (h->shrinking && self->joined)
        tell(h, rank, DDL__JOIN, self->joined, (uint32_t)self->leader, self->accused);
    if (self->done)
        tell(h, rank, DDL__DONE, self->done, 0, NULL);
    if (self->committed)
        tell(h, rank, DDL__DONE, self->committed, 1, NULL);
}

/* -------------------------------------------------------------------------------- the survivors */

static bool is_alive(const ddl__health *h, int rank)
{
    return rank == h->rank || h->members[rank].fate == DDL__ALIVE;
}

/* True if these ranks may go on: see the design notes. */
static bool is_majority(const ddl__health *h, const unsigned char *live)
{
    int possible = 0, surviving = 0, lowest = -1;
    bool waited = ddl__now() >= h->evidence_until;
    for (int rank = 0; rank < h->size; rank++) {
        const ddl__member *member = &h->members[rank];
        /* A rank that joined the agreement before it left, or was expelled, may have gone on. */
        bool out = member->fate == DDL__LEFT || (member->expelled && waited);
        if (rank != h->rank && (member->fate == DDL__KILLED || (out && !member->joined)))
            continue;
        lowest = lowest < 0 ? rank : lowest;
        possible++;
        surviving += set_has(live, rank);
    }
    return 2 * surviving > possible || (2 * surviving == possible && set_has(live, lowest));
}

/* The ranks that count as dead by this rank's own evidence. */
static void find_dead(const ddl__health *h, unsigned char *dead)
{
    memset(dead, 0, ddl__set_bytes(h));
    for (int rank = 0; rank < h->size; rank++)
        if (!is_alive(h, rank) && !h->members[rank].by_report)
            set_add(dead, rank);
}

/* A rank that the leader still waits for; -1: none. */
static int not_joined(const ddl__health *h, uint32_t attempt)
{
    for (int rank = 0; rank < h->size; rank++) {
        const ddl__member *member = &h->members[rank];
        if (rank != h->rank && is_alive(h, rank) &&
            (member->joined != attempt || member->leader < h->rank))
            return rank;
    }
    return -1;
}

/* The leader's verdict, once all have joined. */
static void leader_decide(const ddl__health *h, unsigned char *live)
{
    memset(live, 0, ddl__set_bytes(h));
    for (int rank = 0; rank < h->size; rank++) {
        bool accused =
            !is_alive(h, rank) || (rank != h->rank && h->members[rank].leader != h->rank);
        for (int other = 0; other < rank && !accused; other++)
            accused = other != h->rank && set_has(live, other) &&
                      set_has(h->members[other].accused, rank);
        if (!accused)
            set_add(live, rank);
    }
    /* An accusation by a higher rank leaves out the accuser, since the accused rank is in the list.
     */
    for (int rank = 0; rank < h->size; rank++)
        for (int other = rank + 1; other < h->size && rank != h->rank; other++)
            if (other != h->rank && set_has(live, rank) && set_has(live, other) &&
                set_has(h->members[other].accused, rank))
                live[other / 8] &= (unsigned char)~(1 << other % 8);
}

static ddl_status fail_as_minority(const ddl__health *h, const char *why, const char *cause)
{
    return ddl__fail(DDL_EMINORITY, "%s cannot go on: %s%s", h->names[h->rank], why, cause);
}

/* Send EXPEL to the ranks that are left out. In a sparse comm also to those that count as dead, in
 * case they are alive: they have no connection to most of the others. */
static void expel_others(ddl__health *h, const unsigned char *live)
{
    static const char why[] = DDL__LEFT_OUT;
    for (int rank = 0; rank < h->size; rank++) {
        ddl__member *member = &h->members[rank];
        bool alive = member->fate == DDL__ALIVE;
        if (rank == h->rank || set_has(live, rank) || (!alive && !h->n_late))
            continue;
        ddl__control_conn_send(&member->conn, DDL__EXPEL, why, sizeof why - 1);
        if (!alive)
            continue;
        member->fate = DDL__SILENT;
        memcpy(member->cause, why, sizeof why);
    }
}

static uint32_t highest_attempt(const ddl__health *h, uint32_t attempt)
{
    for (int rank = 0; rank < h->size; rank++)
        if (is_alive(h, rank) && h->members[rank].joined > attempt)
            attempt = h->members[rank].joined;
    return attempt;
}

static bool is_committed(const ddl__health *h, uint32_t attempt)
{
    for (int rank = 0; attempt && rank < h->size; rank++)
        if (h->members[rank].committed == attempt)
            return true;
    return false;
}

static void pause_until(ddl__health *h, int64_t deadline)
{
    int64_t until = ddl__now() + DDL__AGREEMENT_POLL;
    until = until < deadline ? until : deadline;
    ddl__cond_wait_until(&h->detector->changed, &h->detector->lock, until);
}

static ddl_status fail_timeout(const ddl__health *h, uint32_t attempt, int leader)
{
    int rank = leader == h->rank ? not_joined(h, attempt) : leader;
    return ddl__fail(DDL_ETIMEDOUT, "%s is alive but did not shrink the comm in time",
                     rank >= 0 ? h->names[rank] : "a member");
}

/* Under the lock: agree on the list of survivors. May raise *attempt. DDL_INPROGRESS: the comm of
 * `created_attempt` counts after all. */
static ddl_status agree_on_survivors(ddl__health *h, uint32_t *attempt, uint32_t created_attempt,
                                     unsigned char *live, int64_t deadline)
{
    unsigned char dead[DDL__CONTROL_MSG_MAX / 2], sent_dead[DDL__CONTROL_MSG_MAX / 2];
    uint32_t sent_attempt = 0;
    for (;;) {
        int leader = ddl__health_lowest_alive(h);
        const ddl__member *leading = &h->members[leader];
        *attempt = highest_attempt(h, *attempt);
        find_dead(h, dead);
        if (is_committed(h, created_attempt))
            return DDL_INPROGRESS;
        if (sent_attempt != *attempt || memcmp(dead, sent_dead, ddl__set_bytes(h)) != 0) {
            broadcast(h, DDL__JOIN, *attempt, (uint32_t)leader, dead);
            memcpy(sent_dead, dead, ddl__set_bytes(h));
            sent_attempt = *attempt;
            h->members[h->rank].joined = *attempt; /* for the report, and ... */
            h->members[h->rank].leader = leader;
            memcpy(h->members[h->rank].accused, dead,
                   ddl__set_bytes(h)); /* ... for members that connect late */
        }
        if (h->members[h->rank].expelled)
            return fail_as_minority(h, "it was ", h->members[h->rank].cause);
        if (h->left_out)
            return fail_as_minority(h, "the survivors have left it out", "");
        if (leader == h->rank && not_joined(h, *attempt) < 0) {
            bool waited = ddl__now() >= h->evidence_until || ddl__now() >= deadline;
            leader_decide(h, live);
            if (is_majority(h, live)) {
                broadcast(h, DDL__VERDICT, *attempt, 0, live);
                return DDL_OK;
            }
            if (waited) {
                memset(live, 0,
                       ddl__set_bytes(h)); /* an empty list, so that no rank waits for a verdict */
                broadcast(h, DDL__VERDICT, *attempt, 0, live);
                return fail_as_minority(h, "most ranks that may be alive are out of reach", "");
            }
        }
        if (leader != h->rank && leading->decided == *attempt) {
            memcpy(live, leading->verdict, ddl__set_bytes(h));
            return set_has(live, h->rank)
                       ? DDL_OK
                       : fail_as_minority(h, "the survivors have left it out", "");
        }
        if (ddl__now() >= deadline)
            return fail_timeout(h, *attempt, leader);
        pause_until(h, deadline);
    }
}

/* The member has created the comm of this attempt. */
static bool has_done(const ddl__health *h, int rank, uint32_t attempt)
{
    return h->members[rank].done >= attempt && !h->members[rank].may_go_on;
}

/* A member that ends this attempt: it has died before it created the comm, or it has found another
 * one dead. -1: none. */
static int lost_member(const ddl__health *h, const unsigned char *live, uint32_t attempt)
{
    for (int rank = 0; rank < h->size; rank++) {
        const ddl__member *member = &h->members[rank];
        if (rank == h->rank || !set_has(live, rank))
            continue;
        /* Of one that is lost to others only, the leader decides. */
        bool dead = !is_alive(h, rank) && !member->by_report;
        bool lost = member->joined > attempt || (dead && !has_done(h, rank, attempt));
        for (size_t i = 0; i < ddl__set_bytes(h) && member->joined == attempt; i++)
            lost = lost || live[i] & member->accused[i];
        if (lost)
            return rank;
    }
    return -1;
}

/* Under the lock: wait until all survivors have created their comm; false if another attempt is
 * needed. */
static bool await_all_done(ddl__health *h, const unsigned char *live, uint32_t attempt,
                           int64_t deadline)
{
    broadcast_done(h, attempt, false);
    for (;;) {
        bool all = true;
        for (int rank = 0; rank < h->size; rank++)
            all = all && (rank == h->rank || !set_has(live, rank) || has_done(h, rank, attempt));
        if (all || is_committed(h, attempt)) {
            broadcast_done(h, attempt, true);
            return true;
        }
        if (h->members[h->rank].expelled || lost_member(h, live, attempt) >= 0 ||
            ddl__now() >= deadline)
            return false;
        pause_until(h, deadline);
    }
}

/* True for a failure of this rank alone. After any other failure there may be another attempt. */
static bool is_final(ddl_status status)
{
    return status != DDL_EPEER && status != DDL_EUNREACHABLE && status != DDL_EREFUSED &&
           status != DDL_ETIMEDOUT && status != DDL_EEXPIRED;
}

/* One attempt to create the next comm. */
typedef struct creation {
    ddl__health *health;
    const unsigned char *live;
    uint32_t attempt;
} creation;

/* Fail if the attempt is in vain. */
static ddl_status creation_check(void *context)
{
    const creation *c = context;
    ddl__health *h = c->health;
    pthread_mutex_lock(&h->detector->lock);
    int rank = h->members[h->rank].expelled ? h->rank : lost_member(h, c->live, c->attempt);
    ddl_status status = DDL_OK;
    if (rank >= 0)
        status = ddl__fail(DDL_EPEER, "%s is lost while the comm is shrunk: %s", h->names[rank],
                           h->members[rank].cause[0] ? h->members[rank].cause
                                                     : "it has found another member dead");
    pthread_mutex_unlock(&h->detector->lock);
    return status;
}

/* No address of a survivor answers here: one of the two cannot be in the next list. Unless silence
 * proves nothing. */
static void creation_unreachable(void *context, int rank)
{
    const creation *c = context;
    ddl__health *h = c->health;
    int lost = h->survivors[rank];
    pthread_mutex_lock(&h->detector->lock);
    if (h->members[lost].fate == DDL__ALIVE && h->limits.dead != DDL__NEVER) {
        ddl__member_mark_dead(h, lost, DDL__SILENT, "%s cannot connect to it", h->names[h->rank]);
        ddl__gossip_lost(h, lost);
        ddl__member_expel(h, lost);
    }
    pthread_mutex_unlock(&h->detector->lock);
}

/* Create the next comm of the survivors. */
static ddl_status create_next(ddl__health *h, const ddl__agreement_handlers *next,
                              const unsigned char *live, uint32_t attempt, int64_t deadline)
{
    int n = 0;
    for (int rank = 0; rank < h->size; rank++)
        if (set_has(live, rank))
            h->survivors[n++] = rank;
    creation c = {h, live, attempt};
    ddl__until until = {deadline, creation_check, &c, creation_unreachable};
    return next->create(next->context, h->survivors, n, attempt, &until);
}

/* Under the lock, which is released while a comm is created. */
static ddl_status agreement_loop(ddl__health *h, int64_t deadline,
                                 const ddl__agreement_handlers *next)
{
    unsigned char live[DDL__CONTROL_MSG_MAX / 2];
    bool created = false; /* this rank has created the next comm; others may not have */
    h->created_attempt = 0;
    for (;;) {
        uint32_t attempt = h->attempt + 1;
        ddl_status status = agree_on_survivors(h, &attempt, h->created_attempt, live, deadline);
        if (status == DDL_INPROGRESS) {
            broadcast_done(h, h->created_attempt, true);
            break;
        }
        h->attempt = attempt;
        h->created_attempt = 0;
        bool agreed = status == DDL_OK;
        if (agreed)
            expel_others(h, live);
        pthread_mutex_unlock(&h->detector->lock);
        if (created)
            next->abandon(next->context);
        if (agreed)
            status = create_next(h, next, live, attempt, deadline);
        created = agreed && status == DDL_OK;
        pthread_mutex_lock(&h->detector->lock);
        if (status != DDL_OK && (!agreed || is_final(status) || ddl__now() >= deadline))
            return status;
        h->created_attempt = created ? attempt : 0;
        if (created && await_all_done(h, live, attempt, deadline))
            break;
    }
    return DDL_OK;
}

/* Under the lock: true if the comm has failed. A member's end that no operation has waited for yet
 * counts as a failure now, and so does a member that shrinks the comm. */
static bool health_note_failures(ddl__health *h)
{
    bool failed = ddl__engine_status(h->engine) != DDL_OK;
    for (int rank = 0; rank < h->size; rank++) {
        const ddl__member *member = &h->members[rank];
        if (rank == h->rank)
            continue;
        bool dead = ddl__member_is_dead(h, rank);
        bool joins = member->joined > h->attempt;
        failed = failed || dead || joins;
        if (dead)
            ddl__health_end(h, DDL_EPEER, "%s is dead: %s", h->names[rank], member->cause);
        else if (joins)
            ddl__health_end(h, DDL_EPEER, "%s shrinks the comm", h->names[rank]);
    }
    ddl__health_settle(h);
    return failed;
}

ddl_status ddl__agreement_run(ddl__health *h, int64_t deadline, const ddl__agreement_handlers *next)
{
    pthread_mutex_lock(&h->detector->lock);
    ddl_status status = health_note_failures(h)
                            ? DDL_OK
                            : ddl__fail(DDL_ESTATE, "the comm is alive: shrink it after a failure");
    if (status == DDL_OK && h->shrinking)
        status = ddl__fail(DDL_ESTATE, "another thread shrinks the comm");
    if (status == DDL_OK) {
        h->shrinking = true;
        pthread_cond_broadcast(&h->detector->died); /* the leader is wanted now */
        ddl__health_announce(h);
        ddl__health_poll_eagerly(h);
        status = agreement_loop(h, deadline, next);
        h->shrinking = false;
    }
    pthread_mutex_unlock(&h->detector->lock);
    return status;
}
