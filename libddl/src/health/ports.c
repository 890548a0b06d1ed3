/* SPDX-License-Identifier: Apache-2.0 */
/* Connects the state machine of membership/ to the detector: encodes and decodes its messages,
 * describes its causes, and performs its actions. Everything here runs under the detector's lock.
 */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/text.h"
#include "base/time_limits.h"
#include "connect/addresses/neighbours.h"
#include "connect/handshake/hello.h"
#include "health/health_state.h"
#include "health/witness.h"
#include "net/socket.h"

/* The reason that EXPEL messages give to ranks that are not in the verdict. */
#define LEFT_OUT "left out when the comm was shrunk"

/* ---------------------------------------------------------------------------------- the encoding
 */

typedef struct agreement_head {
    uint32_t attempt, leader;
} agreement_head;

/* The content of DDL__EXPELLED. The reason is sent without its NUL. */
typedef struct expulsion {
    int32_t rank, by;
    char reason[128];
} expulsion;

/* The content of DDL__CONFIRM and DDL__VOUCH. */
typedef struct confirmation {
    int32_t rank;
    uint32_t attempt; /* the last attempt whose comm the rank has created */
} confirmation;

/* The content of DDL__LOST. */
typedef struct loss {
    int32_t rank, by;
    int32_t state;
    uint32_t silent_ms;
} loss;

/* One entry of a DDL__GONE message: a rank that has left. */
typedef struct departure {
    int32_t rank;
    uint32_t joined; /* the last attempt of an agreement that the rank joined, and in whose comm it
                        may continue */
    ddl__position position;
} departure;

enum { DEPARTURES = DDL__CONTROL_MSG_MAX / sizeof(departure) };

static void send_agreement(ddl__health *h, int to, const ddl__member_msg *message, uint32_t value)
{
    agreement_head head = {message->attempt, value};
    unsigned char content[sizeof head + DDL__CONTROL_MSG_MAX / 2];
    size_t bytes = message->set ? h->membership->set_bytes : 0;
    memcpy(content, &head, sizeof head);
    if (bytes)
        memcpy(content + sizeof head, message->set, bytes);
    ddl__control_conn_send(&h->members[to].conn, message->kind, content, sizeof head + bytes);
}

static void send_expulsion(ddl__health *h, int to, const ddl__member_msg *message)
{
    expulsion e = {.rank = message->rank, .by = message->by};
    snprintf(e.reason, sizeof e.reason, "%s", message->text);
    ddl__control_conn_send(&h->members[to].conn, DDL__EXPELLED, &e,
                           offsetof(expulsion, reason) + strlen(e.reason));
}

ddl__notice ddl__health_notice(const ddl__health *h)
{
    ddl__snapshot snapshot = ddl__engine_snapshot(h->engine);
    ddl__notice notice = {.status = snapshot.status};
    snprintf(notice.text, sizeof notice.text, "%.300s", snapshot.text);
    return notice;
}

static void send_message(void *context, int to, const ddl__member_msg *message)
{
    ddl__health *h = context;
    ddl__control_conn *conn = &h->members[to].conn;
    confirmation c = {message->rank, message->attempt};
    loss l = {message->rank, message->by, message->state, message->silent_ms};
    ddl__notice notice;
    const char *why = message->flag ? LEFT_OUT : h->members[to].cause;
    switch (message->kind) {
    case DDL__DEAD:
        notice = ddl__health_notice(h);
        ddl__control_conn_send(conn, DDL__DEAD, &notice, ddl__notice_bytes(&notice));
        break;
    case DDL__EXPEL: ddl__control_conn_send(conn, DDL__EXPEL, why, strlen(why)); break;
    case DDL__VOUCH:
    case DDL__CONFIRM: ddl__control_conn_send(conn, message->kind, &c, sizeof c); break;
    case DDL__EXPELLED: send_expulsion(h, to, message); break;
    case DDL__LOST: ddl__control_conn_send(conn, DDL__LOST, &l, sizeof l); break;
    case DDL__JOIN: send_agreement(h, to, message, (uint32_t)message->leader); break;
    case DDL__VERDICT: send_agreement(h, to, message, 0); break;
    case DDL__DONE: send_agreement(h, to, message, message->flag); break;
    case DDL__HEARTBEAT:
    case DDL__LEAVE:
    case DDL__ASK:
    case DDL__ANSWER:
    case DDL__ASK_NAME:
    case DDL__ANSWER_NAME:
    case DDL__GONE: break; /* this port does not send these messages */
    }
}

