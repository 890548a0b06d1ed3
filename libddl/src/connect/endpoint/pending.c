/* SPDX-License-Identifier: Apache-2.0 */
/* The connections that an endpoint has accepted, but no comm has taken yet. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/time_limits.h"
#include "connect/endpoint/endpoint_state.h"
#include "membership/creation.h"
#include "net/shm/shm.h"
#include "net/socket.h"

enum {
    PENDING_MAX = 4096,
    NO_HELLO_MAX = 64,   /* maximum number of connections without a complete hello */
    UNPROVEN_MAX = 1024, /* maximum number of connections without a proof */
    BATCH = 16           /* largest batch of events, and of new connections of one listener */
};

/* Close the connection of an unauthenticated client without blocking; see closer.h. Remove it from
 * the epoll set first: a thread that polls the set may hold the last reference, and the kernel
 * would then close the connection on that thread. */
static void close_unproven(ddl_endpoint *endpoint, int fd, bool local)
{
    if (local) {
        epoll_ctl(endpoint->listeners, EPOLL_CTL_DEL, fd, NULL);
        ddl__closer_add(endpoint->closer, fd);
    } else {
        close(fd);
    }
}

static void pending_unlink(ddl_endpoint *endpoint, ddl__pending_conn **at)
{
    *at = (*at)->next;
    endpoint->n_pending--;
}

static void pending_drop(ddl_endpoint *endpoint, ddl__pending_conn **at)
{
    ddl__pending_conn *conn = *at;
    pending_unlink(endpoint, at);
    if (!conn->proven)
        ddl__rate_limit_count(&endpoint->rate_limit, ddl__now());
    /* An in-process hello carries a reference to an arena. */
    if (conn->proven && conn->inbound.received.hello.kind == DDL__CONN_INPROC)
        ddl__arena_drop((ddl__arena *)(uintptr_t)conn->inbound.received.hello.arena);
    close_unproven(endpoint, conn->inbound.fd, conn->inbound.local && !conn->proven);
    if (conn->inbound.passed >= 0)
        close(conn->inbound.passed);
    ddl__session_end(&conn->inbound.session);
    free(conn);
}

/* Return true if connections of this kind are opened after the creation of the comm. */
static bool is_late(const ddl__hello *hello)
{
    return hello->kind == DDL__CONN_FIRST_USE || hello->kind == DDL__CONN_FIRST_MEMORY ||
           hello->kind == DDL__CONN_LATE_CONTROL;
}

/* Return the reason to refuse a complete hello, or NULL. */
static const char *find_refusal_reason(const ddl__inbound *inbound, const void *context)
{
    const ddl_endpoint *endpoint = context;
    const ddl__hello *hello = &inbound->received.hello;
    if (!ddl__digest_equal(hello->endpoint, endpoint->address.endpoint))
        return "another endpoint was meant";
    bool tcp = hello->kind == DDL__CONN_TCP || hello->kind == DDL__CONN_MESSAGES ||
               hello->kind == DDL__CONN_PAIR || hello->kind == DDL__CONN_FIRST_USE;
    bool memory = hello->kind == DDL__CONN_SHM || hello->kind == DDL__CONN_INPROC ||
                  hello->kind == DDL__CONN_FIRST_MEMORY;
    bool any = hello->kind == DDL__CONN_CONTROL || hello->kind == DDL__CONN_CREATE_FAILURE ||
               hello->kind == DDL__CONN_LIST || hello->kind == DDL__CONN_LATE_CONTROL;
    if (!any && (inbound->local ? !memory : !tcp))
        return "a wrong kind of connection";
    /* A pointer is valid only in this process. */
    if (hello->kind == DDL__CONN_INPROC && !ddl__same_process(inbound->fd))
        return "another process";
    return NULL;
}

