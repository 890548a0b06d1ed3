/* SPDX-License-Identifier: Apache-2.0 */
/* Explores the schedules of a comm's members: all of them for few members and faults, or random
 * ones. Prints the shortest schedule found that breaks an invariant.
 *
 *     explore all N FAULTS [STATES [LAYOUT]]    at most STATES states for each layout of hosts, or
 *                                               only layout number LAYOUT, from 0
 *     explore random N FAULTS SCHEDULES [SEED]  a seed that fails is printed: with SCHEDULES 1 it
 *                                               is replayed
 *     explore check N FAULTS SCHEDULES [SEED]   compare the normal forms of reduce.c with the
 * states themselves, at every step of random schedules
 */
#include <stdlib.h>
#include <string.h>

#include "explore/search.h"

enum { FEWEST_SPARSE = 6, ALWAYS_SPARSE = 33 }; /* with fewer members all are neighbours */
enum { SHORTENING_S = 30 };                     /* seconds of processor time */

static uint64_t next_random(uint64_t *seed)
{
    uint64_t z = *seed += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
}

/* A random number below n. */
static int random_below(uint64_t *seed, int n)
{
    return (int)((next_random(seed) >> 32) * (uint64_t)n >> 32);
}

/* ---------------------------------------------------------------------------------------- traces
 */

static bool is_at_end(const model *m, world *w)
{
    return !world_count(m, w);
}

static const char *begin(const model *m, world *w, const trace *t)
{
    world_init(m, w);
    return t->is_normal ? world_reduce(m, w) : NULL;
}

static const char *follow(const model *m, world *w, const trace *t, event e)
{
    const char *broken = world_apply(m, w, e);
    return broken || !t->is_normal ? broken : world_reduce(m, w);
}

/* Replay the possible events, except `n` of them from `without` on. Returns the broken invariant,
 * or NULL; *at is the number of events before that. */
static const char *replay(const model *m, world *w, const trace *t, int without, int n, int *at)
{
    const char *broken = begin(m, w, t);
    for (*at = 0; *at < t->n && !broken; ++*at)
        if ((*at < without || *at >= without + n) && world_allows(m, w, t->events[*at]))
            broken = follow(m, w, t, t->events[*at]);
    if (!broken && is_at_end(m, w))
        broken = world_check_end(m, w);
    return broken;
}

/* Drop `n` events at a time as long as the same invariant is broken without them. Returns true if
 * some were dropped. */
static bool drop_events(const model *m, world *w, trace *t, int n, const char *broken, double until)
{
    bool shorter = false;
    for (int i = t->n - n, at; i >= 0 && seconds() < until; i -= n) {
        if (replay(m, w, t, i, n, &at) != broken)
            continue;
        if (at < t->n)
            t->n = at;
        if (i + n <= t->n) {
            memmove(&t->events[i], &t->events[i + n], (size_t)(t->n - i - n) * sizeof *t->events);
            t->n -= n;
        }
        shorter = true;
    }
    return shorter;
}

static void shorten(const model *m, world *w, trace *t, const char *broken)
{
    double until = seconds() + SHORTENING_S;
    for (int n = t->n / 2; n > 1; n /= 2)
        drop_events(m, w, t, n, broken, until);
    while (drop_events(m, w, t, 1, broken, until))
        ;
}

int report(const model *m, world *w, trace *t, const char *broken)
{
    int at;
    printf("broken: %s\n", broken);
    fflush(stdout);
    shorten(m, w, t, broken);
    printf("hosts:");
    for (int i = 0; i < m->n; i++)
        printf(" %d", m->host[i]);
    printf("%s%s; %d events%s:\n", m->launcher ? ", launcher" : "", m->sparse ? ", sparse" : "",
           t->n, t->is_normal ? ", and between them what reduce.c does at once" : "");
    replay(m, w, t, -1, 0, &at);
    begin(m, w, t);
    for (int i = 0; i < t->n; i++)
        if (world_allows(m, w, t->events[i])) {
            event_print(t->events[i]);
            follow(m, w, t, t->events[i]);
        }
    world_print(m, w);
    return 1;
}

/* ---------------------------------------------------------------------------------------- random
 */

