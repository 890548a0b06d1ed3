/* SPDX-License-Identifier: Apache-2.0 */
#include "health/health_state.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/forks.h"
#include "base/log.h"
#include "base/thread.h"
#include "base/time_limits.h"
#include "health/witness.h"

enum { WAKE, WITNESS, FIRST_SERIAL, EVENTS = 64 };

void ddl__member_register(ddl__health *h, int rank, int operation)
{
    const ddl__control_conn *conn = &h->members[rank].conn;
    struct epoll_event event = {.events = EPOLLRDHUP | (h->eager ? EPOLLIN : 0),
                                .data.u64 = h->serial << DDL__RANK_BITS | (unsigned)rank};
    if (conn->fd >= 0)
        epoll_ctl(h->detector->epoll, operation, conn->fd, &event);
}

/* ------------------------------------------------------------------------------------- messages */

typedef struct message_source {
    ddl__health *health;
    int from;
} message_source;

/* Return true if another member reported this reason. */
static bool is_told(const char *text, size_t length)
{
    return memmem(text, length, "(reported by ", 13);
}

static void receive_dead(ddl__health *h, int from, const unsigned char *content, size_t bytes)
{
    int32_t status;
    if (bytes < sizeof status)
        return;
    memcpy(&status, content, sizeof status);
    const char *text = (const char *)content + sizeof status;
    int length = (int)(bytes - sizeof status);
    if (status < 0 && is_told(text, (size_t)length))
        ddl__health_end(h, (ddl_status)status, "%.*s", length, text);
    else if (status < 0)
        ddl__health_end(h, (ddl_status)status, "%.*s (reported by %s)", length, text,
                        h->names[from]);
}

/* Handle a message. Only change data that the lock guards: the connection is still being read. */
static void receive_message(void *context, ddl__control_msg message, const unsigned char *content,
                            size_t bytes)
{
    const message_source *source = context;
    ddl__health *h = source->health;
    switch (message) {
    case DDL__HEARTBEAT: ddl__beat_receive(h, source->from, content, bytes); break;
    case DDL__LEAVE:
        ddl__beat_receive(h, source->from, content, bytes);
        ddl__ports_receive(h, source->from, message, content, bytes);
        break;
    case DDL__DEAD: receive_dead(h, source->from, content, bytes); break;
    case DDL__ASK: ddl__operations_receive_ask(h, source->from, content, bytes); break;
    case DDL__ANSWER: ddl__operations_receive_answer(h, source->from, content, bytes); break;
    case DDL__ASK_NAME: ddl__names_receive_ask(h, source->from, content, bytes); break;
    case DDL__ANSWER_NAME: ddl__names_receive_answer(h, source->from, content, bytes); break;
    case DDL__EXPEL:
    case DDL__JOIN:
    case DDL__VERDICT:
    case DDL__DONE:
    case DDL__CONFIRM:
    case DDL__EXPELLED:
    case DDL__LOST:
    case DDL__VOUCH:
    case DDL__GONE: ddl__ports_receive(h, source->from, message, content, bytes); break;
    }
    if (message != DDL__HEARTBEAT)
        pthread_cond_broadcast(&h->detector->changed);
}

void ddl__member_poll(ddl__health *h, int rank)
{
    ddl__member *member = &h->members[rank];
    message_source source = {h, rank};
    if (ddl__control_conn_receive(&member->conn, receive_message, &source)) {
        member->peer->silent_ns = 0;
        member->peer->is_new = false;
        member->heard_since_beat = member->ever_heard = true;
        member->suspect = false;
    }
    if (member->conn.fd < 0 || member->conn.state == DDL__CONTROL_CONN_OPEN)
        return;
    ddl__peer *peer = member->peer;
    if (peer->state == DDL__LEFT) /* it has closed its links, or has exited */
        ddl__engine_peer_gone(h->engine, rank);
    bool confirmed = peer->confirmed || peer->confirmed_at;
    if (peer->is_new && !confirmed) /* the peer stopped dialing before it received the answer */
        peer->silent_ns = 0;
    else if (member->conn.state == DDL__CONTROL_CONN_ENDED)
        ddl__member_ended(h->membership, rank, member->conn.local, member->conn.error, ddl__now());
    else
        ddl__member_unreachable(h->membership, rank, member->conn.error, ddl__now());
    ddl__control_conn_close(&member->conn);
    peer->connected = false;
}