static void endpoint_note_refusal(ddl_endpoint *endpoint, const ddl__pending_conn *conn)
{
    const ddl__hello *hello = &conn->inbound.received.hello;
    ddl__log(DDL__INFO, "refused a connection: %s", ddl__message());
    if (conn->inbound.have >= sizeof *hello)
        snprintf(endpoint->refusal, sizeof endpoint->refusal, "rank %u: %s", hello->from,
                 ddl__message());
}

static ddl__comm_slot *find_slot(const ddl_endpoint *endpoint, ddl__digest comm)
{
    ddl__comm_slot *slot = endpoint->slots;
    while (slot && !ddl__digest_equal(slot->id.comm, comm))
        slot = slot->next;
    return slot;
}

/* Refuse a proven connection on behalf of its comm. `creation` is this rank's number in the
 * family. */
static void pending_refuse(const ddl_endpoint *endpoint, ddl__pending_conn *conn, ddl_status status,
                           const char *why, uint32_t creation)
{
    ddl__hello answer = ddl__hello_answer(&conn->inbound.received.hello, status, why);
    answer.creation = creation;
    ddl__answer_prove(&endpoint->job, &conn->inbound.session, DDL__AUTH_MEMBER, &answer);
    ddl__send_all(conn->inbound.fd, &answer, sizeof answer, ddl__now());
}

/* Pass a proven late connection to its comm, or refuse it. Return true if that was done and the
 * caller must free `conn`. Return false if the connection must wait. A connection that is not late
 * always waits. */
static bool pending_give(ddl_endpoint *endpoint, ddl__pending_conn *conn)
{
    const ddl__hello *hello = &conn->inbound.received.hello;
    if (!is_late(hello))
        return false;
    ddl__comm_slot *slot = find_slot(endpoint, hello->comm);
    /* a late connection is opened only after all members have created the comm, so this rank has
     * already left the comm */
    if (!slot) {
        pending_refuse(endpoint, conn, DDL_ESTATE, "it has left the comm", 0);
        return true;
    }
    const ddl__taker *taker = ddl__slot_taker(slot, hello->kind);
    if (!taker->take || ddl__has_ended(conn->inbound.fd))
        return false;
    ddl__accepted accepted = {conn->inbound.fd, conn->inbound.passed, *hello,
                              conn->inbound.session};
    epoll_ctl(endpoint->listeners, EPOLL_CTL_DEL, conn->inbound.fd, NULL);
    conn->inbound.fd = conn->inbound.passed = -1;
    taker->take(taker->context, &accepted);
    ddl__session_end(&accepted.session);
    return true;
}

/* Continue the handshake. Returns false if the connection must be dropped. */
static bool pending_read(ddl_endpoint *endpoint, ddl__pending_conn *conn)
{
    switch (ddl__inbound_read(&endpoint->job, &conn->inbound, find_refusal_reason, endpoint)) {
    case DDL__INBOUND_NONE: return true;
    case DDL__INBOUND_PROVEN: break;
    case DDL__INBOUND_REFUSED: endpoint_note_refusal(endpoint, conn); return false;
    case DDL__INBOUND_CLOSED: return false;
    }
    conn->proven = true;
    const ddl__hello *hello = &conn->inbound.received.hello;
    if (hello->kind == DDL__CONN_CREATE_FAILURE) {
        ddl__create_failure notice = {.family = hello->family,
                                      .creation = hello->creation,
                                      .from = (int)hello->from,
                                      .attempt = hello->attempt,
                                      .status = hello->status < 0 ? (ddl_status)hello->status
                                                                  : DDL_EPEER};
        memcpy(notice.text, hello->text, sizeof notice.text);
        ddl__create_failures_add(&endpoint->failures, &notice);
        return false; /* the connection was only for this notice */
    }
    if (hello->kind != DDL__CONN_CONTROL && !is_late(hello)) /* the member will connect again */
        ddl__create_failures_forget(&endpoint->failures, hello->family, hello->creation,
                                    (int)hello->from);
    if (pending_give(endpoint, conn))
        return false;
    /* From now on, watch only for the peer closing the connection. */
    struct epoll_event hangup = {.events = EPOLLRDHUP, .data.u64 = conn->serial};
    epoll_ctl(endpoint->listeners, EPOLL_CTL_MOD, conn->inbound.fd, &hangup);
    conn->deadline = ddl__now() + DDL__PARKED_LIMIT;
    pthread_cond_broadcast(&endpoint->changed);
    return true;
}

