/* SPDX-License-Identifier: Apache-2.0 */
/* Design notes.
 *
 * In a sparse comm most pairs have no control connection. When the comm is dead, every rank opens
 * one to the lowest rank that it believes alive, which leads the agreement, whether its program
 * shrinks the comm or not. Always the higher rank of a pair dials, so no two dial each other.
 *
 * One thread for each dead comm dials (dial_leaders); it dials the next one when a leader dies,
 * and, a little later, when a leader leaves, since mostly all members leave then. It holds no lock
 * while it dials. At the leader, the endpoint hands over connections under its own lock
 * (take_connection), which only puts them into a list: `lock`, which comes last, guards that. The
 * detector's thread takes them from there (ddl__late_adopt), answers, and owns them from then on.
 *
 * A leader that cannot be reached, or does not answer, counts as dead, by this rank's own evidence.
 * The limit is shorter if others have lost it, too, or if its host refuses the connection. With it
 * counts who is on its host and was lost by others: they are behind the same network. A rank that
 * does not connect to its leader in time counts as dead for the leader.
 *
 * If no answer comes from the leader's host, the network may be cut, and every rank beyond the cut
 * would be dialed in turn, for seconds each. So the ranks that would lead next are tried as well
 * meanwhile (connect/reach.h). Those before the first one that answers count as dead like the
 * leader, each after its own time. */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/thread.h"
#include "base/time_limits.h"
#include "connect/late_dial.h"
#include "connect/neighbours.h"
#include "connect/reach.h"
#include "health/health_state.h"
#include "net/socket.h"

typedef struct arrival {
    struct arrival *next;
    ddl__accepted accepted;
} arrival;

enum { CANDIDATES_MAX = 256 }; /* a descriptor each, while they are tried */

typedef struct ddl__late {
    ddl__health *health;
    ddl__wireup wireup; /* for dialing */
    pthread_mutex_t lock;
    arrival *arrivals; /* guarded by `lock` */
    pthread_t thread;
    bool accepts, started, stop; /* guarded by the detector's lock */
    int leader;                  /* that the thread dials, likewise, */
    int64_t since;               /* since then */

    /* The thread's own. The ranks that would lead next, and since when each rank has been silent;
     * 0: it is not known to be. */
    ddl__reach *candidates;
    int n_candidates;
    int64_t *silent_since;
} ddl__late;

/* ------------------------------------------------------------------------------------ connections
 */

/* Under the detector's lock: this is the member's control connection from now on. It is told what
 * it may have missed. */
static void member_connect(ddl__health *h, int rank, int fd, ddl__seal *seal, ddl__side side)
{
    ddl__member *member = &h->members[rank];
    ddl__control_conn_open(&member->conn, fd, seal);
    member->silent_ns = 0;
    member->is_new = side == DDL__DIALED;
    member->ever_heard = member->heard_since_beat = true;
    ddl__member_register(h, rank, EPOLL_CTL_ADD);
    ddl__heartbeats_add(h, rank);
    if (h->announced)
        ddl__health_tell_death(h, rank);
    ddl__gossip_tell_all_gone(h, rank);
    ddl__agreement_tell_standing(h, rank);
    pthread_cond_broadcast(&h->detector->changed);
}

static void accepted_drop(ddl__accepted *accepted)
{
    if (accepted->fd >= 0)
        close(accepted->fd);
    ddl__session_end(&accepted->session);
}

/* For ddl__endpoint_divert: under the endpoint's lock. */
static void take_connection(void *context, const ddl__accepted *accepted)
{
    ddl__late *late = context;
    arrival *a = malloc(sizeof *a);
    if (accepted->passed >= 0)
        close(accepted->passed);
    if (!a) {
        close(accepted->fd); /* the member dials again */
        return;
    }
    a->accepted = *accepted;
    pthread_mutex_lock(&late->lock);
    a->next = late->arrivals;
    late->arrivals = a;
    pthread_mutex_unlock(&late->lock);
    ddl__detector_wake(late->health->detector);
}

