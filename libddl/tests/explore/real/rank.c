/* SPDX-License-Identifier: Apache-2.0 */
#include "explore/real/rank.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/time_limits.h"
#include "comm/comm.h"
#include "health/health_state.h"
#include "support/check.h"

enum { INBOX = 64, LIMIT_MS = 5000 };

/* A message from the parent's control connections that was received, but not handled yet. */
typedef struct held {
    ddl__control_msg kind;
    size_t bytes;
    unsigned char content[600];
} held;

typedef struct inbox {
    held queue[INBOX];
    int first, length;
    bool lost; /* handle no more messages */
    bool ended;
    int error; /* if ended: the error */
} inbox;

static ddl_comm *comm;
static ddl__health *parent; /* the health of `comm`; NULL during its creation */
static inbox inboxes[RANKS_MAX];
static int64_t virtual_now; /* this and the next lines: under the detector's lock */
static int delivers = -1;   /* the rank whose next message may be handled */
static int delivered;       /* the kind of the handled message; 0: none */
static bool may_advance, has_advanced, has_begun;

/* The state of the next comm's creation. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static bool joins, gives_up, is_let_go, shall_shrink, has_shrunk;
static ddl_status join_status, shrink_status;
static uint64_t list;

static bool is_parents(const ddl__membership *m)
{
    return parent && m == parent->membership;
}

/* ------------------------------------------------------------------------------ wrapped functions
 */

/* The same type as in detector.c. */
typedef struct message_source {
    ddl__health *health;
    int from;
} message_source;

static void hold(void *context, ddl__control_msg kind, const unsigned char *content, size_t bytes)
{
    const message_source *source = context;
    inbox *in = &inboxes[source->from];
    if (kind == DDL__HEARTBEAT || in->lost)
        return;
    CHECK(in->length < INBOX && bytes <= sizeof in->queue->content, "a message is too many");
    held *h = &in->queue[(in->first + in->length++) % INBOX];
    h->kind = kind;
    h->bytes = bytes;
    if (bytes)
        memcpy(h->content, content, bytes);
}

bool __real_ddl__control_conn_receive(ddl__control_conn *conn, ddl__control_msg_handler *handle,
                                      void *context);
bool __wrap_ddl__control_conn_receive(ddl__control_conn *conn, ddl__control_msg_handler *handle,
                                      void *context);
bool __wrap_ddl__control_conn_receive(ddl__control_conn *conn, ddl__control_msg_handler *handle,
                                      void *context)
{
    message_source *source = context;
    bool is_held = parent && conn >= &parent->members[0].conn &&
                   conn <= &parent->members[parent->size - 1].conn;
    if (!is_held)
        return __real_ddl__control_conn_receive(conn, handle, context);
    if (conn->fd < 0)
        return false;
    inbox *in = &inboxes[source->from];
    conn->state = DDL__CONTROL_CONN_OPEN; /* after a failed send there may be more to read */
    if (!in->ended)
        __real_ddl__control_conn_receive(conn, hold, context);
    if (conn->state != DDL__CONTROL_CONN_OPEN && !in->ended) {
        in->ended = true;
        ddl__member_register(parent, source->from, EPOLL_CTL_DEL); /* it would wake the thread */
    }
    conn->state = DDL__CONTROL_CONN_OPEN;
    if (delivers != source->from)
        return false;
    if (in->length) {
        const held *h = &in->queue[in->first];
        in->first = (in->first + 1) % INBOX;
        in->length--;
        delivers = -1;
        delivered = (int)h->kind;
        handle(context, h->kind, h->content, h->bytes);
        return true;
    }
    if (in->ended) {
        delivers = -1;
        delivered = END_OF_CONNECTION;
        conn->state = DDL__CONTROL_CONN_ENDED;
        conn->error = in->error;
    }
    return false;
}

void __real_ddl__member_receive(ddl__membership *m, int from, const ddl__member_msg *message,
                                int64_t now);
void __wrap_ddl__member_receive(ddl__membership *m, int from, const ddl__member_msg *message,
                                int64_t now);
void __wrap_ddl__member_receive(ddl__membership *m, int from, const ddl__member_msg *message,
                                int64_t now)
{
    __real_ddl__member_receive(m, from, message, is_parents(m) ? virtual_now : now);
}

void __real_ddl__member_ended(ddl__membership *m, int rank, bool local, int error, int64_t now);
void __wrap_ddl__member_ended(ddl__membership *m, int rank, bool local, int error, int64_t now);
void __wrap_ddl__member_ended(ddl__membership *m, int rank, bool local, int error, int64_t now)
{
    __real_ddl__member_ended(m, rank, local, error, is_parents(m) ? virtual_now : now);
}

