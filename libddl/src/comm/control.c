/* Opening: as in wireup.c every rank dials all lower ones and receives the higher ones. It dials
 * when its own ddl__wireup_run is over, and hears the answers when all have finished theirs; until
 * then the connection waits at the peer's endpoint, where ddl__wireup_run leaves it alone. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "comm/watch_state.h"
#include "net/shm.h"
#include "net/socket.h"
#include "net/tcp.h"

/* How long one address may take, and how often a waiting rank looks after the others. */
static const int64_t DIAL_NS = 5 * 1000000000ll, LOOK_NS = 50 * 1000000ll;

static int64_t within(const ddl__control *c, int64_t ns)
{
    int64_t limit = ddl__now() + ns;
    return limit < c->config.deadline ? limit : c->config.deadline;
}

/* A connection to a lower rank, to which hello and proof were sent. */
typedef struct ddl__calling {
    int fd; /* -1: none */
    ddl__session session;
} calling;

static void hang_up(calling *k)
{
    if (k->fd >= 0)
        close(k->fd);
    k->fd = -1;
    ddl__session_end(&k->session);
}

/* A member that fails meanwhile ends the creation for all. Who has left, or ended, was here: what
 * becomes of that is seen later. */
static ddl_status check_present(ddl__control *c)
{
    ddl__engine_poll(c->engine);
    ddl__snapshot snapshot = ddl__engine_snapshot(c->engine);
    if (snapshot.status != DDL_OK)
        return ddl__fail(snapshot.status, "%s", snapshot.text);
    for (int i = 0; i < c->size; i++) {
        ddl__member *member = &c->members[i];
        const ddl__link *link = ddl__engine_links(c->engine)[i];
        if (i == c->rank || member->wire.fd >= 0 || member->fate != DDL__ALIVE)
            continue;
        if (link->state == DDL__LINK_LEFT)
            member->fate = DDL__LEFT;
        if (link->state == DDL__LINK_LOST) {
            member->disconnected_at = ddl__now();
            member->fate = link->ops->shared ? DDL__KILLED : DDL__DISCONNECTED;
            snprintf(member->cause, sizeof member->cause, "its %s ended",
                     link->ops->shared ? "process" : "connection");
        }
    }
    return DDL_OK;
}

/* As ddl__dial. A unix listener whose backlog is full will have room. */
static int dial_address(ddl__control *c, const struct sockaddr *to, socklen_t length)
{
    bool local = to->sa_family == AF_UNIX;
    int fd;
    do
        fd = ddl__dial(to, length, within(c, local ? LOOK_NS : DIAL_NS));
    while (fd < 0 && local && errno == ETIMEDOUT && ddl__now() < c->config.deadline &&
           check_present(c) == DDL_OK);
    return fd;
}

/* Start the handshake with the peer; do not wait for an answer; false with the message set. */
static bool call_at(ddl__control *c, int peer, const struct sockaddr *to, socklen_t length)
{
    calling *k = &c->calls[peer];
    ddl_endpoint *endpoint = c->config.endpoint;
    ddl__hello hello = ddl__endpoint_introduce(endpoint, DDL__CONN_CONTROL, c->rank, peer, c->size);
    hello.endpoint = c->config.addresses[peer].endpoint;
    hello.comm = c->config.comm;
    k->fd = dial_address(c, to, length);
    if (k->fd < 0) {
        ddl__fail(DDL_EUNREACHABLE, "%s", strerror(errno));
        return false;
    }
    if (ddl__handshake_start(ddl__endpoint_job(endpoint), k->fd, &hello, -1, within(c, DIAL_NS),
                             &k->session) == DDL_OK)
        return true;
    hang_up(k);
    return false;
}

/* The address at which the peer was found for its data comes first. */
static bool call(ddl__control *c, int peer)
{
    struct sockaddr_storage to;
    socklen_t length = sizeof to;
    const ddl__address *address = &c->config.addresses[peer];
    const ddl__link *link = ddl__engine_links(c->engine)[peer];
    if (link->ops->shared) {
        length = ddl__address_unix(&address->endpoint, &to);
        return call_at(c, peer, (struct sockaddr *)&to, length);
    }
    bool said = !getpeername(ddl__tcp_link_socket(link), (struct sockaddr *)&to, &length) &&
                to.ss_family != AF_UNIX && call_at(c, peer, (struct sockaddr *)&to, length);
    for (unsigned i = 0; !said && i < address->n_ips; i++) {
        length = ddl__address_ip(address, i, &to);
        said = call_at(c, peer, (struct sockaddr *)&to, length);
    }
    return said;
}

