/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the events that can happen next. */
#include "explore/creation/world.h"

static bool is_waiting(const world *w, int rank, int peer)
{
    const node *n = &w->nodes[rank];
    for (int i = 0; i < PARKED; i++)
        if (n->parked[peer][i].kind && n->parked[peer][i].family == n->family &&
            n->parked[peer][i].number == n->creation.number)
            return true;
    return false;
}

static bool happens_at_once(const model *m, const world *w, event e)
{
    const node *n = &w->nodes[e.a];
    switch (e.type) {
    case DELIVER:
        return n->phase != DEAD && e.which < w->channels[e.a][e.b].length &&
               is_next(&w->channels[e.a][e.b], e.which);
    case CALL: return n->phase == IDLE;
    case ACCEPT:
        return n->phase == CONNECTING && !n->creation.doubted_until && e.b > e.a &&
               is_waiting(w, e.a, e.b);
    case CHECK:
        return (n->phase == CONNECTING || (creates(n) && n->creation.doubted_until)) &&
               check_is_due(m, w, e.a);
    case LEAVE: return n->phase == HAS;
    case KNOW: return w->failed && !n->knows && n->phase != DEAD;
    default: return false;
    }
}

static bool is_busy(const model *m, const world *w)
{
    for (int type = 0; type < GIVE_UP; type++)
        for (int a = 0; a < m->n; a++)
            for (int b = 0; b < (is_of_pairs(type) ? m->n : 1); b++)
                for (int i = 0; i < (type == DELIVER ? w->channels[a][b].length : 1); i++)
                    if (happens_at_once(m, w,
                                        (event){(unsigned char)type, (unsigned char)a,
                                                (unsigned char)b, (unsigned char)i}))
                        return true;
    return false;
}

/* True if a member that this one needs is in another call, or makes none any more. A lower one that
 * has destroyed the parent has closed this one's connection. */
static bool waits_for_another_call(const model *m, const world *w, int rank)
{
    const node *n = &w->nodes[rank];
    for (int b = 0; b < m->n; b++) {
        const node *other = &w->nodes[b];
        if (b != rank && is_listed(m, n->family, b) &&
            ((other->phase == ENDED && b > rank) || other->phase == DONE || other->phase == DEAD ||
             (creates(other) && (other->family != n->family || other->call != n->call))))
            return true;
    }
    return false;
}

bool world_allows(const model *m, const world *w, event e)
{
    const node *n = &w->nodes[e.a];
    if (e.type < GIVE_UP)
        return happens_at_once(m, w, e);
    if (e.type >= NATURAL && w->faults >= m->faults)
        return false;
    switch (e.type) {
    case GIVE_UP: return creates(n) && n->creation.doubted_until > n->now && !is_busy(m, w);
    case TIME_UP: return creates(n) && !is_busy(m, w) && waits_for_another_call(m, w, e.a);
    case KILL: return n->phase != DEAD;
    case ABORT: return n->phase < ENDED && !n->knows;
    case ABORT_CHILD: return n->phase == HAS;
    case LATE: return creates(n);
    case REFUSE: return n->phase == CONNECTING && !n->creation.doubted_until;
    default: return false;
    }
}

int world_events(const model *m, const world *w, event *events, int capacity, bool faults)
{
    int n = 0;
    for (int type = 0; type < (faults ? TYPES : NATURAL); type++)
        for (int a = 0; a < m->n; a++)
            for (int b = 0; b < (is_of_pairs(type) ? m->n : 1); b++)
                for (int i = 0; i < (type == DELIVER ? w->channels[a][b].length : 1); i++) {
                    event e = {(unsigned char)type, (unsigned char)a, (unsigned char)b,
                               (unsigned char)i};
                    if ((is_of_pairs(type) && a == b) || n == capacity || !world_allows(m, w, e))
                        continue;
                    events[n++] = e;
                }
    return n;
}