/* After the comm's death, report the members whose links with this rank have failed. This is the
 * only evidence about pairs without a control connection: without it, the survivors would try to
 * connect the same pair again in the next comm. */
static void accuse_unreachable(ddl__health *h)
{
    for (int i = 0; h->membership->n_late && i < h->size; i++) {
        ddl__finding found = ddl__engine_find_peer(h->engine, i);
        if (found == DDL__PEER_LOST || found == DDL__PEER_UNREACHABLE)
            ddl__member_link_failed(h->membership, i, found == DDL__PEER_LOST, ddl__now());
    }
}

void ddl__health_announce(ddl__health *h)
{
    if (h->membership->announced || ddl__engine_snapshot(h->engine).status == DDL_OK)
        return;
    accuse_unreachable(h);
    ddl__flight_record_start(h);
    ddl__health_poll_eagerly(h);
    ddl__notice notice = ddl__health_notice(h);
    bool was_told = is_told(notice.text, strlen(notice.text));
    ddl__membership_announce(h->membership, was_told);
    ddl__late_start(h);
}

/* ----------------------------------------------------------------------------------- the thread */

void ddl__detector_wake(ddl__detector *detector)
{
    uint64_t one = 1;
    ssize_t n = write(detector->wake, &one, sizeof one);
    (void)n; /* a full counter wakes the thread, too */
}

/* Use the launcher's report that the member's process has ended as evidence, if there is one. */
static void check_witness(ddl__health *h, int rank)
{
    uint32_t attempt;
    if (ddl__witness_saw(h->detector->witness, &h->config.addresses[rank].endpoint, &h->config.comm,
                         &attempt))
        ddl__member_launcher_confirm(h->membership, rank, attempt, ddl__now());
}

/* Handle the launcher's reports of ended processes. */
static void poll_witness(ddl__detector *detector)
{
    ddl__digest ended;
    while (ddl__witness_next(detector->witness, &ended))
        for (ddl__health *h = detector->comms; h; h = h->next)
            for (int rank = 0; rank < h->size; rank++)
                if (rank != h->rank && ddl__digest_equal(h->config.addresses[rank].endpoint, ended))
                    check_witness(h, rank);
}

static void handle_event(ddl__detector *detector, uint64_t id)
{
    uint64_t count;
    if (id == WAKE) {
        ssize_t n = read(detector->wake, &count, sizeof count);
        (void)n; /* read only to reset it: the count does not matter */
        return;
    }
    if (id == WITNESS) {
        poll_witness(detector);
        return;
    }
    for (ddl__health *h = detector->comms; h; h = h->next)
        if (h->serial == id >> DDL__RANK_BITS) {
            ddl__member_poll(h, (int)(id & ((1 << DDL__RANK_BITS) - 1)));
            return;
        }
}

/* Do the timed work of a comm. A heartbeat that is nearly due is sent now, so that the heartbeats
 * of several comms coincide. */
static void health_check(ddl__health *h, int64_t now)
{
    ddl__late_adopt(h);
    if (now >= h->next_beat - h->limits.heartbeat / 4) {
        ddl__heartbeats_send(h, now);
        ddl__operations_check(h, now);
        ddl__names_check(h, now);
    }
    if (now >= h->grace_poll_at)
        ddl__grace_check(h, now);
    ddl__health_settle(h);
    if (!h->membership->announced)
        ddl__health_announce(h);
}

static int64_t health_due_at(const ddl__health *h)
{
    return h->next_beat < h->grace_poll_at ? h->next_beat : h->grace_poll_at;
}

static int detector_wait_ms(ddl__detector *detector)
{
    int64_t until = DDL__NEVER;
    for (const ddl__health *h = detector->comms; h; h = h->next)
        until = health_due_at(h) < until ? health_due_at(h) : until;
    detector->wakes_at = until;
    int64_t left = until - ddl__now();
    return until == DDL__NEVER ? -1 : left < 0 ? 0 : (int)(left / 1000000 + 1);
}

