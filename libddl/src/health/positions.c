/* SPDX-License-Identifier: Apache-2.0 */
/* The members' last operations, which every heartbeat carries. In a sparse comm, a heartbeat also
 * carries the two members that are furthest behind the sender, so that a waiting rank can name
 * them. A reported position expires after a few seconds, unless the member's neighbours report it
 * again. Everything here runs under the detector's lock. */
#include <string.h>

#include "base/clock.h"
#include "base/time_limits.h"
#include "health/health_state.h"
#include "membership/graph.h"

/* Return true if position `one` is behind position `other`. Of two positions at the same operation,
 * the one that has ended it is ahead. Sequences wrap around. */
static bool is_behind(const ddl__position *one, const ddl__position *other)
{
    uint32_t a = (uint32_t)(one->last.words[0] >> 32), b = (uint32_t)(other->last.words[0] >> 32);
    return a == b ? one->ended < other->ended : (int32_t)(a - b) < 0;
}

bool ddl__position_is_known(const ddl__health *h, int rank)
{
    const ddl__member *member = &h->members[rank];
    return member->conn.fd >= 0 || ddl__now() - member->position_at < h->position_limit;
}

size_t ddl__beat_make(const ddl__health *h, int64_t now, ddl__beat *beat)
{
    int furthest[DDL__BEHIND_MAX], n = 0;
    *beat = (ddl__beat){.position = ddl__health_position(h, now)};
    for (int i = 0; ddl__is_sparse(h->size) && i < h->size; i++) {
        const ddl__member *member = &h->members[i];
        if (i == h->rank || member->peer->state != DDL__ALIVE ||
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
        /* A neighbour reports each change of its position to this rank, so its position does not
         * age. */
        int64_t age = member->conn.fd < 0 ? now - member->position_at : 0;
        beat->behind[i].age_ms = (uint32_t)(age / DDL__MS);
        beat->behind[i].position = member->position;
    }
    return offsetof(ddl__beat, behind) + (size_t)n * sizeof *beat->behind;
}

void ddl__beat_receive(ddl__health *h, int from, const unsigned char *content, size_t bytes)
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
        /* Ages do not include the time that a message waits, so an older position may seem newer.
         */
        if (member->peer->state != DDL__ALIVE || member->conn.fd >= 0 ||
            at <= member->position_at || is_behind(&said->position, &member->position))
            continue;
        member->position = said->position;
        member->position_at = at;
    }
}
