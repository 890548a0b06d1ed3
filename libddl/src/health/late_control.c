/* SPDX-License-Identifier: Apache-2.0 */
/* Design notes.
 *
 * In a sparse comm, most pairs have no control connection. When the comm is dead, every rank opens
 * a connection to the lowest rank that it believes alive, which leads the agreement. It does so
 * even if its program does not shrink the comm. The higher rank of a pair always dials, so no two
 * ranks dial each other.
 *
 * For each dead comm, one thread dials (dial_leaders). It dials the next leader at once if a leader
 * dies. If a leader leaves, it pauses first, because usually all members are leaving. It holds no
 * lock while it dials. At the leader, the endpoint passes connections under its own lock
 * (take_connection). They are only added to a list, guarded by `lock`, which is taken last. The
 * detector's thread takes them from the list (ddl__late_adopt), answers, and owns them afterwards.
 *
 * A leader that cannot be reached, or does not answer, is declared dead, by this rank's own
 * evidence. The limit is shorter if other ranks have lost it, too, or if its host refuses the
 * connection. Ranks on its host that other ranks have lost are declared dead with it, because they
 * are behind the same network. A leader declares a rank dead that does not connect in time.
 *
 * If the leader's host does not answer, the network may be cut. Dialing every rank beyond the cut
 * in turn would take seconds for each. So the ranks that would lead next (candidates) are tried at
 * the same time (connect/wireup/reach.h); as long as none answers, each round tries more of them.
 * The ranks before the first one that answers are declared dead like the leader, each when its own
 * limit has passed. */
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
#include "connect/addresses/neighbours.h"
#include "connect/wireup/late_dial.h"
#include "connect/wireup/reach.h"
#include "health/health_state.h"
#include "net/socket.h"

typedef struct arrival {
    struct arrival *next;
    ddl__accepted accepted;
} arrival;

/* The number of next leaders (candidates) to try at first, its growth factor in each round, and its
 * maximum. Each candidate needs a descriptor for each of its networks. */
enum { CANDIDATES_FIRST = 8, CANDIDATES_MORE = 4, CANDIDATES_MAX = 256 };

typedef struct ddl__late {
    ddl__health *health;
    ddl__wireup wireup; /* for dialing */
    pthread_mutex_t lock;
    arrival *arrivals; /* guarded by `lock` */
    pthread_t thread;
    bool accepts, started, stop; /* guarded by the detector's lock, like the next two fields */
    int leader;                  /* the rank that the thread dials */
    int64_t since;               /* the time when this rank started to dial the leader */

    /* Only the thread uses the fields below. */
    int64_t silent_since;   /* since this time, no address of the leader has answered */
    ddl__reach *candidates; /* the ranks that would lead next, lowest first; or NULL */
    int n_candidates, wanted;
} ddl__late;

/* ---------------------------------------------------------------------------------- connections */

/* Under the detector's lock: set the member's control connection, and send the member the messages
 * that it may have missed. */
static void member_connect(ddl__health *h, int rank, int fd, ddl__seal *seal, ddl__side side)
{
    ddl__member *member = &h->members[rank];
    ddl__control_conn_open(&member->conn, fd, seal);
    member->peer->is_new = side == DDL__DIALED;
    member->ever_heard = member->heard_since_beat = true;
    ddl__member_register(h, rank, EPOLL_CTL_ADD);
    ddl__heartbeats_add(h, rank);
    ddl__member_connected(h->membership, rank);
    pthread_cond_broadcast(&h->detector->changed);
}

static void accepted_drop(ddl__accepted *accepted)
{
    if (accepted->fd >= 0)
        close(accepted->fd);
    ddl__session_end(&accepted->session);
}

/* Add a connection to the list. For ddl__endpoint_divert: called under the endpoint's lock. */
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

