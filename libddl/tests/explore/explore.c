/* SPDX-License-Identifier: Apache-2.0 */
/* Explores the schedules of a comm's members: all of them for few members and faults, or random
 * ones. Prints the shortest schedule found that breaks an invariant.
 *
 *     explore all N FAULTS [STATES]             at most STATES states for each layout of hosts
 *     explore random N FAULTS SCHEDULES [SEED]  a seed that fails is printed: with SCHEDULES 1 it
 *                                               is replayed
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "explore/model.h"

enum { EVENTS = 8192, STEPS = 20000, DEPTH = 400 };

static const unsigned ALL_KINDS =
    1u << KILL | 1u << CUT | 1u << STOP | 1u << ABORT | 1u << EXPEL | 1u << LEAVE | 1u << LATE;

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static uint64_t next_random(uint64_t *seed)
{
    uint64_t z = *seed += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
}

/* ---------------------------------------------------------------------------------------- traces
 */

typedef struct trace {
    event events[STEPS];
    int n;
} trace;

/* Replay the events that are possible. Returns what is broken, or NULL; `at`: after how many. */
static const char *replay(const model *m, world *w, const trace *t, int without, int *at)
{
    event left[EVENTS];
    const char *broken = NULL;
    world_init(m, w);
    for (*at = 0; *at < t->n && !broken; ++*at)
        if (*at != without && world_allows(m, w, t->events[*at]))
            broken = world_apply(m, w, t->events[*at]);
    if (!broken && !world_events(m, w, left, EVENTS, false))
        broken = world_check_end(m, w);
    return broken;
}

/* Drop events as long as the same invariant is broken without them. */
static void shorten(const model *m, world *w, trace *t, const char *broken)
{
    int at;
    for (bool shorter = true; shorter;) {
        shorter = false;
        for (int i = t->n - 1; i >= 0; i--) {
            const char *found = replay(m, w, t, i, &at);
            if (!found || found != broken)
                continue;
            if (at < t->n)
                t->n = at;
            if (i < t->n) {
                memmove(&t->events[i], &t->events[i + 1],
                        (size_t)(t->n - i - 1) * sizeof *t->events);
                t->n--;
            }
            shorter = true;
        }
    }
}

static int report(const model *m, world *w, trace *t, const char *broken)
{
    int at;
    shorten(m, w, t, broken);
    printf("broken: %s\nhosts:", broken);
    for (int i = 0; i < m->n; i++)
        printf(" %d", m->host[i]);
    printf("%s; %d events:\n", m->launcher ? ", launcher" : "", t->n);
    replay(m, w, t, -1, &at);
    world_init(m, w);
    for (int i = 0; i < t->n; i++)
        if (world_allows(m, w, t->events[i])) {
            event_print(t->events[i]);
            world_apply(m, w, t->events[i]);
        }
    world_print(m, w);
    return 1;
}

/* ---------------------------------------------------------------------------------------- random
 */

static const char *random_schedule(const model *m, world *w, uint64_t seed, trace *t)
{
    event events[EVENTS];
    const char *broken = NULL;
    world_init(m, w);
    unsigned rare = 4 + (unsigned)(next_random(&seed) % 60); /* how seldom faults happen */
    for (t->n = 0; t->n < STEPS && !broken;) {
        bool faults = next_random(&seed) % rare == 0 || t->n == 0;
        int n = world_events(m, w, events, EVENTS, faults), first = 0;
        if (faults) /* one of the faults, if there are any */
            while (first < n && events[first].type < NATURAL)
                first++;
        if (first == n)
            first = 0;
        if (!n && faults)
            break;
        if (!n) {
            if (next_random(&seed) % 2)
                continue;
            break;
        }
        event e = events[first + (int)(next_random(&seed) % (uint64_t)(n - first))];
        t->events[t->n++] = e;
        broken = world_apply(m, w, e);
    }
    if (!broken && !world_events(m, w, events, EVENTS, false))
        broken = world_check_end(m, w);
    return broken;
}

static model random_model(int n, unsigned faults, uint64_t *seed)
{
    model m = {.n = n, .faults = faults, .kinds = ALL_KINDS};
    int hosts = 1 + (int)(next_random(seed) % (uint64_t)(n < 16 ? n : 16));
    for (int i = 0; i < n; i++)
        m.host[i] = (unsigned char)(next_random(seed) % (uint64_t)hosts);
    m.launcher = next_random(seed) % 2;
    m.heals = next_random(seed) % 2;
    return m;
}

