/* Connections that have come to an endpoint's listeners and that no comm has yet. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/time_limits.h"
#include "connect/create_failures.h"
#include "connect/endpoint_state.h"
#include "net/shm.h"
#include "net/socket.h"

enum {
    PENDING_MAX = 4096,
    STRANGERS_MAX = 64,  /* connections without a whole hello */
    UNPROVEN_MAX = 1024, /* and those that have yet to prove what it says */
    LOOK = 16            /* listen events, and new connections at a listener, at a time */
};

/* Close the connection of somebody who has proven nothing: what he sent must keep nobody here. */
static void discard(ddl_endpoint *endpoint, int fd, bool local)
{
    if (local)
        ddl__closer_add(endpoint->closer, fd);
    else
        close(fd);
}

static void drop_pending(ddl_endpoint *endpoint, ddl__pending_conn *v)
{
    if (!v->proven)
        ddl__rate_limit_count(&endpoint->rate_limit, ddl__now());
    /* A reference of an arena travels with an in-process hello. */
    if (v->proven && v->inbound.said.hello.kind == DDL__CONN_INPROC)
        ddl__arena_drop((ddl__arena *)(uintptr_t)v->inbound.said.hello.arena);
    discard(endpoint, v->inbound.fd, v->inbound.local && !v->proven);
    if (v->inbound.passed >= 0)
        close(v->inbound.passed);
    ddl__session_end(&v->inbound.session);
    free(v);
}

static void unlink_pending(ddl_endpoint *endpoint, ddl__pending_conn **at)
{
    *at = (*at)->next;
    endpoint->n_pending--;
}

/* Why a complete hello is refused by the endpoint, or NULL. */
static const char *objection(const ddl_endpoint *endpoint, const ddl__pending_conn *v)
{
    const ddl__hello *hello = &v->inbound.said.hello;
    if (!ddl__digest_equal(hello->endpoint, endpoint->address.endpoint))
        return "another endpoint was meant";
    bool tcp = hello->kind == DDL__CONN_TCP || hello->kind == DDL__CONN_MESSAGES;
    bool any = hello->kind == DDL__CONN_CONTROL || hello->kind == DDL__CONN_CREATE_FAILURE;
    if ((tcp == v->inbound.local && !any) ||
        (!tcp && !any && hello->kind != DDL__CONN_SHM && hello->kind != DDL__CONN_INPROC))
        return "a wrong kind of connection";
    /* Pointers are believed only from this very process. */
    if (hello->kind == DDL__CONN_INPROC && !ddl__same_process(v->inbound.fd))
        return "another process";
    return NULL;
}

static void note_refusal(ddl_endpoint *endpoint, const ddl__pending_conn *v)
{
    const ddl__hello *hello = &v->inbound.said.hello;
    ddl__log(DDL__INFO, "refused a connection: %s", ddl__message());
    if (v->inbound.have >= sizeof *hello)
        snprintf(endpoint->refusal, sizeof endpoint->refusal, "rank %u: %s", hello->from,
                 ddl__message());
}

/* Read what there is until it means something. A unix socket is watched edge-triggered, so what is
 * left there would not be mentioned again. */
static ddl__inbound_event read_all(const ddl_endpoint *endpoint, ddl__inbound *inbound)
{
    ddl__inbound_event event;
    size_t had;
    do {
        had = inbound->have;
        event = ddl__inbound_read(&endpoint->job, inbound);
    } while (event == DDL__INBOUND_NONE && inbound->have > had);
    return event;
}

