/* SPDX-License-Identifier: Apache-2.0 */
/* lanes.c - long spans over several connections.
 *
 * The sender chooses a lane for a chunk only when the chunk can be sent. It chooses the lane that
 * will deliver the chunk first, estimated from the lane's unacknowledged bytes and from the rate at
 * which earlier bytes were acknowledged. If this lane is full, the sender waits for it only if all
 * others would take far longer, because a chunk on a slow lane delays all data behind it. The send
 * buffers of lanes are small, so that no data waits for long in the buffer of a slow lane. */
#include <errno.h>
#include <linux/sockios.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/time_limits.h"
#include "net/tcp/tcp_link.h"

enum {
    STRETCH = 256 << 10, /* minimum bytes of one measurement */
    FAR = 4 /* a lane that needs this many times as long as the first one to deliver is not used */
};

/* The longest measurement, and the time for which a rate is valid while the lane is idle. */
static const int64_t STRETCH_NS = 20000000, FORGET_NS = 200000000;

/* -------------------------------------------------------------------------------------- sending */

static ddl__long_span *long_at(ddl__tcp_link *l, unsigned i)
{
    return &l->buffers->long_spans[(l->first_long + i) % DDL__TCP_QUEUE];
}

void ddl__lanes_append(ddl__tcp_link *l, const void *payload, size_t bytes, atomic_uint *users)
{
    *long_at(l, l->n_long++) = (ddl__long_span){.payload = payload,
                                                .bytes = bytes,
                                                .unsent = bytes,
                                                .number = l->long_sent++,
                                                .users = users};
}

void ddl__lanes_drop(ddl__tcp_link *l)
{
    while (l->n_long)
        ddl__slot_leave(long_at(l, --l->n_long)->users);
    for (unsigned i = 0; i < l->n_lanes; i++)
        l->lanes[i].span = NULL;
}

void ddl__lanes_shut(ddl__tcp_link *l)
{
    for (unsigned i = 0; i < l->n_lanes; i++) {
        ddl__seal_drop(l->lanes[i].seal);
        shutdown(l->lanes[i].fd, SHUT_WR);
    }
}

/* Return the number of sent bytes that the peer has not acknowledged. The kernel's number may be
 * inexact, but is not 0 while there are any. */
static uint64_t unacknowledged(const ddl__lane *lane)
{
    int bytes = 0;
    return ioctl(lane->fd, SIOCOUTQ, &bytes) || bytes < 0 ? 0 : (uint64_t)bytes;
}

/* Measure the rate of the lane. A measurement covers many packets. If the lane was idle during it,
 * the result is only a lower bound of the rate. */
static void lane_measure(ddl__lane *lane, uint64_t waiting, int64_t now)
{
    uint64_t acknowledged = lane->given > waiting ? lane->given - waiting : 0;
    uint64_t bytes = acknowledged - lane->acknowledged;
    int64_t since = now - lane->looked;
    bool idle = !waiting || !lane->busy;
    if (!idle && bytes < STRETCH && since < STRETCH_NS)
        return;
    double seen = since > 0 ? 1e9 * (double)bytes / (double)since : 0;
    if (!idle)
        lane->rate = lane->rate > 0 ? (lane->rate + seen) / 2 : seen;
    else if (lane->busy && bytes && seen > lane->rate && lane->rate > 0)
        lane->rate = seen;
    else if (!lane->busy && since > FORGET_NS)
        lane->rate = 0;
    if (waiting || lane->busy || !lane->rate) {
        lane->acknowledged = acknowledged;
        lane->looked = now;
        lane->busy = waiting;
    }
}

/* Return the lane that will deliver a chunk first. A lane without a known rate counts as the
 * fastest. Return NULL if that lane is full and all others would take far longer. */
