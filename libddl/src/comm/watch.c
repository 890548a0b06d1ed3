#include "comm/watch_state.h"

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
#include "comm/witness.h"

enum { WAKE, WITNESS, FIRST_SERIAL, EVENTS = 64, RANK_BITS = 16 };

static void watch_wire(ddl__control *c, int rank, int operation)
{
    const ddl__wire *wire = &c->members[rank].wire;
    struct epoll_event event = {.events = EPOLLRDHUP | (c->urgent ? EPOLLIN : 0),
                                .data.u64 = c->serial << RANK_BITS | (unsigned)rank};
    if (wire->fd >= 0)
        epoll_ctl(c->watch->epoll, operation, wire->fd, &event);
}

void ddl__watch_hurry(ddl__control *c)
{
    if (c->urgent)
        return;
    c->urgent = true;
    for (int i = 0; i < c->size; i++)
        watch_wire(c, i, EPOLL_CTL_MOD);
}

/* ---------------------------------------------------------------------------------------- words */

void ddl__control_tell(ddl__control *c, ddl__word word, const void *content, size_t bytes)
{
    for (int i = 0; i < c->size; i++)
        if (i != c->rank && c->members[i].fate == DDL__ALIVE)
            ddl__wire_send(&c->members[i].wire, word, content, bytes);
}

typedef struct hearing {
    ddl__control *control;
    int from;
} hearing;

static void be_told(ddl__control *c, int from, const unsigned char *content, size_t bytes)
{
    int32_t status;
    if (bytes < sizeof status)
        return;
    memcpy(&status, content, sizeof status);
    const char *text = (const char *)content + sizeof status;
    int length = (int)(bytes - sizeof status);
    bool second_hand = memmem(text, (size_t)length, "(told by ", 9);
    if (status < 0 && second_hand)
        ddl__control_end(c, (ddl_status)status, "%.*s", length, text);
    else if (status < 0)
        ddl__control_end(c, (ddl_status)status, "%.*s (told by %s)", length, text, c->names[from]);
}

/* It goes on without us; so we without it. */
static void be_expelled(ddl__control *c, int from, const unsigned char *content, size_t bytes)
{
    ddl__member *member = &c->members[from];
    member->may_go_on = true;
    if (member->fate == DDL__ALIVE) {
        member->fate = DDL__SILENT;
        snprintf(member->cause, sizeof member->cause, "it has given up rank %d", c->rank);
    }
    ddl__control_end(c, DDL_EPEER, "%s was given up by %s: %.*s", c->names[c->rank], c->names[from],
                     (int)bytes, (const char *)content);
}

static void note_position(ddl__member *member, const unsigned char *content, size_t bytes)
{
    if (bytes == sizeof member->position)
        memcpy(&member->position, content, bytes);
}

/* A member that can know it says that another one's process has ended. */
static void take_evidence(ddl__control *c, const unsigned char *content, size_t bytes)
{
    int32_t rank;
    if (bytes != sizeof rank)
        return;
    memcpy(&rank, content, sizeof rank);
    if (rank >= 0 && rank < c->size && rank != c->rank)
        ddl__member_confirm(c, rank);
}

/* Each word only changes what the lock guards: a wire is in the middle of being read. */
static void hear(void *context, ddl__word word, const unsigned char *content, size_t bytes)
{
    const hearing *h = context;
    ddl__control *c = h->control;
    ddl__member *member = &c->members[h->from];
    switch (word) {
    case DDL__BEAT: note_position(member, content, bytes); break;
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
            ddl__shrink_heard(c, h->from, word, content, bytes);
        break;
    case DDL__CONFIRM: take_evidence(c, content, bytes); break;
    case DDL__ASK_NAME: ddl__names_asked(c, h->from, content, bytes); break;
    case DDL__ANSWER_NAME: ddl__names_answered(c, content, bytes); break;
    }
    pthread_cond_broadcast(&c->watch->changed);
}

/* Take in what a member has said. */
static void attend_member(ddl__control *c, int rank)
{
    ddl__member *member = &c->members[rank];
    hearing h = {c, rank};
    if (ddl__wire_receive(&member->wire, hear, &h)) {
        member->silent = 0;
        member->heard = member->met = true;
        member->suspect = false;
    }
    if (member->wire.fd < 0 || member->wire.state == DDL__WIRE_OPEN)
        return;
    if (member->wire.state == DDL__WIRE_ENDED)
        ddl__member_ended(c, rank, member->wire.error);
    else
        ddl__member_unreachable(c, rank, member->wire.error);
    ddl__wire_close(&member->wire);
}

