/* SPDX-License-Identifier: Apache-2.0 */
/* Explores the schedules of members that create children of a comm (model.h): all of them, or
 * random ones. Prints the shortest schedule found that breaks an invariant.
 *
 *     explore_creation all N FAULTS [STATES]
 *     explore_creation random N FAULTS SCHEDULES [SEED]  a seed that fails is printed: with
 *                                                        SCHEDULES 1 it is replayed
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "explore/creation/model.h"

enum { EVENTS = 512, STEPS = 4000, DEPTH = 600 };

static uint64_t next_random(uint64_t *seed)
{
    uint64_t z = *seed += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
}

typedef struct trace {
    event events[STEPS];
    int n;
} trace;

static void *allocate(size_t bytes)
{
    void *block = calloc(1, bytes);
    if (!block)
        abort();
    return block;
}

/* Return the broken invariant if only faults can happen, or NULL. */
static const char *check_end(const model *m, const world *w)
{
    event left[1];
    return world_events(m, w, left, 1, false) ? NULL : world_check_end(m, w);
}

/* Replay the possible events, except this one. Returns the broken invariant, or NULL. */
static const char *replay(const model *m, world *w, const trace *t, int without, int *n)
{
    const char *broken = NULL;
    world_init(m, w);
    for (*n = 0; *n < t->n && !broken; ++*n)
        if (*n != without && world_allows(m, w, t->events[*n]))
            broken = world_apply(m, w, t->events[*n]);
    return broken ? broken : check_end(m, w);
}

static int report(const model *m, world *w, trace *t, const char *broken)
{
    int n;
    for (bool shorter = true; shorter;) {
        shorter = false;
        for (int i = t->n - 1; i >= 0; i--) {
            if (replay(m, w, t, i, &n) != broken)
                continue;
            t->n = n;
            memmove(&t->events[i], &t->events[i + 1], (size_t)(t->n - i - 1) * sizeof *t->events);
            t->n--;
            i = i < t->n ? i : t->n;
            shorter = true;
        }
    }
    printf("broken: %s\n%s%s%d events:\n", broken, m->crossed ? "crossed calls, " : "",
           m->has_subset ? "a subset, " : "", t->n);
    world_init(m, w);
    for (int i = 0; i < t->n; i++)
        if (world_allows(m, w, t->events[i])) {
            event_print(t->events[i]);
            world_apply(m, w, t->events[i]);
        }
    world_print(m, w);
    return 1;
}

static const char *random_schedule(const model *m, world *w, uint64_t seed, trace *t)
{
    event events[EVENTS];
    const char *broken = NULL;
    unsigned rare = 2 + (unsigned)(next_random(&seed) % 60); /* one event in this many is a fault */
    world_init(m, w);
    for (t->n = 0; t->n < STEPS && !broken;) {
        bool faults = next_random(&seed) % rare == 0;
        int n = world_events(m, w, events, EVENTS, faults), first = 0;
        while (faults && first < n && events[first].type < NATURAL)
            first++;
        first = first == n ? 0 : first;
        if (!n)
            break;
        event e = t->events[t->n++] =
            events[first + (int)(next_random(&seed) % (uint64_t)(n - first))];
        broken = world_apply(m, w, e);
    }
    return broken ? broken : check_end(m, w);
}

static int explore_random(int n, unsigned faults, long schedules, uint64_t seed)
{
    world *w = allocate(world_bytes());
    trace *t = allocate(sizeof *t);
    long events = 0;
    int rc = 0;
    for (long i = 0; i < schedules && !rc; i++) {
        uint64_t own = seed + (uint64_t)i, s = own;
        model m = {.n = n, .faults = faults};
        m.crossed = next_random(&s) % 4 == 0;
        m.has_subset = n > 2 && next_random(&s) % 2;
        const char *broken = random_schedule(&m, w, s, t);
        events += t->n;
        if (!broken)
            continue;
        printf("seed %llu\n", (unsigned long long)own);
        rc = report(&m, w, t, broken);
    }
    if (!rc)
        printf("%ld schedules of %d members, %u faults: no broken invariant; %.0f events each\n",
               schedules, n, faults, (double)events / (double)schedules);
    free(t);
    free(w);
    return rc;
}

typedef struct visited {
    uint64_t *table;
    size_t mask, n;
} visited;

static bool visit(visited *v, uint64_t hash)
{
    hash |= !hash;
    size_t at = hash & v->mask;
    for (; v->table[at]; at = (at + 1) & v->mask)
        if (v->table[at] == hash)
            return false;
    v->table[at] = hash;
    v->n++;
    return true;
}

typedef struct frame {
    event events[EVENTS];
    int n, next;
} frame;

/* Explore all schedules, depth first. Returns 0, or 1 if an invariant is broken. */
static int explore_all(int n, unsigned faults, size_t most)
{
    size_t bytes = world_bytes(), slots = 1;
    while (slots < 2 * most)
        slots *= 2;
    visited v = {allocate(slots * sizeof *v.table), slots - 1, 0};
    unsigned char *worlds = allocate(bytes * (DEPTH + 1));
    frame *stack = allocate(DEPTH * sizeof *stack);
    trace *t = allocate(sizeof *t);
    const char *broken = NULL;
    bool complete = true;
    model m = {.n = n, .faults = faults};
    int depth = 0;
    world_init(&m, (world *)worlds);
    stack[0].n = world_events(&m, (world *)worlds, stack[0].events, EVENTS, true);
    while (depth >= 0 && !broken) {
        frame *f = &stack[depth];
        if (f->next == f->n || depth == DEPTH - 1 || v.n >= most) {
            complete = complete && f->next == f->n;
            depth--;
            continue;
        }
        world *w = (world *)(worlds + bytes * (size_t)(depth + 1));
        memcpy(w, worlds + bytes * (size_t)depth, bytes);
        t->events[depth] = f->events[f->next++];
        t->n = depth + 1;
        broken = world_apply(&m, w, t->events[depth]);
        if (broken || !visit(&v, world_hash(w)))
            continue;
        broken = check_end(&m, w);
        frame *deeper = &stack[++depth];
        deeper->n = world_events(&m, w, deeper->events, EVENTS, true);
        deeper->next = 0;
    }
    int rc = broken ? report(&m, (world *)worlds, t, broken) : 0;
    printf("%zu states of %d members with %u faults: %s\n", v.n, n, faults,
           rc         ? "an invariant is broken"
           : complete ? "all, no broken invariant"
                      : "not all, no broken invariant");
    free(t);
    free(stack);
    free(worlds);
    free(v.table);
    return rc;
}

int main(int argc, char **argv)
{
    if (argc >= 4 && !strcmp(argv[1], "all"))
        return explore_all(atoi(argv[2]), (unsigned)atoi(argv[3]),
                           argc > 4 ? (size_t)atof(argv[4]) : 20000000);
    if (argc >= 5 && !strcmp(argv[1], "random"))
        return explore_random(atoi(argv[2]), (unsigned)atoi(argv[3]), (long)atof(argv[4]),
                              argc > 5 ? strtoull(argv[5], NULL, 10) : 1);
    fprintf(stderr,
            "usage: explore_creation all N FAULTS [STATES] | random N FAULTS SCHEDULES [SEED]\n");
    return 2;
}
