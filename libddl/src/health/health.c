/* SPDX-License-Identifier: Apache-2.0 */
/* Opens and closes the control connections of a comm. As in wireup.c, every rank dials all lower
 * ranks and accepts the higher ones. Most connections are dialed together with the links. The rest
 * are dialed when this rank's ddl__wireup_run is complete. A peer answers when its own
 * ddl__wireup_run is complete. Until then the connection is parked at the peer's endpoint, and the
 * peer's ddl__wireup_run leaves it there. Members that share memory get their control connection
 * with the link. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/forks.h"
#include "base/log.h"
#include "base/test_points.h"
#include "base/time_limits.h"
#include "health/health_state.h"
#include "net/shm/shm.h"
#include "net/socket.h"
#include "net/tcp/tcp.h"

static int64_t limit_within(const ddl__health *h, int64_t ns)
{
    int64_t limit = ddl__now() + ns;
    return limit < h->config.deadline ? limit : h->config.deadline;
}

/* Fail if the comm has failed, or if waiting is pointless. The creation does not fail if a member
 * has left or its process has ended, because the member had joined. Its end is recorded, and
 * handled once the comm is monitored. */
static ddl_status check_members(ddl__health *h)
{
    for (int i = 0; i < h->size; i++)
        if (h->members[i].conn.fd >= 0 && ddl__has_ended(h->members[i].conn.fd))
            ddl__engine_peer_gone(h->engine, i);
    ddl__engine_poll(h->engine);
    ddl__snapshot snapshot = ddl__engine_snapshot(h->engine);
    if (snapshot.status != DDL_OK)
        return ddl__fail(snapshot.status, "%s", snapshot.text);
    for (int i = 0; i < h->size; i++) {
        ddl__member *member = &h->members[i];
        const ddl__link *link = ddl__engine_links(h->engine)[i];
        if (i == h->rank || member->conn.fd >= 0 || member->peer->late ||
            member->peer->state != DDL__ALIVE)
            continue;
        if (link->state == DDL__LINK_LEFT)
            ddl__member_left_early(h->membership, i);
        if (link->state == DDL__LINK_LOST)
            ddl__member_ended_early(h->membership, i, link->shared, ddl__now());
    }
    return ddl__until_check(h->config.until);
}

static ddl_status check(void *health)
{
    return check_members(health);
}

/* Return the deadline of one step of dialing, with the check to call while waiting. join_lower
 * calls the check again. */
static ddl__until step_until(ddl__health *h)
{
    return (ddl__until){limit_within(h, DDL__ADDRESS_LIMIT), check, h, NULL};
}

/* Set the member's control connection. */
static void control_open(ddl__health *h, int rank, int fd, ddl__seal *seal)
{
    ddl__control_conn_open(&h->members[rank].conn, fd, seal);
    h->members[rank].peer->connected = true;
}

/* Call ddl__dial, but wait for room if the backlog of a unix listener is full. */
static int dial_address(ddl__health *h, const struct sockaddr *to, socklen_t length)
{
    bool local = to->sa_family == AF_UNIX;
    ddl__until until = step_until(h);
    ddl_status status;
    int fd;
    if (!local)
        return ddl__dial_until(NULL, to, length, &until, &status);
    do
        fd = ddl__dial(to, length, limit_within(h, DDL__MEMBERS_POLL));
    while (fd < 0 && errno == ETIMEDOUT && ddl__now() < h->config.deadline &&
           check_members(h) == DDL_OK);
    return fd;
}

/* Start the handshake with the peer at this address, without waiting for an answer. Returns false,
 * with the message set, on failure. */
