/* SPDX-License-Identifier: Apache-2.0 */
/* test_ordered_plans.c - the plans of ordered sums for up to 64 logical workers and ranks, with an
 * operator that neither commutes nor associates. */
#include "host_topology.h"
#include "plan_results.h"

enum { WORKERS = 64, MANY = SANITIZED ? 24 : WORKERS };

static const char *describe(const world *w)
{
    static char text[256];
    const ddl__request *q = &w->request;
    snprintf(text, sizeof text,
             "%d workers on %d ranks, count %lld of %zu bytes, wide %d, %s, pieces of %lld, window "
             "%lld",
             q->order->workers, q->size, (long long)q->count, q->element, q->wide,
             q->all_shared ? "memory" : "wires", (long long)w->ranks[0].plan->segment,
             (long long)w->window);
    return text;
}

static int most_parts(const world *w)
{
    int most = 1;
    for (int r = 0; r < w->request.size; r++)
        most = w->ranks[r].parts > most ? w->ranks[r].parts : most;
    return most;
}

static bool is_one_shot(const world *w)
{
    const ddl__plan *plan = w->ranks[0].plan;
    for (uint32_t i = 0; i < plan->n_steps; i++)
        if (plan->steps[i].kind == DDL__TAKE)
            return false;
    return true;
}

/* Check the bytes that a rank sends: F times what an all-reduce sends up, and as much as it sends
 * down. */
static void check_bytes(const world *w)
{
    const ddl__request *q = &w->request;
    bool one_shot = is_one_shot(w);
    int64_t element = (int64_t)q->element;
    for (int r = 0; r < q->size && q->count; r++) {
        int64_t own = ddl__share_of(q, r).count, others = q->count - own;
        int64_t up = (one_shot ? q->count * (q->size - 1) : others) * w->ranks[r].parts * q->wide;
        int64_t down = one_shot ? 0 : own * (q->size - 1);
        CHECK(w->ranks[r].sent == (up + down) * element, "rank %d sent %lld bytes, not %lld: %s", r,
              (long long)w->ranks[r].sent, (long long)((up + down) * element), describe(w));
    }
}

static void check_one(const ddl__request *request, schedule how)
{
    world *w = world_create(request, 0);
    int64_t least = (int64_t)request->element * request->wide * most_parts(w) * 2 * request->size;
    bool own = strcmp(w->ranks[0].plan->name, "ordered") == 0; /* test_plan.c checks the others */
    if (!own)
        w->window = INT64_MAX;
    if (w->window < least) /* two waves of pieces of one element */
        w->window = least;
    if (own && random_below(2)) /* what is sent up and down: two waves, over wires four */
        w->queue_room = request->all_shared ? 4 : 8;
    const char *error = simulate(w, how);
    CHECK(!error, "%s: %s, schedule %d", error, describe(w), (int)how);
    if (own)
        check_bytes(w);
    world_destroy(w);
}

static void check_owners(int workers, int size, bool contiguous)
{
    static const int64_t counts[] = {0, 1, 3, 100, 333}, segments[] = {0, 1, 64, 400};
    static const int64_t windows[] = {0, 64, 4000};
    int owners[WORKERS];
    for (int v = 0; v < workers; v++)
        owners[v] = contiguous ? v * size / workers : (int)random_below((uint64_t)size);
    ddl__order order = {workers, owners};
    ddl__request request = {.kind = DDL__ALLREDUCE,
                            .size = size,
                            .count = counts[random_below(size > 16 ? 4 : 5)],
                            .order = &order,
                            .wide = 1 + (int)random_below(2),
                            .element = (size_t)1 << random_below(4),
                            .all_shared = random_below(2),
                            .segment_bytes = segments[random_below(4)],
                            .window = windows[random_below(3)]};
    check_one(&request, (schedule)random_below(SCHEDULES));
}

/* With equal ranges of a power of two, each rank sends what it sends in an all-reduce. */
static void check_equal_ranges(void)
{
    int owners[WORKERS];
    for (int size = 2; size <= 16; size *= 2) {
        for (int v = 0; v < WORKERS; v++)
            owners[v] = v * size / WORKERS;
        ddl__order order = {WORKERS, owners};
        ddl__request request = {.kind = DDL__ALLREDUCE,
                                .size = size,
                                .count = 16 * 70 * size,
                                .order = &order,
                                .wide = 1,
                                .element = 4,
                                .all_shared = true};
        world *w = world_create(&request, 0);
        const char *error = simulate(w, IN_TURN);
        CHECK(!error, "%s: %s", error, describe(w));
        for (int r = 0; r < size; r++)
            CHECK(w->ranks[r].sent == 2 * request.count * 4 / size * (size - 1), "rank %d: %s", r,
                  describe(w));
        world_destroy(w);
    }
}

static ddl__topology *hosts_of(int hosts, int each)
{
    int size = hosts * each;
    ddl__topology *topology;
    ddl__sharing *sharing = calloc((size_t)size, sizeof *sharing);
    CHECK(sharing, "out of memory");
    for (int r = 0; r < size; r++)
        sharing[r] = (ddl__sharing){{{(uint64_t)(r / each), 0}}, (uint64_t)each};
    CHECK(ddl__topology_create(sharing, size, NULL, false, &topology) == DDL_OK, "no topology");
    free(sharing);
    return topology;
}