static ddl__lane *lane_choose(ddl__tcp_link *l)
{
    uint64_t waiting[DDL__LANES_MAX];
    double time[DDL__LANES_MAX], fastest = 0, soonest = 0;
    int64_t now = ddl__now();
    ddl__lane *best = NULL;
    for (unsigned i = 0; i < l->n_lanes; i++) {
        ddl__lane *lane = &l->lanes[i];
        waiting[i] = unacknowledged(lane);
        lane_measure(lane, waiting[i], now);
        if (lane->span)
            waiting[i] += sizeof lane->out + lane->out.bytes - lane->sent;
        fastest = lane->rate > fastest ? lane->rate : fastest;
    }
    for (unsigned i = 0; i < l->n_lanes; i++) {
        double rate = l->lanes[i].rate > 0 ? l->lanes[i].rate : fastest > 0 ? fastest : 1;
        time[i] = (double)(waiting[i] + DDL__CHUNK) / rate;
        soonest = i == 0 || time[i] < soonest ? time[i] : soonest;
    }
    double least = FAR * soonest;
    for (unsigned i = 0; i < l->n_lanes; i++)
        if (!l->lanes[i].span && time[i] < least) {
            best = &l->lanes[i];
            least = time[i];
        }
    return best;
}

static void lane_assign(ddl__lane *lane, ddl__long_span *span)
{
    size_t left = span->bytes - span->cut;
    lane->span = span;
    lane->payload = span->payload + span->cut;
    lane->out = (ddl__tcp_header){.type = DDL__TCP_CHUNK,
                                  .bytes = (uint32_t)(left < DDL__CHUNK ? left : DDL__CHUNK),
                                  .signature = {{span->number, span->cut}}};
    lane->sent = 0;
    span->cut += lane->out.bytes;
}

/* Finish the current chunk after all its bytes were sent, and release the long spans that are sent
 * completely. */
static void lane_finish(ddl__tcp_link *l, ddl__lane *lane)
{
    lane->span->unsent -= lane->out.bytes;
    lane->span = NULL;
    while (l->n_long && !long_at(l, 0)->unsent) {
        ddl__slot_leave(long_at(l, 0)->users);
        l->first_long = (l->first_long + 1) % DDL__TCP_QUEUE;
        l->n_long--;
    }
}

/* Fail the link after a send error. A full socket (EAGAIN) is not an error. */
static void lane_stop(ddl__tcp_link *l, const ddl__lane *lane)
{
    if (errno == EAGAIN || errno == EWOULDBLOCK)
        return;
    l->error = errno;
    l->failed_lane = lane->name;
    ddl__tcp_drop(l, l->sent ? 1 : 0);
    ddl__lanes_shut(l);
}

/* Continue the current chunk. Return false if the lane is full or has failed. */
static bool lane_push(ddl__tcp_link *l, ddl__lane *lane)
{
    while (lane->span) {
        struct iovec pieces[2];
        struct msghdr message = {.msg_iov = pieces};
        size_t skip = lane->sent;
        ddl__piece_add(pieces, &message.msg_iovlen, &lane->out, sizeof lane->out, &skip);
        ddl__piece_add(pieces, &message.msg_iovlen, lane->payload, lane->out.bytes, &skip);
        ssize_t k = ddl__seal_send(lane->seal, lane->fd, &message);
        if (k >= 0) {
            lane->sent += (size_t)k;
            lane->given += (uint64_t)k;
            if (lane->sent == sizeof lane->out + lane->out.bytes)
                lane_finish(l, lane);
        } else if (errno != EINTR) {
            lane_stop(l, lane);
            return false;
        }
    }
    if (lane->seal && !ddl__seal_flush(lane->seal, lane->fd)) {
        lane_stop(l, lane);
        return false;
    }
    return true;
}

/* Return the oldest long span with bytes that no lane has, or NULL. */
static ddl__long_span *next_to_cut(ddl__tcp_link *l)
{
    for (unsigned i = 0; i < l->n_long; i++)
        if (long_at(l, i)->cut < long_at(l, i)->bytes)
            return long_at(l, i);
    return NULL;
}

void ddl__lanes_push(ddl__tcp_link *l)
{
    ddl__long_span *span;
    for (unsigned i = 0; i < l->n_lanes; i++)
        lane_push(l, &l->lanes[i]);
    while ((span = next_to_cut(l))) {
        ddl__lane *lane = lane_choose(l);
        if (!lane)
            return;
        lane_assign(lane, span);
        lane_push(l, lane);
    }
}

/* ------------------------------------------------------------------------------------ receiving */

