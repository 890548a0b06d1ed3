/* SPDX-License-Identifier: Apache-2.0 */
/* Checks the invariants of docs/dev/membership.md. */
#include "explore/world.h"

/* True if this member has returned a comm that all running members of its list still have. A member
 * that a program expels, although it is alive, may have returned before, with a comm that has
 * failed since. */
static bool continues(const model *m, const world *w, int i)
{
    const node *n = &w->nodes[i];
    if ((n->phase != RETURNED && n->phase != CLOSED) || !n->created || w->expelled >> i & 1)
        return false;
    for (int b = 0; b < m->n; b++)
        if (n->list >> b & 1 && w->nodes[b].phase != DEAD && w->nodes[b].created != n->attempt)
            return false;
    return true;
}

/* S1: no two running members continue in different comms. The result depends on the phases,
 * attempts, lists and comms of the members, and on the expelled members. */
const char *check_one_group(const model *m, const world *w)
{
    const node *first = NULL;
    for (int i = 0; i < m->n; i++) {
        const node *n = &w->nodes[i];
        if (!continues(m, w, i))
            continue;
        if (first && (first->attempt != n->attempt || first->list != n->list))
            return "S1: two groups continue";
        first = n;
    }
    return NULL;
}

/* Check a member that returns. S2: it is in its list. S3: all other running members of the list
 * have created the comm, unless their own limit has run out, or a program has expelled them. */
const char *check_return(const model *m, const world *w, int i)
{
    const node *n = &w->nodes[i];
    if (!(n->list >> i & 1))
        return "S2: a member returns a comm without itself";
    for (int b = 0; b < m->n; b++)
        if (n->list >> b & 1 && w->nodes[b].phase != DEAD && !w->nodes[b].failed &&
            !((w->expelled >> b | w->expelled >> i) & 1) && w->nodes[b].made < n->attempt)
            return "S3: a member returns a comm that another one of it has not created";
    return NULL;
}

uint64_t find_followers(const model *m, const ddl__membership *self)
{
    uint64_t found = 0;
    for (int b = 0; b < m->n; b++)
        if (b != self->rank && ddl__is_alive(self, b) && self->peers[b].leader == self->rank)
            found |= bit(b);
    return found;
}

static uint64_t find_accused(const model *m, const ddl__membership *self, int rank)
{
    uint64_t found = 0;
    for (int b = 0; b < m->n; b++)
        found |= (uint64_t)ddl__set_has(ddl__accused(self, rank), b) << b;
    return found;
}

const char *check_verdict(const model *m, const ddl__membership *self, uint64_t followers,
                          uint64_t list)
{
    uint64_t left_out = followers & ~list, disputed = 0, in_all = followers;
    for (uint64_t ones = list & followers; ones; ones &= ones - 1)
        if (find_accused(m, self, __builtin_ctzll(ones)) & list)
            return "S5: a leader keeps two members in dispute";
    if (!left_out)
        return NULL;
    for (uint64_t ones = followers; ones; ones &= ones - 1) {
        int one = __builtin_ctzll(ones);
        uint64_t accused = find_accused(m, self, one) & followers & ~bit(one);
        disputed |= accused | (accused ? bit(one) : 0);
        for (; accused; accused &= accused - 1)
            in_all &= bit(one) | (accused & -accused);
    }
    if (left_out & ~disputed || (in_all && left_out & (left_out - 1)))
        return "S4: a leader leaves out more members than the disputes require";
    return NULL;
}

/* The fewest members of a host that all cuts have in common; all members if there is none. */
static int count_cut_off(const model *m, const world *w)
{
    int fewest = m->n;
    for (int host = 0; host < m->n; host++) {
        int members = 0;
        for (int i = 0; i < m->n; i++)
            members += m->host[i] == host;
        if (w->shared >> host & 1 && members && members < fewest)
            fewest = members;
    }
    return fewest;
}

/* Check the end of a schedule. L1: no member waits. L2: a failure has reached all. L3: if only
 * processes ended, all survivors continue in one comm, if they are most of the members. L4: if only
 * the network of one host was cut, all members continue in one comm, except as many as this host
 * has. */
const char *world_check_end(const model *m, const world *w)
{
    bool disturbed =
        w->was_expelled || w->was_stopped || w->was_late || w->was_left || w->was_hasty;
    int alive = 0, open = 0, ended = 0, returned = 0;
    for (int i = 0; i < m->n; i++) {
        const node *n = &w->nodes[i];
        open += is_open(n) && !n->stopped;
        ended += (is_open(n) && n->ended) || n->phase == CLOSED;
        alive += n->phase != DEAD;
        returned += n->created && (n->phase == RETURNED || n->phase == CLOSED);
        if (runs(n) && (n->phase == SHRINKING || n->phase == CREATING))
            return "L1: a member waits for its limit";
    }
    if (!w->was_cut && !w->was_left && ended && ended < alive && open == alive)
        return "L2: a failure has not reached all members";
    if (!disturbed && !w->was_cut && ended && returned < alive && 2 * alive > m->n)
        return "L3: a survivor of a crash does not continue";
    if (!disturbed && w->was_cut && !w->dead && ended && !ddl__is_sparse(m->n) &&
        returned < m->n - count_cut_off(m, w))
        return "L4: more members are left out than the host has that was cut off";
    return NULL;
}