static bool dial_start_at(ddl__health *h, int peer, const struct sockaddr *to, socklen_t length)
{
    ddl__control_dial *dial = &h->dials[peer];
    ddl_endpoint *endpoint = h->config.endpoint;
    ddl__hello hello =
        ddl__endpoint_begin_hello(endpoint, DDL__CONN_CONTROL, h->rank, peer, h->size);
    hello.endpoint = h->config.addresses[peer].endpoint;
    hello.comm = h->config.comm;
    dial->fd = dial_address(h, to, length);
    if (dial->fd < 0) {
        ddl__fail(DDL_EUNREACHABLE, "%s", strerror(errno));
        return false;
    }
    if (ddl__handshake_start(ddl__endpoint_job(endpoint), dial->fd, &hello, -1,
                             limit_within(h, DDL__ADDRESS_LIMIT), &dial->session) == DDL_OK)
        return true;
    ddl__control_dial_close(dial);
    return false;
}

/* Start the handshake with the peer. The address of its data link is tried first. */
static bool dial_peer(ddl__health *h, int peer)
{
    struct sockaddr_storage to;
    socklen_t length = sizeof to;
    const ddl__address *address = &h->config.addresses[peer];
    const ddl__link *link = ddl__engine_links(h->engine)[peer];
    if (link->shared) {
        length = ddl__address_unix(&address->endpoint, &to);
        return dial_start_at(h, peer, (struct sockaddr *)&to, length);
    }
    bool started = !getpeername(ddl__tcp_link_socket(link), (struct sockaddr *)&to, &length) &&
                   to.ss_family != AF_UNIX &&
                   dial_start_at(h, peer, (struct sockaddr *)&to, length);
    for (unsigned i = 0; !started && i < address->n_ips; i++) {
        length = ddl__address_ip(address, i, &to);
        started = dial_start_at(h, peer, (struct sockaddr *)&to, length);
    }
    return started;
}

/* Wait for the answer of the peer's endpoint. Returns false, with the message set, on failure. */
static bool dial_await_admission(ddl__health *h, ddl__control_dial *dial, ddl__seal **seal)
{
    const ddl__job *job = ddl__endpoint_job(h->config.endpoint);
    ddl__until until = step_until(h);
    ddl_status status;
    bool handed;
    if (!ddl__await_until(dial->fd, POLLIN, &until, &status)) {
        ddl__fail(DDL_EUNREACHABLE, "%s", strerror(errno));
        return false;
    }
    return ddl__handshake_finish(job, dial->fd, until.deadline, &dial->session, &handed) ==
               DDL_OK &&
           ddl__session_seal(job, &dial->session, dial->fd, DDL__DIALER, seal) == DDL_OK;
}

/* Make an accepted connection a member's control connection, or refuse it. */
static void accept_control_conn(ddl__health *h, ddl__accepted *accepted)
{
    const ddl__hello *hello = &accepted->hello;
    bool fits = hello->kind == DDL__CONN_CONTROL && hello->to == (uint32_t)h->rank &&
                hello->size == (uint32_t)h->size && hello->from > (uint32_t)h->rank &&
                hello->from < (uint32_t)h->size && h->members[hello->from].conn.fd < 0 &&
                hello->number >= h->dials[hello->from].after;
    if (hello->kind == DDL__CONN_INPROC)
        ddl__arena_drop((ddl__arena *)(uintptr_t)hello->arena);
    if (accepted->passed >= 0)
        close(accepted->passed);
    ddl__seal *seal = NULL;
    if (fits && ddl__session_seal(ddl__endpoint_job(h->config.endpoint), &accepted->session,
                                  accepted->fd, DDL__DIALED, &seal) == DDL_OK) {
        control_open(h, (int)hello->from, accepted->fd, seal);
        return;
    }
    ddl__hello answer = ddl__hello_answer(hello, DDL_EREFUSED, "it does not fit this comm");
    ddl__send_all(accepted->fd, &answer, sizeof answer, limit_within(h, DDL__ADDRESS_LIMIT));
    close(accepted->fd);
}

