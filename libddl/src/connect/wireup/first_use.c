/* SPDX-License-Identifier: Apache-2.0 */
/* Design notes.
 *
 * Both ends of a pair may need a link at the same time. Each end that has data to send dials. The
 * higher rank decides: while it dials, it answers DDL_INPROGRESS to the lower rank, which then
 * waits for the higher rank's connection. The lower rank always accepts a connection, and drops its
 * own attempt. So exactly one connection becomes the link, at both ends.
 *
 * `lock` guards the state of every pair. Under it, a link gets its connection or lapses (is closed
 * unopened), whichever comes first. A thread of the comm dials one link after the other, with the
 * lock released. The thread that has read a dialer's proof accepts the connection (accept_link,
 * under the endpoint's lock). It never waits, so ranks cannot deadlock by waiting for each other.
 * Lock order: the locks of links, the endpoint and the failure detector come before `lock`; the
 * lock of a link's arrival comes after it. Nothing is sent before both ends have proven the secret
 * (handshake.h).
 *
 * A member may die or leave while its link is being opened. Data is sent only over a connection
 * that the receiver has accepted. Therefore a link that neither end dials lapses at once. A link
 * that this rank dials lapses when dialing has failed, or DDL__LEFT_AFTER later, because the peer's
 * answer, followed by data, may still arrive. A peer that cannot be reached, but is not found dead,
 * ends the comm after DDL__FIRST_USE_LIMIT. */
#include "connect/wireup/first_use.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/test_points.h"
#include "base/thread.h"
#include "base/time_limits.h"
#include "connect/wireup/late_dial.h"
#include "net/socket.h"

typedef enum use_state {
    NOT_ADDED, /* the link was opened when the comm was created, or uses the connection of the
                  pair's first link */
    UNUSED,
    ASKED,   /* this rank must dial */
    DIALING, /* this rank is dialing */
    AWAITED, /* the peer is dialing */
    ENDED    /* open, or closed unopened */
} use_state;

/* One link of a pair; both links if the pair will share memory. */
typedef struct link_use {
    ddl__first_use *use;
    ddl__link *link;
    int peer;
    bool shared; /* the pair will share memory */
    use_state state;
    ddl__link_state gone; /* LEFT or LOST if the peer has left or is lost; else DDL__LINK_OPEN */
    int64_t gone_at;
} link_use;

struct ddl__first_use {
    ddl__wireup wireup; /* used only to dial; has no links and no deadline */
    ddl__first_use_events events;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t thread;
    bool started, stop;
    ddl__tcp_buffers *tcp_buffers; /* for TCP links, indexed like `uses` */
    ddl__shm_buffers *shm_buffers; /* for links that share memory, by rank */
    link_use **asked;              /* the links to dial, in order; each is added once */
    unsigned first_asked, n_asked;
    link_use uses[]; /* indexed by 2 * rank, + 1 for messages */
};

ddl__first_use *ddl__first_use_create(const ddl__wireup *wireup)
{
    size_t n = 2 * (size_t)wireup->size;
    ddl__first_use *use = calloc(1, sizeof *use + n * sizeof *use->uses);
    link_use **asked = calloc(n, sizeof(link_use *));
    ddl__tcp_buffers *tcp_buffers = ddl__tcp_buffers_create(n);
    ddl__shm_buffers *shm_buffers = ddl__shm_buffers_create(n / 2);
    if (!use || !asked || !tcp_buffers || !shm_buffers) {
        free(use);
        free(asked);
        free(tcp_buffers);
        free(shm_buffers);
        ddl__fail(DDL_ENOMEM, "out of memory for %zu links", n);
        return NULL;
    }
    use->asked = asked;
    use->tcp_buffers = tcp_buffers;
    use->shm_buffers = shm_buffers;
    use->wireup = (ddl__wireup){.endpoint = wireup->endpoint,
                                .slot = wireup->slot,
                                .id = wireup->id,
                                .addresses = wireup->addresses,
                                .arena = wireup->arena,
                                .rank = wireup->rank,
                                .size = wireup->size};
    for (size_t i = 0; i < n; i++)
        use->uses[i] = (link_use){.use = use, .peer = (int)(i / 2)};
    pthread_mutex_init(&use->lock, NULL);
    ddl__cond_init(&use->changed);
    return use;
}