static void send_gone(void *context, int to, const int32_t *ranks, int n)
{
    ddl__health *h = context;
    departure all[DEPARTURES];
    for (int at = 0, count; at < n; at += count) {
        count = n - at < DEPARTURES ? n - at : DEPARTURES;
        memset(all, 0, (size_t)count * sizeof *all);
        for (int i = 0; i < count; i++) {
            const ddl__member *member = &h->members[ranks[at + i]];
            all[i] = (departure){ranks[at + i], member->peer->joined, member->position};
        }
        size_t bytes = (size_t)count * sizeof *all;
        if (to < 0)
            ddl__health_broadcast(h, DDL__GONE, all, bytes);
        else
            ddl__control_conn_send(&h->members[to].conn, DDL__GONE, all, bytes);
    }
}

static bool decode_agreement(const ddl__health *h, ddl__member_msg *message,
                             const unsigned char *content, size_t bytes)
{
    agreement_head head;
    size_t sets = bytes - sizeof head;
    bool has_set = message->kind != DDL__DONE;
    if (bytes < sizeof head || (has_set && sets != h->membership->set_bytes))
        return false;
    memcpy(&head, content, sizeof head);
    message->attempt = head.attempt;
    message->leader = (int)head.leader;
    message->flag = head.leader;
    message->set = has_set ? content + sizeof head : NULL;
    return true;
}

static void receive_gone(ddl__health *h, int from, const unsigned char *content, size_t bytes)
{
    departure d;
    for (; bytes >= sizeof d; content += sizeof d, bytes -= sizeof d) {
        memcpy(&d, content, sizeof d);
        if (d.rank < 0 || d.rank >= h->size || d.rank == h->rank)
            continue;
        ddl__member *member = &h->members[d.rank];
        if (member->peer->state == DDL__ALIVE && !member->peer->connected) {
            member->position = d.position;
            member->position_at = ddl__now();
        }
        ddl__member_msg gone = {.kind = DDL__GONE, .rank = d.rank, .attempt = d.joined};
        ddl__member_receive(h->membership, from, &gone, ddl__now());
    }
}

void ddl__ports_receive(ddl__health *h, int from, ddl__control_msg kind,
                        const unsigned char *content, size_t bytes)
{
    ddl__member_msg message = {.kind = kind};
    confirmation c;
    loss l;
    expulsion e = {.rank = -1, .by = -1};
    char why[DDL__MESSAGE_MAX];
    switch (kind) {
    case DDL__GONE: receive_gone(h, from, content, bytes); return;
    case DDL__EXPEL:
        snprintf(why, sizeof why, "%.*s", (int)bytes, (const char *)content);
        message.text = why;
        message.flag = !strcmp(why, LEFT_OUT);
        break;
    case DDL__JOIN:
    case DDL__VERDICT:
    case DDL__DONE:
        if (!decode_agreement(h, &message, content, bytes))
            return;
        break;
    case DDL__VOUCH:
    case DDL__CONFIRM:
        if (bytes != sizeof c)
            return;
        memcpy(&c, content, sizeof c);
        message.rank = c.rank;
        message.attempt = c.attempt;
        break;
    case DDL__EXPELLED:
        if (bytes < offsetof(expulsion, reason) || bytes >= sizeof e)
            return;
        memcpy(&e, content, bytes);
        ddl__sanitize_text(e.reason, sizeof e.reason);
        message.rank = e.rank;
        message.by = e.by;
        message.text = e.reason;
        break;
    case DDL__LOST:
        if (bytes != sizeof l)
            return;
        memcpy(&l, content, sizeof l);
        message.rank = l.rank;
        message.by = l.by;
        message.state = l.state >= 0 && l.state <= DDL__SILENT ? (unsigned char)l.state : 0;
        message.silent_ms = l.silent_ms;
        break;
    case DDL__HEARTBEAT:
    case DDL__LEAVE:
    case DDL__DEAD:
    case DDL__ASK:
    case DDL__ANSWER:
    case DDL__ASK_NAME:
    case DDL__ANSWER_NAME: break;
    }
    ddl__member_receive(h->membership, from, &message, ddl__now());
}

