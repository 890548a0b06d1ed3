/* Design notes.
 *
 * Everybody who shrinks tells all others whom it follows, which is the lowest rank that it believes
 * alive, and whom it believes dead (JOIN). Who is followed by all whom it believes alive decides:
 * its verdict is the list of those who go on. A rank that another one accuses is left out, the
 * lowest accuser first, and so is whoever follows another leader. Two leaders cannot both be
 * followed by everybody whom they see.
 *
 * Then the members of the list create their comm. When one dies meanwhile, that fails, and there is
 * another attempt: attempts are numbered, and who hears of a higher one goes on to it. Who has
 * created its comm says so (DONE), and returns it when all have said it, not without telling that
 * (DONE, committed). So when one rank returns a comm of an attempt, all others of the list hold
 * theirs, and learn that it counts, although somebody may be dead again by then: that is the next
 * failure.
 *
 * A majority of those who may be alive goes on, or the half with the lowest of them: of a network
 * that is cut in two, at most one side. Who is known to have ended does not count (peer_death.c has
 * what proves that); where it would decide, the leader waits a moment for a witness. A comm of an
 * attempt that is given up is not left with a goodbye: a member that has it, and was given up with
 * it, would count those who went on as gone.
 */
#include "health/agreement.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/time_limits.h"
#include "health/health_state.h"

typedef struct join {
    uint32_t attempt, leader;
} join;

static bool has(const unsigned char *set, int rank)
{
    return set[rank / 8] >> rank % 8 & 1;
}

static void put(unsigned char *set, int rank)
{
    set[rank / 8] |= (unsigned char)(1 << rank % 8);
}

static size_t set_bytes(const ddl__health *c)
{
    return ((size_t)c->size + 7) / 8;
}

/* ------------------------------------------------------------------------------------- messages */

static bool keep_set(const ddl__health *c, unsigned char **set, const unsigned char *content)
{
    if (!*set)
        *set = malloc(set_bytes(c));
    if (*set)
        memcpy(*set, content, set_bytes(c));
    return *set;
}

/* It goes on in the comm of an attempt that this rank has given up. */
static void has_gone_on(ddl__health *c, int rank)
{
    ddl__member *member = &c->members[rank];
    member->may_go_on = true;
    ddl__member_dead(c, rank, DDL__SILENT, "it goes on without rank %d", c->rank);
}

void ddl__shrink_receive(ddl__health *c, int from, ddl__control_msg message,
                         const unsigned char *content, size_t bytes)
{
    ddl__member *member = &c->members[from];
    join said;
    size_t sets = bytes - sizeof said;
    if (bytes < sizeof said || (message != DDL__DONE && sets != set_bytes(c)))
        return;
    memcpy(&said, content, sizeof said);
    content += sizeof said;
    if (message == DDL__JOIN && keep_set(c, &member->accused, content)) {
        member->joined = said.attempt;
        member->leader = (int)said.leader;
    } else if (message == DDL__VERDICT && keep_set(c, &member->verdict, content)) {
        member->decided = said.attempt;
    } else if (message == DDL__DONE) {
        member->done = said.attempt;
        member->committed = said.leader ? said.attempt : member->committed;
        if (said.leader && said.attempt != c->held)
            has_gone_on(c, from);
    }
}

static void tell(ddl__health *c, ddl__control_msg message, uint32_t attempt, uint32_t value,
                 const unsigned char *set)
{
    join head = {attempt, value};
    unsigned char content[sizeof head + DDL__CONTROL_MSG_MAX / 2];
    size_t sets = set ? set_bytes(c) : 0;
    memcpy(content, &head, sizeof head);
    if (sets)
        memcpy(content + sizeof head, set, sets);
    ddl__health_broadcast(c, message, content, sizeof head + sets);
}

/* ----------------------------------------------------------------------------------- who goes on
 */

static bool is_alive(const ddl__health *c, int rank)
{
    return rank == c->rank || c->members[rank].fate == DDL__ALIVE;
}

static int lowest_alive(const ddl__health *c)
{
    int rank = 0;
    while (!is_alive(c, rank))
        rank++;
    return rank;
}

/* Whether these may go on: see the design notes. */
static bool is_majority(const ddl__health *c, const unsigned char *live)
{
    int possible = 0, going = 0, lowest = -1;
    for (int rank = 0; rank < c->size; rank++) {
        const ddl__member *member = &c->members[rank];
        /* Who shrank the comm before it left it goes on, perhaps. */
        bool left = member->fate == DDL__LEFT && !member->joined;
        if (rank != c->rank && (member->fate == DDL__KILLED || left))
            continue;
        lowest = lowest < 0 ? rank : lowest;
        possible++;
        going += has(live, rank);
    }
    return 2 * going > possible || (2 * going == possible && has(live, lowest));
}

static void find_dead(const ddl__health *c, unsigned char *dead)
{
    memset(dead, 0, set_bytes(c));
    for (int rank = 0; rank < c->size; rank++)
        if (!is_alive(c, rank))
            put(dead, rank);
}