void ddl__first_use_destroy(ddl__first_use *use)
{
    if (!use)
        return;
    pthread_cond_destroy(&use->changed);
    pthread_mutex_destroy(&use->lock);
    free(use->asked);
    free(use->tcp_buffers);
    free(use->shm_buffers);
    free(use);
}

/* Request a connection for a link that has data to send. */
static void link_asks(void *context)
{
    link_use *u = context;
    ddl__first_use *use = u->use;
    pthread_mutex_lock(&use->lock);
    if (u->state == UNUSED) {
        u->state = ASKED;
        use->asked[use->n_asked++] = u;
        pthread_cond_broadcast(&use->changed);
    }
    pthread_mutex_unlock(&use->lock);
}

bool ddl__first_use_add(ddl__first_use *use, int peer, ddl__slots *slots, ddl__link **link,
                        ddl__link **messages)
{
    link_use *u = &use->uses[2 * peer];
    size_t number = 2 * (size_t)peer;
    *link = ddl__tcp_link_create_unopened(slots, use->tcp_buffers, number, link_asks, &u[0]);
    *messages =
        *link ? ddl__tcp_link_create_unopened(slots, use->tcp_buffers, number + 1, link_asks, &u[1])
              : NULL;
    if (*link && !*messages) {
        (*link)->ops->destroy(*link);
        *link = NULL;
    }
    if (!*link)
        return false;
    u[0].link = *link;
    u[1].link = *messages;
    u[0].state = u[1].state = UNUSED;
    return true;
}

bool ddl__first_use_add_shared(ddl__first_use *use, int peer, ddl__link **link,
                               ddl__link **messages)
{
    link_use *u = &use->uses[2 * peer];
    const ddl__wireup *w = &use->wireup;
    *link = ddl__shm_link_create_unopened(w->arena, (unsigned)peer, (unsigned)w->rank,
                                          use->shm_buffers, link_asks, u);
    if (!*link)
        return false;
    *messages = ddl__shm_link_beside(*link);
    u->link = *link;
    u->shared = true;
    u->state = UNUSED;
    return true;
}

void ddl__first_use_remove(ddl__first_use *use, int peer)
{
    use->uses[2 * peer].state = use->uses[2 * peer + 1].state = NOT_ADDED;
}

/* The resources with which a link is opened. */
typedef struct opening {
    int fd;
    ddl__seal *seal;
    ddl__arena *arena; /* the peer's arena; NULL: the link shares no memory */
} opening;

/* Create an opening from a connection; `passed` is the descriptor received over it, or -1. */
static ddl_status opening_make(const link_use *u, int fd, const ddl__session *session,
                               ddl__side side, int passed, opening *o)
{
    const ddl__wireup *w = &u->use->wireup;
    *o = (opening){.fd = fd};
    if (!u->shared)
        return ddl__session_seal(ddl__endpoint_job(w->endpoint), session, fd, side, &o->seal);
    if (passed < 0)
        return ddl__fail(DDL_EREFUSED, "it did not pass its shared memory: raise ulimit -n");
    o->arena = ddl__arena_open(passed, (unsigned)w->rank);
    return o->arena ? DDL_OK : DDL_ESYSTEM;
}

/* Under the lock: open the link with its connection. */
static void use_open(link_use *u, const opening *o)
{
    const ddl__wireup *w = &u->use->wireup;
    char name[128] = "shared memory";
    if (!u->shared)
        ddl__wireup_name_connection(ddl__endpoint_address(w->endpoint), o->fd, name, sizeof name);
    ddl__log(DDL__INFO, "rank %d reaches rank %d on %s over %s", w->rank, u->peer,
             w->addresses[u->peer].host, name);
    u->state = ENDED;
    (void)DDL__TEST_POINT(DDL__AT_OPENING, u->link);
    if (u->shared)
        ddl__shm_link_connect(u->link, o->arena);
    else
        ddl__tcp_link_connect(u->link, o->fd, name, o->seal);
    u->use->events.opened(u->use->events.engine, u->link,
                          u->shared ? ddl__arena_bell(w->arena) : o->fd);
    if (u->shared) /* both ranks have mapped the memory, so the connection is no longer needed */
        close(o->fd);
}

/* Under the lock: close a link that was not opened. */
static void use_lapse(link_use *u, ddl__link_state state)
{
    u->state = ENDED;
    if (u->shared)
        ddl__shm_link_lapse(u->link, state);
    else
        ddl__tcp_link_lapse(u->link, state);
}

