/* SPDX-License-Identifier: Apache-2.0 */
/* Explores all schedules of states in normal form (reduce.c), depth first.
 *
 * A visited state is recorded by 64 bits of its hash. Among n states, n^2 / 2^65 pairs are expected
 * to have equal hashes, and one state of each pair is missed: 0.03 states of 10^9.
 *
 * With hosts that cannot reach each other, each attempt of the agreement may fail and be followed
 * by another one, so there are states with any number of attempts. Only ATTEMPTS are explored. */
#include <stdlib.h>
#include <string.h>

#include "explore/search.h"

enum {
    DEPTH = 400,
    BREADTH = 256,
    ATTEMPTS = 4,
    STEPS_EACH = 1 << 22 /* between checks for a progress line */
};

typedef struct visited {
    uint64_t *table;
    size_t slots, most, n;
} visited;

static bool find(const visited *v, uint64_t hash, size_t *at)
{
    *at = (size_t)((__uint128_t)hash * v->slots >> 64);
    for (; v->table[*at]; *at = *at + 1 == v->slots ? 0 : *at + 1)
        if (v->table[*at] == hash)
            return true;
    return false;
}

/* True if the state is new. A state with a hasty member is not new if the same state without one is
 * known, because less is required of it. */
static bool visit(visited *v, uint64_t hash, bool hasty)
{
    size_t at;
    hash |= !hash;
    if (find(v, hash, &at))
        return false;
    if (hasty) {
        hash = ~hash | !~hash;
        if (find(v, hash, &at))
            return false;
    }
    v->table[at] = hash;
    v->n++;
    return true;
}

typedef struct frame {
    event events[BREADTH];
    int n, next;
} frame;

typedef struct search {
    frame *stack;
    unsigned char *worlds;
    size_t bytes, steps;
    int deepest;
    visited v;
    trace *t;
    bool complete;
    bool was_bounded; /* a state with more than ATTEMPTS attempts was not explored */
} search;

static world *world_at(const search *s, int depth)
{
    return (world *)(s->worlds + s->bytes * (size_t)depth);
}

/* List the events of a new state. If there are none, return the broken invariant, or NULL. */
static const char *open_frame(const model *m, search *s, int depth)
{
    frame *f = &s->stack[depth];
    world *w = world_at(s, depth);
    f->n = world_events(m, w, f->events, true);
    f->next = 0;
    s->deepest = depth > s->deepest ? depth : s->deepest;
    return world_count(m, w) ? NULL : world_check_end(m, w);
}

/* The part of the schedules that is explored, if every event of a state led to as many schedules.
 */
static double explored(const search *s, int depth)
{
    double part = 0, each = 1;
    for (int i = 0; i <= depth; i++) {
        const frame *f = &s->stack[i];
        each /= f->n ? f->n : 1;
        part += each * (f->next ? f->next - 1 : 0);
    }
    return part;
}

static void print_progress(const search *s, int depth)
{
    if (is_progress_due())
        fprintf(stderr, "%.4f %% explored: %zu states, %zu steps, %d deep\n",
                100 * explored(s, depth), s->v.n, s->steps, depth);
}

/* Explore all schedules of one layout of hosts. Returns 0, or 1 if an invariant is broken. */
static int explore_layout(const model *m, search *s)
{
    const char *broken = NULL;
    int depth = 0;
    s->bytes = (world_bytes(m) + 63) / 64 * 64;
    world_init(m, world_at(s, 0));
    world_reduce(m, world_at(s, 0));
    world_hash(m, world_at(s, 0));
    open_frame(m, s, 0);
    while (depth >= 0 && !broken) {
        frame *f = &s->stack[depth];
        if (f->next == f->n || s->v.n >= s->v.most || depth == DEPTH - 1) {
            s->complete = s->complete && f->next == f->n;
            depth--;
            continue;
        }
        world *w = world_at(s, depth + 1);
        world_copy(m, w, world_at(s, depth));
        event e = s->t->events[depth] = f->events[f->next++];
        s->t->n = depth + 1;
        if (++s->steps % STEPS_EACH == 0)
            print_progress(s, depth);
        broken = world_apply(m, w, e);
        if (!broken)
            broken = world_reduce(m, w);
        bool is_beyond = !broken && world_attempt(m, w) > ATTEMPTS;
        s->was_bounded = s->was_bounded || is_beyond;
        if (!broken && !is_beyond && visit(&s->v, world_hash(m, w), world_is_hasty(w)))
            broken = open_frame(m, s, ++depth);
    }
    return broken ? report(m, world_at(s, 0), s->t, broken) : 0;
}

static void print_layout(const model *m, const search *s, double begun)
{
    printf("hosts");
    for (int i = 0; i < m->n; i++)
        printf(" %d", m->host[i]);
    printf("%s: %zu states, %zu steps, at most %d deep, %.1f s\n", m->launcher ? ", launcher" : "",
           s->v.n, s->steps, s->deepest, seconds() - begun);
    fflush(stdout);
}

int explore_all(int n, unsigned faults, size_t most, int only)
{
    model widest = {.n = n};
    search s = {.complete = true};
    s.v.slots = most + most / 4 + 1000;
    s.v.most = most;
    s.v.table = calloc(s.v.slots, sizeof *s.v.table);
    s.stack = malloc(DEPTH * sizeof *s.stack);
    s.worlds = aligned_alloc(64, ((world_bytes(&widest) + 63) / 64 * 64) * (DEPTH + 1));
    s.t = calloc(1, sizeof *s.t);
    s.t->is_normal = true;
    double begun = seconds();
    int rc = 0, codes = 1, layout = 0;
    size_t states = 0;
    for (int i = 1; i < n; i++)
        codes *= n;
    /* Hosts are numbered in the order of their first member. */
    for (int code = 0; code < codes && !rc; code++) {
        model m = {.n = n, .faults = faults, .kinds = ALL_KINDS, .heals = true};
        int highest = 0;
        bool canonical = true;
        for (int i = 1, c = code; i < n; i++, c /= n) {
            m.host[i] = (unsigned char)(c % n);
            canonical = canonical && m.host[i] <= highest + 1;
            highest = m.host[i] > highest ? m.host[i] : highest;
        }
        for (int launcher = 0; canonical && launcher < 2 && !rc; launcher++) {
            m.launcher = launcher;
            if (only >= 0 && layout++ != only)
                continue;
            if (s.v.n)
                memset(s.v.table, 0, s.v.slots * sizeof *s.v.table);
            s.v.n = s.steps = 0;
            s.deepest = 0;
            rc = explore_layout(&m, &s);
            states += s.v.n;
            print_layout(&m, &s, begun);
        }
    }
    printf("%zu states of %d members with %u faults%s: %s\n", states, n, faults,
           only < 0 ? "" : " in this layout",
           rc              ? "an invariant is broken"
           : !s.complete   ? "not all, no broken invariant"
           : s.was_bounded ? "all with at most 4 attempts, no broken invariant"
                           : "all, no broken invariant");
    free(s.t);
    free(s.worlds);
    free(s.stack);
    free(s.v.table);
    return rc;
}