static int explore_random(int n, unsigned faults, long schedules, uint64_t seed)
{
    model widest = {.n = n};
    world *w = malloc(world_bytes(&widest));
    trace *t = malloc(sizeof *t);
    double begun = seconds();
    long events = 0;
    for (long i = 0; i < schedules; i++) {
        uint64_t own = seed + (uint64_t)i, s = own;
        model m = random_model(n, faults, &s);
        const char *broken = random_schedule(&m, w, s, t);
        events += t->n;
        if (!broken)
            continue;
        printf("seed %llu\n", (unsigned long long)own);
        return report(&m, w, t, broken);
    }
    double s = seconds() - begun;
    printf("%ld schedules of %d members, %u faults: no broken invariant; %.0f a second, %.0f "
           "events each\n",
           schedules, n, faults, (double)schedules / s, (double)events / (double)schedules);
    free(t);
    free(w);
    return 0;
}

/* ------------------------------------------------------------------------------------ exhaustive
 */

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
    event *events;
    int n, next;
} frame;

/* All schedules of one layout of hosts, depth first. Returns 0, or 1 if an invariant is broken. */
static int explore_layout(const model *m, visited *v, size_t most, trace *t, bool *complete)
{
    size_t bytes = world_bytes(m);
    unsigned char *worlds = malloc(bytes * DEPTH);
    frame *stack = calloc(DEPTH, sizeof *stack);
    const char *broken = NULL;
    int depth = 0;
    world_init(m, (world *)worlds);
    for (int i = 0; i < DEPTH; i++)
        stack[i].events = malloc(256 * sizeof(event));
    stack[0].n = world_events(m, (world *)worlds, stack[0].events, 256, true);
    stack[0].next = 0;
    while (depth >= 0 && !broken) {
        frame *f = &stack[depth];
        if (f->next == f->n) {
            depth--;
            continue;
        }
        if (v->n >= most || depth == DEPTH - 2) {
            *complete = false;
            if (v->n >= most)
                break;
            depth--;
            continue;
        }
        world *w = (world *)(worlds + bytes * (size_t)(depth + 1));
        memcpy(w, worlds + bytes * (size_t)depth, bytes);
        event e = t->events[depth] = f->events[f->next++];
        broken = world_apply(m, w, e);
        t->n = depth + 1;
        if (broken || !visit(v, world_hash(m, w)))
            continue;
        frame *deeper = &stack[++depth];
        deeper->n = world_events(m, w, deeper->events, 256, true);
        deeper->next = 0;
        bool is_end = true;
        for (int i = 0; i < deeper->n; i++)
            is_end = is_end && deeper->events[i].type >= NATURAL;
        if (is_end)
            broken = world_check_end(m, w);
    }
    int rc = broken ? report(m, (world *)worlds, t, broken) : 0;
    for (int i = 0; i < DEPTH; i++)
        free(stack[i].events);
    free(stack);
    free(worlds);
    return rc;
}

static int explore_all(int n, unsigned faults, size_t most)
{
    size_t slots = 1;
    while (slots < most * 2)
        slots *= 2;
    visited v = {calloc(slots, sizeof *v.table), slots - 1, 0};
    trace *t = malloc(sizeof *t);
    double begun = seconds();
    bool complete = true;
    int rc = 0;
    size_t states = 0;
    /* Hosts are numbered in the order of their first member. */
    int codes = 1;
    for (int i = 1; i < n; i++)
        codes *= n;
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
            memset(v.table, 0, slots * sizeof *v.table);
            v.n = 0;
            rc = explore_layout(&m, &v, most, t, &complete);
            states += v.n;
            printf("hosts");
            for (int i = 0; i < n; i++)
                printf(" %d", m.host[i]);
            printf("%s: %zu states, %.1f s\n", launcher ? ", launcher" : "", v.n,
                   seconds() - begun);
            fflush(stdout);
        }
    }
    printf("%zu states of %d members with %u faults: %s\n", states, n, faults,
           rc         ? "an invariant is broken"
           : complete ? "all, no broken invariant"
                      : "not all, no broken invariant");
    free(t);
    free(v.table);
    return rc;
}

int main(int argc, char **argv)
{
    if (argc >= 4 && !strcmp(argv[1], "all"))
        return explore_all(atoi(argv[2]), (unsigned)atoi(argv[3]),
                           argc > 4 ? (size_t)atof(argv[4]) : 100000000);
    if (argc >= 5 && !strcmp(argv[1], "random"))
        return explore_random(atoi(argv[2]), (unsigned)atoi(argv[3]), (long)atof(argv[4]),
                              argc > 5 ? strtoull(argv[5], NULL, 10) : 1);
    fprintf(stderr, "usage: explore all N FAULTS [STATES] | random N FAULTS SCHEDULES [SEED]\n");
    return 2;
}