static void *detector_thread(void *argument)
{
    ddl__detector *detector = argument;
    struct epoll_event events[EVENTS];
    pthread_mutex_lock(&detector->lock);
    while (!detector->stop) {
        int timeout = detector_wait_ms(detector);
        pthread_mutex_unlock(&detector->lock);
        int n = epoll_wait(detector->epoll, events, EVENTS, timeout);
        pthread_mutex_lock(&detector->lock);
        for (int i = 0; i < n; i++)
            handle_event(detector, events[i].data.u64);
        int64_t now = ddl__now();
        for (ddl__health *h = detector->comms; h; h = h->next)
            health_check(h, now);
    }
    pthread_mutex_unlock(&detector->lock);
    return NULL;
}

void ddl__detector_add(ddl__detector *detector, ddl__health *h)
{
    int64_t now = ddl__now();
    pthread_mutex_lock(&detector->lock);
    h->serial = detector->serial++;
    h->grace_poll_at = DDL__NEVER;
    h->grace_rank = -1;
    h->next = detector->comms;
    detector->comms = h;
    for (int i = 0; i < h->size; i++) {
        ddl__member_register(h, i, EPOLL_CTL_ADD);
        if (i != h->rank)
            check_witness(h, i);
        ddl__member_start(h->membership, i, now);
    }
    ddl__heartbeats_start(h, now);
    ddl__health_settle(h);
    if (!h->membership->announced)
        ddl__health_announce(h);
    bool wakes_in_time = detector->wakes_at <= health_due_at(h);
    pthread_mutex_unlock(&detector->lock);
    if (!wakes_in_time)
        ddl__detector_wake(detector);
}

void ddl__detector_remove(ddl__health *h)
{
    pthread_mutex_lock(&h->detector->lock);
    while (h->end.status != DDL_OK || h->n_ending)
        if (h->end.status != DDL_OK)
            ddl__health_settle(h);
        else
            pthread_cond_wait(&h->detector->changed, &h->detector->lock);
    ddl__health_announce(h);
    ddl__health **at = &h->detector->comms;
    while (*at != h)
        at = &(*at)->next;
    *at = h->next;
    /* Stop watching the unix sockets. They stay open until the engine has ended, but their peers
     * may close them earlier. */
    for (int i = 0; i < h->size; i++)
        ddl__member_register(h, i, EPOLL_CTL_DEL);
    pthread_mutex_unlock(&h->detector->lock);
}

void *ddl__detector_create(const ddl__digest *endpoint, const void *witness)
{
    ddl__detector *detector = calloc(1, sizeof *detector);
    if (!detector) {
        ddl__fail(DDL_ENOMEM, "out of memory for a failure detector");
        return NULL;
    }
    detector->serial = FIRST_SERIAL;
    pthread_mutex_init(&detector->lock, NULL);
    ddl__cond_init(&detector->changed);
    ddl__cond_init(&detector->died);
    detector->epoll = ddl__guard(epoll_create1(EPOLL_CLOEXEC));
    detector->wake = ddl__guard(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = WAKE};
    int error = 0;
    detector->witness = ddl__witness_open(endpoint, witness);
    if (detector->epoll < 0 || detector->wake < 0 ||
        epoll_ctl(detector->epoll, EPOLL_CTL_ADD, detector->wake, &event)) {
        error = errno;
    } else {
        event.data.u64 = WITNESS;
        if (detector->witness)
            epoll_ctl(detector->epoll, EPOLL_CTL_ADD, ddl__witness_fd(detector->witness), &event);
        error = ddl__thread_start(&detector->thread, detector_thread, detector);
        detector->started = !error;
    }
    if (!error)
        return detector;
    ddl__detector_destroy(detector);
    ddl__fail(DDL_ESYSTEM, "cannot start the thread of the failure detector: %s", strerror(error));
    return NULL;
}

void ddl__detector_destroy(void *object)
{
    ddl__detector *detector = object;
    if (detector->started) {
        pthread_mutex_lock(&detector->lock);
        detector->stop = true;
        pthread_mutex_unlock(&detector->lock);
        ddl__detector_wake(detector);
        pthread_join(detector->thread, NULL);
    }
    ddl__witness_close(detector->witness);
    ddl__close_guarded(detector->epoll);
    ddl__close_guarded(detector->wake);
    pthread_cond_destroy(&detector->changed);
    pthread_cond_destroy(&detector->died);
    pthread_mutex_destroy(&detector->lock);
    free(detector);
}