/* If there are too many unauthenticated clients, drop the oldest one, which is last in the list.
 * The limit is lower for clients without a complete hello: a client with one has at least known the
 * endpoint's id. */
static void limit_unproven(ddl_endpoint *endpoint)
{
    unsigned without_hello = 0, unproven = 0;
    ddl__pending_conn **oldest_without_hello = NULL, **oldest = NULL;
    for (ddl__pending_conn **at = &endpoint->pending; *at; at = &(*at)->next)
        if (!(*at)->proven) {
            unproven++;
            oldest = at;
            without_hello += !(*at)->inbound.welcome;
            oldest_without_hello = (*at)->inbound.welcome ? oldest_without_hello : at;
        }
    if (without_hello > NO_HELLO_MAX)
        oldest = oldest_without_hello;
    else if (unproven <= UNPROVEN_MAX)
        return;
    ddl__pending_conn *conn = *oldest;
    bool was_welcome = conn->inbound.welcome;
    if (pending_read(endpoint, conn) && (conn->proven || conn->inbound.welcome != was_welcome))
        return;
    pending_drop(endpoint, oldest);
}

/* Add a new connection. Most clients have sent their hello by now, so an invalid one is refused at
 * once. `spare` reserves a number for the descriptor that the proof may carry. */
static void pending_add(ddl_endpoint *endpoint, int fd, bool local, int spare)
{
    ddl__pending_conn *conn =
        endpoint->n_pending < PENDING_MAX ? calloc(1, sizeof *conn) : (ddl__pending_conn *)NULL;
    if (!conn) {
        ddl__rate_limit_count(&endpoint->rate_limit, ddl__now());
        close_unproven(endpoint, fd, local);
        if (spare >= 0)
            close(spare);
        return;
    }
    conn->serial = endpoint->serial++;
    conn->inbound.fd = fd;
    conn->inbound.passed = spare;
    conn->inbound.replay_guard = &endpoint->replay_guard;
    conn->inbound.local = local;
    conn->deadline = ddl__now() + DDL__HANDSHAKE_LIMIT;
    uint32_t events = local ? EPOLLIN | EPOLLRDHUP | EPOLLET : EPOLLIN;
    struct epoll_event event = {.events = events, .data.u64 = conn->serial};
    conn->next = endpoint->pending;
    endpoint->pending = conn;
    endpoint->n_pending++;
    if (epoll_ctl(endpoint->listeners, EPOLL_CTL_ADD, fd, &event) || !pending_read(endpoint, conn))
        pending_drop(endpoint, &endpoint->pending);
    else
        limit_unproven(endpoint);
}

static void listeners_set_events(ddl_endpoint *endpoint, uint32_t events)
{
    struct epoll_event event = {.events = events, .data.u64 = DDL__UNIX_LISTENER};
    epoll_ctl(endpoint->listeners, EPOLL_CTL_MOD, endpoint->local, &event);
    for (unsigned i = 0; i < endpoint->address.n_ips; i++) {
        event.data.u64 = DDL__TCP_LISTENER + i;
        epoll_ctl(endpoint->listeners, EPOLL_CTL_MOD, endpoint->tcp[i], &event);
    }
}

/* Stop polling the listeners for a while: if accepting fails, a listener stays readable. */
static void pause_accepting(ddl_endpoint *endpoint, const char *why)
{
    int64_t now = ddl__now();
    if (!endpoint->accept_failed_at || now - endpoint->accept_failed_at > DDL__ACCEPT_RECOVERED)
        ddl__log(DDL__WARN, "cannot accept connections, trying every %d ms: %s",
                 (int)(DDL__ACCEPT_RETRY / DDL__MS), why);
    endpoint->accept_failed_at = now;
    endpoint->accept_retry_at = now + DDL__ACCEPT_RETRY;
    listeners_set_events(endpoint, 0);
    ddl__endpoint_wake(endpoint); /* the thread resumes polling */
}