/* Whom the leader still waits for; -1: nobody. */
static int not_joined(const ddl__health *c, uint32_t attempt)
{
    for (int rank = 0; rank < c->size; rank++) {
        const ddl__member *member = &c->members[rank];
        if (rank != c->rank && is_alive(c, rank) &&
            (member->joined != attempt || member->leader < c->rank))
            return rank;
    }
    return -1;
}

/* The leader's verdict, once all have joined. */
static void decide(const ddl__health *c, unsigned char *live)
{
    memset(live, 0, set_bytes(c));
    for (int rank = 0; rank < c->size; rank++) {
        bool accused =
            !is_alive(c, rank) || (rank != c->rank && c->members[rank].leader != c->rank);
        for (int other = 0; other < rank && !accused; other++)
            accused = other != c->rank && has(live, other) && has(c->members[other].accused, rank);
        if (!accused)
            put(live, rank);
    }
    /* And by those behind it, unless it has accused them. */
    for (int rank = 0; rank < c->size; rank++)
        for (int other = rank + 1; other < c->size && rank != c->rank; other++)
            if (other != c->rank && has(live, rank) && has(live, other) &&
                has(c->members[other].accused, rank))
                live[other / 8] &= (unsigned char)~(1 << other % 8);
}

static ddl_status fail_as_minority(const ddl__health *c, const char *why)
{
    return ddl__fail(DDL_EMINORITY, "%s cannot go on: %s", c->names[c->rank], why);
}

/* Those who are left out, and may not know it. */
static void expel_others(ddl__health *c, const unsigned char *live)
{
    static const char why[] = "left out when the comm was shrunk";
    for (int rank = 0; rank < c->size; rank++)
        if (rank != c->rank && c->members[rank].fate == DDL__ALIVE && !has(live, rank)) {
            ddl__member *member = &c->members[rank];
            ddl__control_conn_send(&member->conn, DDL__EXPEL, why, sizeof why - 1);
            member->fate = DDL__SILENT;
            memcpy(member->cause, why, sizeof why);
        }
}

static uint32_t highest_attempt(const ddl__health *c, uint32_t attempt)
{
    for (int rank = 0; rank < c->size; rank++)
        if (is_alive(c, rank) && c->members[rank].joined > attempt)
            attempt = c->members[rank].joined;
    return attempt;
}

static bool is_committed(const ddl__health *c, uint32_t attempt)
{
    for (int rank = 0; attempt && rank < c->size; rank++)
        if (c->members[rank].committed == attempt)
            return true;
    return false;
}

static void pause_until(ddl__health *c, int64_t deadline)
{
    int64_t until = ddl__now() + DDL__AGREEMENT_POLL;
    until = until < deadline ? until : deadline;
    struct timespec t = {until / 1000000000, until % 1000000000};
    pthread_cond_timedwait(&c->detector->changed, &c->detector->lock, &t);
}

static ddl_status fail_for_time(const ddl__health *c, uint32_t attempt, int leader)
{
    int rank = leader == c->rank ? not_joined(c, attempt) : leader;
    return ddl__fail(DDL_ETIMEDOUT, "%s is alive but did not shrink the comm in time",
                     rank >= 0 ? c->names[rank] : "a member");
}

/* Under the lock: agree on who goes on. *attempt may become a higher one. DDL_INPROGRESS: the comm
 * of attempt `held` counts. */
static ddl_status agree(ddl__health *c, uint32_t *attempt, uint32_t held, unsigned char *live,
                        int64_t deadline)
{
    unsigned char dead[DDL__CONTROL_MSG_MAX / 2], said[DDL__CONTROL_MSG_MAX / 2];
    uint32_t said_attempt = 0;
    for (;;) {
        int leader = lowest_alive(c);
        const ddl__member *chief = &c->members[leader];
        *attempt = highest_attempt(c, *attempt);
        find_dead(c, dead);
        if (is_committed(c, held))
            return DDL_INPROGRESS;
        if (said_attempt != *attempt || memcmp(dead, said, set_bytes(c)) != 0) {
            tell(c, DDL__JOIN, *attempt, (uint32_t)leader, dead);
            memcpy(said, dead, set_bytes(c));
            said_attempt = *attempt;
        }
        if (leader == c->rank && not_joined(c, *attempt) < 0) {
            decide(c, live);
            if (is_majority(c, live)) {
                tell(c, DDL__VERDICT, *attempt, 0, live);
                return DDL_OK;
            }
            if (ddl__now() >= c->evidence_until || ddl__now() >= deadline) {
                memset(live, 0, set_bytes(c)); /* nobody goes on, so nobody waits for a verdict */
                tell(c, DDL__VERDICT, *attempt, 0, live);
                return fail_as_minority(c, "most of those who may be alive are out of reach");
            }
        }
        if (leader != c->rank && chief->decided == *attempt) {
            memcpy(live, chief->verdict, set_bytes(c));
            return has(live, c->rank) ? DDL_OK : fail_as_minority(c, "the others have left it out");
        }
        if (ddl__now() >= deadline)
            return fail_for_time(c, *attempt, leader);
        pause_until(c, deadline);
    }
}