/* Choose a fault. Starting at a random type, take the first type of which one can happen. */
static bool choose_fault(const model *m, const world *w, uint64_t *seed, event *chosen)
{
    static event events[EVENTS];
    if (!world_may_fail(m, w))
        return false;
    int first = random_below(seed, TYPES - NATURAL);
    for (int i = 0; i < TYPES - NATURAL; i++) {
        event_type type = (event_type)(NATURAL + (first + i) % (TYPES - NATURAL));
        int n = world_faults(m, w, type, events);
        if (n) {
            *chosen = events[random_below(seed, n)];
            return true;
        }
    }
    return false;
}

/* Choose the next event of a random schedule; false at its end. One in `rare` events is a fault. */
static bool choose(const model *m, world *w, unsigned rare, bool is_first, uint64_t *seed,
                   event *chosen)
{
    for (;;) {
        uint64_t random = next_random(seed);
        int n = world_count(m, w);
        if (((uint32_t)random % rare == 0 || is_first) && choose_fault(m, w, seed, chosen))
            return true;
        if (n) {
            *chosen = world_choose(m, w, (int)((random >> 32) * (uint64_t)n >> 32));
            return true;
        }
        if (is_first || random >> 63)
            return false;
    }
}

static const char *random_schedule(const model *m, world *w, uint64_t seed, trace *t)
{
    const char *broken = NULL;
    world_init(m, w);
    unsigned rare = 4 + (unsigned)random_below(&seed, 60);
    for (t->n = 0; t->n < STEPS && !broken; t->n++) {
        if (!choose(m, w, rare, t->n == 0, &seed, &t->events[t->n]))
            break;
        broken = world_apply(m, w, t->events[t->n]);
    }
    if (t->n == STEPS)
        return broken ? broken : "a schedule does not end";
    return broken ? broken : world_check_end(m, w);
}

/* Create a random model. If all members could be neighbours, every second comm is sparse. */
static model random_model(int n, unsigned faults, uint64_t *seed)
{
    model m = {.n = n, .faults = faults, .kinds = ALL_KINDS};
    int hosts = 1 + random_below(seed, n < 16 ? n : 16);
    for (int i = 0; i < n; i++)
        m.host[i] = (unsigned char)random_below(seed, hosts);
    m.launcher = random_below(seed, 2);
    m.heals = random_below(seed, 2);
    m.sparse = n >= ALWAYS_SPARSE || (n >= FEWEST_SPARSE && random_below(seed, 2));
    return m;
}

static int explore_random(int n, unsigned faults, long schedules, uint64_t seed)
{
    model widest = {.n = n};
    world *w = malloc(world_bytes(&widest));
    trace *t = calloc(1, sizeof *t);
    double begun = seconds();
    long events = 0, sparse = 0;
    int rc = 0;
    for (long i = 0; i < schedules && !rc; i++) {
        uint64_t own = seed + (uint64_t)i, s = own;
        model m = random_model(n, faults, &s);
        const char *broken = random_schedule(&m, w, s, t);
        events += t->n;
        sparse += m.sparse;
        if (i % 1024 == 1023 && is_progress_due())
            fprintf(stderr, "%ld of %ld schedules\n", i + 1, schedules);
        if (broken) {
            printf("seed %llu\n", (unsigned long long)own);
            rc = report(&m, w, t, broken);
        }
    }
    double s = seconds() - begun;
    if (!rc)
        printf("%ld schedules of %d members, %ld of them sparse, %u faults, from seed %llu: no "
               "broken invariant; %.0f a second, %.0f events each\n",
               schedules, n, sparse, faults, (unsigned long long)seed, (double)schedules / s,
               (double)events / (double)schedules);
    free(t);
    free(w);
    return rc;
}

/* ----------------------------------------------------------------------------------------- check
 */

typedef struct outcome {
    const char *broken;
    uint64_t hash;
    bool hasty;
} outcome;

static outcome reduce(const model *m, world *w)
{
    outcome o = {.broken = world_reduce(m, w)};
    o.hash = world_hash(m, w);
    o.hasty = world_is_hasty(w);
    return o;
}

static outcome apply(const model *m, world *w, const world *from, event e)
{
    world_copy(m, w, from);
    const char *broken = world_apply(m, w, e);
    return broken ? (outcome){.broken = broken} : reduce(m, w);
}

