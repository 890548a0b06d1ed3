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
#include "health/witness.h"

enum { WAKE, WITNESS, FIRST_SERIAL, EVENTS = 64, RANK_BITS = 16 };

static void watch_conn(ddl__health *c, int rank, int operation)
{
    const ddl__control_conn *conn = &c->members[rank].conn;
    struct epoll_event event = {.events = EPOLLRDHUP | (c->urgent ? EPOLLIN : 0),
                                .data.u64 = c->serial << RANK_BITS | (unsigned)rank};
    if (conn->fd >= 0)
        epoll_ctl(c->detector->epoll, operation, conn->fd, &event);
}

void ddl__health_poll_eagerly(ddl__health *c)
{
    if (c->urgent)
        return;
    c->urgent = true;
    for (int i = 0; i < c->size; i++)
        watch_conn(c, i, EPOLL_CTL_MOD);
}

/* ------------------------------------------------------------------------------------- messages */

void ddl__health_broadcast(ddl__health *c, ddl__control_msg message, const void *content,
                           size_t bytes)
{
    for (int i = 0; i < c->size; i++)
        if (i != c->rank && c->members[i].fate == DDL__ALIVE)
            ddl__control_conn_send(&c->members[i].conn, message, content, bytes);
}

typedef struct hearing {
    ddl__health *health;
    int from;
} hearing;

static void be_told(ddl__health *c, int from, const unsigned char *content, size_t bytes)
{
    int32_t status;
    if (bytes < sizeof status)
        return;
    memcpy(&status, content, sizeof status);
    const char *text = (const char *)content + sizeof status;
    int length = (int)(bytes - sizeof status);
    bool second_hand = memmem(text, (size_t)length, "(told by ", 9);
    if (status < 0 && second_hand)
        ddl__health_end(c, (ddl_status)status, "%.*s", length, text);
    else if (status < 0)
        ddl__health_end(c, (ddl_status)status, "%.*s (told by %s)", length, text, c->names[from]);
}

/* It goes on without us; so we without it. */
static void be_expelled(ddl__health *c, int from, const unsigned char *content, size_t bytes)
{
    ddl__member *member = &c->members[from];
    member->may_go_on = true;
    if (member->fate == DDL__ALIVE) {
        member->fate = DDL__SILENT;
        snprintf(member->cause, sizeof member->cause, "it has given up rank %d", c->rank);
    }
    ddl__health_end(c, DDL_EPEER, "%s was given up by %s: %.*s", c->names[c->rank], c->names[from],
                    (int)bytes, (const char *)content);
}

static void note_position(ddl__member *member, const unsigned char *content, size_t bytes)
{
    if (bytes == sizeof member->position)
        memcpy(&member->position, content, bytes);
}

/* A member that can know it says that another one's process has ended. */
static void take_evidence(ddl__health *c, const unsigned char *content, size_t bytes)
{
    int32_t rank;
    if (bytes != sizeof rank)
        return;
    memcpy(&rank, content, sizeof rank);
    if (rank >= 0 && rank < c->size && rank != c->rank)
        ddl__member_confirm(c, rank);
}

/* Each message only changes what the lock guards: a conn is in the middle of being read. */
static void hear(void *context, ddl__control_msg message, const unsigned char *content,
                 size_t bytes)
{
    const hearing *h = context;
    ddl__health *c = h->health;
    ddl__member *member = &c->members[h->from];
    switch (message) {
    case DDL__HEARTBEAT: note_position(member, content, bytes); break;
    case DDL__LEAVE:
        note_position(member, content, bytes);
        if (member->fate == DDL__ALIVE) {
            member->fate = DDL__LEFT;
            snprintf(member->cause, sizeof member->cause, "it left the comm");
        } else {
            member->may_go_on = true;
        }
        break;
    case DDL__DEAD: be_told(c, h->from, content, bytes); break;
    case DDL__EXPEL: be_expelled(c, h->from, content, bytes); break;
    case DDL__ASK: ddl__compare_asked(c, h->from, content, bytes); break;
    case DDL__ANSWER: ddl__compare_answered(c, h->from, content, bytes); break;
    case DDL__JOIN:
    case DDL__VERDICT:
    case DDL__DONE:
        if (member->fate == DDL__ALIVE) /* else nobody counts on it any more */
            ddl__shrink_receive(c, h->from, message, content, bytes);
        break;
    case DDL__CONFIRM: take_evidence(c, content, bytes); break;
    case DDL__ASK_NAME: ddl__names_asked(c, h->from, content, bytes); break;
    case DDL__ANSWER_NAME: ddl__names_answered(c, content, bytes); break;
    }
    pthread_cond_broadcast(&c->detector->changed);
}