/* What to answer. DDL_EPEER: the member counts as dead here; DDL_EMINORITY: the survivors have
 * decided without it. */
static ddl_status find_answer(const ddl__health *h, const ddl__hello *hello, const char **text)
{
    *text = "its rank or size does not fit this comm";
    if (hello->to != (uint32_t)h->rank || hello->size != (uint32_t)h->size ||
        hello->from >= (uint32_t)h->size)
        return DDL_EREFUSED;
    const ddl__member *member = &h->members[hello->from];
    *text = "it has a control connection already";
    if (!member->late || (member->conn.fd >= 0 && !member->is_new))
        return DDL_EREFUSED;
    *text = member->cause;
    return member->fate == DDL__ALIVE              ? DDL_OK
           : !strcmp(member->cause, DDL__LEFT_OUT) ? DDL_EMINORITY
                                                   : DDL_EPEER;
}

static void adopt(ddl__health *h, ddl__accepted *accepted)
{
    const ddl__job *job = ddl__endpoint_job(h->config.endpoint);
    const char *text;
    ddl__seal *seal = NULL;
    ddl_status status = find_answer(h, &accepted->hello, &text);
    if (status == DDL_OK && (status = ddl__session_seal(job, &accepted->session, accepted->fd,
                                                        DDL__DIALED, &seal)) != DDL_OK)
        text = ddl__message();
    ddl__hello answer = ddl__hello_answer(&accepted->hello, status, status == DDL_OK ? NULL : text);
    ddl__answer_prove(job, &accepted->session, DDL__AUTH_MEMBER, &answer);
    if (ddl__send_all(accepted->fd, &answer, sizeof answer, ddl__now()) && status == DDL_OK) {
        int from = (int)accepted->hello.from;
        ddl__control_conn_close(&h->members[from].conn); /* it has given up waiting for this one */
        member_connect(h, from, accepted->fd, seal, DDL__DIALED);
        accepted->fd = -1;
    } else {
        ddl__seal_destroy(seal);
    }
    accepted_drop(accepted);
}

void ddl__late_adopt(ddl__health *h)
{
    if (!h->late)
        return;
    pthread_mutex_lock(&h->late->lock);
    arrival *all = h->late->arrivals;
    h->late->arrivals = NULL;
    pthread_mutex_unlock(&h->late->lock);
    for (arrival *a; (a = all);) {
        all = a->next;
        adopt(h, &a->accepted);
        free(a);
    }
}

void ddl__late_check_silence(ddl__health *h, int rank, int64_t elapsed)
{
    ddl__member *member = &h->members[rank];
    bool is_ended = member->n_reporters && !member->reported_silent;
    if (!h->announced || !member->late || member->fate != DDL__ALIVE ||
        (h->limits.dead == DDL__NEVER && !is_ended) || ddl__health_lowest_alive(h) != h->rank)
        return;
    member->silent_ns += elapsed;
    int64_t limit = member->n_reporters ? DDL__LOST_LEADER_LIMIT : DDL__LEADER_LIMIT;
    if (!member->n_reporters || member->reported_silent)
        limit += h->limits.dead;
    /* It may first have to find that the leader before this one is silent. */
    limit += (h->far_beats - 1) * h->limits.heartbeat;
    if (member->silent_ns < limit)
        return;
    ddl__member_mark_dead(h, rank, DDL__SILENT, "it has not connected to %s after the comm's death",
                          h->names[h->rank]);
    ddl__gossip_lost(h, rank);
}

/* ---------------------------------------------------------------------------------------- dialing
 */