void ddl__first_use_gone(ddl__first_use *use, int peer, ddl__link_state state)
{
    if (!use)
        return;
    pthread_mutex_lock(&use->lock);
    for (link_use *u = &use->uses[2 * peer]; u < &use->uses[2 * peer + 2]; u++)
        if (u->state == DIALING && u->gone == DDL__LINK_OPEN) {
            u->gone = state;
            u->gone_at = ddl__now();
        } else if (u->state == UNUSED || u->state == ASKED || u->state == AWAITED) {
            use_lapse(u, state);
        }
    pthread_mutex_unlock(&use->lock);
}

/* -------------------------------------------------------------------------------------- dialing */

/* Return true if dialing should continue. */
static bool use_goes_on(void *context)
{
    link_use *u = context;
    pthread_mutex_lock(&u->use->lock);
    bool waits = u->gone == DDL__LINK_OPEN || ddl__now() < u->gone_at + DDL__LEFT_AFTER;
    bool goes_on = u->state == DIALING && !u->use->stop && waits;
    pthread_mutex_unlock(&u->use->lock);
    return goes_on;
}

static ddl_status dial_paths(link_use *u, ddl__dial_attempt *d, int *passed)
{
    /* Reserve a descriptor: the kernel drops a received descriptor if no number is free for it. */
    if (u->shared)
        *passed = fcntl(ddl__arena_fd(u->use->wireup.arena), F_DUPFD_CLOEXEC, 0);
    if (u->shared && *passed < 0)
        return ddl__fail(DDL_EUNREACHABLE,
                         "no descriptor is free for its shared memory: %s; raise ulimit -n",
                         strerror(errno));
    ddl__late_target target = {.wireup = &u->use->wireup,
                               .peer = u->peer,
                               .local = u->shared,
                               .kind = u->shared ? DDL__CONN_FIRST_MEMORY : DDL__CONN_FIRST_USE,
                               .lane = u == &u->use->uses[2 * u->peer + 1],
                               .goes_on = use_goes_on,
                               .context = u,
                               .passed = u->shared ? passed : NULL};
    return ddl__late_dial(&target, d);
}

/* Under the lock: handle the result of an attempt. Returns false if the attempt must be
 * repeated. */
static bool use_settle(link_use *u, ddl_status status, ddl__dial_attempt *d, int passed)
{
    opening o;
    if (u->state != DIALING) /* the peer's connection was accepted */
        return true;
    if (status == DDL_OK &&
        opening_make(u, d->fd, &d->session, DDL__DIALER, passed, &o) == DDL_OK) {
        use_open(u, &o);
        d->fd = -1;
        return true;
    }
    if (u->gone != DDL__LINK_OPEN || status == DDL_ESTATE) {
        use_lapse(u, status == DDL_ESTATE ? DDL__LINK_LEFT : u->gone);
        u->use->events.lapsed(u->use->events.engine);
        return true;
    }
    if (status == DDL_INPROGRESS)
        u->state = AWAITED;
    return status == DDL_INPROGRESS || u->use->stop;
}

/* Under the lock: wait a little before the next attempt. */
static void use_pause(link_use *u)
{
    int64_t at = ddl__now() + DDL__MEMBERS_POLL;
    while (!u->use->stop && u->state == DIALING && ddl__now() < at)
        ddl__cond_wait_until(&u->use->changed, &u->use->lock, at);
}

static void use_fail(const link_use *u)
{
    const ddl__wireup *w = &u->use->wireup;
    char text[DDL__MESSAGE_MAX];
    snprintf(text, sizeof text, "rank %d on %s cannot be reached by rank %d on %s: %.200s", u->peer,
             w->addresses[u->peer].host, w->rank, w->addresses[w->rank].host, ddl__message());
    u->use->events.unreachable(u->use->events.engine, u->peer, text);
}

/* Dial until there is a result. Called under the lock, which is released while dialing. */
static void use_dial(link_use *u)
{
    ddl__first_use *use = u->use;
    int64_t limit = ddl__now() + DDL__FIRST_USE_LIMIT;
    bool settled = false;
    u->state = DIALING;
    while (!settled) {
        ddl__dial_attempt d = {.fd = -1};
        int passed = -1;
        pthread_mutex_unlock(&use->lock);
        ddl_status status = dial_paths(u, &d, &passed);
        pthread_mutex_lock(&use->lock);
        settled = use_settle(u, status, &d, passed);
        ddl__dial_cancel(&d);
        if (passed >= 0)
            close(passed);
        if (status == DDL_ETIMEDOUT) /* continue: the peer was reached, and the failure detector
                                        monitors it */
            limit = ddl__now() + DDL__FIRST_USE_LIMIT;
        /* After DDL_OK the peer has opened its end, and refuses another connection. */
        if (!settled && (status == DDL_OK || ddl__now() > limit)) {
            use_lapse(u, DDL__LINK_LOST);
            pthread_mutex_unlock(&use->lock);
            use_fail(u);
            pthread_mutex_lock(&use->lock);
            return;
        }
        if (!settled)
            use_pause(u);
    }
}