/* Wait until the peer's endpoint admits us; false with the message set. */
static bool be_let_in(const ddl__control *c, calling *k, ddl__seal **seal)
{
    const ddl__job *job = ddl__endpoint_job(c->config.endpoint);
    bool handed;
    return ddl__handshake_finish(job, k->fd, within(c, DIAL_NS), &k->session, &handed) == DDL_OK &&
           ddl__session_seal(job, &k->session, k->fd, DDL__DIALER, seal) == DDL_OK;
}

/* An accepted connection becomes a member, or is told why it is none. */
static void receive(ddl__control *c, ddl__accepted *accepted)
{
    const ddl__hello *hello = &accepted->hello;
    bool fits = hello->kind == DDL__CONN_CONTROL && hello->to == (uint32_t)c->rank &&
                hello->size == (uint32_t)c->size && hello->from > (uint32_t)c->rank &&
                hello->from < (uint32_t)c->size && c->members[hello->from].wire.fd < 0;
    if (hello->kind == DDL__CONN_INPROC)
        ddl__arena_drop((ddl__arena *)(uintptr_t)hello->arena);
    if (accepted->passed >= 0)
        close(accepted->passed);
    ddl__seal *seal = NULL;
    if (fits && ddl__session_seal(ddl__endpoint_job(c->config.endpoint), &accepted->session,
                                  accepted->fd, DDL__DIALED, &seal) == DDL_OK) {
        ddl__wire_open(&c->members[hello->from].wire, accepted->fd, seal);
        return;
    }
    ddl__hello answer = ddl__hello_answer(hello, DDL_EREFUSED, "it does not fit this comm");
    ddl__send_all(accepted->fd, &answer, sizeof answer, within(c, DIAL_NS));
    close(accepted->fd);
}

static ddl_status join(ddl__control *c, int peer)
{
    ddl__seal *seal = NULL;
    calling *k = &c->calls[peer];
    if ((k->fd >= 0 || call(c, peer)) && be_let_in(c, k, &seal)) {
        ddl__wire_open(&c->members[peer].wire, k->fd, seal);
        k->fd = -1;
        hang_up(k);
        return DDL_OK;
    }
    char why[DDL__MESSAGE_MAX - 128];
    snprintf(why, sizeof why, "%s", ddl__message());
    ddl_status status = check_present(c);
    if (status != DDL_OK || c->members[peer].fate != DDL__ALIVE)
        return status;
    return ddl__fail(ddl__now() < c->config.deadline ? DDL_EUNREACHABLE : DDL_ETIMEDOUT,
                     "%s cannot be called to be watched: %s", c->names[peer], why);
}

/* The next higher rank that is not here, or the size. */
static int missing(const ddl__control *c)
{
    int rank = c->rank + 1;
    while (rank < c->size && (c->members[rank].wire.fd >= 0 || c->members[rank].fate != DDL__ALIVE))
        rank++;
    return rank;
}

static ddl_status receive_all(ddl__control *c)
{
    for (int next; (next = missing(c)) < c->size;) {
        ddl__accepted accepted;
        if (ddl__endpoint_accept(c->config.endpoint, c->config.slot, true, within(c, LOOK_NS),
                                 &accepted)) {
            receive(c, &accepted);
            ddl__session_end(&accepted.session);
            continue;
        }
        ddl_status status = check_present(c);
        if (status != DDL_OK)
            return status;
        if (ddl__now() >= c->config.deadline)
            return ddl__fail(DDL_ETIMEDOUT, "%s did not call to be watched in time",
                             c->names[next]);
    }
    return DDL_OK;
}

/* Of what members say while we leave only their last operations count. */
static void hear_last(void *context, ddl__word word, const unsigned char *content, size_t bytes)
{
    ddl__position *position = context;
    if ((word == DDL__BEAT || word == DDL__LEAVE) && bytes == sizeof *position)
        memcpy(position, content, bytes);
}

/* A wire is never closed without a last word. A member that was stopped may have left no room for
 * it. Each is told before it is listened to, so that of two that leave at the same time at least
 * one hears the other. */
static void say_last(ddl__member *member, ddl__word word, const void *content, size_t bytes)
{
    int room = 1 << 20;
    if (member->wire.fd < 0)
        return;
    setsockopt(member->wire.fd, SOL_SOCKET, SO_SNDBUF, &room, sizeof room);
    ddl__wire_send(&member->wire, word, content, bytes);
    /* Closing with something unread would reset the connection. */
    ddl__wire_receive(&member->wire, hear_last, &member->position);
}