/* For how long to dial, by what the last attempt has led to. */
static int64_t find_limit(const ddl__health *h, const ddl__member *leader, ddl_status status,
                          int error)
{
    if (status == DDL_EUNREACHABLE && error == ECONNREFUSED)
        return leader->n_reporters ? 0 : DDL__REFUSED_LEADER_LIMIT;
    if (leader->n_reporters > 1 || (leader->n_reporters && status != DDL_ETIMEDOUT))
        return DDL__LOST_LEADER_LIMIT;
    /* One that was reached is watched by its neighbours, unless they are all dead. */
    if (status == DDL_ETIMEDOUT && h->limits.dead == DDL__NEVER)
        return DDL__NEVER;
    return DDL__LEADER_LIMIT + (status == DDL_ETIMEDOUT ? h->limits.dead : 0);
}

/* Whether to go on dialing. */
static bool dial_goes_on(void *context)
{
    ddl__late *late = context;
    pthread_mutex_lock(&late->health->detector->lock);
    const ddl__member *leader = &late->health->members[late->leader];
    bool goes_on = !late->stop && leader->fate == DDL__ALIVE &&
                   ddl__now() - late->since < find_limit(late->health, leader, DDL_ETIMEDOUT, 0);
    pthread_mutex_unlock(&late->health->detector->lock);
    return goes_on;
}

/* Under the lock: the leader counts as dead, and so do others of its host that are lost. */
static void give_up(ddl__health *h, int leader, bool refused, const char *why)
{
    const ddl__address *addresses = h->config.addresses;
    ddl__member_mark_dead(h, leader, refused ? DDL__DISCONNECTED : DDL__SILENT,
                          "%s cannot reach it: %s", h->names[h->rank], why);
    h->evidence_until = ddl__now() + DDL__EVIDENCE_LIMIT;
    ddl__gossip_lost(h, leader);
    for (int i = leader + 1; !refused && i < h->size; i++) {
        ddl__member *member = &h->members[i];
        if (member->fate != DDL__ALIVE || member->conn.fd >= 0 || !member->n_reporters ||
            i == h->rank || !addresses[i].network ||
            addresses[i].network != addresses[leader].network)
            continue;
        ddl__member_mark_dead(h, i, DDL__SILENT, "its host cannot be reached, and %s has lost it",
                              h->names[member->reporters[0]]);
        ddl__gossip_lost(h, i);
    }
}

/* Under the lock: what an attempt has led to. */
static void settle(ddl__late *late, ddl_status status, ddl__dial_attempt *d)
{
    ddl__health *h = late->health;
    ddl__member *leader = &h->members[late->leader];
    ddl__seal *seal = NULL;
    if (status == DDL_OK && leader->conn.fd < 0 &&
        ddl__session_seal(ddl__endpoint_job(h->config.endpoint), &d->session, d->fd, DDL__DIALER,
                          &seal) == DDL_OK) {
        /* Also when this rank leaves, or the leader counts as dead meanwhile: it is told so. */
        member_connect(h, late->leader, d->fd, seal, DDL__DIALER);
        d->fd = -1;
        if (leader->fate != DDL__ALIVE)
            ddl__member_expel(h, late->leader);
        return;
    }
    if (leader->fate != DDL__ALIVE || late->stop)
        return;
    if (status == DDL_ESTATE) { /* it may have gone on with others before it left */
        leader->may_go_on = true;
        ddl__member_leave(h, late->leader);
        return;
    }
    if (status == DDL_EPEER || status == DDL_EMINORITY) {
        h->left_out = h->left_out || status == DDL_EMINORITY;
        ddl__member_mark_gone_on(h, late->leader);
        return;
    }
    bool refused = status == DDL_EUNREACHABLE && d->error == ECONNREFUSED;
    if (ddl__now() - late->since >= find_limit(h, leader, status, d->error))
        give_up(h, late->leader, refused, ddl__message());
}