static void *dial_asked(void *context)
{
    ddl__first_use *use = context;
    pthread_mutex_lock(&use->lock);
    while (!use->stop)
        if (use->first_asked == use->n_asked)
            pthread_cond_wait(&use->changed, &use->lock);
        else if (use->asked[use->first_asked]->state == ASKED)
            use_dial(use->asked[use->first_asked++]);
        else
            use->first_asked++;
    pthread_mutex_unlock(&use->lock);
    return NULL;
}

/* ------------------------------------------------------------------------------------ accepting */

/* Under the lock: return the reason to refuse a connection, or NULL. */
static const char *find_refusal(const ddl__first_use *use, const ddl__hello *hello)
{
    const ddl__wireup *w = &use->wireup;
    if (hello->to != (uint32_t)w->rank || hello->size != (uint32_t)w->size ||
        hello->from >= (uint32_t)w->size || hello->lane > 1)
        return "its rank or size does not fit this comm";
    const link_use *u = &use->uses[2 * hello->from + hello->lane];
    return u->state == NOT_ADDED ? "the links of this pair were opened at once"
           : u->state == ENDED   ? "this link was opened before"
           : u->shared != (hello->kind == DDL__CONN_FIRST_MEMORY)
               ? "the two do not agree on sharing memory"
               : NULL;
}

/* Answer a connection, and open its link if it is accepted. For ddl__endpoint_divert. */
static void accept_link(void *context, const ddl__accepted *accepted)
{
    ddl__first_use *use = context;
    const ddl__hello *hello = &accepted->hello;
    const ddl__job *job = ddl__endpoint_job(use->wireup.endpoint);
    opening o = {.fd = -1};
    pthread_mutex_lock(&use->lock);
    const char *refusal = find_refusal(use, hello);
    link_use *u = refusal ? NULL : &use->uses[2 * hello->from + hello->lane];
    bool decides = u && use->wireup.rank > u->peer && u->state == DIALING;
    if (u && !decides &&
        opening_make(u, accepted->fd, &accepted->session, DDL__DIALED, accepted->passed, &o) !=
            DDL_OK)
        refusal = ddl__message();
    ddl__hello answer = ddl__hello_answer(hello,
                                          refusal   ? DDL_EREFUSED
                                          : decides ? DDL_INPROGRESS
                                                    : DDL_OK,
                                          refusal);
    ddl__answer_prove(job, &accepted->session, DDL__AUTH_MEMBER, &answer);
    bool opens = !refusal && !decides;
    int memory = opens && u->shared ? ddl__arena_fd(use->wireup.arena) : -1;
    if (ddl__send_with_fd(accepted->fd, &answer, sizeof answer, memory, ddl__now()) && opens) {
        use_open(u, &o);
        pthread_cond_broadcast(&use->changed);
    } else {
        ddl__seal_destroy(o.seal);
        ddl__arena_drop(o.arena);
        close(accepted->fd);
    }
    pthread_mutex_unlock(&use->lock);
    if (accepted->passed >= 0)
        close(accepted->passed);
}

ddl_status ddl__first_use_start(ddl__first_use *use, const ddl__first_use_events *events)
{
    use->events = *events;
    int error = ddl__thread_start(&use->thread, dial_asked, use);
    if (error)
        return ddl__fail(DDL_ESYSTEM, "cannot start a thread to open links: %s", strerror(error));
    use->started = true;
    ddl__endpoint_divert(use->wireup.endpoint, use->wireup.slot, DDL__CONN_FIRST_USE, accept_link,
                         use);
    return DDL_OK;
}

void ddl__first_use_stop(ddl__first_use *use)
{
    if (!use || !use->started)
        return;
    pthread_mutex_lock(&use->lock);
    use->stop = true;
    pthread_cond_broadcast(&use->changed);
    pthread_mutex_unlock(&use->lock);
    pthread_join(use->thread, NULL);
    use->started = false;
}