/* ----------------------------------------------------------------------------------- heartbeats */

ddl__position ddl__own_position(const ddl__control *c, int64_t now)
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

static void judge_silence(ddl__control *c, int rank, int64_t elapsed)
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

static void beat(ddl__control *c, int64_t now)
{
    ddl__position own = ddl__own_position(c, now);
    /* Our own pause is not the others' silence. */
    int64_t elapsed = now - c->last_beat, most = 2 * c->limits.heartbeat;
    c->last_beat = now;
    c->next_beat = now + c->limits.heartbeat;
    for (int i = 0; i < c->size; i++) {
        ddl__member *member = &c->members[i];
        if (member->wire.fd < 0)
            continue;
        attend_member(c, i);
        if (member->fate != DDL__ALIVE) {
            ddl__wire_flush(&member->wire); /* the last word may wait for room */
            continue;
        }
        /* Until the creation's limit a member may have yet to begin to watch. */
        if (!member->heard && (member->met || now >= c->config.deadline))
            judge_silence(c, i, elapsed < most ? elapsed : most);
        member->heard = false;
        if (ddl__wire_flush(&member->wire))
            ddl__wire_send(&member->wire, DDL__BEAT, &own, sizeof own);
    }
}

void ddl__control_announce(ddl__control *c)
{
    ddl__snapshot snapshot = ddl__engine_snapshot(c->engine);
    if (snapshot.status == DDL_OK || c->announced)
        return;
    c->announced = true;
    ddl__trace_leave(c);
    ddl__notice notice = {.status = snapshot.status};
    snprintf(notice.text, sizeof notice.text, "%.300s", snapshot.text);
    ddl__watch_hurry(c);
    ddl__control_tell(c, DDL__DEAD, &notice, ddl__notice_bytes(&notice));
}

/* ----------------------------------------------------------------------------------- the thread */

static void notify(ddl__watch *watch)
{
    uint64_t one = 1;
    ssize_t n = write(watch->wake, &one, sizeof one);
    (void)n; /* a full counter wakes as well */
}

/* The launcher has seen processes end. */
static void hear_witness(ddl__watch *watch)
{
    ddl__digest ended;
    while (ddl__witness_next(watch->witness, &ended))
        for (ddl__control *c = watch->controls; c; c = c->next)
            for (int rank = 0; rank < c->size; rank++)
                if (rank != c->rank && ddl__digest_equal(c->config.addresses[rank].endpoint, ended))
                    ddl__member_confirm(c, rank);
}

static void attend_event(ddl__watch *watch, uint64_t id)
{
    uint64_t count;
    if (id == WAKE) {
        ssize_t n = read(watch->wake, &count, sizeof count);
        (void)n; /* awake, whatever it says */
        return;
    }
    if (id == WITNESS) {
        hear_witness(watch);
        return;
    }
    for (ddl__control *c = watch->controls; c; c = c->next)
        if (c->serial == id >> RANK_BITS) {
            attend_member(c, (int)(id & ((1 << RANK_BITS) - 1)));
            return;
        }
}

/* Comms whose heartbeats are nearly due have them with the first one. */
static void work(ddl__control *c, int64_t now)
{
    if (now >= c->next_beat - c->limits.heartbeat / 4) {
        beat(c, now);
        ddl__compare(c, now);
        ddl__names_watch(c, now);
    }
    if (now >= c->look_at)
        ddl__control_look_after_death(c, now);
    ddl__control_settle(c);
    if (!c->announced)
        ddl__control_announce(c);
}

static int sleep_ms(const ddl__watch *watch)
{
    int64_t until = DDL__NEVER;
    for (const ddl__control *c = watch->controls; c; c = c->next) {
        until = c->next_beat < until ? c->next_beat : until;
        until = c->look_at < until ? c->look_at : until;
    }
    int64_t left = until - ddl__now();
    return until == DDL__NEVER ? -1 : left < 0 ? 0 : (int)(left / 1000000 + 1);
}