/* Read on; false when the connection is to be dropped. */
static bool read_pending(ddl_endpoint *endpoint, ddl__pending_conn *v)
{
    ddl__inbound_event event = read_all(endpoint, &v->inbound);
    if (event == DDL__INBOUND_HELLO) {
        v->challenged = ddl__inbound_challenge(&endpoint->job, &v->inbound, objection(endpoint, v));
        if (!v->challenged)
            note_refusal(endpoint, v);
        if (!v->challenged)
            return false;
        event = read_all(endpoint, &v->inbound); /* mostly its proof is there already */
    }
    switch (event) {
    case DDL__INBOUND_NONE:
    case DDL__INBOUND_HELLO: return true;
    case DDL__INBOUND_PROVEN: break;
    case DDL__INBOUND_REFUSED: note_refusal(endpoint, v); return false;
    case DDL__INBOUND_CLOSED: return false;
    }
    v->proven = true;
    const ddl__hello *hello = &v->inbound.said.hello;
    if (hello->kind == DDL__CONN_CREATE_FAILURE) {
        ddl__create_failures_add(&endpoint->failures, hello);
        return false; /* that is all */
    }
    ddl__create_failures_forget(&endpoint->failures, hello->comm, (int)hello->from);
    /* From here on only its going away is of interest. */
    struct epoll_event hangup = {.events = EPOLLRDHUP, .data.u64 = v->serial};
    epoll_ctl(endpoint->listeners, EPOLL_CTL_MOD, v->inbound.fd, &hangup);
    v->deadline = ddl__now() + DDL__PARKED_LIMIT;
    pthread_cond_broadcast(&endpoint->changed);
    return true;
}

/* The oldest one, at the end of the list, gives way: of those who have not said who they are, else,
 * since an endpoint's id is known to few, of those who have not proven it. */
static void limit_strangers(ddl_endpoint *endpoint)
{
    unsigned strangers = 0, unproven = 0;
    ddl__pending_conn **stranger = NULL, **oldest = NULL;
    for (ddl__pending_conn **at = &endpoint->pending; *at; at = &(*at)->next)
        if (!(*at)->proven) {
            unproven++;
            oldest = at;
            strangers += !(*at)->challenged;
            stranger = (*at)->challenged ? stranger : at;
        }
    if (strangers > STRANGERS_MAX)
        oldest = stranger;
    else if (unproven <= UNPROVEN_MAX)
        return;
    ddl__pending_conn *v = *oldest;
    bool before = v->challenged;
    if (read_pending(endpoint, v) && (v->proven || v->challenged != before))
        return;
    unlink_pending(endpoint, oldest);
    drop_pending(endpoint, v);
}

/* Most strangers have said enough by now to be sent away at once. */
static void take_in(ddl_endpoint *endpoint, int fd, bool local, int spare)
{
    ddl__pending_conn *v =
        endpoint->n_pending < PENDING_MAX ? calloc(1, sizeof *v) : (ddl__pending_conn *)NULL;
    if (!v) {
        ddl__rate_limit_count(&endpoint->rate_limit, ddl__now());
        discard(endpoint, fd, local);
        if (spare >= 0)
            close(spare);
        return;
    }
    v->serial = endpoint->serial++;
    v->inbound.fd = fd;
    v->inbound.passed = spare;
    v->inbound.seen = &endpoint->seen;
    v->inbound.local = local;
    v->deadline = ddl__now() + DDL__HANDSHAKE_LIMIT;
    uint32_t events = local ? EPOLLIN | EPOLLRDHUP | EPOLLET : EPOLLIN;
    struct epoll_event event = {.events = events, .data.u64 = v->serial};
    if (epoll_ctl(endpoint->listeners, EPOLL_CTL_ADD, fd, &event) || !read_pending(endpoint, v)) {
        drop_pending(endpoint, v);
        return;
    }
    v->next = endpoint->pending;
    endpoint->pending = v;
    endpoint->n_pending++;
    limit_strangers(endpoint);
}

static void watch_listeners(ddl_endpoint *endpoint, uint32_t events)
{
    struct epoll_event event = {.events = events, .data.u64 = DDL__UNIX_LISTENER};
    epoll_ctl(endpoint->listeners, EPOLL_CTL_MOD, endpoint->local, &event);
    for (unsigned i = 0; i < endpoint->address.n_ips; i++) {
        event.data.u64 = DDL__TCP_LISTENER + i;
        epoll_ctl(endpoint->listeners, EPOLL_CTL_MOD, endpoint->tcp[i], &event);
    }
}