static void resume_accepting(ddl_endpoint *endpoint)
{
    if (!endpoint->accept_retry_at || ddl__now() < endpoint->accept_retry_at)
        return;
    endpoint->accept_retry_at = 0;
    listeners_set_events(endpoint, EPOLLIN);
}

static const char *describe_accept_error(int error)
{
    return error == EMFILE ? "this process has as many descriptors open as it may: raise ulimit -n"
                           : strerror(error);
}

static void accept_batch(ddl_endpoint *endpoint, int listener, bool local)
{
    int fd = -1;
    for (int i = 0; i < BATCH; i++) {
        if (local && ddl__closer_is_full(endpoint->closer)) {
            pause_accepting(endpoint, "connections of unauthenticated clients cannot be closed");
            return;
        }
        /* The kernel drops a received descriptor if the process has no free descriptor number, so
         * reserve a number. If none is free, the client stays in the backlog until the creation of
         * a comm in this process raises the limit. */
        int spare = local ? fcntl(endpoint->wake, F_DUPFD_CLOEXEC, 0) : -1;
        fd = local && spare < 0 ? -1 : accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd >= 0 && (!local || ddl__same_user(fd))) {
            pending_add(endpoint, fd, local, spare);
            continue;
        }
        int error = errno;
        if (spare >= 0)
            close(spare);
        errno = error;
        if (fd < 0)
            break;
        ddl__log(DDL__INFO, "refused a connection: its process belongs to another user");
        ddl__rate_limit_count(&endpoint->rate_limit, ddl__now());
        close_unproven(endpoint, fd, local);
    }
    if (fd < 0 && errno != EAGAIN && errno != ECONNABORTED && errno != EINTR)
        pause_accepting(endpoint, describe_accept_error(errno));
}

/* Return true if this is the control connection of a member that has already left, and its last
 * message is still in the socket. */
static bool has_last_message(const ddl_endpoint *endpoint, const ddl__pending_conn *conn)
{
    return conn->proven && conn->inbound.received.hello.kind == DDL__CONN_CONTROL &&
           find_slot(endpoint, conn->inbound.received.hello.comm);
}

static void pending_handle_event(ddl_endpoint *endpoint, uint64_t serial)
{
    for (ddl__pending_conn **at = &endpoint->pending; *at; at = &(*at)->next)
        if ((*at)->serial == serial) {
            ddl__pending_conn *conn = *at;
            if (has_last_message(endpoint, conn)) {
                conn->peer_left = true;
                epoll_ctl(endpoint->listeners, EPOLL_CTL_DEL, conn->inbound.fd, NULL);
            } else if (conn->proven || !pending_read(endpoint, conn)) {
                pending_drop(endpoint, at);
            }
            return;
        }
}

static void drop_expired(ddl_endpoint *endpoint)
{
    int64_t now = ddl__now();
    for (ddl__pending_conn **at = &endpoint->pending; *at;)
        if ((*at)->deadline > now)
            at = &(*at)->next;
        else
            pending_drop(endpoint, at);
}

void ddl__pending_poll(ddl_endpoint *endpoint)
{
    struct epoll_event events[BATCH];
    int n = epoll_wait(endpoint->listeners, events, BATCH, 0);
    for (int i = 0; i < n; i++) {
        uint64_t id = events[i].data.u64;
        if (id == DDL__UNIX_LISTENER)
            accept_batch(endpoint, endpoint->local, true);
        else if (id < DDL__FIRST_SERIAL)
            accept_batch(endpoint, endpoint->tcp[id - DDL__TCP_LISTENER], false);
        else
            pending_handle_event(endpoint, id);
    }
    endpoint->poll_at = ddl__now() + DDL__OVERLOAD_POLL;
}