/* Under the lock: whether all of the list have created theirs; false when another attempt is
 * necessary. */
static bool all_done(ddl__health *c, const unsigned char *live, uint32_t attempt, int64_t deadline)
{
    tell(c, DDL__DONE, attempt, 0, NULL);
    for (;;) {
        bool all = true, lost = highest_attempt(c, attempt) > attempt;
        for (int rank = 0; rank < c->size; rank++) {
            const ddl__member *member = &c->members[rank];
            if (rank == c->rank || !has(live, rank) ||
                (member->done >= attempt && !member->may_go_on))
                continue;
            all = false;
            lost = lost || !is_alive(c, rank);
        }
        if (all || is_committed(c, attempt)) {
            tell(c, DDL__DONE, attempt, 1, NULL);
            return true;
        }
        if (lost || ddl__now() >= deadline)
            return false;
        pause_until(c, deadline);
    }
}

/* A failure of ours alone; after others there may be another attempt. */
static bool is_final(ddl_status status)
{
    return status != DDL_EPEER && status != DDL_EUNREACHABLE && status != DDL_EREFUSED &&
           status != DDL_ETIMEDOUT && status != DDL_EEXPIRED;
}

/* With the survivors' ranks; within a time that grows with the attempts. */
static ddl_status create(const ddl__health *c, const ddl__agreement_handlers *next,
                         const unsigned char *live, uint32_t attempt, int64_t deadline)
{
    int *ranks = calloc((size_t)c->size, sizeof *ranks), n = 0;
    if (!ranks)
        return ddl__fail(DDL_ENOMEM, "no memory for %d members", c->size);
    for (int rank = 0; rank < c->size; rank++)
        if (has(live, rank))
            ranks[n++] = rank;
    int64_t most = ddl__now() + (DDL__NEXT_CREATION + n * DDL__NEXT_CREATION_EACH) * attempt;
    ddl_status status =
        next->create(next->context, ranks, n, attempt, most < deadline ? most : deadline);
    free(ranks);
    return status;
}

/* Under the lock, which is left while a comm is created. */
static ddl_status run(ddl__health *c, int64_t deadline, const ddl__agreement_handlers *next)
{
    unsigned char live[DDL__CONTROL_MSG_MAX / 2];
    bool held = false; /* this rank has created the next comm, but perhaps not all others have */
    c->held = 0;
    for (;;) {
        uint32_t attempt = c->attempt + 1;
        ddl_status status = agree(c, &attempt, c->held, live, deadline);
        if (status == DDL_INPROGRESS) {
            tell(c, DDL__DONE, c->held, 1, NULL);
            break;
        }
        c->attempt = attempt;
        c->held = 0;
        bool agreed = status == DDL_OK;
        if (agreed)
            expel_others(c, live);
        pthread_mutex_unlock(&c->detector->lock);
        if (held)
            next->abandon(next->context);
        if (agreed)
            status = create(c, next, live, attempt, deadline);
        held = agreed && status == DDL_OK;
        pthread_mutex_lock(&c->detector->lock);
        if (status != DDL_OK && (!agreed || is_final(status) || ddl__now() >= deadline))
            return status;
        c->held = held ? attempt : 0;
        if (held && all_done(c, live, attempt, deadline))
            break;
    }
    return DDL_OK;
}

/* Under the lock: a member's end that nothing has waited for yet is a failure now. */
static bool notice(ddl__health *c)
{
    bool failed = ddl__engine_status(c->engine) != DDL_OK;
    for (int rank = 0; rank < c->size; rank++) {
        const ddl__member *member = &c->members[rank];
        if (rank == c->rank)
            continue;
        bool dead = ddl__is_dead(c, rank);
        bool joins = member->joined > c->attempt;
        failed = failed || dead || joins;
        if (dead)
            ddl__health_end(c, DDL_EPEER, "%s is dead: %s", c->names[rank], member->cause);
        else if (joins)
            ddl__health_end(c, DDL_EPEER, "%s shrinks the comm", c->names[rank]);
    }
    ddl__health_settle(c);
    return failed;
}

ddl_status ddl__agreement_run(ddl__health *c, int64_t deadline, const ddl__agreement_handlers *next)
{
    pthread_mutex_lock(&c->detector->lock);
    ddl_status status =
        notice(c) ? DDL_OK : ddl__fail(DDL_ESTATE, "the comm is alive: shrink it after a failure");
    if (status == DDL_OK && c->shrinking)
        status = ddl__fail(DDL_ESTATE, "another thread shrinks the comm");
    if (status == DDL_OK) {
        c->shrinking = true;
        ddl__health_announce(c);
        ddl__health_poll_eagerly(c);
        status = run(c, deadline, next);
        c->shrinking = false;
    }
    pthread_mutex_unlock(&c->detector->lock);
    return status;
}