/* A listener that cannot accept stays readable. */
static void rest(ddl_endpoint *endpoint, const char *why)
{
    int64_t now = ddl__now();
    if (!endpoint->troubled || now - endpoint->troubled > DDL__ACCEPT_RECOVERED)
        ddl__log(DDL__WARN, "cannot accept connections, trying every %d ms: %s",
                 (int)(DDL__ACCEPT_RETRY / DDL__MS), why);
    endpoint->troubled = now;
    endpoint->rest_until = now + DDL__ACCEPT_RETRY;
    watch_listeners(endpoint, 0);
}

static void end_rest(ddl_endpoint *endpoint)
{
    if (!endpoint->rest_until || ddl__now() < endpoint->rest_until)
        return;
    endpoint->rest_until = 0;
    watch_listeners(endpoint, EPOLLIN);
}

static const char *accept_error(int error)
{
    return error == EMFILE ? "this process has as many descriptors open as it may: raise ulimit -n"
                           : strerror(error);
}

static void accept_some(ddl_endpoint *endpoint, int listener, bool local)
{
    int fd = -1;
    for (int i = 0; i < LOOK; i++) {
        if (local && ddl__closer_is_full(endpoint->closer)) {
            rest(endpoint, "connections of strangers cannot be closed");
            return;
        }
        /* The kernel drops a descriptor that comes along where there is no room for it: who comes
         * waits in the backlog until a comm that is created here has raised the limit. */
        int spare = local ? fcntl(endpoint->wake, F_DUPFD_CLOEXEC, 0) : -1;
        fd = local && spare < 0 ? -1 : accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd >= 0 && (!local || ddl__same_user(fd))) {
            take_in(endpoint, fd, local, spare);
            continue;
        }
        int error = errno;
        if (spare >= 0)
            close(spare);
        errno = error;
        if (fd < 0)
            break;
        ddl__log(DDL__INFO, "refused a connection: another user");
        ddl__rate_limit_count(&endpoint->rate_limit, ddl__now());
        discard(endpoint, fd, local);
    }
    if (fd < 0 && errno != EAGAIN && errno != ECONNABORTED && errno != EINTR)
        rest(endpoint, accept_error(errno));
}

static bool has_slot(const ddl_endpoint *endpoint, ddl__digest comm)
{
    const ddl__comm_slot *slot = endpoint->slots;
    while (slot && !ddl__digest_equal(slot->comm, comm))
        slot = slot->next;
    return slot;
}

/* A member that was there and has left already: its last message is in the socket. */
static bool leaves_word(const ddl_endpoint *endpoint, const ddl__pending_conn *v)
{
    return v->proven && v->inbound.said.hello.kind == DDL__CONN_CONTROL &&
           has_slot(endpoint, v->inbound.said.hello.comm);
}

static void handle_pending(ddl_endpoint *endpoint, uint64_t serial)
{
    for (ddl__pending_conn **at = &endpoint->pending; *at; at = &(*at)->next)
        if ((*at)->serial == serial) {
            ddl__pending_conn *v = *at;
            if (leaves_word(endpoint, v)) {
                v->gone = true;
                epoll_ctl(endpoint->listeners, EPOLL_CTL_DEL, v->inbound.fd, NULL);
            } else if (v->proven || !read_pending(endpoint, v)) {
                unlink_pending(endpoint, at);
                drop_pending(endpoint, v);
            }
            return;
        }
}

static void expire_pending(ddl_endpoint *endpoint)
{
    int64_t now = ddl__now();
    for (ddl__pending_conn **at = &endpoint->pending; *at;) {
        ddl__pending_conn *v = *at;
        if (v->deadline > now) {
            at = &v->next;
            continue;
        }
        unlink_pending(endpoint, at);
        drop_pending(endpoint, v);
    }
}