ddl_status __real_ddl__member_expel(ddl__membership *m, int rank, const char *reason, int64_t now);
ddl_status __wrap_ddl__member_expel(ddl__membership *m, int rank, const char *reason, int64_t now);
ddl_status __wrap_ddl__member_expel(ddl__membership *m, int rank, const char *reason, int64_t now)
{
    return __real_ddl__member_expel(m, rank, reason, is_parents(m) ? virtual_now : now);
}

bool __real_ddl__member_check_silence(ddl__membership *m, int rank, int64_t elapsed,
                                      int64_t interval, int64_t now);
bool __wrap_ddl__member_check_silence(ddl__membership *m, int rank, int64_t elapsed,
                                      int64_t interval, int64_t now);
bool __wrap_ddl__member_check_silence(ddl__membership *m, int rank, int64_t elapsed,
                                      int64_t interval, int64_t now)
{
    return !is_parents(m) && __real_ddl__member_check_silence(m, rank, elapsed, interval, now);
}

void __real_ddl__grace_check(ddl__health *h, int64_t now);
void __wrap_ddl__grace_check(ddl__health *h, int64_t now);
void __wrap_ddl__grace_check(ddl__health *h, int64_t now)
{
    if (h == parent)
        h->grace_poll_at = DDL__NEVER;
    else
        __real_ddl__grace_check(h, now);
}

void __real_ddl__health_destroy(ddl__health *h);
void __wrap_ddl__health_destroy(ddl__health *h);
void __wrap_ddl__health_destroy(ddl__health *h)
{
    if (h == parent)
        parent = NULL;
    __real_ddl__health_destroy(h);
}

void __real_ddl__agreement_begin(ddl__membership *m, int64_t deadline);
void __wrap_ddl__agreement_begin(ddl__membership *m, int64_t deadline);
void __wrap_ddl__agreement_begin(ddl__membership *m, int64_t deadline)
{
    __real_ddl__agreement_begin(m, deadline);
    has_begun = has_begun || is_parents(m);
}

ddl__agreement_step __real_ddl__agreement_advance(ddl__membership *m, int64_t now);
ddl__agreement_step __wrap_ddl__agreement_advance(ddl__membership *m, int64_t now);
ddl__agreement_step __wrap_ddl__agreement_advance(ddl__membership *m, int64_t now)
{
    if (!is_parents(m))
        return __real_ddl__agreement_advance(m, now);
    if (!may_advance)
        return DDL__STEP_WAIT;
    may_advance = false;
    has_advanced = true;
    ddl__agreement_step step = __real_ddl__agreement_advance(m, virtual_now);
    if (step == DDL__STEP_CREATE) {
        pthread_mutex_lock(&lock);
        joins = true;
        join_status = DDL_INPROGRESS;
        is_let_go = gives_up = false;
        list = 0;
        for (int b = 0; b < m->size; b++)
            list |= (uint64_t)ddl__agreement_has(m, b) << b;
        pthread_mutex_unlock(&lock);
    }
    return step;
}

ddl__agreement_step __real_ddl__agreement_created(ddl__membership *m, bool created, bool final);
ddl__agreement_step __wrap_ddl__agreement_created(ddl__membership *m, bool created, bool final);
ddl__agreement_step __wrap_ddl__agreement_created(ddl__membership *m, bool created, bool final)
{
    ddl__agreement_step step = __real_ddl__agreement_created(m, created, final);
    pthread_mutex_lock(&lock);
    joins = joins && !is_parents(m);
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    return step;
}

/* Fail the creation once the schedule orders its failure. */
static ddl_status check_join(void *context)
{
    const ddl__until *own = context;
    pthread_mutex_lock(&lock);
    bool ends = gives_up;
    pthread_mutex_unlock(&lock);
    ddl_status status = ends ? ddl__until_check(own) : DDL_OK;
    return ends && status == DDL_OK ? ddl__fail(DDL_EPEER, "the schedule ends the creation")
                                    : status;
}

ddl_status __real_ddl__comm_join(ddl_endpoint *endpoint, const ddl_comm *from,
                                 ddl__address *addresses, int rank, int size,
                                 const ddl_comm_config *config, bool is_world,
                                 const ddl__until *until, ddl_comm **out);
ddl_status __wrap_ddl__comm_join(ddl_endpoint *endpoint, const ddl_comm *from,
                                 ddl__address *addresses, int rank, int size,
                                 const ddl_comm_config *config, bool is_world,
                                 const ddl__until *until, ddl_comm **out);