static ddl_status join_lower(ddl__health *h, int peer)
{
    ddl__seal *seal = NULL;
    ddl__control_dial *dial = &h->dials[peer];
    if (h->members[peer].conn.fd >= 0 || h->members[peer].peer->late)
        return DDL_OK;
    if ((dial->fd >= 0 || dial_peer(h, peer)) && dial_await_admission(h, dial, &seal)) {
        control_open(h, peer, dial->fd, seal);
        dial->fd = -1;
        ddl__control_dial_close(dial);
        return DDL_OK;
    }
    char why[DDL__MESSAGE_MAX - 128];
    snprintf(why, sizeof why, "%s", ddl__message());
    ddl_status status = check_members(h);
    if (status != DDL_OK || h->members[peer].peer->state != DDL__ALIVE)
        return status;
    return ddl__fail(ddl__now() < h->config.deadline ? DDL_EUNREACHABLE : DDL_ETIMEDOUT,
                     "%s cannot be reached for control messages: %s", h->names[peer], why);
}

/* Return the next higher rank that is not connected; the size if there is none. */
static int next_missing(const ddl__health *h)
{
    int rank = h->rank + 1;
    while (rank < h->size && (h->members[rank].conn.fd >= 0 || h->members[rank].peer->late ||
                              h->members[rank].peer->state != DDL__ALIVE))
        rank++;
    return rank;
}

static ddl_status accept_higher(ddl__health *h)
{
    for (int next; (next = next_missing(h)) < h->size;) {
        ddl__accepted accepted;
        if (ddl__endpoint_accept(h->config.endpoint, h->config.slot, true,
                                 limit_within(h, DDL__MEMBERS_POLL), &accepted)) {
            accept_control_conn(h, &accepted);
            ddl__session_end(&accepted.session);
            continue;
        }
        ddl_status status = check_members(h);
        if (status != DDL_OK)
            return status;
        if (ddl__now() >= h->config.deadline)
            return ddl__fail(DDL_ETIMEDOUT, "%s did not open its control connection in time",
                             h->names[next]);
    }
    return DDL_OK;
}

/* A member whose last messages are being read. */
typedef struct last_sender {
    ddl__health *health;
    int rank;
} last_sender;

/* Handle a message that arrives while this rank leaves. Only the member's last operation is used,
 * and only if the message says that the comm has not failed at the member. */
static void receive_last_position(void *context, ddl__control_msg message,
                                  const unsigned char *content, size_t bytes)
{
    const last_sender *sender = context;
    ddl__member *member = &sender->health->members[sender->rank];
    ddl__member_note_last(sender->health->membership, sender->rank, message);
    if ((message != DDL__HEARTBEAT && message != DDL__LEAVE) || bytes < sizeof member->position)
        return;
    /* Both messages begin with the position. */
    memcpy(&member->position, content, sizeof member->position);
}

/* Send the last message; a control connection is never closed without one. Enlarge the send buffer
 * first: if the member is stopped, unread messages may have filled it. Send before receiving, so
 * that if two ranks leave at the same time, at least one receives the other's message. */
static void send_last(ddl__control_conn *conn, ddl__control_msg message, const void *content,
                      size_t bytes, ddl__control_msg_handler *handle, void *context)
{
    int room = 1 << 20;
    if (conn->fd < 0)
        return;
    setsockopt(conn->fd, SOL_SOCKET, SO_SNDBUF, &room, sizeof room);
    ddl__control_conn_send(conn, message, content, bytes);
    /* Closing a socket with unread data would reset the connection. */
    ddl__control_conn_receive(conn, handle, context);
}

void ddl__health_destroy(ddl__health *h)
{
    for (int i = 0; h && i < h->size && h->members; i++)
        ddl__control_conn_close(&h->members[i].conn);
    if (!h)
        return;
    ddl__controls_destroy(h->dials, h->size);
    ddl__close_guarded(h->arrivals);
    free(h->trace_dir);
    free(h->members);
    free(h->causes);
    free(h->membership);
    free(h->survivors);
    free(h);
}

/* Allocate in advance all memory that the handling of a failure may need. If a later allocation
 * failed, the survivors would wait for this rank. */