static ddl_status find_answer(const ddl__health *h, const ddl__hello *hello, const char **text)
{
    *text = "its rank or size does not fit this comm";
    if (hello->to != (uint32_t)h->rank || hello->size != (uint32_t)h->size ||
        hello->from >= (uint32_t)h->size)
        return DDL_EREFUSED;
    ddl_status status = ddl__leader_answer(h->membership, (int)hello->from);
    *text = status == DDL_EREFUSED ? "it has a control connection already"
                                   : h->members[hello->from].cause;
    return status;
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
        ddl__control_conn_close(&h->members[from].conn); /* the member has replaced it */
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

/* -------------------------------------------------------------------------------------- dialing */

/* Return true if dialing should continue. */
static bool dial_goes_on(void *context)
{
    ddl__late *late = context;
    pthread_mutex_lock(&late->health->detector->lock);
    const ddl__membership *m = late->health->membership;
    bool goes_on =
        !late->stop && m->peers[late->leader].state == DDL__ALIVE &&
        ddl__now() - late->since < ddl__leader_limit(m, late->leader, DDL__DIALED_UNANSWERED);
    pthread_mutex_unlock(&late->health->detector->lock);
    return goes_on;
}

static bool answers(const void *context, int rank)
{
    const ddl__late *late = context;
    for (int i = 0; i < late->n_candidates; i++)
        if (late->candidates[i].rank == rank)
            return late->candidates[i].answers;
    return false;
}

/* Return true if dialing failed because no address of the leader has answered. */
static bool is_silent(ddl_status status, const ddl__dial_attempt *d)
{
    return status == DDL_EUNREACHABLE && d->error == EHOSTUNREACH;
}

/* Classify the result of an attempt that failed. */
static ddl__dialed classify(ddl_status status, const ddl__dial_attempt *d)
{
    return status == DDL_ESTATE                                     ? DDL__DIALED_LEFT
           : status == DDL_EMINORITY                                ? DDL__DIALED_LEFT_OUT
           : status == DDL_EPEER                                    ? DDL__DIALED_LOST
           : status == DDL_EUNREACHABLE && d->error == ECONNREFUSED ? DDL__DIALED_REFUSED
           : is_silent(status, d)                                   ? DDL__DIALED_SILENT
           : status == DDL_ETIMEDOUT                                ? DDL__DIALED_UNANSWERED
                                                                    : DDL__DIALED_FAILED;
}

/* Under the lock: handle the result of an attempt. */
static void settle(ddl__late *late, ddl_status status, ddl__dial_attempt *d)
{
    ddl__health *h = late->health;
    ddl__member *leader = &h->members[late->leader];
    ddl__seal *seal = NULL;
    if (status == DDL_OK && leader->conn.fd < 0 &&
        ddl__session_seal(ddl__endpoint_job(h->config.endpoint), &d->session, d->fd, DDL__DIALER,
                          &seal) == DDL_OK) {
        /* Connect even if this rank is leaving or has declared the leader dead meanwhile, so that
         * the leader is notified. */
        member_connect(h, late->leader, d->fd, seal, DDL__DIALER);
        d->fd = -1;
        ddl__leader_connected(h->membership, late->leader);
        return;
    }
    if (late->stop)
        return;
    int64_t now = ddl__now(), since = is_silent(status, d) ? late->silent_since : late->since;
    ddl__leader_dialed(h->membership, late->leader, classify(status, d), now - since,
                       ddl__message(), answers, late, now);
}

static void drop_candidates(ddl__late *late)
{
    for (int i = 0; i < late->n_candidates; i++)
        ddl__reach_end(&late->candidates[i]);
    late->n_candidates = 0;
}

/* Under the lock: return true if the member may lead next and must be dialed. */
static bool is_candidate(const ddl__late *late, int rank)
{
    const ddl__member *member = &late->health->members[rank];
    return rank > late->leader && member->peer->state == DDL__ALIVE && member->conn.fd < 0;
}

/* Under the lock: drop the ranks that are no longer candidates, and all candidates after one that
 * answers. If none answers, add more. */
static void update_candidates(ddl__late *late)
{
    const ddl__health *h = late->health;
    const ddl__address *addresses = h->config.addresses;
    int n = 0, next = late->leader + 1;
    bool answer = false;
    for (int i = 0; i < late->n_candidates; i++) {
        ddl__reach *candidate = &late->candidates[i];
        next = candidate->rank + 1;
        if (answer || !is_candidate(late, candidate->rank)) {
            ddl__reach_end(candidate);
            continue;
        }
        answer = candidate->answers;
        late->candidates[n++] = *candidate;
    }
    late->n_candidates = n;
    if (answer)
        return;
    for (; late->n_candidates < late->wanted && next < h->rank; next++) {
        if (h->members[next].peer->state != DDL__ALIVE)
            continue;
        if (!is_candidate(late, next) ||
            ddl__may_share_memory(&addresses[h->rank], &addresses[next]))
            break; /* it leads next and can be reached: no other candidate is needed */
        late->candidates[late->n_candidates++] = (ddl__reach){.rank = next};
    }
    late->wanted *= CANDIDATES_MORE;
    late->wanted = late->wanted < CANDIDATES_MAX ? late->wanted : CANDIDATES_MAX;
}

/* Under the lock: declare dead the candidates that have been silent for too long, up to the first
 * one that has not. */
static void settle_candidates(ddl__late *late)
{
    ddl__health *h = late->health;
    for (int i = 0; i < late->n_candidates; i++) {
        const ddl__reach *candidate = &late->candidates[i];
        if (!is_candidate(late, candidate->rank))
            continue;
        if (candidate->answers ||
            ddl__now() - candidate->since <
                ddl__leader_limit(h->membership, candidate->rank, DDL__DIALED_SILENT))
            break;
        ddl__leader_unreachable(h->membership, candidate->rank, "nothing answers at its address",
                                ddl__now());
    }
}

/* Under the lock: return the time when the leader was first tried as a candidate, if it has not
 * answered since; otherwise the current time. */
static int64_t find_silence(const ddl__late *late)
{
    for (int i = 0; i < late->n_candidates; i++)
        if (late->candidates[i].rank == late->leader && !late->candidates[i].answers)
            return late->candidates[i].since;
    return ddl__now();
}

static void pause_until(ddl__health *h, int64_t at)
{
    ddl__cond_wait_until(&h->detector->died, &h->detector->lock, at);
}

/* Dial the leader once. If its host did not answer the last time, try the candidates, too. Return
 * true if its host does not answer this time. Called under the lock, which is released
 * meanwhile. */
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
    if (was_silent && !late->candidates)
        late->candidates = calloc(CANDIDATES_MAX, sizeof *late->candidates);
    if (!was_silent) {
        drop_candidates(late);
        late->wanted = CANDIDATES_FIRST;
        late->silent_since = ddl__now();
    } else if (late->candidates) {
        update_candidates(late);
    }
    pthread_mutex_unlock(&h->detector->lock);
    for (int i = 0; i < late->n_candidates; i++)
        if (!late->candidates[i].since)
            ddl__reach_begin(&late->wireup, &late->candidates[i]);
    ddl_status status = ddl__late_dial(&target, &d);
    for (int i = 0; i < late->n_candidates; i++)
        ddl__reach_poll(&late->wireup, &late->candidates[i]);
    pthread_mutex_lock(&h->detector->lock);
    settle(late, status, &d);
    if (is_silent(status, &d) && !late->stop)
        settle_candidates(late);
    ddl__dial_cancel(&d);
    ddl__health_settle(h);
    return is_silent(status, &d);
}

