/* SPDX-License-Identifier: Apache-2.0 */
/* Design notes.
 *
 * In a sparse comm most members have no connection to a given one, so they hear of it from others.
 * What is told once is passed on to the neighbours (connect/neighbours.h) by each rank that hears
 * it for the first time; neighbours are at least four, and the farthest ranks are log2(n) hops
 * apart. In other comms all members hear the same from the member itself, and little is passed on.
 *
 * - DEAD, CONFIRM and EXPELLED, as in every comm, are passed on.
 * - LOST: a rank counts another one as dead by evidence of its own. The word of one rank proves
 *   little, since its own network may be broken. Members that have no connection to the lost one
 *   believe two ranks, of two hosts or of its own host. Of the rank that is to lead the agreement
 * they find out themselves, by dialing it (late_control.c), since ranks with different leaders
 * would wait for each other. Only a rank's own evidence counts as its accusation in the agreement.
 * - GONE: members that have left, with the next heartbeats, in one message for all.
 * - A heartbeat carries the two members that are furthest behind the sender, so that a rank that
 *   waits can name them. What is said of a member ages, and counts for a few seconds: its
 *   neighbours say it anew as long as it is so.
 *
 * Everything here runs under the detector's lock. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/time_limits.h"
#include "connect/neighbours.h"
#include "health/health_state.h"

bool ddl__gossip_reaches(const ddl__health *h, int rank)
{
    return h->n_late ? ddl__are_neighbours(h->rank, rank, h->size) : !ddl__member_is_far(h, rank);
}

void ddl__gossip_pass_on(ddl__health *h, int from, ddl__control_msg message, const void *content,
                         size_t bytes)
{
    if (!ddl__is_sparse(h->size))
        return;
    for (int i = 0; i < h->size; i++)
        if (i != h->rank && i != from && h->members[i].fate == DDL__ALIVE &&
            ddl__gossip_reaches(h, i))
            ddl__control_conn_send(&h->members[i].conn, message, content, bytes);
}

/* Whether some members have no connection to this one. */
static bool has_late_pairs(const ddl__health *h, int rank)
{
    const ddl__address *addresses = h->config.addresses;
    for (int i = 0; ddl__is_sparse(h->size) && i < h->size; i++)
        if (i != rank && !ddl__are_connected_early(addresses, h->size, h->config.kinds, i, rank))
            return true;
    return false;
}

/* Whether the one is behind the other; ended is further than not ended. Sequences wrap. */
static bool is_behind(const ddl__position *one, const ddl__position *other)
{
    uint32_t a = (uint32_t)(one->last.words[0] >> 32), b = (uint32_t)(other->last.words[0] >> 32);
    return a == b ? one->ended < other->ended : (int32_t)(a - b) < 0;
}

/* --------------------------------------------------------------------------------------- deaths */

/* The content of DDL__LOST. */
typedef struct loss {
    int32_t rank, by;
    int32_t fate;
    uint32_t silent_ms;
} loss;

void ddl__gossip_lost(ddl__health *h, int rank)
{
    const ddl__member *member = &h->members[rank];
    loss l = {rank, h->rank, (int32_t)member->fate, (uint32_t)(member->silent_ns / DDL__MS)};
    if (has_late_pairs(h, rank))
        ddl__health_broadcast(h, DDL__LOST, &l, sizeof l);
}

/* Another rank counts this one as dead, and goes on without it. */
static void receive_own_loss(ddl__health *h, const loss *l)
{
    ddl__member_mark_gone_on(h, l->by);
    const char *self = h->names[h->rank], *by = h->names[l->by];
    if (l->fate == DDL__SILENT && !l->silent_ms) /* its DEAD, which says why, is on its way */
        ddl__health_end(h, DDL_EPEER, "%s cannot be reached by %s", self, by);
    else if (l->fate == DDL__SILENT)
        ddl__health_end(h, DDL_EPEER, "%s counts as dead for %s: silent for %.1f s", self, by,
                        l->silent_ms * 1e-3);
    else
        ddl__health_end(h, DDL_EPEER, "%s counts as dead for %s: their connection ended", self, by);
}

