/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the events that can happen next. Each member's events are cached, and found again only
 * after an event that may change them. */
#include <stdio.h>
#include <stdlib.h>

#include "explore/world.h"

uint64_t receivable(const model *m, const world *w, int a)
{
    const node *n = &w->nodes[a];
    uint64_t all = n->pending & ~n->cut;
    for (uint64_t left = n->pending & n->cut; left; left &= left - 1) {
        int b = __builtin_ctzll(left);
        if (cells(m, w)[channel_of(m, w, a, b)->first].kind == RESET)
            all |= bit(b);
    }
    return all;
}

bool is_busy(const model *m, const world *w)
{
    for (int i = 0; i < m->n; i++)
        if (runs(&w->nodes[i]) && receivable(m, w, i))
            return true;
    return false;
}

uint64_t find_silent(const model *m, const world *w, int a)
{
    const node *n = &w->nodes[a];
    uint64_t found = 0, left = (w->stopped | n->cut) & ~receivable(m, w, a) & ~bit(a);
    for (; left; left &= left - 1) {
        const ddl__peer *peer = &machine(m, w, a)->peers[__builtin_ctzll(left)];
        if (peer->connected && peer->state == DDL__ALIVE)
            found |= left & -left;
    }
    return found;
}

bool is_silence_unreported(const model *m, const world *w)
{
    for (int i = 0; i < m->n; i++) {
        const node *n = &w->nodes[i];
        bool shrinks = n->phase == SHRINKING || n->phase == CREATING;
        if (!n->stopped &&
            ((n->phase == RUNNING && n->ended) || (shrinks && (n->dirty || find_silent(m, w, i)))))
            return true;
    }
    return false;
}

/* True if member b is at the creation of a, or has finished it, and the two can connect. */
static bool is_there(const world *w, int a, int b)
{
    const node *self = &w->nodes[a], *other = &w->nodes[b];
    return !is_cut(w, a, b) && other->attempt == self->attempt && other->list == self->list &&
           (other->phase == CREATING || other->created == self->attempt);
}

/* True if a's creation is in vain: a member of its list is not at that attempt, and has not created
 * its comm. */
static bool creation_fails(const model *m, const world *w, int a)
{
    const node *self = &w->nodes[a];
    if (ddl__agreement_lost(machine(m, w, a)) >= 0)
        return true;
    for (uint64_t left = self->list & ~bit(a); left; left &= left - 1) {
        int b = __builtin_ctzll(left);
        const node *other = &w->nodes[b];
        if (!is_there(w, a, b) &&
            (!is_open(other) || other->phase == FAILED || other->attempt > self->attempt ||
             is_cut(w, a, b) || (other->attempt == self->attempt && other->phase != CREATING)))
            return true;
    }
    return false;
}

bool creation_may_succeed(const world *w, int a)
{
    for (uint64_t left = w->nodes[a].list; left; left &= left - 1)
        if (!is_there(w, a, __builtin_ctzll(left)))
            return false;
    return true;
}

static bool is_first_of_host(const model *m, int a)
{
    for (int i = 0; i < a; i++)
        if (m->host[i] == m->host[a])
            return false;
    return true;
}

/* True if the member can connect to the leader now, and still may do so. */
static bool may_dial(const model *m, const world *w, int from, int leader)
{
    const node *n = &w->nodes[from];
    return runs(n) && n->phase != RETURNED && n->phase != FAILED && !is_cut(w, from, leader) &&
           ddl__is_alive(machine(m, w, from), leader);
}

/* Find the events of a sparse comm's agreement. */
static void find_late(const model *m, const world *w, int a, able *x)
{
    const ddl__membership *self = machine(m, w, a);
    if (!self->announced)
        return;
    int leader = ddl__lowest_alive(self);
    x->leads = leader == a;
    if (leader != a && !self->peers[leader].connected && !ddl__leader_is_unneeded(self)) {
        x->single |= 1u << DIAL;
        x->leader = (uint16_t)leader;
    }
    for (int b = 0; b < m->n; b++) {
        const ddl__peer *peer = &self->peers[b];
        if (leader == a && peer->late && !peer->connected && peer->state == DDL__ALIVE &&
            !may_dial(m, w, b, a))
            x->miss |= bit(b);
        if (peer->confirmed_at && !peer->confirmed)
            x->believe |= bit(b);
    }
}

