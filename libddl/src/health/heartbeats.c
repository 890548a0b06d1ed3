/* SPDX-License-Identifier: Apache-2.0 */
/* Sends heartbeats, reads the messages that have arrived, and measures the silence of members. Near
 * members (membership/graph.h) exchange heartbeats at every beat, other members every far_beats
 * beats. Silence counts from the time at which the next message is due, so near members detect a
 * silent member first and report it to all others. The intervals stay the same when the comm is
 * dead: every message then wakes a thread, so frequent heartbeats between all pairs would slow down
 * the creation of the next comm.
 *
 * The connections of a large comm have a separate epoll set, which is read at every beat. It shows
 * which connections have data. Heartbeats still wake no thread. */
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>

#include "base/clock.h"
#include "base/forks.h"
#include "base/log.h"
#include "base/test_points.h"
#include "base/time_limits.h"
#include "health/health_state.h"
#include "membership/graph.h"

enum { EVENTS = 64 };

ddl__position ddl__health_position(const ddl__health *h, int64_t now)
{
    ddl__position position = {{{0, 0}}, 0, 0};
    ddl__record last;
    if (!ddl__record_last(ddl__engine_recorder(h->engine), &last))
        return position;
    position.last = last.signature;
    if (last.ended)
        position.ended = last.status == DDL_OK ? DDL__ENDED_OK : DDL__ENDED_FAILED;
    if (!last.ended)
        position.waiting_ms = (uint32_t)((now - last.submitted) / 1000000);
    return position;
}

/* Return the number of beats from one heartbeat of this pair to the next. */
static int member_beats(const ddl__health *h, int rank)
{
    if (!ddl__member_is_far(h->membership, rank))
        return 1;
    bool few = ddl__is_sparse(h->size) && ddl__are_neighbours(h->rank, rank, h->size);
    return few ? h->neighbour_beats : h->membership->far_beats;
}

/* Return the time that may pass until this member's next message is due. It does not count as
 * silence. */
static int64_t member_interval(const ddl__health *h, int rank)
{
    return (member_beats(h, rank) - 1) * h->limits.heartbeat;
}

void ddl__health_poll_eagerly(ddl__health *h)
{
    if (h->eager)
        return;
    h->eager = true;
    for (int i = 0; i < h->size; i++)
        ddl__member_register(h, i, EPOLL_CTL_MOD);
}

static void member_check_silence(ddl__health *h, int rank, int64_t elapsed)
{
    ddl__member *member = &h->members[rank];
    int64_t interval = member_interval(h, rank);
    bool dead = ddl__member_check_silence(h->membership, rank, elapsed, interval, ddl__now());
    if (dead || member->suspect || member->peer->silent_ns - interval < h->limits.suspect)
        return;
    member->suspect = true;
    ddl__log(DDL__WARN, "%s: %s has been silent for %.1f s", h->names[h->rank], h->names[rank],
             (double)member->peer->silent_ns * 1e-9);
}

/* Read the messages that have arrived since the last beat. */
static void read_arrivals(ddl__health *h)
{
    struct epoll_event events[EVENTS];
    int n = h->arrivals < 0 ? 0 : EVENTS;
    for (int i = 0; h->arrivals < 0 && i < h->size; i++)
        ddl__member_poll(h, i);
    for (int left = h->size; n == EVENTS && left > 0; left -= n) {
        n = epoll_wait(h->arrivals, events, EVENTS, 0);
        for (int i = 0; i < n; i++)
            ddl__member_poll(h, events[i].data.fd);
    }
}

/* Return true if this pair exchanges heartbeats at this beat. Both members get the same result for
 * the same number of beats since their first one. */
static bool has_turn(const ddl__health *h, int rank)
{
    unsigned turn = h->beats + (unsigned)h->rank + (unsigned)rank;
    return !h->beats || turn % (unsigned)member_beats(h, rank) == 0;
}

void ddl__heartbeats_send(ddl__health *h, int64_t now)
{
    (void)DDL__TEST_POINT(DDL__AT_BEAT, h);
    /* The time during which this process was stopped does not count as the silence of other
     * members. */
    int64_t elapsed = now - h->last_beat, most = 2 * h->limits.heartbeat;
    h->last_beat = now;
    h->next_beat = now + h->limits.heartbeat;
    elapsed = elapsed < most ? elapsed : most;
    read_arrivals(h);
    ddl__gossip_send_gone(h->membership);
    ddl__beat own; /* created after reading, so that it is not older than the messages sent above */
    size_t bytes = ddl__beat_make(h, now, &own);
    for (int i = 0; i < h->size; i++) {
        ddl__member *member = &h->members[i];
        if (member->conn.fd < 0) {
            ddl__leader_check_silence(h->membership, i, elapsed, now);
            ddl__member_check_confirmed(h->membership, i, now);
            continue;
        }
        bool has_room = ddl__control_conn_flush(&member->conn);
        if (member->peer->state != DDL__ALIVE) /* the last message may still be queued */
            continue;
        /* Before the creation's deadline the member may not monitor this rank yet. */
        if (!member->heard_since_beat && (member->ever_heard || now >= h->config.deadline))
            member_check_silence(h, i, elapsed);
        member->heard_since_beat = false;
        if (has_room && has_turn(h, i)) {
            (void)DDL__TEST_POINT(DDL__AT_HEARTBEAT, member);
            ddl__control_conn_send(&member->conn, DDL__HEARTBEAT, &own, bytes);
        }
    }
    h->beats++;
}

void ddl__heartbeats_add(ddl__health *h, int rank)
{
    struct epoll_event event = {.events = EPOLLIN, .data.fd = rank};
    int fd = h->members[rank].conn.fd;
    if (h->arrivals >= 0 && fd >= 0)
        epoll_ctl(h->arrivals, EPOLL_CTL_ADD, fd, &event);
}

/* Create the epoll set of all connections. Without a descriptor for it, they are read one by one.
 */
static void watch_arrivals(ddl__health *h)
{
    h->arrivals = ddl__guard(epoll_create1(EPOLL_CLOEXEC));
    for (int i = 0; i < h->size; i++)
        ddl__heartbeats_add(h, i);
}

void ddl__heartbeats_start(ddl__health *h, int64_t now)
{
    h->last_beat = now;
    ddl__membership *m = h->membership;
    m->far_beats = ddl__far_beats(h->size, h->limits.heartbeat);
    int neighbours = ddl__neighbours_most(h->size);
    h->neighbour_beats = ddl__far_beats(neighbours + 1, h->limits.heartbeat);
    int64_t spread = (neighbours / 2 + 2) * h->neighbour_beats * h->limits.heartbeat;
    h->position_limit = spread > DDL__POSITION_LIMIT ? spread : DDL__POSITION_LIMIT;
    m->position_limit = h->position_limit;
    if (m->far_beats > 1)
        watch_arrivals(h);
    ddl__heartbeats_send(h, now);
}