/* Record the loss of a connection, to be reported after `delay`. error 0: the peer closed the
 * connection. */
static void note_loss(ddl__tcp_link *l, const char *name, int error, int64_t delay)
{
    char words[sizeof l->buffers->lost_why - DDL__LANE_NAME];
    if (l->lost_at)
        return;
    l->lost_at = ddl__now() + delay;
    snprintf(l->buffers->lost_why, sizeof l->buffers->lost_why, "%s%s%s", name, name[0] ? ": " : "",
             error ? ddl__seal_error(error, words, sizeof words)
                   : "the peer closed the connection within a span");
}

void ddl__lanes_fail(ddl__tcp_link *l, const char *name, int error)
{
    note_loss(l, name, error, DDL__LANE_REASON_LIMIT);
}

/* Handle an error of a lane. If the peer is alive, it has noticed the failure, too, and may know
 * the cause, so wait for the reason that it sends. */
static void lane_break(ddl__tcp_link *l, ddl__lane *lane, int error)
{
    l->broken = true;
    note_loss(l, lane->name, error, 2 * DDL__LANE_REASON_LIMIT);
}

/* Handle the end of a lane. A lane may end after its last chunk. It is an error if all lanes have
 * ended while bytes are missing. */
static void lane_end(ddl__tcp_link *l, ddl__lane *lane)
{
    bool all = true;
    lane->ended = true;
    for (unsigned i = 0; i < l->n_lanes; i++)
        all = all && l->lanes[i].ended;
    if (l->missing && (all || lane->left || lane->got))
        lane_break(l, lane, 0);
}

/* Handle a received chunk header. Return true if the chunk belongs to the current long span; its
 * destination is then set. */
static bool chunk_place(ddl__tcp_link *l, ddl__lane *lane, char *into, size_t bytes)
{
    uint64_t number = lane->in.signature.words[0], offset = lane->in.signature.words[1];
    uint32_t n = lane->in.bytes;
    if (lane->in.type == DDL__TCP_CHUNK && number > l->long_received)
        return false;
    if (lane->in.type != DDL__TCP_CHUNK || number != l->long_received || !n || offset > bytes ||
        n > bytes - offset || n > l->unplaced) {
        ddl__tcp_lose(l, lane->name, "the received bytes are not a libddl frame");
        return false;
    }
    l->unplaced -= n;
    lane->place = into + offset;
    lane->left = n;
    lane->got = 0;
    return true;
}

/* Receive the rest of a chunk and the next header. Return false if no more can be received now. */
static bool lane_receive(ddl__tcp_link *l, ddl__lane *lane, char *into, size_t bytes)
{
    if (lane->got == sizeof lane->in && !lane->left && !chunk_place(l, lane, into, bytes))
        return false;
    struct iovec pieces[2] = {{lane->place, lane->left},
                              {(char *)&lane->in + lane->got, sizeof lane->in - lane->got}};
    struct msghdr message = {.msg_iov = pieces + !lane->left, .msg_iovlen = 1 + !!lane->left};
    size_t want = pieces[0].iov_len + pieces[1].iov_len;
    ssize_t k = ddl__seal_recv(lane->seal, lane->fd, &message);
    if (k > 0) {
        size_t paid = (size_t)k < lane->left ? (size_t)k : lane->left;
        if (paid)
            lane->place += paid;
        lane->left -= paid;
        lane->got += (size_t)k - paid;
        l->missing -= paid;
        return (size_t)k == want || lane->event;
    }
    if (k == 0)
        lane_end(l, lane);
    else if (errno == EAGAIN || errno == EWOULDBLOCK)
        lane->event = false;
    else if (errno == EINTR)
        return true;
    else
        lane_break(l, lane, errno);
    return false;
}

bool ddl__lanes_receive(ddl__tcp_link *l, void *into, size_t bytes)
{
    for (unsigned i = 0; i < l->n_lanes && l->missing; i++)
        while (l->missing && !l->broken && l->base.state == DDL__LINK_OPEN && !l->lanes[i].ended &&
               lane_receive(l, &l->lanes[i], into, bytes))
            ;
    return !l->missing;
}