ddl_status __wrap_ddl__comm_join(ddl_endpoint *endpoint, const ddl_comm *from,
                                 ddl__address *addresses, int rank, int size,
                                 const ddl_comm_config *config, bool is_world,
                                 const ddl__until *until, ddl_comm **out)
{
    if (!from || from != comm)
        return __real_ddl__comm_join(endpoint, from, addresses, rank, size, config, is_world, until,
                                     out);
    ddl__until own = {until->deadline, check_join, (void *)until, until->unreachable};
    ddl_status status =
        __real_ddl__comm_join(endpoint, from, addresses, rank, size, config, is_world, &own, out);
    pthread_mutex_lock(&lock);
    join_status = status;
    pthread_cond_broadcast(&changed);
    while (!is_let_go)
        pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
    if (status == DDL_OK && gives_up) {
        ddl__comm_abandon(*out);
        *out = NULL;
        return ddl__fail(DDL_EPEER, "the schedule ends the creation");
    }
    return status;
}

/* -------------------------------------------------------------------------------------- the orders
 */

/* End failed comms, as the detector's thread does after each event. Under its lock. */
static void settle(void)
{
    ddl__health_settle(parent);
    ddl__health_announce(parent);
    pthread_cond_broadcast(&parent->detector->changed);
}

static void deliver(int from, reply *r)
{
    for (int ms = 0; ms < LIMIT_MS && !delivered; ms++) {
        pthread_mutex_lock(&parent->detector->lock);
        delivers = from;
        ddl__member_poll(parent, from);
        settle();
        delivers = -1;
        pthread_mutex_unlock(&parent->detector->lock);
        if (!delivered)
            usleep(1000);
    }
    r->value = delivered;
    r->ok = delivered != 0;
    delivered = 0;
}

static void drain(void)
{
    pthread_mutex_lock(&parent->detector->lock);
    for (int b = 0; b < parent->size; b++)
        ddl__member_poll(parent, b);
    pthread_mutex_unlock(&parent->detector->lock);
}

static bool await_advance(void)
{
    bool done = false;
    pthread_mutex_lock(&parent->detector->lock);
    may_advance = true;
    has_advanced = false;
    pthread_mutex_unlock(&parent->detector->lock);
    for (int ms = 0; ms < LIMIT_MS && !done; ms++) {
        pthread_mutex_lock(&parent->detector->lock);
        pthread_cond_broadcast(&parent->detector->changed);
        done = has_advanced;
        pthread_mutex_unlock(&parent->detector->lock);
        if (!done)
            usleep(200);
    }
    return done;
}

static bool await_shrink(void)
{
    pthread_mutex_lock(&lock);
    shall_shrink = true;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    for (int ms = 0; ms < LIMIT_MS; ms++) {
        pthread_mutex_lock(&parent->detector->lock);
        bool begun = has_begun;
        pthread_mutex_unlock(&parent->detector->lock);
        if (begun)
            return true;
        usleep(200);
    }
    return false;
}

static ddl_status await_join(void)
{
    struct timespec end;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += LIMIT_MS / 1000;
    pthread_mutex_lock(&lock);
    while (join_status == DDL_INPROGRESS)
        if (pthread_cond_timedwait(&changed, &lock, &end))
            break;
    ddl_status status = join_status;
    pthread_mutex_unlock(&lock);
    return status;
}

/* Let the creation end as the schedule orders. Returns true if it ended so. */
static bool end_join(bool created)
{
    pthread_mutex_lock(&lock);
    bool joined = joins;
    gives_up = !created;
    pthread_mutex_unlock(&lock);
    ddl_status status = joined ? await_join() : DDL_ESTATE;
    pthread_mutex_lock(&lock);
    is_let_go = true;
    pthread_cond_broadcast(&changed);
    while (joins)
        pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
    return joined && status != DDL_INPROGRESS && (status == DDL_OK || !created);
}

static void report(reply *r)
{
    usleep(1000);
    pthread_mutex_lock(&parent->detector->lock);
    r->has_ended = ddl_comm_status(comm) != DDL_OK;
    for (int b = 0; b < parent->size; b++)
        r->states[b] = parent->membership->peers[b].state;
    bool begun = has_begun;
    pthread_mutex_unlock(&parent->detector->lock);
    pthread_mutex_lock(&lock);
    r->phase = !begun                    ? IS_RUNNING
               : !has_shrunk             ? IS_SHRINKING
               : shrink_status == DDL_OK ? HAS_RETURNED
                                         : HAS_FAILED;
    r->value = shrink_status;
    r->list = r->phase == HAS_RETURNED ? list : 0;
    pthread_mutex_unlock(&lock);
    r->ok = true;
}