/* Whether what two ranks say of a third one is more than one broken network between two hosts. */
static bool is_sufficient(const ddl__health *h, int one, int other, int rank)
{
    uint64_t a = h->config.addresses[one].network, b = h->config.addresses[other].network;
    return a != b || !a || a == h->config.addresses[rank].network;
}

/* Note the first reporter, and then the first one that makes it sufficient. False if it is not
 * news. */
static bool add_reporter(const ddl__health *h, ddl__member *member, const loss *l)
{
    if (member->n_reporters && ddl__member_is_dead(h, member->reporters[0]))
        member->n_reporters = 0;
    if (member->n_reporters == 0 || (member->n_reporters == 1 && member->reporters[0] != l->by &&
                                     is_sufficient(h, member->reporters[0], l->by, l->rank))) {
        member->reporters[member->n_reporters++] = l->by;
        member->reported_silent = member->reported_silent || l->fate == DDL__SILENT;
        return true;
    }
    return false;
}

static bool loss_is_valid(const ddl__health *h, const loss *l)
{
    return l->rank >= 0 && l->rank < h->size && l->by >= 0 && l->by < h->size && l->by != h->rank &&
           l->by != l->rank &&
           (l->fate == DDL__KILLED || l->fate == DDL__DISCONNECTED || l->fate == DDL__SILENT);
}

void ddl__gossip_receive_lost(ddl__health *h, int from, const unsigned char *content, size_t bytes)
{
    loss l;
    if (bytes != sizeof l)
        return;
    memcpy(&l, content, sizeof l);
    /* What is said by ranks that count as dead is said by the other side of a broken network. */
    if (!loss_is_valid(h, &l) || ddl__member_is_dead(h, from) || ddl__member_is_dead(h, l.by))
        return;
    if (h->members[l.by].conn.fd < 0)
        h->members[l.by].silent_ns = 0; /* it is alive */
    if (l.rank == h->rank) {
        receive_own_loss(h, &l);
        return;
    }
    ddl__member *member = &h->members[l.rank];
    if (member->fate == DDL__LEFT || !add_reporter(h, member, &l))
        return;
    ddl__gossip_pass_on(h, from, DDL__LOST, content, bytes);
    if (member->fate != DDL__ALIVE || member->conn.fd >= 0 || member->n_reporters < 2 ||
        l.rank == ddl__health_lowest_alive(h))
        return;
    member->by_report = true;
    ddl__member_mark_dead(h, l.rank, member->reported_silent ? DDL__SILENT : DDL__DISCONNECTED,
                          "%s and %s have lost it", h->names[member->reporters[0]],
                          h->names[member->reporters[1]]);
    ddl__member_start_grace(h, l.rank);
}

/* -------------------------------------------------------------------------------------- leaving */

/* One member of DDL__GONE. */
typedef struct departure {
    int32_t rank;
    uint32_t joined; /* the last attempt of an agreement that it has joined: it may have gone on */
    ddl__position position;
} departure;

enum { DEPARTURES = DDL__CONTROL_MSG_MAX / sizeof(departure) };

void ddl__gossip_left(ddl__health *h, int rank)
{
    if (!has_late_pairs(h, rank))
        return;
    if (!h->gone)
        h->gone = calloc((size_t)h->size, sizeof *h->gone);
    if (h->gone) /* a rank leaves once */
        h->gone[h->n_gone++] = rank;
}

/* Tell one member, or all that are connected (-1), that these have left. */
static void tell_gone(ddl__health *h, int to, const int *ranks, int n)
{
    departure all[DEPARTURES];
    for (int at = 0, count; at < n; at += count) {
        count = n - at < DEPARTURES ? n - at : DEPARTURES;
        memset(all, 0, (size_t)count * sizeof *all);
        for (int i = 0; i < count; i++) {
            all[i].rank = ranks[at + i];
            all[i].joined = h->members[ranks[at + i]].joined;
            all[i].position = h->members[ranks[at + i]].position;
        }
        size_t bytes = (size_t)count * sizeof *all;
        if (to < 0)
            ddl__health_broadcast(h, DDL__GONE, all, bytes);
        else
            ddl__control_conn_send(&h->members[to].conn, DDL__GONE, all, bytes);
    }
}