/* Over wires, with one rank on each host, trees and halving are used if they are chosen. */
static void check_plain_plans(void)
{
    static const int64_t lengths[] = {1, 300, 5000, 40000};
    int owners[WORKERS], trees = 0, halvings = 0;
    for (int size = 2; size <= WORKERS; size *= 2)
        for (int l = 0; l < (size > 16 ? 2 : 4); l++)
            for (int moved = 0; moved < 2; moved++) {
                ddl__topology *topology = hosts_of(size, 1);
                for (int v = 0; v < WORKERS; v++)
                    owners[v] = (v * size / WORKERS + moved) % size;
                ddl__order order = {WORKERS, owners};
                ddl__request request = {.kind = DDL__ALLREDUCE,
                                        .size = size,
                                        .count = lengths[l],
                                        .order = &order,
                                        .wide = 1,
                                        .element = 4,
                                        .topology = l % 2 ? topology : NULL};
                world *w = world_create(&request, 0);
                const char *error = simulate(w, RANDOM), *name = w->ranks[0].plan->name;
                CHECK(!error, "%s: %s, %s", error, name, describe(w));
                bool plain = strcmp(name, "ordered") != 0;
                CHECK(!(plain && moved), "%s, but ranks bring parts in another order", name);
                CHECK(w->ranks[0].plan->divisor == WORKERS, "%d", w->ranks[0].plan->divisor);
                trees += strcmp(name, "tree") == 0;
                halvings += strcmp(name, "halving") == 0;
                world_destroy(w);
                ddl__topology_destroy(topology);
            }
    CHECK(trees && halvings, "%d trees, %d halvings: nothing was tried", trees, halvings);
}

/* On equal hosts, their wires carry what they carry in an all-reduce, unless the sum is so short
 * that each rank sends it to all. With half types, and if ranks pass parts in another order, all
 * ranks exchange parts. */
static void check_hosts(void)
{
    int owners[WORKERS], levels = 0;
    for (int hosts = 2; hosts <= 16; hosts *= 2)
        for (int each = 2; hosts * each <= 32; each *= 2)
            for (int way = 0; way < 6; way++) {
                ddl__topology *topology = hosts_of(hosts, each);
                bool moved = way % 3 == 1, half = way % 3 == 2;
                int size = hosts * each;
                for (int v = 0; v < WORKERS; v++)
                    owners[v] = (v * size / WORKERS + moved) % size;
                ddl__order order = {WORKERS, owners};
                ddl__request request = {.kind = DDL__ALLREDUCE,
                                        .size = size,
                                        .count = way < 3 ? 3 : 64 * size,
                                        .order = &order,
                                        .wide = half ? 2 : 1,
                                        .element = 4,
                                        .segment_bytes = way < 3 ? 0 : 4096,
                                        .topology = topology};
                world *w = world_create(&request, 0);
                const char *error = simulate(w, (schedule)random_below(SCHEDULES));
                CHECK(!error, "%s: %s, %d hosts, %s", error, w->ranks[0].plan->name, hosts,
                      describe(w));
                bool own = strcmp(w->ranks[0].plan->name, "ordered") == 0;
                CHECK(own || !(moved || half), "%s", w->ranks[0].plan->name);
                levels += !own;
                bool levelled = !own && strcmp(w->ranks[0].plan->name, "one-shot") != 0;
                for (int h = 0; h < hosts && levelled && way >= 3; h++) {
                    int64_t wire = 0;
                    for (int r = h * each; r < (h + 1) * each; r++)
                        wire += w->ranks[r].wires;
                    CHECK(wire == 2 * request.count * 4 / hosts * (hosts - 1),
                          "%s: %lld bytes on a wire, %d hosts, %s", w->ranks[0].plan->name,
                          (long long)wire, hosts, describe(w));
                }
                world_destroy(w);
                ddl__topology_destroy(topology);
            }
    CHECK(levels > 5, "%d plans had levels: nothing was tried", levels);
}

/* Return the parts of the ranks of a host together. */
static int host_parts(const ddl__request *request, int host)
{
    int members[WORKERS];
    for (int v = 0; v < request->order->workers; v++)
        members[v] = ddl__topology_group(request->topology, DDL__HOSTS, request->order->members[v]);
    return ddl__order_parts(&(ddl__order){request->order->workers, members}, host, NULL, 0);
}

/* An all-reduce sends each host's sums up once, and the results down once. Hosts own equal shares
 * but for a cache line. */
static void check_wires(const world *w, const int *hosts, int n)
{
    const ddl__request *q = &w->request;
    for (int h = 0; h < n; h++) {
        int64_t wire = 0, line = (int64_t)DDL__LINE * q->size;
        for (int r = 0; r < q->size; r++)
            wire += ddl__topology_group(q->topology, DDL__HOSTS, r) == h ? w->ranks[r].wires : 0;
        int64_t each = ddl__quotient(q->count, n) * (int64_t)q->element;
        int64_t most = (host_parts(q, h) * q->wide + 1) * (n - 1) * (each + line);
        CHECK(wire <= most, "%lld bytes on the wire of %d ranks, not %lld: %s", (long long)wire,
              hosts[h], (long long)most, describe(w));
    }
}