static void carry_out(request q, reply *r)
{
    switch ((order)q.order) {
    case DO_DRAIN: drain(); break;
    case DO_DELIVER: deliver(q.value, r); return;
    case DO_RESET:
        pthread_mutex_lock(&parent->detector->lock);
        if (parent->members[q.value].conn.fd >= 0 && !inboxes[q.value].ended) {
            ddl__member_register(parent, q.value, EPOLL_CTL_DEL);
            inboxes[q.value] = (inbox){.ended = true, .error = ECONNRESET};
        }
        pthread_mutex_unlock(&parent->detector->lock);
        break;
    case DO_LOSE:
        drain();
        inboxes[q.value].length = 0;
        inboxes[q.value].lost = true;
        break;
    case DO_ADVANCE: r->ok = await_advance(); return;
    case DO_SHRINK: r->ok = await_shrink(); return;
    case DO_AWAIT_JOIN:
        r->value = await_join();
        r->ok = r->value == DDL_OK;
        return;
    case DO_CREATED: r->ok = end_join(true); return;
    case DO_UNCREATED: r->ok = end_join(false); return;
    case DO_GRACE:
        pthread_mutex_lock(&parent->detector->lock);
        parent->died_at = parent->moved_at = 0;
        __real_ddl__grace_check(parent, ddl__now());
        settle();
        pthread_mutex_unlock(&parent->detector->lock);
        break;
    case DO_WAIT:
        pthread_mutex_lock(&parent->detector->lock);
        virtual_now += DDL__EVIDENCE_LIMIT + 1;
        pthread_mutex_unlock(&parent->detector->lock);
        break;
    case DO_SILENCE:
        pthread_mutex_lock(&parent->detector->lock);
        __real_ddl__member_check_silence(parent->membership, q.value, parent->membership->dead, 0,
                                         virtual_now);
        settle();
        pthread_mutex_unlock(&parent->detector->lock);
        break;
    case DO_ABORT:
    case DO_EXPEL:
        if (q.order == DO_ABORT)
            ddl_comm_abort(comm, "the schedule says so");
        else
            ddl_comm_expel(comm, q.value, "");
        pthread_mutex_lock(&parent->detector->lock);
        settle();
        pthread_mutex_unlock(&parent->detector->lock);
        break;
    case DO_LEAVE: ddl_comm_destroy(comm); break;
    case DO_LATE:
        pthread_mutex_lock(&parent->detector->lock);
        virtual_now = parent->membership->deadline;
        pthread_mutex_unlock(&parent->detector->lock);
        break;
    case DO_REPORT: report(r); return;
    }
    r->ok = true;
}

static void *serve(void *socket)
{
    int fd = *(int *)socket;
    request q;
    while (recv(fd, &q, sizeof q, MSG_WAITALL) == sizeof q) {
        reply r;
        memset(&r, 0, sizeof r);
        carry_out(q, &r);
        CHECK(send(fd, &r, sizeof r, 0) == sizeof r, "no supervisor");
    }
    _exit(0);
}

void run_rank(int rank, int size, unsigned links, int supervisor)
{
    ddl_comm_config config = {.struct_size = sizeof config,
                              .links = links,
                              .heartbeat_ms = 50,
                              .suspect_ms = 100000,
                              .dead_ms = 200000,
                              .stall_warn_ms = -1};
    ddl_endpoint_config where = {.struct_size = sizeof where, .host = "127.0.0.1"};
    ddl_endpoint *endpoint;
    pthread_t thread;
    ddl_comm *next;
    rank_address own, all[RANKS_MAX];
    const void *addresses[RANKS_MAX];
    size_t lengths[RANKS_MAX];
    reply ready = {.ok = true};
    ddl_status status = ddl_endpoint_create(&where, &endpoint);
    if (status == DDL_OK)
        status = ddl_endpoint_address(endpoint, own.bytes, sizeof own.bytes, &own.length);
    CHECK(status == DDL_OK && send(supervisor, &own, sizeof own, 0) == sizeof own &&
              recv(supervisor, all, (size_t)size * sizeof own, MSG_WAITALL) ==
                  (ssize_t)((size_t)size * sizeof own),
          "no addresses: %d", status);
    for (int i = 0; i < size; i++) {
        addresses[i] = all[i].bytes;
        lengths[i] = all[i].length;
    }
    status = ddl_comm_create(endpoint, addresses, lengths, rank, size, &config, &comm);
    if (status == DDL_OK)
        status = ddl_barrier(comm, NULL, NULL);
    CHECK(status == DDL_OK, "%d: %s", status, ddl_last_error());
    pthread_mutex_lock(&comm->health->detector->lock);
    parent = comm->health;
    pthread_mutex_unlock(&comm->health->detector->lock);
    CHECK(send(supervisor, &ready, sizeof ready, 0) == sizeof ready, "no supervisor");
    CHECK(!pthread_create(&thread, NULL, serve, &supervisor), "no thread");
    pthread_mutex_lock(&lock);
    while (!shall_shrink)
        pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
    status = ddl_comm_shrink(comm, NULL, &next);
    pthread_mutex_lock(&lock);
    shrink_status = status;
    has_shrunk = true;
    pthread_mutex_unlock(&lock);
    for (;;)
        pause();
}