static bool are_equal(outcome real, outcome other)
{
    return real.broken == other.broken &&
           (real.broken || (real.hash == other.hash && real.hasty >= other.hasty));
}

/* True if each event leads to the same normal form from the state and from the state's normal form,
 * or to that normal form itself. */
static bool check_state(const model *m, const world *w, world *normal, world *next)
{
    static event events[EVENTS];
    world_copy(m, normal, w);
    outcome own = reduce(m, normal);
    world_copy(m, next, w);
    int n = world_events(m, next, events, true);
    for (int i = 0; i < n; i++) {
        outcome real = apply(m, next, w, events[i]), other = {.broken = "not possible"};
        if (are_equal(real, own))
            continue;
        if (world_allows(m, normal, events[i]))
            other = apply(m, next, normal, events[i]);
        if (are_equal(real, other))
            continue;
        printf("the normal form has another future; after\n");
        event_print(events[i]);
        printf("%s, but %s; in the state\n", real.broken ? real.broken : "nothing is broken",
               other.broken ? other.broken : "nothing is broken");
        apply(m, next, w, events[i]);
        world_print(m, next);
        printf("and\n");
        if (!other.broken) {
            apply(m, next, normal, events[i]);
            world_print(m, next);
        }
        printf("from\n");
        world_print(m, (world *)w);
        world_print(m, normal);
        return false;
    }
    return true;
}

static int explore_check(int n, unsigned faults, long schedules, uint64_t seed)
{
    model widest = {.n = n};
    world *worlds[3];
    long states = 0;
    for (int i = 0; i < 3; i++)
        worlds[i] = malloc(world_bytes(&widest));
    world *w = worlds[0];
    for (long i = 0; i < schedules; i++) {
        uint64_t s = seed + (uint64_t)i;
        model m = random_model(n, faults, &s);
        m.sparse = false;
        m.heals = true;
        world_init(&m, w);
        unsigned rare = 4 + (unsigned)random_below(&s, 60);
        event e;
        for (bool first = true; choose(&m, w, rare, first, &s, &e); first = false) {
            if (world_apply(&m, w, e))
                break;
            states++;
            if (!check_state(&m, w, worlds[1], worlds[2])) {
                printf("seed %llu\n", (unsigned long long)seed + (unsigned long long)i);
                return 1;
            }
            if (random_below(&s, 2) && !world_reduce(&m, w))
                world_hash(&m, w);
        }
    }
    printf("%ld states of %d members, %u faults, from seed %llu: their normal forms have the same "
           "future\n",
           states, n, faults, (unsigned long long)seed);
    for (int i = 0; i < 3; i++)
        free(worlds[i]);
    return 0;
}

int main(int argc, char **argv)
{
    bool reduces = argc >= 4 && (!strcmp(argv[1], "all") || !strcmp(argv[1], "check"));
    if (reduces && atoi(argv[2]) >= ALWAYS_SPARSE) {
        fprintf(stderr,
                "%s members: `%s` needs at most %d, because larger comms are sparse, and "
                "reduce.c holds only for others\n",
                argv[2], argv[1], ALWAYS_SPARSE - 1);
        return 2;
    }
    if (argc >= 4 && !strcmp(argv[1], "all"))
        return explore_all(atoi(argv[2]), (unsigned)atoi(argv[3]),
                           argc > 4 ? (size_t)atof(argv[4]) : 100000000,
                           argc > 5 ? atoi(argv[5]) : -1);
    if (argc >= 5 && !strcmp(argv[1], "random"))
        return explore_random(atoi(argv[2]), (unsigned)atoi(argv[3]), (long)atof(argv[4]),
                              argc > 5 ? strtoull(argv[5], NULL, 10) : 1);
    if (argc >= 5 && !strcmp(argv[1], "check"))
        return explore_check(atoi(argv[2]), (unsigned)atoi(argv[3]), (long)atof(argv[4]),
                             argc > 5 ? strtoull(argv[5], NULL, 10) : 1);
    fprintf(
        stderr,
        "usage: explore all N FAULTS [STATES [LAYOUT]] | random N FAULTS SCHEDULES [SEED] | check "
        "N FAULTS SCHEDULES [SEED]\n");
    return 2;
}