static bool health_allocate(ddl__health *h)
{
    size_t size = (size_t)h->size;
    h->members = calloc(size, sizeof *h->members);
    h->causes = calloc(size, DDL__CAUSE);
    h->membership = calloc(1, ddl__membership_bytes(h->size));
    h->survivors = calloc(size, sizeof *h->survivors);
    if (!h->members || !h->causes || !h->membership || !h->survivors) {
        free(h->members);
        h->members = NULL;
        return false;
    }
    ddl__membership_init(h->membership, &ddl__health_ports, h, h->rank, h->size);
    for (size_t i = 0; i < size; i++) {
        ddl__member *member = &h->members[i];
        member->peer = &h->membership->peers[i];
        member->conn.fd = -1;
        member->cause = h->causes + i * DDL__CAUSE;
    }
    return true;
}

ddl_status ddl__health_connect(const ddl__health_config *config, ddl__health **out)
{
    ddl__health *h = calloc(1, sizeof *h);
    ddl__detector *detector =
        ddl__endpoint_attach(config->endpoint, DDL__ATTACHED_DETECTOR, ddl__detector_create,
                             config->witness, ddl__detector_destroy);
    if (h) {
        h->rank = config->rank;
        h->size = config->size;
        h->arrivals = -1;
    }
    if (!h || !detector || !health_allocate(h)) {
        ddl__controls_destroy(config->controls, config->size);
        ddl__health_destroy(h);
        return detector
                   ? ddl__fail(DDL_ENOMEM, "out of memory: cannot monitor %d members", config->size)
                   : DDL_ESYSTEM;
    }
    h->detector = detector;
    h->config = *config;
    h->dials = config->controls;
    h->engine = config->engine;
    h->names = config->names;
    h->limits = config->limits;
    h->membership->heartbeat = config->limits.heartbeat;
    h->membership->dead = config->limits.dead;
    h->trace_dir = config->trace_dir ? strdup(config->trace_dir) : NULL;
    for (int i = 0; i < h->size; i++) {
        ddl__control_dial *dial = &h->dials[i];
        if (dial->open) {
            control_open(h, i, dial->fd, dial->seal);
            dial->fd = -1;
            dial->seal = NULL;
        } else if (dial->late) {
            h->members[i].peer->late = true;
            h->membership->n_late++;
        } else if (i < h->rank && dial->fd < 0) {
            dial_peer(h, i); /* if a dial fails, join_lower repeats it */
        }
    }
    ddl__engine_set_explainer(h->engine, ddl__operations_explain, h);
    *out = h;
    return DDL_OK;
}

static void ignore_message(void *context, ddl__control_msg message, const unsigned char *content,
                           size_t bytes)
{
    (void)context, (void)message, (void)content, (void)bytes;
}

void ddl__health_refuse(ddl__control_dial *controls, int size, ddl_status status, const char *why)
{
    static const char end[] = "it could not create the comm";
    ddl__notice notice = {.status = status};
    snprintf(notice.text, sizeof notice.text, "%.300s", why);
    for (int i = 0; controls && i < size; i++) {
        ddl__control_dial *dial = &controls[i];
        if (!dial->open)
            continue;
        ddl__control_conn conn;
        ddl__control_conn_open(&conn, dial->fd, dial->seal);
        dial->fd = -1;
        dial->seal = NULL;
        send_last(&conn, DDL__DEAD, &notice, ddl__notice_bytes(&notice), ignore_message, NULL);
        send_last(&conn, DDL__EXPEL, end, sizeof end - 1, ignore_message, NULL);
        ddl__control_conn_close(&conn);
    }
    ddl__controls_destroy(controls, size);
}