static void *serve(void *argument)
{
    ddl__watch *watch = argument;
    struct epoll_event events[EVENTS];
    pthread_mutex_lock(&watch->lock);
    while (!watch->stop) {
        int timeout = sleep_ms(watch);
        pthread_mutex_unlock(&watch->lock);
        int n = epoll_wait(watch->epoll, events, EVENTS, timeout);
        pthread_mutex_lock(&watch->lock);
        for (int i = 0; i < n; i++)
            attend_event(watch, events[i].data.u64);
        int64_t now = ddl__now();
        for (ddl__control *c = watch->controls; c; c = c->next)
            work(c, now);
    }
    pthread_mutex_unlock(&watch->lock);
    return NULL;
}

bool ddl__watch_add(ddl__watch *watch, ddl__control *c)
{
    int64_t now = ddl__now();
    pthread_mutex_lock(&watch->lock);
    c->serial = watch->serial++;
    c->last_beat = c->next_beat = now;
    c->look_at = DDL__NEVER;
    c->mourned = -1;
    c->next = watch->controls;
    watch->controls = c;
    for (int i = 0; i < c->size; i++) {
        watch_wire(c, i, EPOLL_CTL_ADD);
        if (i != c->rank && ddl__witness_saw(watch->witness, &c->config.addresses[i].endpoint))
            ddl__member_confirm(c, i);
        if (c->members[i].fate == DDL__KILLED || c->members[i].fate == DDL__DISCONNECTED)
            ddl__member_mourn(c, i);
        if (c->members[i].fate == DDL__KILLED)
            ddl__member_testify(c, i);
    }
    beat(c, now); /* before the program goes on: who was never heard of is not missed for long */
    ddl__control_settle(c);
    pthread_mutex_unlock(&watch->lock);
    notify(watch);
    return true;
}

void ddl__watch_remove(ddl__control *c)
{
    pthread_mutex_lock(&c->watch->lock);
    while (c->end.status != DDL_OK || c->ending)
        if (c->end.status != DDL_OK)
            ddl__control_settle(c);
        else
            pthread_cond_wait(&c->watch->changed, &c->watch->lock);
    ddl__control_announce(c);
    ddl__control **at = &c->watch->controls;
    while (*at != c)
        at = &(*at)->next;
    *at = c->next;
    pthread_mutex_unlock(&c->watch->lock);
}

ddl__watch *ddl__watch_create(const ddl__digest *endpoint)
{
    ddl__watch *watch = calloc(1, sizeof *watch);
    if (!watch) {
        ddl__fail(DDL_ENOMEM, "no memory for a watch");
        return NULL;
    }
    watch->serial = FIRST_SERIAL;
    pthread_mutex_init(&watch->lock, NULL);
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&watch->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    watch->epoll = ddl__guard(epoll_create1(EPOLL_CLOEXEC));
    watch->wake = ddl__guard(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = WAKE};
    int error = 0;
    watch->witness = ddl__witness_open(endpoint);
    if (watch->epoll < 0 || watch->wake < 0 ||
        epoll_ctl(watch->epoll, EPOLL_CTL_ADD, watch->wake, &event)) {
        error = errno;
    } else {
        event.data.u64 = WITNESS;
        if (watch->witness)
            epoll_ctl(watch->epoll, EPOLL_CTL_ADD, ddl__witness_fd(watch->witness), &event);
        error = ddl__thread_start(&watch->thread, serve, watch);
        watch->started = !error;
    }
    if (!error)
        return watch;
    ddl__watch_destroy(watch);
    ddl__fail(DDL_ESYSTEM, "no thread to watch peers: %s", strerror(error));
    return NULL;
}

void ddl__watch_destroy(ddl__watch *watch)
{
    if (!watch)
        return;
    if (watch->started) {
        pthread_mutex_lock(&watch->lock);
        watch->stop = true;
        pthread_mutex_unlock(&watch->lock);
        notify(watch);
        pthread_join(watch->thread, NULL);
    }
    ddl__witness_close(watch->witness);
    ddl__close_guarded(watch->epoll);
    ddl__close_guarded(watch->wake);
    pthread_cond_destroy(&watch->changed);
    pthread_mutex_destroy(&watch->lock);
    free(watch);
}