static void free_control(ddl__control *c)
{
    for (int i = 0; i < c->size && c->members; i++) {
        ddl__wire_close(&c->members[i].wire);
        free(c->members[i].accused);
        free(c->members[i].verdict);
    }
    for (int i = 0; i < c->rank && c->calls; i++)
        hang_up(&c->calls[i]);
    free(c->calls);
    free(c->trace_dir);
    free(c->members);
    free(c);
}

ddl_status ddl__control_call(const ddl__control_config *config, ddl__control **out)
{
    ddl__control *c = calloc(1, sizeof *c);
    ddl__watch *watch = ddl__endpoint_watch(config->endpoint);
    if (!c || !watch || !(c->members = calloc((size_t)config->size, sizeof *c->members)) ||
        !(c->calls = calloc((size_t)config->rank + 1, sizeof *c->calls))) {
        if (c)
            free_control(c);
        return watch ? ddl__fail(DDL_ENOMEM, "no memory to watch %d members", config->size)
                     : DDL_ESYSTEM;
    }
    c->watch = watch;
    c->config = *config;
    c->engine = config->engine;
    c->rank = config->rank;
    c->size = config->size;
    c->names = config->names;
    c->limits = config->limits;
    c->trace_dir = config->trace_dir ? strdup(config->trace_dir) : NULL;
    for (int i = 0; i < c->size; i++)
        c->members[i].wire.fd = -1;
    for (int peer = 0; peer < c->rank; peer++)
        c->calls[peer].fd = -1;
    for (int peer = 0; peer < c->rank; peer++)
        call(c, peer); /* else once more, when it is joined */
    *out = c;
    return DDL_OK;
}

ddl_status ddl__control_open(ddl__control *c)
{
    ddl_status status = DDL_OK;
    for (int peer = 0; status == DDL_OK && peer < c->rank; peer++)
        status = join(c, peer);
    if (status == DDL_OK)
        status = receive_all(c);
    if (status == DDL_OK && !ddl__watch_add(c->watch, c))
        status = ddl__fail(DDL_ESYSTEM, "epoll refuses a comm: %s", strerror(errno));
    c->watched = status == DDL_OK;
    if (status == DDL_OK)
        return DDL_OK;
    static const char why[] = "it could not create the comm";
    ddl__notice notice = {.status = status};
    snprintf(notice.text, sizeof notice.text, "%s could not create the comm: %.300s",
             c->names[c->rank], ddl__message());
    for (int i = 0; i < c->size; i++) {
        ddl__wire_send(&c->members[i].wire, DDL__DEAD, &notice, ddl__notice_bytes(&notice));
        say_last(&c->members[i], DDL__EXPEL, why, sizeof why - 1);
    }
    return status;
}

void ddl__control_abandon(ddl__control *c)
{
    pthread_mutex_lock(&c->watch->lock);
    c->abandoned = true;
    pthread_mutex_unlock(&c->watch->lock);
}

static void say_goodbye(ddl__control *c)
{
    static const char why[] = "it goes on without this comm";
    ddl__position last = ddl__own_position(c, ddl__now());
    for (int i = 0; i < c->size; i++)
        if (c->abandoned)
            say_last(&c->members[i], DDL__EXPEL, why, sizeof why - 1);
        else
            say_last(&c->members[i], DDL__LEAVE, &last, sizeof last);
}

void ddl__control_close(ddl__control *c, char difference[DDL__MESSAGE_MAX])
{
    difference[0] = 0;
    if (!c)
        return;
    if (!c->watched) {
        free_control(c);
        return;
    }
    ddl__watch_remove(c);
    say_goodbye(c);
    ddl__snapshot snapshot = ddl__engine_snapshot(c->engine);
    if (ddl__compare_last(c, difference))
        ddl__log(DDL__WARN, "%s: the last operations differ: %s", c->names[c->rank], difference);
    else if (snapshot.status == DDL_EMISMATCH && !snapshot.told)
        memcpy(difference, snapshot.text, sizeof snapshot.text);
    ddl__trace_await(c);
    free_control(c);
}

int ddl__control_failed(ddl__control *c, int *ranks, int capacity)
{
    int n = 0;
    pthread_mutex_lock(&c->watch->lock);
    for (int i = 0; i < c->size; i++)
        if (ddl__is_dead(c, i)) {
            if (n < capacity)
                ranks[n] = i;
            n++;
        }
    pthread_mutex_unlock(&c->watch->lock);
    return n;
}