/* Any number of hosts of any number of ranks, in any order, with any owners; all kinds of
 * reductions. With one worker for each rank, every algorithm that follows the order. */
static void check_any_hosts(void)
{
    int kinds[DDL__ALGORITHMS] = {0};
    for (int turn = 0; turn < (SANITIZED ? 150 : 1500); turn++) {
        int hosts[8], n = 1 + (int)random_below(6), size = 0, owners[WORKERS];
        bool single = turn % 2, even = random_below(2);
        for (int h = 0; h < n; h++)
            size += hosts[h] = h && even ? hosts[0] : 1 + (int)random_below(4);
        int workers = single ? size : 1 + (int)random_below(WORKERS);
        for (int v = 0; v < workers; v++)
            owners[v] =
                single || random_below(2) ? v * size / workers : (int)random_below((uint64_t)size);
        static const ddl__kind reductions[] = {DDL__ALLREDUCE, DDL__REDUCE_SCATTER,
                                               DDL__REDUCE_TO_ROOT};
        ddl__topology *topology = topology_of(hosts, n, NULL, random_below(3) == 0);
        ddl__order order = {workers, owners};
        ddl__request request = {.kind = reductions[random_below(single ? 3 : 2)],
                                .size = size,
                                .root = (int)random_below((uint64_t)size),
                                .count = (int64_t)random_below(turn % 8 ? 60 : 1500),
                                .order = &order,
                                .wide = single ? 1 : 1 + (int)random_below(2),
                                .rounds = random_below(2),
                                .in_place = single && random_below(2),
                                .element = (size_t)1 << random_below(4),
                                .topology = topology,
                                .by = single ? (ddl__algorithm)random_below(DDL__ALGORITHMS) : 0,
                                .segment_bytes = random_below(2) ? 64 : 0};
        bool scatters = request.kind == DDL__REDUCE_SCATTER;
        world *w = world_create(&request, scatters && turn % 3 ? 1 + random_below(99) : 0);
        w->queue_room = DDL__LINK_SPANS / 2; /* no plan needs more */
        const char *error = simulate(w, (schedule)random_below(SCHEDULES));
        const char *name = w->ranks[0].plan->name;
        CHECK(!error, "%s: %s, kind %d, %d hosts, %s", error, name, (int)request.kind, n,
              describe(w));
        if (!strcmp(name, "ordered") && request.kind == DDL__ALLREDUCE && !is_one_shot(w))
            check_wires(w, hosts, n);
        kinds[w->ranks[0].plan->by]++;
        world_destroy(w);
        ddl__topology_destroy(topology);
    }
    static const ddl__algorithm used[] = {DDL__ALGORITHM_ONE_SHOT,     DDL__ALGORITHM_DIRECT,
                                          DDL__ALGORITHM_HIERARCHICAL, DDL__ALGORITHM_HALVING,
                                          DDL__ALGORITHM_TREE,         DDL__ALGORITHM_ORDERED};
    for (size_t i = 0; i < sizeof used / sizeof *used; i++)
        CHECK(SANITIZED || kinds[used[i]], "algorithm %d was used %d times", (int)used[i],
              kinds[used[i]]);
}

/* A fault in any step of any rank is detected: an addition in another order, a part left out. */
static void check_faults(void)
{
    static int owners[] = {0, 2, 1, 1, 0, 2, 2};
    ddl__order order = {7, owners};
    ddl__request request = {.kind = DDL__ALLREDUCE,
                            .size = 3,
                            .count = 600,
                            .order = &order,
                            .wide = 1,
                            .element = 4,
                            .all_shared = true};
    for (int fault = 0; fault < 3; fault++)
        for (int r = 0; r < request.size; r++) {
            world *w = world_create(&request, 0);
            for (int i = 0; i < DDL__FOLDS; i++) {
                ddl__fold *fold = w->ranks[r].plan->folds[i];
                if (!fold || fold->operands < 2)
                    continue;
                int16_t first = fold->items[0];
                int second = 1;
                while (fold->items[second] < 0)
                    second++;
                if (fault != 1 || i == 0)
                    fold->items[0] = fold->items[second];
                if (fault != 2 || i == 0)
                    fold->items[second] = first;
            }
            CHECK(simulate(w, IN_TURN), "fault %d in rank %d was not detected", fault, r);
            world_destroy(w);
        }
}

int main(void)
{
    for (int workers = 1; workers <= MANY; workers++)
        for (int size = 1; size <= workers; size++)
            for (int turn = 0; turn < (size > 16 ? 2 : 6); turn++)
                check_owners(workers, size, turn % 2 == 0);
    for (int size = 2; size <= 9; size++) /* more ranks than workers */
        for (int workers = 1; workers < size; workers++)
            check_owners(workers, size, false);
    check_equal_ranges();
    check_plain_plans();
    check_hosts();
    check_any_hosts();
    check_faults();
}