/* Find the survivors that a cannot connect to. */
static uint64_t find_unreached(const model *m, const world *w, int a)
{
    uint64_t found = 0;
    for (uint64_t left = w->nodes[a].list & w->nodes[a].cut; left; left &= left - 1) {
        const ddl__peer *peer = &machine(m, w, a)->peers[__builtin_ctzll(left)];
        if ((peer->state == DDL__ALIVE || peer->by_report) && (peer->connected || peer->late))
            found |= left & -left;
    }
    return found;
}

static void find(const model *m, const world *w, int a, able *x)
{
    const node *n = &w->nodes[a];
    const ddl__membership *self = machine(m, w, a);
    memset(x, 0, sizeof *x);
    if (n->cut && m->heals && is_first_of_host(m, a))
        for (int b = a + 1; b < m->n; b++)
            if (n->cut >> b & 1 && is_first_of_host(m, b))
                x->heal |= bit(b);
    if (n->stopped && m->heals)
        x->single |= 1u << RESUME;
    if (runs(n)) {
        unsigned single = x->single;
        x->deliver = receivable(m, w, a);
        x->silence = find_silent(m, w, a);
        x->witness = m->launcher ? w->dead & ~n->witnessed : 0;
        single |= (unsigned)(n->watches && !n->ended) << GRACE;
        switch ((phase)n->phase) {
        case RUNNING: single |= (unsigned)n->ended << SHRINK; break;
        case SHRINKING:
            if (n->dirty)
                single |= 1u << ADVANCE;
            else if (waits(n, self)) {
                x->waits = true;
                single |= (unsigned)!(w->expelled && is_busy(m, w)) << WAIT;
            }
            break;
        case CREATING:
            single |= (unsigned)creation_may_succeed(w, a) << CREATED;
            single |= (unsigned)creation_fails(m, w, a) << UNCREATED;
            x->unreached = find_unreached(m, w, a);
            break;
        case RETURNED:
        case FAILED: single |= 1u << CLOSE; break;
        case CLOSED:
        case DEAD: break;
        }
        x->single = (uint16_t)single;
        if (self->n_late)
            find_late(m, w, a, x);
    }
    x->count = (uint16_t)(__builtin_popcountll(x->deliver) + __builtin_popcountll(x->silence) +
                          __builtin_popcountll(x->witness) + __builtin_popcountll(x->believe) +
                          __builtin_popcountll(x->miss) + __builtin_popcountll(x->unreached) +
                          __builtin_popcountll(x->heal) + __builtin_popcount(x->single));
}

static void update(const model *m, world *w)
{
    able *all = ables(m, w);
    for (uint64_t left = w->stale & (UINT64_MAX >> (64 - m->n)); left; left &= left - 1) {
        int a = __builtin_ctzll(left);
        w->n_events -= all[a].count;
        find(m, w, a, &all[a]);
        w->n_events += all[a].count;
        w->leading = (w->leading & ~bit(a)) | (uint64_t)all[a].leads << a;
        w->waiting = (w->waiting & ~bit(a)) | (uint64_t)all[a].waits << a;
    }
    w->stale = 0;
#ifdef EXPLORE_VERIFY /* the cached events must equal newly found ones */
    for (int a = 0; a < m->n; a++) {
        able again;
        find(m, w, a, &again);
        if (memcmp(&again, &all[a], sizeof again)) {
            fprintf(stderr, "the events of %d are not those that are kept\n", a);
            abort();
        }
    }
#endif
}

int world_count(const model *m, world *w)
{
    update(m, w);
    return (int)w->n_events;
}

static bool choose_pair(uint64_t set, event_type type, event *e, int *number)
{
    int n = __builtin_popcountll(set);
    if (*number >= n) {
        *number -= n;
        return false;
    }
    for (; *number; --*number)
        set &= set - 1;
    e->type = (unsigned char)type;
    e->b = (unsigned char)__builtin_ctzll(set);
    return true;
}