ddl_status ddl__health_expel(ddl__health *h, int rank, const char *reason)
{
    char why[sizeof((expulsion *)0)->reason];
    snprintf(why, sizeof why, "%s", reason && reason[0] ? reason : "no reason was given");
    ddl__sanitize_text(why, sizeof why);
    pthread_mutex_lock(&h->detector->lock);
    ddl_status status = ddl__member_expel(h->membership, rank, why, ddl__now());
    if (status == DDL_EMINORITY)
        ddl__fail(DDL_EMINORITY, "%s cannot expel %s: it was %s itself", h->names[h->rank],
                  h->names[rank], h->members[h->rank].cause);
    ddl__health_settle(h);
    pthread_mutex_unlock(&h->detector->lock);
    return status;
}

/* --------------------------------------------------------------------------------------- actions
 */

static void describe(const ddl__health *h, int rank, const ddl__cause *cause, char *text)
{
    const char *self = h->names[h->rank];
    char error[128];
    double silent_s = (double)h->members[rank].peer->silent_ns * 1e-9;
    switch (cause->kind) {
    case DDL__CAUSE_NONE: text[0] = 0; break;
    case DDL__CAUSE_LEFT: snprintf(text, DDL__CAUSE, "it left the comm"); break;
    case DDL__CAUSE_PROCESS_ENDED:
    case DDL__CAUSE_CONNECTION_ENDED:
        snprintf(text, DDL__CAUSE, "its %s ended%s",
                 cause->kind == DDL__CAUSE_PROCESS_ENDED ? "process" : "connection",
                 cause->error ? ": connection reset" : "");
        break;
    case DDL__CAUSE_CONFIRMED: snprintf(text, DDL__CAUSE, "its process ended"); break;
    case DDL__CAUSE_SILENT: snprintf(text, DDL__CAUSE, "silent for %.1f s", silent_s); break;
    case DDL__CAUSE_UNREACHABLE:
        snprintf(text, DDL__CAUSE, "%s", ddl__seal_error(cause->error, error, sizeof error));
        break;
    case DDL__CAUSE_CONTINUES:
        snprintf(text, DDL__CAUSE, "it continues without rank %d", h->rank);
        break;
    case DDL__CAUSE_EXPELLED:
        snprintf(text, DDL__CAUSE, "expelled by %s: %s", h->names[cause->by], cause->text);
        break;
    case DDL__CAUSE_LEFT_OUT: snprintf(text, DDL__CAUSE, LEFT_OUT); break;
    case DDL__CAUSE_RESIGNED:
        snprintf(text, DDL__CAUSE, "it led the survivors and was cut off");
        break;
    case DDL__CAUSE_LOST_BY_TWO:
        snprintf(text, DDL__CAUSE, "%s and %s have lost it", h->names[cause->by],
                 h->names[cause->other]);
        break;
    case DDL__CAUSE_NOT_CONNECTED:
        snprintf(text, DDL__CAUSE, "it did not connect to %s after the comm had died", self);
        break;
    case DDL__CAUSE_NOT_REACHED:
        snprintf(text, DDL__CAUSE, "%s cannot reach it: %s", self, cause->text);
        break;
    case DDL__CAUSE_HOST_UNREACHABLE:
        snprintf(text, DDL__CAUSE, "its host cannot be reached, and %s has lost it",
                 h->names[cause->by]);
        break;
    case DDL__CAUSE_LINK_ENDED:
        snprintf(text, DDL__CAUSE, "its connection with %s ended", self);
        break;
    case DDL__CAUSE_LINK_UNREACHABLE: snprintf(text, DDL__CAUSE, "%s cannot reach it", self); break;
    }
}