/* Under the lock: the ranks that would lead next, lowest first. */
static void find_candidates(ddl__late *late)
{
    const ddl__health *h = late->health;
    const ddl__address *addresses = h->config.addresses;
    late->n_candidates = 0;
    for (int i = late->leader + 1; i < h->rank && late->n_candidates < CANDIDATES_MAX; i++)
        if (h->members[i].fate == DDL__ALIVE && h->members[i].conn.fd < 0 &&
            !ddl__may_share_memory(&addresses[h->rank], &addresses[i]))
            late->candidates[late->n_candidates++] = (ddl__reach){.rank = i};
}

/* Under the lock, after they were tried from `begun` on: who has been silent for too long. */
static void settle_candidates(ddl__late *late, int64_t begun)
{
    ddl__health *h = late->health;
    bool leads_next = true; /* all before it are silent */
    for (int i = 0; i < late->n_candidates; i++) {
        const ddl__reach *candidate = &late->candidates[i];
        int64_t *since = &late->silent_since[candidate->rank];
        const ddl__member *member = &h->members[candidate->rank];
        leads_next = leads_next && candidate->reached == DDL__REACH_SILENT;
        if (candidate->reached == DDL__REACH_ANSWERS)
            *since = 0;
        else if (candidate->reached == DDL__REACH_SILENT && !*since)
            *since = begun;
        if (leads_next && member->fate == DDL__ALIVE && member->conn.fd < 0 &&
            ddl__now() - *since >= find_limit(h, member, DDL_EUNREACHABLE, 0))
            give_up(h, candidate->rank, false, "nothing answers at its address");
    }
}

static bool can_try_candidates(ddl__late *late)
{
    if (!late->candidates)
        late->candidates = calloc(CANDIDATES_MAX, sizeof *late->candidates);
    if (!late->silent_since)
        late->silent_since = calloc((size_t)late->health->size, sizeof *late->silent_since);
    return late->candidates && late->silent_since;
}

static void pause_until(ddl__health *h, int64_t at)
{
    struct timespec until = {at / DDL__S, at % DDL__S};
    pthread_cond_timedwait(&h->detector->died, &h->detector->lock, &until);
}

/* Whether this rank has the next comm already, and does not need a leader any more. */
static bool has_gone_on(const ddl__health *h)
{
    const ddl__member *self = &h->members[h->rank];
    return !h->shrinking && self->committed && self->committed == h->attempt;
}

/* Under the lock, which is released meanwhile: dial the leader once, and if its host was silent the
 * last time, the candidates as well. Returns whether it is silent now. */
static bool dial_leader(ddl__late *late, bool was_silent)
{
    ddl__health *h = late->health;
    const ddl__address *addresses = h->config.addresses;
    ddl__dial_attempt d = {.fd = -1};
    ddl__late_target target = {
        .wireup = &late->wireup,
        .peer = late->leader,
        .local = ddl__may_share_memory(&addresses[h->rank], &addresses[late->leader]),
        .kind = DDL__CONN_LATE_CONTROL,
        .goes_on = dial_goes_on,
        .context = late};
    int64_t begun = ddl__now();
    bool tries_candidates = was_silent && can_try_candidates(late);
    if (!was_silent && late->silent_since)
        memset(late->silent_since, 0, (size_t)h->size * sizeof *late->silent_since);
    if (tries_candidates)
        find_candidates(late);
    pthread_mutex_unlock(&h->detector->lock);
    if (tries_candidates)
        late->n_candidates = ddl__reach_begin(&late->wireup, late->candidates, late->n_candidates);
    ddl_status status = ddl__late_dial(&target, &d);
    bool is_silent = status == DDL_EUNREACHABLE && d.error != ECONNREFUSED;
    if (tries_candidates)
        ddl__reach_end(late->candidates, late->n_candidates,
                       is_silent ? begun + DDL__LATE_DIAL_LIMIT : begun, dial_goes_on, late);
    pthread_mutex_lock(&h->detector->lock);
    settle(late, status, &d);
    if (is_silent && tries_candidates && !late->stop)
        settle_candidates(late, begun);
    ddl__dial_cancel(&d);
    ddl__health_settle(h);
    return is_silent;
}