static event choose_of(const able *x, int a, int number)
{
    event e = {.a = (unsigned char)a};
    if (choose_pair(x->deliver, DELIVER, &e, &number) ||
        choose_pair(x->silence, SILENCE, &e, &number) ||
        choose_pair(x->witness, WITNESS, &e, &number) ||
        choose_pair(x->believe, BELIEVE, &e, &number) || choose_pair(x->miss, MISS, &e, &number) ||
        choose_pair(x->unreached, UNREACHED, &e, &number) ||
        choose_pair(x->heal, HEAL, &e, &number))
        return e;
    unsigned left = x->single;
    for (; number; number--)
        left &= left - 1;
    e.type = (unsigned char)__builtin_ctz(left);
    e.b = e.type == DIAL ? (unsigned char)x->leader : 0;
    return e;
}

event world_choose(const model *m, world *w, int number)
{
    const able *all = ables(m, w);
    int a = 0;
    for (update(m, w); number >= all[a].count; a++)
        number -= all[a].count;
    return choose_of(&all[a], a, number);
}

/* True if the member is the lowest open one of its host. A cut of two hosts names these members. */
static bool is_first_open_of_host(const model *m, const world *w, int a)
{
    for (int i = 0; i < a; i++)
        if (m->host[i] == m->host[a] && is_open(&w->nodes[i]))
            return false;
    return is_open(&w->nodes[a]);
}

static bool allows_fault(const model *m, const world *w, event e)
{
    const node *a = &w->nodes[e.a];
    if (!world_may_fail(m, w) || !(m->kinds >> e.type & 1))
        return false;
    switch (e.type) {
    case KILL: return is_open(a);
    case CUT:
        return e.a < e.b && m->host[e.a] != m->host[e.b] && !is_cut(w, e.a, e.b) && !w->expelled &&
               is_first_open_of_host(m, w, e.a) && is_first_open_of_host(m, w, e.b);
    case STOP: return is_open(a) && !a->stopped;
    case ABORT: return runs(a) && a->phase == RUNNING && !a->ended;
    case EXPEL: /* the program vouches that b does not continue, so b must be reachable */
        return runs(a) && e.a != e.b && !w->was_cut && !w->was_stopped;
    case LEAVE: return runs(a) && a->phase == RUNNING;
    case LATE: return runs(a) && (a->phase == SHRINKING || a->phase == CREATING);
    default: return false;
    }
}

bool world_may_fail(const model *m, const world *w)
{
    return w->faults < m->faults;
}

int world_faults(const model *m, const world *w, event_type type, event *events)
{
    int n = 0, pairs = type == CUT || type == EXPEL ? m->n : 1;
    if (!world_may_fail(m, w) || !(m->kinds >> type & 1))
        return 0;
    for (int a = 0; a < m->n; a++)
        for (int b = 0; b < pairs; b++) {
            event e = {(unsigned char)type, (unsigned char)a, (unsigned char)b, 0};
            if (!allows_fault(m, w, e))
                continue;
            events[n++] = e;
            e.flag = 1;
            if (type == KILL || type == CUT)
                events[n++] = e;
        }
    return n;
}

int world_events(const model *m, world *w, event *events, bool faults)
{
    int n = 0;
    update(m, w);
    for (int a = 0; a < m->n; a++)
        for (int i = 0; i < ables(m, w)[a].count; i++)
            events[n++] = choose_of(&ables(m, w)[a], a, i);
    for (int type = NATURAL; type < TYPES && faults; type++)
        n += world_faults(m, w, (event_type)type, events + n);
    return n;
}

bool world_allows(const model *m, world *w, event e)
{
    if (e.type >= NATURAL)
        return allows_fault(m, w, e);
    update(m, w);
    const able *x = &ables(m, w)[e.a];
    for (int i = 0; i < x->count; i++) {
        event one = choose_of(x, e.a, i);
        if (one.type == e.type && one.b == e.b)
            return true;
    }
    return false;
}