/* Take in what a member has said. */
static void attend_member(ddl__health *c, int rank)
{
    ddl__member *member = &c->members[rank];
    hearing h = {c, rank};
    if (ddl__control_conn_receive(&member->conn, hear, &h)) {
        member->silent = 0;
        member->heard = member->met = true;
        member->suspect = false;
    }
    if (member->conn.fd < 0 || member->conn.state == DDL__CONTROL_CONN_OPEN)
        return;
    if (member->conn.state == DDL__CONTROL_CONN_ENDED)
        ddl__member_ended(c, rank, member->conn.error);
    else
        ddl__member_unreachable(c, rank, member->conn.error);
    ddl__control_conn_close(&member->conn);
}

/* ----------------------------------------------------------------------------------- heartbeats */

ddl__position ddl__own_position(const ddl__health *c, int64_t now)
{
    ddl__position position = {{{0, 0}}, 0, 0};
    ddl__record last;
    if (!ddl__record_last(ddl__engine_recorder(c->engine), &last))
        return position;
    position.last = last.signature;
    position.ended = last.ended != 0;
    if (!last.ended)
        position.waiting_ms = (uint32_t)((now - last.submitted) / 1000000);
    return position;
}

static void judge_silence(ddl__health *c, int rank, int64_t elapsed)
{
    ddl__member *member = &c->members[rank];
    member->silent += elapsed;
    double s = (double)member->silent * 1e-9;
    if (member->silent >= c->limits.dead) {
        ddl__member_dead(c, rank, DDL__SILENT, "silent for %.1f s", s);
        ddl__member_expel(c, rank);
    } else if (member->silent >= c->limits.suspect && !member->suspect) {
        member->suspect = true;
        ddl__log(DDL__WARN, "%s: %s has been silent for %.1f s", c->names[c->rank], c->names[rank],
                 s);
    }
}

static void beat(ddl__health *c, int64_t now)
{
    ddl__position own = ddl__own_position(c, now);
    /* Our own pause is not the others' silence. */
    int64_t elapsed = now - c->last_beat, most = 2 * c->limits.heartbeat;
    c->last_beat = now;
    c->next_beat = now + c->limits.heartbeat;
    for (int i = 0; i < c->size; i++) {
        ddl__member *member = &c->members[i];
        if (member->conn.fd < 0)
            continue;
        attend_member(c, i);
        if (member->fate != DDL__ALIVE) {
            ddl__control_conn_flush(&member->conn); /* the last message may wait for room */
            continue;
        }
        /* Until the creation's limit a member may not have begun to monitor this rank. */
        if (!member->heard && (member->met || now >= c->config.deadline))
            judge_silence(c, i, elapsed < most ? elapsed : most);
        member->heard = false;
        if (ddl__control_conn_flush(&member->conn))
            ddl__control_conn_send(&member->conn, DDL__HEARTBEAT, &own, sizeof own);
    }
}

void ddl__health_announce(ddl__health *c)
{
    ddl__snapshot snapshot = ddl__engine_snapshot(c->engine);
    if (snapshot.status == DDL_OK || c->announced)
        return;
    c->announced = true;
    ddl__trace_leave(c);
    ddl__notice notice = {.status = snapshot.status};
    snprintf(notice.text, sizeof notice.text, "%.300s", snapshot.text);
    ddl__health_poll_eagerly(c);
    ddl__health_broadcast(c, DDL__DEAD, &notice, ddl__notice_bytes(&notice));
}

/* ----------------------------------------------------------------------------------- the thread */

static void notify(ddl__detector *detector)
{
    uint64_t one = 1;
    ssize_t n = write(detector->wake, &one, sizeof one);
    (void)n; /* a full counter wakes as well */
}

/* The launcher has seen processes end. */
static void hear_witness(ddl__detector *detector)
{
    ddl__digest ended;
    while (ddl__witness_next(detector->witness, &ended))
        for (ddl__health *c = detector->comms; c; c = c->next)
            for (int rank = 0; rank < c->size; rank++)
                if (rank != c->rank && ddl__digest_equal(c->config.addresses[rank].endpoint, ended))
                    ddl__member_confirm(c, rank);
}

static void attend_event(ddl__detector *detector, uint64_t id)
{
    uint64_t count;
    if (id == WAKE) {
        ssize_t n = read(detector->wake, &count, sizeof count);
        (void)n; /* awake, whatever it says */
        return;
    }
    if (id == WITNESS) {
        hear_witness(detector);
        return;
    }
    for (ddl__health *c = detector->comms; c; c = c->next)
        if (c->serial == id >> RANK_BITS) {
            attend_member(c, (int)(id & ((1 << RANK_BITS) - 1)));
            return;
        }
}