static void member_died(void *context, int rank, const ddl__cause *cause)
{
    ddl__health *h = context;
    describe(h, rank, cause, h->members[rank].cause);
    if (cause->kind == DDL__CAUSE_CONFIRMED)
        ddl__log(DDL__INFO, "%s: a witness reports that the process of %s has ended",
                 h->names[h->rank], h->names[rank]);
    else if (cause->kind != DDL__CAUSE_LEFT_OUT)
        ddl__log(DDL__INFO, "%s: %s is dead: %s", h->names[h->rank], h->names[rank],
                 h->members[rank].cause);
    pthread_cond_broadcast(&h->detector->changed);
    pthread_cond_broadcast(&h->detector->died);
}

static void member_left(void *context, int rank)
{
    ddl__health *h = context;
    describe(h, rank, &(ddl__cause){.kind = DDL__CAUSE_LEFT}, h->members[rank].cause);
    ddl__first_use_gone(h->config.first_use, rank, DDL__LINK_LEFT);
    if (h->config.first_use)
        ddl__engine_wake(h->engine);
    pthread_cond_broadcast(&h->detector->died);
}

static void watch_operations(void *context, int rank)
{
    ddl__health *h = context;
    ddl__first_use_gone(h->config.first_use, rank, DDL__LINK_LOST);
    ddl__grace_start(h, rank);
}

static void end_comm(void *context, const ddl__comm_end *end)
{
    ddl__health *h = context;
    char *own_cause = h->members[h->rank].cause;
    const char *self = h->names[h->rank], *name = h->names[end->rank];
    switch (end->kind) {
    case DDL__END_DEAD:
        ddl__health_end(h, DDL_EPEER, "%s is dead: %s", name, h->members[end->rank].cause);
        break;
    case DDL__END_EXPELLED:
        snprintf(own_cause, DDL__CAUSE, "expelled by %s: %s", name, end->text);
        ddl__health_end(h, DDL_EPEER, "%s was %s", self, own_cause);
        break;
    case DDL__END_GIVEN_UP:
        ddl__health_end(h, DDL_EPEER, "%s was expelled by %s: %s", self, name, end->text);
        break;
    case DDL__END_LOST: /* `name` has declared this rank dead, and continues without it */
        if (end->state == DDL__SILENT && !end->silent_ms)
            ddl__health_end(h, DDL_EPEER, "%s cannot be reached by %s", self, name);
        else if (end->state == DDL__SILENT)
            ddl__health_end(h, DDL_EPEER, "%s counts as dead for %s: silent for %.1f s", self, name,
                            end->silent_ms * 1e-3);
        else
            ddl__health_end(h, DDL_EPEER, "%s counts as dead for %s: their connection ended", self,
                            name);
        break;
    case DDL__END_SHRINKS: ddl__health_end(h, DDL_EPEER, "%s shrinks the comm", name); break;
    }
}

static void continues(void *context, uint32_t attempt)
{
    const ddl__health *h = context;
    ddl__witness_continues(h->detector->witness, &h->config.comm, attempt);
}

static bool has_late_pairs(void *context, int rank)
{
    const ddl__health *h = context;
    const ddl__address *addresses = h->config.addresses;
    for (int i = 0; i < h->size; i++)
        if (i != rank && !ddl__are_connected_early(addresses, h->size, h->config.kinds, i, rank))
            return true;
    return false;
}

static uint64_t find_network(void *context, int rank)
{
    const ddl__health *h = context;
    return h->config.addresses[rank].network;
}

const ddl__member_ports ddl__health_ports = {.send = send_message,
                                             .send_gone = send_gone,
                                             .died = member_died,
                                             .left = member_left,
                                             .watch = watch_operations,
                                             .end = end_comm,
                                             .continues = continues,
                                             .has_late_pairs = has_late_pairs,
                                             .network = find_network};
