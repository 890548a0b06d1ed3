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
#include "base/time_limits.h"
#include "health/health_state.h"
#include "net/shm.h"
#include "net/socket.h"
#include "net/tcp.h"

static int64_t within(const ddl__health *c, int64_t ns)
{
    int64_t limit = ddl__now() + ns;
    return limit < c->config.deadline ? limit : c->config.deadline;
}

/* A connection to a lower rank, to which hello and proof were sent. */
typedef struct ddl__outgoing {
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
static ddl_status check_present(ddl__health *c)
{
    ddl__engine_look(c->engine);
    ddl__pulse pulse = ddl__engine_pulse(c->engine);
    if (pulse.status != DDL_OK)
        return ddl__fail(pulse.status, "%s", pulse.text);
    for (int i = 0; i < c->size; i++) {
        ddl__member *member = &c->members[i];
        const ddl__link *link = ddl__engine_links(c->engine)[i];
        if (i == c->rank || member->conn.fd >= 0 || member->fate != DDL__ALIVE)
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
static int dial_address(ddl__health *c, const struct sockaddr *to, socklen_t length)
{
    bool local = to->sa_family == AF_UNIX;
    int fd;
    do
        fd = ddl__dial(to, length, within(c, local ? DDL__MEMBERS_POLL : DDL__ADDRESS_LIMIT));
    while (fd < 0 && local && errno == ETIMEDOUT && ddl__now() < c->config.deadline &&
           check_present(c) == DDL_OK);
    return fd;
}

/* Start the handshake with the peer; do not wait for an answer; false with the message set. */
static bool call_at(ddl__health *c, int peer, const struct sockaddr *to, socklen_t length)
{
    calling *k = &c->calls[peer];
    ddl_endpoint *endpoint = c->config.endpoint;
    ddl__hello hello =
        ddl__endpoint_begin_hello(endpoint, DDL__CONN_CONTROL, c->rank, peer, c->size);
    hello.endpoint = c->config.addresses[peer].endpoint;
    hello.comm = c->config.comm;
    k->fd = dial_address(c, to, length);
    if (k->fd < 0) {
        ddl__fail(DDL_EUNREACHABLE, "%s", strerror(errno));
        return false;
    }
    if (ddl__handshake_start(ddl__endpoint_job(endpoint), k->fd, &hello, -1,
                             within(c, DDL__ADDRESS_LIMIT), &k->session) == DDL_OK)
        return true;
    hang_up(k);
    return false;
}

/* The address at which the peer was found for its data comes first. */
static bool call(ddl__health *c, int peer)
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
static bool be_let_in(const ddl__health *c, calling *k, ddl__seal **seal)
{
    const ddl__job *job = ddl__endpoint_job(c->config.endpoint);
    bool handed;
    return ddl__handshake_finish(job, k->fd, within(c, DDL__ADDRESS_LIMIT), &k->session, &handed) ==
               DDL_OK &&
           ddl__session_seal(job, &k->session, k->fd, DDL__DIALER, seal) == DDL_OK;
}

/* An accepted connection becomes a member, or is told why it is none. */
static void receive(ddl__health *c, ddl__accepted *accepted)
{
    const ddl__hello *hello = &accepted->hello;
    bool fits = hello->kind == DDL__CONN_CONTROL && hello->to == (uint32_t)c->rank &&
                hello->size == (uint32_t)c->size && hello->from > (uint32_t)c->rank &&
                hello->from < (uint32_t)c->size && c->members[hello->from].conn.fd < 0;
    if (hello->kind == DDL__CONN_INPROC)
        ddl__arena_drop((ddl__arena *)(uintptr_t)hello->arena);
    if (accepted->passed >= 0)
        close(accepted->passed);
    ddl__seal *seal = NULL;
    if (fits && ddl__session_seal(ddl__endpoint_job(c->config.endpoint), &accepted->session,
                                  accepted->fd, DDL__DIALED, &seal) == DDL_OK) {
        ddl__control_conn_open(&c->members[hello->from].conn, accepted->fd, seal);
        return;
    }
    ddl__hello answer = ddl__hello_answer(hello, DDL_EREFUSED, "it does not fit this comm");
    ddl__send_all(accepted->fd, &answer, sizeof answer, within(c, DDL__ADDRESS_LIMIT));
    close(accepted->fd);
}

static ddl_status join(ddl__health *c, int peer)
{
    ddl__seal *seal = NULL;
    calling *k = &c->calls[peer];
    if ((k->fd >= 0 || call(c, peer)) && be_let_in(c, k, &seal)) {
        ddl__control_conn_open(&c->members[peer].conn, k->fd, seal);
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
                     "%s cannot be reached for control messages: %s", c->names[peer], why);
}

/* The next higher rank that is not here, or the size. */
static int missing(const ddl__health *c)
{
    int rank = c->rank + 1;
    while (rank < c->size && (c->members[rank].conn.fd >= 0 || c->members[rank].fate != DDL__ALIVE))
        rank++;
    return rank;
}

static ddl_status receive_all(ddl__health *c)
{
    for (int next; (next = missing(c)) < c->size;) {
        ddl__accepted accepted;
        if (ddl__endpoint_accept(c->config.endpoint, c->config.slot, true,
                                 within(c, DDL__MEMBERS_POLL), &accepted)) {
            receive(c, &accepted);
            ddl__session_end(&accepted.session);
            continue;
        }
        ddl_status status = check_present(c);
        if (status != DDL_OK)
            return status;
        if (ddl__now() >= c->config.deadline)
            return ddl__fail(DDL_ETIMEDOUT, "%s did not open its control connection in time",
                             c->names[next]);
    }
    return DDL_OK;
}

/* Of what members say while we leave only their last operations count. */
static void hear_last(void *context, ddl__control_msg message, const unsigned char *content,
                      size_t bytes)
{
    ddl__position *position = context;
    if ((message == DDL__HEARTBEAT || message == DDL__LEAVE) && bytes == sizeof *position)
        memcpy(position, content, bytes);
}

/* A conn is never closed without a last message. A member that was stopped may have left no room
 * for it. Each is told before it is listened to, so that of two that leave at the same time at
 * least one hears the other. */
static void say_last(ddl__member *member, ddl__control_msg message, const void *content,
                     size_t bytes)
{
    int room = 1 << 20;
    if (member->conn.fd < 0)
        return;
    setsockopt(member->conn.fd, SOL_SOCKET, SO_SNDBUF, &room, sizeof room);
    ddl__control_conn_send(&member->conn, message, content, bytes);
    /* Closing with something unread would reset the connection. */
    ddl__control_conn_receive(&member->conn, hear_last, &member->position);
}

static void free_control(ddl__health *c)
{
    for (int i = 0; i < c->size && c->members; i++) {
        ddl__control_conn_close(&c->members[i].conn);
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

static void *create_detector(const ddl__digest *endpoint, const void *witness)
{
    return ddl__detector_create(endpoint, witness);
}

static void destroy_detector(void *detector)
{
    ddl__detector_destroy(detector);
}

ddl_status ddl__health_connect(const ddl__health_config *config, ddl__health **out)
{
    ddl__health *c = calloc(1, sizeof *c);
    ddl__detector *detector =
        ddl__endpoint_attach(config->endpoint, create_detector, config->witness, destroy_detector);
    if (!c || !detector || !(c->members = calloc((size_t)config->size, sizeof *c->members)) ||
        !(c->calls = calloc((size_t)config->rank + 1, sizeof *c->calls))) {
        if (c)
            free_control(c);
        return detector ? ddl__fail(DDL_ENOMEM, "no memory to monitor %d members", config->size)
                        : DDL_ESYSTEM;
    }
    c->detector = detector;
    c->config = *config;
    c->engine = config->engine;
    c->rank = config->rank;
    c->size = config->size;
    c->names = config->names;
    c->limits = config->limits;
    c->trace_dir = config->trace_dir ? strdup(config->trace_dir) : NULL;
    for (int i = 0; i < c->size; i++)
        c->members[i].conn.fd = -1;
    for (int peer = 0; peer < c->rank; peer++)
        c->calls[peer].fd = -1;
    for (int peer = 0; peer < c->rank; peer++)
        call(c, peer); /* else once more, when it is joined */
    *out = c;
    return DDL_OK;
}

ddl_status ddl__health_open(ddl__health *c)
{
    ddl_status status = DDL_OK;
    for (int peer = 0; status == DDL_OK && peer < c->rank; peer++)
        status = join(c, peer);
    if (status == DDL_OK)
        status = receive_all(c);
    if (status == DDL_OK && !ddl__detector_add(c->detector, c))
        status = ddl__fail(DDL_ESYSTEM, "epoll refuses a comm: %s", strerror(errno));
    c->monitored = status == DDL_OK;
    if (status == DDL_OK)
        return DDL_OK;
    static const char why[] = "it could not create the comm";
    ddl__notice notice = {.status = status};
    snprintf(notice.text, sizeof notice.text, "%s could not create the comm: %.300s",
             c->names[c->rank], ddl__message());
    for (int i = 0; i < c->size; i++) {
        ddl__control_conn_send(&c->members[i].conn, DDL__DEAD, &notice, ddl__notice_bytes(&notice));
        say_last(&c->members[i], DDL__EXPEL, why, sizeof why - 1);
    }
    return status;
}

void ddl__health_abandon(ddl__health *c)
{
    pthread_mutex_lock(&c->detector->lock);
    c->abandoned = true;
    pthread_mutex_unlock(&c->detector->lock);
}

static void say_goodbye(ddl__health *c)
{
    static const char why[] = "it goes on without this comm";
    ddl__position last = ddl__own_position(c, ddl__now());
    for (int i = 0; i < c->size; i++)
        if (c->abandoned)
            say_last(&c->members[i], DDL__EXPEL, why, sizeof why - 1);
        else
            say_last(&c->members[i], DDL__LEAVE, &last, sizeof last);
}

void ddl__health_close(ddl__health *c, char difference[DDL__MESSAGE_MAX])
{
    difference[0] = 0;
    if (!c)
        return;
    if (!c->monitored) {
        free_control(c);
        return;
    }
    ddl__detector_remove(c);
    say_goodbye(c);
    ddl__pulse pulse = ddl__engine_pulse(c->engine);
    if (ddl__compare_last(c, difference))
        ddl__log(DDL__WARN, "%s: the last operations differ: %s", c->names[c->rank], difference);
    else if (pulse.status == DDL_EMISMATCH && !pulse.told)
        memcpy(difference, pulse.text, sizeof pulse.text);
    ddl__trace_await(c);
    free_control(c);
}

int ddl__health_failed(ddl__health *c, int *ranks, int capacity)
{
    int n = 0;
    pthread_mutex_lock(&c->detector->lock);
    for (int i = 0; i < c->size; i++)
        if (ddl__is_dead(c, i)) {
            if (n < capacity)
                ranks[n] = i;
            n++;
        }
    pthread_mutex_unlock(&c->detector->lock);
    return n;
}

ddl__digest ddl__health_comm(const ddl__health *c)
{
    return c->config.comm;
}