/* Comms whose heartbeats are nearly due have them with the first one. */
static void work(ddl__health *c, int64_t now)
{
    if (now >= c->next_beat - c->limits.heartbeat / 4) {
        beat(c, now);
        ddl__compare(c, now);
        ddl__names_check(c, now);
    }
    if (now >= c->look_at)
        ddl__health_check_grace(c, now);
    ddl__health_settle(c);
    if (!c->announced)
        ddl__health_announce(c);
}

static int sleep_ms(const ddl__detector *detector)
{
    int64_t until = DDL__NEVER;
    for (const ddl__health *c = detector->comms; c; c = c->next) {
        until = c->next_beat < until ? c->next_beat : until;
        until = c->look_at < until ? c->look_at : until;
    }
    int64_t left = until - ddl__now();
    return until == DDL__NEVER ? -1 : left < 0 ? 0 : (int)(left / 1000000 + 1);
}

static void *serve(void *argument)
{
    ddl__detector *detector = argument;
    struct epoll_event events[EVENTS];
    pthread_mutex_lock(&detector->lock);
    while (!detector->stop) {
        int timeout = sleep_ms(detector);
        pthread_mutex_unlock(&detector->lock);
        int n = epoll_wait(detector->epoll, events, EVENTS, timeout);
        pthread_mutex_lock(&detector->lock);
        for (int i = 0; i < n; i++)
            attend_event(detector, events[i].data.u64);
        int64_t now = ddl__now();
        for (ddl__health *c = detector->comms; c; c = c->next)
            work(c, now);
    }
    pthread_mutex_unlock(&detector->lock);
    return NULL;
}

bool ddl__detector_add(ddl__detector *detector, ddl__health *c)
{
    int64_t now = ddl__now();
    pthread_mutex_lock(&detector->lock);
    c->serial = detector->serial++;
    c->last_beat = c->next_beat = now;
    c->look_at = DDL__NEVER;
    c->grace_rank = -1;
    c->next = detector->comms;
    detector->comms = c;
    for (int i = 0; i < c->size; i++) {
        watch_conn(c, i, EPOLL_CTL_ADD);
        if (i != c->rank && ddl__witness_saw(detector->witness, &c->config.addresses[i].endpoint))
            ddl__member_confirm(c, i);
        if (c->members[i].fate == DDL__KILLED || c->members[i].fate == DDL__DISCONNECTED)
            ddl__member_start_grace(c, i);
        if (c->members[i].fate == DDL__KILLED)
            ddl__member_announce_end(c, i);
    }
    beat(c, now); /* before the program goes on: who was never heard of is not missed for long */
    ddl__health_settle(c);
    pthread_mutex_unlock(&detector->lock);
    notify(detector);
    return true;
}

void ddl__detector_remove(ddl__health *c)
{
    pthread_mutex_lock(&c->detector->lock);
    while (c->end.status != DDL_OK || c->ending)
        if (c->end.status != DDL_OK)
            ddl__health_settle(c);
        else
            pthread_cond_wait(&c->detector->changed, &c->detector->lock);
    ddl__health_announce(c);
    ddl__health **at = &c->detector->comms;
    while (*at != c)
        at = &(*at)->next;
    *at = c->next;
    pthread_mutex_unlock(&c->detector->lock);
}

ddl__detector *ddl__detector_create(const ddl__digest *endpoint, const char *witness)
{
    ddl__detector *detector = calloc(1, sizeof *detector);
    if (!detector) {
        ddl__fail(DDL_ENOMEM, "no memory for a failure detector");
        return NULL;
    }
    detector->serial = FIRST_SERIAL;
    pthread_mutex_init(&detector->lock, NULL);
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&detector->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
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
        error = ddl__thread_start(&detector->thread, serve, detector);
        detector->started = !error;
    }
    if (!error)
        return detector;
    ddl__detector_destroy(detector);
    ddl__fail(DDL_ESYSTEM, "no thread for the failure detector: %s", strerror(error));
    return NULL;
}

void ddl__detector_destroy(ddl__detector *detector)
{
    if (!detector)
        return;
    if (detector->started) {
        pthread_mutex_lock(&detector->lock);
        detector->stop = true;
        pthread_mutex_unlock(&detector->lock);
        notify(detector);
        pthread_join(detector->thread, NULL);
    }
    ddl__witness_close(detector->witness);
    ddl__close_guarded(detector->epoll);
    ddl__close_guarded(detector->wake);
    pthread_cond_destroy(&detector->changed);
    pthread_mutex_destroy(&detector->lock);
    free(detector);
}