/* Make the thread watch the listeners, or stop watching them. */
static void update_watching(ddl_endpoint *endpoint)
{
    bool watched = !endpoint->overloaded && !endpoint->polled;
    struct epoll_event event = {.events = watched ? EPOLLIN : 0, .data.u64 = DDL__LISTEN_EVENT};
    if (watched != endpoint->watched &&
        !epoll_ctl(endpoint->epoll, EPOLL_CTL_MOD, endpoint->listeners, &event))
        endpoint->watched = watched;
}

/* While unauthenticated clients exceed the rate limit, poll the listeners only from time to time.
 */
static void limit_polling(ddl_endpoint *endpoint)
{
    int64_t now = ddl__now();
    endpoint->overloaded =
        !endpoint->n_accepting && ddl__rate_limit_is_exceeded(&endpoint->rate_limit, now);
    update_watching(endpoint);
    if (endpoint->overloaded && now >= endpoint->poll_at)
        ddl__pending_poll(endpoint);
}

void ddl__pending_maintain(ddl_endpoint *endpoint)
{
    resume_accepting(endpoint);
    limit_polling(endpoint);
    drop_expired(endpoint);
}

static bool any_unproven(const ddl_endpoint *endpoint)
{
    const ddl__pending_conn *conn = endpoint->pending;
    while (conn && conn->proven)
        conn = conn->next;
    return conn;
}

/* Events are fetched under the lock: an outdated event would drop a connection whose proof another
 * thread has verified meanwhile. */
void ddl__pending_await(ddl_endpoint *endpoint, bool awake, int64_t deadline)
{
    endpoint->polled = true;
    ddl__pending_maintain(endpoint);
    pthread_mutex_unlock(&endpoint->lock);
    if (awake)
        ddl__await_awake(endpoint->listeners, POLLIN);
    ddl__await(endpoint->listeners, POLLIN, deadline);
    pthread_mutex_lock(&endpoint->lock);
    endpoint->polled = false;
    ddl__pending_poll(endpoint);
    update_watching(endpoint);
    if (endpoint->n_accepting > 1)
        pthread_cond_broadcast(&endpoint->changed); /* wake another caller, which must poll now */
    if (any_unproven(endpoint))
        ddl__endpoint_wake(endpoint); /* the thread drops it at its deadline */
}

bool ddl__pending_take(ddl_endpoint *endpoint, const ddl__comm_slot *slot, bool control,
                       ddl__accepted *accepted)
{
    for (ddl__pending_conn **at = &endpoint->pending; *at; at = &(*at)->next) {
        ddl__pending_conn *conn = *at;
        if (!conn->proven || !ddl__digest_equal(conn->inbound.received.hello.comm, slot->id.comm) ||
            (conn->inbound.received.hello.kind == DDL__CONN_CONTROL && !control) ||
            is_late(&conn->inbound.received.hello))
            continue;
        epoll_ctl(endpoint->listeners, EPOLL_CTL_DEL, conn->inbound.fd, NULL);
        *accepted = (ddl__accepted){conn->inbound.fd, conn->inbound.passed,
                                    conn->inbound.received.hello, conn->inbound.session};
        pending_unlink(endpoint, at);
        ddl__session_end(&conn->inbound.session);
        free(conn);
        return true;
    }
    return false;
}

/* Return true if this is a member's first connection for a creation of the family, and that
 * creation has no slot here. */
static bool begins_creation(const ddl_endpoint *endpoint, const ddl__pending_conn *conn,
                            ddl__digest family)
{
    const ddl__hello *hello = &conn->inbound.received.hello;
    bool first = hello->kind == DDL__CONN_TCP || hello->kind == DDL__CONN_PAIR ||
                 hello->kind == DDL__CONN_SHM || hello->kind == DDL__CONN_INPROC;
    return conn->proven && first && hello->creation && ddl__digest_equal(hello->family, family) &&
           !find_slot(endpoint, hello->comm);
}