void ddl__gossip_tell_gone(ddl__health *h)
{
    tell_gone(h, -1, h->gone, h->n_gone);
    h->n_gone = 0;
}

void ddl__gossip_tell_all_gone(ddl__health *h, int to)
{
    for (int i = 0; i < h->size; i++)
        if (h->members[i].fate == DDL__LEFT)
            tell_gone(h, to, &i, 1);
}

void ddl__gossip_receive_gone(ddl__health *h, const unsigned char *content, size_t bytes)
{
    departure d;
    for (; bytes >= sizeof d; content += sizeof d, bytes -= sizeof d) {
        memcpy(&d, content, sizeof d);
        if (d.rank < 0 || d.rank >= h->size || d.rank == h->rank)
            continue;
        ddl__member *member = &h->members[d.rank];
        if (member->fate != DDL__ALIVE || member->conn.fd >= 0)
            continue;
        member->joined = d.joined > member->joined ? d.joined : member->joined;
        member->position = d.position;
        member->position_at = ddl__now();
        ddl__member_leave(h, d.rank);
    }
}

/* ------------------------------------------------------------------------------------ positions */

bool ddl__gossip_knows_position(const ddl__health *h, int rank)
{
    const ddl__member *member = &h->members[rank];
    return member->conn.fd >= 0 || ddl__now() - member->position_at < h->position_limit;
}

size_t ddl__gossip_make_beat(const ddl__health *h, int64_t now, ddl__beat *beat)
{
    int furthest[DDL__BEHIND_MAX], n = 0;
    *beat = (ddl__beat){.position = ddl__health_position(h, now)};
    for (int i = 0; ddl__is_sparse(h->size) && i < h->size; i++) {
        const ddl__member *member = &h->members[i];
        if (i == h->rank || member->fate != DDL__ALIVE ||
            (member->conn.fd < 0 && now - member->position_at >= h->position_limit) ||
            !is_behind(&member->position, &beat->position))
            continue;
        int at = n < DDL__BEHIND_MAX ? n++ : n;
        for (; at > 0 && is_behind(&member->position, &h->members[furthest[at - 1]].position); at--)
            if (at < DDL__BEHIND_MAX)
                furthest[at] = furthest[at - 1];
        if (at < DDL__BEHIND_MAX)
            furthest[at] = i;
    }
    for (int i = 0; i < n; i++) {
        const ddl__member *member = &h->members[furthest[i]];
        beat->behind[i].rank = furthest[i];
        /* A neighbour that is silent is where it was. */
        int64_t age = member->conn.fd < 0 ? now - member->position_at : 0;
        beat->behind[i].age_ms = (uint32_t)(age / DDL__MS);
        beat->behind[i].position = member->position;
    }
    return offsetof(ddl__beat, behind) + (size_t)n * sizeof *beat->behind;
}

void ddl__gossip_receive_beat(ddl__health *h, int from, const unsigned char *content, size_t bytes)
{
    ddl__beat beat = {0};
    size_t own = offsetof(ddl__beat, behind);
    if (bytes < own || bytes > sizeof beat || (bytes - own) % sizeof *beat.behind)
        return;
    memcpy(&beat, content, bytes);
    int64_t now = ddl__now();
    h->members[from].position = beat.position;
    h->members[from].position_at = now;
    int n = (int)((bytes - own) / sizeof *beat.behind);
    for (int i = 0; i < n; i++) {
        struct ddl__behind *said = &beat.behind[i];
        int64_t at = now - (int64_t)said->age_ms * DDL__MS;
        if (said->rank < 0 || said->rank >= h->size || said->rank == h->rank)
            continue;
        ddl__member *member = &h->members[said->rank];
        /* Ages leave out how long a message waits, so an older position may seem newer. */
        if (member->fate != DDL__ALIVE || member->conn.fd >= 0 || at <= member->position_at ||
            is_behind(&said->position, &member->position))
            continue;
        member->position = said->position;
        member->position_at = at;
    }
}