static void *dial_leaders(void *context)
{
    ddl__late *late = context;
    ddl__health *h = late->health;
    int64_t next_at = 0;
    bool is_silent = false;
    late->leader = -1;
    pthread_mutex_lock(&h->detector->lock);
    while (!late->stop) {
        int leader = ddl__health_lowest_alive(h);
        if (leader == h->rank || h->members[leader].conn.fd >= 0 || has_gone_on(h)) {
            is_silent = false;
            pthread_cond_wait(&h->detector->died, &h->detector->lock);
            continue;
        }
        if (leader != late->leader) {
            bool known = is_silent && late->silent_since && late->silent_since[leader];
            late->since = known ? late->silent_since[leader] : ddl__now();
            if (late->leader >= 0 && h->members[late->leader].fate == DDL__LEFT)
                next_at = late->since + DDL__LEFT_LEADER_PAUSE;
        }
        late->leader = leader;
        if (!h->shrinking && ddl__now() < next_at) {
            late->since = next_at;
            pause_until(h, next_at);
            continue;
        }
        is_silent = dial_leader(late, is_silent);
        if (!late->stop && h->members[leader].fate == DDL__ALIVE && h->members[leader].conn.fd < 0)
            pause_until(h, ddl__now() + DDL__MEMBERS_POLL);
    }
    pthread_mutex_unlock(&h->detector->lock);
    return NULL;
}

/* -------------------------------------------------------------------------------------- lifetime
 */

ddl_status ddl__late_create(ddl__health *h)
{
    ddl__late *late = calloc(1, sizeof *late);
    if (!late)
        return ddl__fail(DDL_ENOMEM, "no memory for connections of %d members", h->size);
    late->health = h;
    late->wireup = (ddl__wireup){.endpoint = h->config.endpoint,
                                 .slot = h->config.slot,
                                 .comm = h->config.comm,
                                 .addresses = h->config.addresses,
                                 .rank = h->rank,
                                 .size = h->size};
    pthread_mutex_init(&late->lock, NULL);
    h->late = late;
    return DDL_OK;
}

void ddl__late_accept(ddl__health *h)
{
    if (!h->late)
        return;
    ddl__endpoint_divert(h->config.endpoint, h->config.slot, DDL__CONN_LATE_CONTROL,
                         take_connection, h->late);
    pthread_mutex_lock(&h->detector->lock);
    h->late->accepts = true;
    if (h->announced)
        ddl__late_start(h);
    pthread_mutex_unlock(&h->detector->lock);
}

void ddl__late_start(ddl__health *h)
{
    if (!h->late || !h->late->accepts || h->late->started || h->late->stop)
        return;
    int error = ddl__thread_start(&h->late->thread, dial_leaders, h->late);
    h->late->started = !error;
    if (error)
        ddl__log(DDL__WARN, "%s cannot connect to the rank that leads the survivors: no thread: %s",
                 h->names[h->rank], strerror(error));
}

void ddl__late_destroy(ddl__health *h)
{
    ddl__late *late = h->late;
    if (!late)
        return;
    ddl__endpoint_divert(h->config.endpoint, h->config.slot, DDL__CONN_LATE_CONTROL, NULL, NULL);
    pthread_mutex_lock(&h->detector->lock);
    late->stop = true;
    pthread_cond_broadcast(&h->detector->died);
    bool started = late->started;
    pthread_mutex_unlock(&h->detector->lock);
    if (started)
        pthread_join(late->thread, NULL);
    pthread_mutex_lock(&h->detector->lock);
    h->late = NULL;
    pthread_mutex_unlock(&h->detector->lock);
    for (arrival *a; (a = late->arrivals);) {
        late->arrivals = a->next;
        accepted_drop(&a->accepted);
        free(a);
    }
    pthread_mutex_destroy(&late->lock);
    free(late->candidates);
    free(late->silent_since);
    free(late);
}