void ddl__pending_look(ddl_endpoint *endpoint)
{
    struct epoll_event events[LOOK];
    int n = epoll_wait(endpoint->listeners, events, LOOK, 0);
    for (int i = 0; i < n; i++) {
        uint64_t id = events[i].data.u64;
        if (id == DDL__UNIX_LISTENER)
            accept_some(endpoint, endpoint->local, true);
        else if (id < DDL__FIRST_SERIAL)
            accept_some(endpoint, endpoint->tcp[id - DDL__TCP_LISTENER], false);
        else
            handle_pending(endpoint, id);
    }
    endpoint->look_at = ddl__now() + DDL__OVERLOAD_POLL;
}

/* Stop polling the listeners while too many unauthenticated clients come; look at them from time to
 * time. */
static void limit_listening(ddl_endpoint *endpoint)
{
    int64_t now = ddl__now();
    bool shut = !endpoint->hosts && ddl__rate_limit_is_exceeded(&endpoint->rate_limit, now);
    struct epoll_event event = {.events = shut ? 0 : EPOLLIN, .data.u64 = DDL__LISTEN_EVENT};
    if (shut != endpoint->shut &&
        !epoll_ctl(endpoint->epoll, EPOLL_CTL_MOD, endpoint->listeners, &event))
        endpoint->shut = shut;
    if (endpoint->shut && now >= endpoint->look_at)
        ddl__pending_look(endpoint);
}

void ddl__pending_keep(ddl_endpoint *endpoint)
{
    end_rest(endpoint);
    limit_listening(endpoint);
    expire_pending(endpoint);
}

bool ddl__pending_take(ddl_endpoint *endpoint, const ddl__comm_slot *slot, bool control,
                       ddl__accepted *accepted)
{
    for (ddl__pending_conn **at = &endpoint->pending; *at; at = &(*at)->next) {
        ddl__pending_conn *v = *at;
        if (!v->proven || !ddl__digest_equal(v->inbound.said.hello.comm, slot->comm) ||
            (v->inbound.said.hello.kind == DDL__CONN_CONTROL && !control))
            continue;
        epoll_ctl(endpoint->listeners, EPOLL_CTL_DEL, v->inbound.fd, NULL);
        *accepted = (ddl__accepted){v->inbound.fd, v->inbound.passed, v->inbound.said.hello,
                                    v->inbound.session};
        unlink_pending(endpoint, at);
        ddl__session_end(&v->inbound.session);
        free(v);
        return true;
    }
    return false;
}

void ddl__pending_leave(ddl_endpoint *endpoint, const ddl__comm_slot *slot)
{
    /* Who still waits here came for a later comm of the same name, unless this one never was, and
       he came before that was known; but no control connection comes for a comm that we have not
       joined.
     */
    for (ddl__pending_conn **at = &endpoint->pending; *at;) {
        ddl__pending_conn *v = *at;
        bool watches = v->inbound.said.hello.kind == DDL__CONN_CONTROL;
        if (!v->proven || (slot->task.run && !v->gone && !watches) ||
            (slot->failed && v->serial > slot->failed) ||
            !ddl__digest_equal(v->inbound.said.hello.comm, slot->comm)) {
            at = &v->next;
            continue;
        }
        unlink_pending(endpoint, at);
        drop_pending(endpoint, v);
    }
}

/* Who has connected and was not accepted may have sent something as well. */
static void empty_local(ddl_endpoint *endpoint)
{
    if (endpoint->local < 0)
        return;
    shutdown(endpoint->local, SHUT_RDWR);
    for (int fd; (fd = accept4(endpoint->local, NULL, NULL, SOCK_CLOEXEC)) >= 0;)
        discard(endpoint, fd, true);
}

void ddl__pending_end(ddl_endpoint *endpoint)
{
    for (ddl__pending_conn *v; (v = endpoint->pending);) {
        endpoint->pending = v->next;
        drop_pending(endpoint, v);
    }
    empty_local(endpoint);
}