static void *dial_leaders(void *context)
{
    ddl__late *late = context;
    ddl__health *h = late->health;
    int64_t next_at = 0;
    bool silent = false;
    late->leader = -1;
    pthread_mutex_lock(&h->detector->lock);
    while (!late->stop) {
        int leader = ddl__lowest_alive(h->membership);
        if (leader == h->rank || h->members[leader].conn.fd >= 0 ||
            ddl__leader_is_unneeded(h->membership)) {
            silent = false;
            drop_candidates(late);
            pthread_cond_wait(&h->detector->died, &h->detector->lock);
            continue;
        }
        if (leader != late->leader) {
            late->since = ddl__now();
            if (late->leader >= 0 && h->members[late->leader].peer->state == DDL__LEFT) {
                next_at = late->since + DDL__LEFT_LEADER_PAUSE;
                silent = false;
            }
            late->leader = leader;
            late->silent_since = find_silence(late);
        }
        if (!h->shrinking && ddl__now() < next_at) {
            late->since = next_at;
            pause_until(h, next_at);
            continue;
        }
        silent = dial_leader(late, silent);
        if (!late->stop && h->members[leader].peer->state == DDL__ALIVE &&
            h->members[leader].conn.fd < 0)
            pause_until(h, ddl__now() + DDL__MEMBERS_POLL);
    }
    drop_candidates(late);
    pthread_mutex_unlock(&h->detector->lock);
    return NULL;
}

/* ------------------------------------------------------------------------------------- lifetime */

ddl_status ddl__late_create(ddl__health *h)
{
    ddl__late *late = calloc(1, sizeof *late);
    if (!late)
        return ddl__fail(DDL_ENOMEM, "out of memory for connections of %d members", h->size);
    late->health = h;
    late->wireup = (ddl__wireup){.endpoint = h->config.endpoint,
                                 .slot = h->config.slot,
                                 .id = {.comm = h->config.comm},
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
    if (h->membership->announced)
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
        ddl__log(DDL__WARN,
                 "%s cannot connect to the rank that leads the survivors, because no thread can be "
                 "started: %s",
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
    free(late);
}