ddl_status ddl__health_open(ddl__health *h)
{
    ddl_status status = DDL_OK;
    for (int peer = 0; status == DDL_OK && peer < h->rank; peer++)
        status = join_lower(h, peer);
    if (status == DDL_OK)
        status = accept_higher(h);
    if (status == DDL_OK && h->membership->n_late)
        status = ddl__late_create(h);
    if (status == DDL_OK)
        status = DDL__TEST_POINT(DDL__AT_DETECTOR, h);
    if (status == DDL_OK) {
        ddl__detector_add(h->detector, h);
        h->monitored = true;
        ddl__timeline_start(h, h->config.timeline_dir);
        return DDL_OK;
    }
    ddl__notice notice = {.status = status};
    snprintf(notice.text, sizeof notice.text, "%s could not create the comm: %.300s",
             h->names[h->rank], ddl__message());
    for (int i = 0; i < h->size; i++)
        ddl__control_conn_send(&h->members[i].conn, DDL__DEAD, &notice, ddl__notice_bytes(&notice));
    return status;
}

void ddl__health_created(ddl__health *h)
{
    if (h)
        ddl__late_accept(h);
}

/* Find out which members have left, so that this rank reports them before it leaves itself. */
static void poll_all(ddl__health *h)
{
    pthread_mutex_lock(&h->detector->lock);
    for (int i = 0; i < h->size; i++)
        ddl__member_poll(h, i);
    pthread_mutex_unlock(&h->detector->lock);
}

void ddl__health_abandon(ddl__health *h)
{
    pthread_mutex_lock(&h->detector->lock);
    h->abandoned = true;
    pthread_mutex_unlock(&h->detector->lock);
}

static void send_leave(ddl__health *h)
{
    static const char why[] = "it continues without this comm";
    ddl__position last = ddl__health_position(h, ddl__now());
    ddl__gossip_send_gone(h->membership);
    for (int i = 0; i < h->size; i++) {
        last_sender sender = {h, i};
        if (h->abandoned)
            send_last(&h->members[i].conn, DDL__EXPEL, why, sizeof why - 1, receive_last_position,
                      &sender);
        else
            send_last(&h->members[i].conn, DDL__LEAVE, &last, sizeof last, receive_last_position,
                      &sender);
    }
}

void ddl__health_close(ddl__health *h, char difference[DDL__MESSAGE_MAX])
{
    difference[0] = 0;
    if (!h)
        return;
    ddl__engine_set_explainer(h->engine, NULL, NULL);
    ddl__late_destroy(h);
    if (h->monitored && h->membership->n_late)
        poll_all(h);
    if (h->monitored)
        ddl__detector_remove(h);
    send_leave(h);
    ddl__snapshot snapshot = ddl__engine_snapshot(h->engine);
    if (h->monitored && (ddl__operations_compare_last(h, difference) ||
                         (!h->abandoned && ddl__operations_compare_numbers(h, difference))))
        ddl__log(DDL__WARN, "%s: the last operations differ: %s", h->names[h->rank], difference);
    else if (h->monitored && snapshot.status == DDL_EMISMATCH && !snapshot.told)
        memcpy(difference, snapshot.text, sizeof snapshot.text);
    ddl__flight_record_join(h);
    ddl__timeline_end(h);
    for (int i = 0; i < h->size; i++)
        if (!h->members[i].conn.local)
            ddl__control_conn_close(&h->members[i].conn);
}

int ddl__health_failed(ddl__health *h, int *ranks, int capacity)
{
    int n = 0;
    pthread_mutex_lock(&h->detector->lock);
    for (int i = 0; i < h->size; i++)
        if (ddl__member_is_dead(h->membership, i)) {
            if (n < capacity)
                ranks[n] = i;
            n++;
        }
    pthread_mutex_unlock(&h->detector->lock);
    return n;
}

ddl_status ddl__health_check(ddl__health *h, const int *ranks, int n)
{
    ddl_status status = DDL_OK;
    pthread_mutex_lock(&h->detector->lock);
    for (int i = 0; status == DDL_OK && i < n; i++)
        if (ddl__member_is_dead(h->membership, ranks[i]))
            status = ddl__fail(DDL_EPEER, "%s is dead: %s", h->names[ranks[i]],
                               h->members[ranks[i]].cause);
    pthread_mutex_unlock(&h->detector->lock);
    return status;
}

ddl__digest ddl__health_comm(const ddl__health *h)
{
    return h->config.comm;
}