uint32_t ddl__pending_find_creation(const ddl_endpoint *endpoint, ddl__digest family, uint32_t used)
{
    uint32_t highest = used;
    for (const ddl__pending_conn *conn = endpoint->pending; conn; conn = conn->next)
        if (conn->inbound.received.hello.creation > highest &&
            begins_creation(endpoint, conn, family))
            highest = conn->inbound.received.hello.creation;
    return highest > used ? highest : 0;
}

uint32_t ddl__endpoint_find_later(ddl_endpoint *endpoint, const ddl__comm_slot *slot,
                                  bool (*is_missing)(const void *context, int rank),
                                  const void *context, int *member)
{
    uint32_t later = 0;
    pthread_mutex_lock(&endpoint->lock);
    for (ddl__pending_conn **at = &endpoint->pending; *at;) {
        ddl__pending_conn *conn = *at;
        const ddl__hello *hello = &conn->inbound.received.hello;
        ddl__creation_verdict verdict =
            begins_creation(endpoint, conn, slot->id.family)
                ? ddl__creation_judge(slot->id.number, hello->creation,
                                      is_missing(context, (int)hello->from))
                : DDL__CREATION_KEEP;
        if (verdict == DDL__CREATION_REFUSE) {
            pending_refuse(endpoint, conn, DDL_EREFUSED, "a later creation has begun here",
                           slot->id.number);
            pending_drop(endpoint, at);
            continue;
        }
        if (verdict == DDL__CREATION_YIELD && hello->creation > later) {
            later = hello->creation;
            *member = (int)hello->from;
        }
        at = &conn->next;
    }
    pthread_mutex_unlock(&endpoint->lock);
    return later;
}

void ddl__pending_drop_family(ddl_endpoint *endpoint, ddl__digest family)
{
    for (ddl__pending_conn **at = &endpoint->pending; *at;) {
        const ddl__hello *hello = &(*at)->inbound.received.hello;
        if ((*at)->proven && ddl__digest_equal(hello->family, family) &&
            !find_slot(endpoint, hello->comm))
            pending_drop(endpoint, at);
        else
            at = &(*at)->next;
    }
}

void ddl__pending_divert(ddl_endpoint *endpoint, const ddl__comm_slot *slot)
{
    for (ddl__pending_conn **at = &endpoint->pending; *at;) {
        ddl__pending_conn *conn = *at;
        if (conn->proven && ddl__digest_equal(conn->inbound.received.hello.comm, slot->id.comm) &&
            pending_give(endpoint, conn))
            pending_drop(endpoint, at);
        else
            at = &conn->next;
    }
}

void ddl__pending_drop_slot(ddl_endpoint *endpoint, const ddl__comm_slot *slot)
{
    /* Keep parked connections: they belong to the next comm with this id. If the creation failed,
     * drop the connections that arrived before the failure: their dialers (ddl__control_dial)
     * report the failed attempt to the other members. */
    for (ddl__pending_conn **at = &endpoint->pending; *at;) {
        ddl__pending_conn *conn = *at;
        bool parked = !is_late(&conn->inbound.received.hello) && !conn->peer_left;
        if (!conn->proven || ((slot->task.run || slot->keeps_waiting) && parked) ||
            (slot->failed_serial && conn->serial > slot->failed_serial) ||
            !ddl__digest_equal(conn->inbound.received.hello.comm, slot->id.comm))
            at = &conn->next;
        else
            pending_drop(endpoint, at);
    }
}

/* Close the connections that were not accepted, because they may hold descriptors, too. */
static void close_local_backlog(ddl_endpoint *endpoint)
{
    if (endpoint->local < 0)
        return;
    shutdown(endpoint->local, SHUT_RDWR);
    for (int fd; (fd = accept4(endpoint->local, NULL, NULL, SOCK_CLOEXEC)) >= 0;)
        close_unproven(endpoint, fd, true);
}

void ddl__pending_drop_all(ddl_endpoint *endpoint)
{
    while (endpoint->pending)
        pending_drop(endpoint, &endpoint->pending);
    close_local_backlog(endpoint);
}
