/* SPDX-License-Identifier: Apache-2.0 */
/* Hierarchical plans for machines of all shapes through the simulator. Then plans are broken, and
 * the simulator must detect it. */
#include "plan/algorithms/exchanges.h"

#include "host_topology.h"
#include "plan_results.h"

/* ------------------------------------------------------------------------------------- machines */

static ddl__topology *grid(int x, int y, int z, int w, bool declared)
{
    ddl__topology *t;
    CHECK(ddl__topology_declare((int[]){x, y, z, w}, &t) == DDL_OK, "no topology");
    t->declared = declared;
    return t;
}

/* Half of all machines have hosts of two or three nodes, with ranks on random nodes. */
static void add_nodes(ddl__topology *t)
{
    ddl__location *places = calloc((size_t)t->size, sizeof *places);
    uint64_t nodes = random_below(2) ? 2 + random_below(2) : 0;
    CHECK(places, "out of memory");
    for (int r = 0; r < t->size && nodes; r++)
        places[r].node = 1 + random_below(nodes);
    CHECK(ddl__topology_locate(t, places) == DDL_OK, "%s", ddl__message());
    free(places);
}

static ddl__topology *unequal(const int *hosts, int n, const char *racks, bool shuffled)
{
    ddl__topology *t = topology_of(hosts, n, racks, shuffled);
    add_nodes(t);
    return t;
}

static const char *describe(const ddl__request *q)
{
    static char text[512];
    int n =
        snprintf(text, sizeof text,
                 "%s, %d ranks, count %lld of %zu bytes, %s, segments of %lld, window %lld, %s, "
                 "hosts:",
                 ddl__algorithm_name(q->by), q->size, (long long)q->count, q->element,
                 q->in_place ? "in place" : "out of place", (long long)q->segment_bytes,
                 (long long)q->window, q->topology->declared ? "declared" : "proven");
    for (int r = 0; r < q->size && n < 480; r++)
        n += snprintf(text + n, sizeof text - (size_t)n, " %d",
                      ddl__topology_group(q->topology, DDL__HOSTS, r));
    return text;
}

static ddl__request request_for(const ddl__topology *t)
{
    return (ddl__request){.kind = DDL__ALLREDUCE,
                          .size = t->size,
                          .element = 4,
                          .topology = t,
                          .by = random_below(2) ? DDL__ALGORITHM_HIERARCHICAL
                                                : DDL__ALGORITHM_HALVING,
                          .count = 1};
}

/* True if the request has several levels. */
static bool is_hierarchical(const ddl__request *q)
{
    return ddl__algorithm_fits(q->by, q);
}

/* How the result is known. */
typedef enum addition { SUM, HASH, HASH_SOMEHOW } addition;

static world *machine_create(const ddl__request *q, addition how)
{
    world *w = world_create(q, 0);
    w->in_any_order = how == SUM;
    w->any_result = how == HASH_SOMEHOW;
    w->wide_wires = true;
    w->queue_room = DDL__LINK_SPANS / 2;
    return w;
}

/* For every shape, each element leaves all groups of a level except one, and comes back. */
static void check_bytes(const world *w)
{
    const ddl__request *q = &w->request;
    int64_t all = 0, wires = 0, bytes = q->count * (int64_t)q->element;
    for (int r = 0; r < q->size; r++) {
        all += w->ranks[r].sent;
        wires += w->ranks[r].wires;
    }
    CHECK(all == 2 * bytes * (q->size - 1), "%lld bytes sent: %s", (long long)all, describe(q));
    CHECK(wires == 2 * bytes * (q->topology->groups[DDL__HOSTS] - 1), "%lld bytes on wires: %s",
          (long long)wires, describe(q));
}

static void check_one(const ddl__request *q, addition how)
{
    world *w = machine_create(q, how);
    w->one_window = q->topology->declared && random_below(2);
    const char *error = simulate(w, random_below(2) ? q->size > 16 ? IN_TURN : RANDOM : FAR);
    CHECK(!error, "%s: %s", error, describe(q));
    check_bytes(w);
    world_destroy(w);
}

/* A request of random size that is cut in random ways; large requests get long segments. */
static ddl__request random_request(const ddl__topology *t, int64_t most)
{
    static const int64_t segments[] = {0, 64, 128, 1000, 4096}, windows[] = {0, 1000, 16384};
    ddl__request q = request_for(t);
    q.element = (size_t)1 << random_below(4);
    q.count = 1 + (int64_t)random_below((uint64_t)most);
    q.segment_bytes = segments[random_below(5)];
    q.window = windows[random_below(3)];
    q.in_place = random_below(2);
    if (q.count * t->size > 40000) {
        q.window = 0;
        q.segment_bytes = q.segment_bytes % 128 ? 4096 : 0;
    }
    if (!q.window && random_below(2)) /* the least that there may be */
        q.window = 4 * q.size * (int64_t)q.element;
    if (q.window && q.window < 12 * (int64_t)q.element)
        q.window = 12 * (int64_t)q.element;
    return q;
}

/* ---------------------------------------------------------------------------------------- tests */

/* All X x Y x Z x W of up to 64 ranks. */
static void test_equal(void)
{
    enum { MOST = SANITIZED ? 16 : 64 };
    int shapes = 0;
    for (int x = 1; x <= MOST; x++)
        for (int y = 1; x * y <= MOST; y++)
            for (int z = 1; x * y * z <= MOST; z++)
                for (int w = 1; x * y * z * w <= MOST; w++) {
                    if (x * y * z * w == 1)
                        continue;
                    ddl__topology *t = grid(x, y, z, w, random_below(2));
                    ddl__request q = random_request(t, 2000);
                    check_one(&q, HASH);
                    shapes++;
                    ddl__topology_destroy(t);
                }
    printf("%d equal grids\n", shapes);
}

/* With a whole number of lines for each rank and equal groups, each rank sends 2 N (1 - 1/p) and
 * each host 2 N (1 - 1/hosts), the fewest with which N bytes can be all-reduced. */
static void test_bytes(void)
{
    static const int shapes[][4] = {{2, 2, 1, 1},  {4, 2, 1, 1}, {2, 3, 1, 1}, {3, 5, 1, 1},
                                    {2, 16, 1, 1}, {2, 2, 2, 1}, {2, 3, 2, 2}, {1, 4, 2, 1}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const int *d = shapes[i];
        ddl__topology *t = grid(d[0], d[1], d[2], d[3], false);
        ddl__request q = request_for(t);
        int hosts = t->groups[DDL__HOSTS];
        if (hosts & (hosts - 1)) /* its halves are not equal */
            q.by = DDL__ALGORITHM_HIERARCHICAL;
        q.count = 16 * 20 * q.size; /* in one chunk */
        world *w = machine_create(&q, SUM);
        const char *error = simulate(w, RANDOM);
        CHECK(!error, "%s: %s", error, describe(&q));
        for (int r = 0; r < q.size; r++) {
            const simulated_rank *me = &w->ranks[r];
            CHECK(me->sent == 2 * q.count * 4 / q.size * (q.size - 1), "%s", describe(&q));
            CHECK(me->wires * d[0] == 2 * q.count * 4 / hosts * (hosts - 1), "%lld: %s",
                  (long long)me->wires, describe(&q));
        }
        world_destroy(w);
        ddl__topology_destroy(t);
    }
}

/* Any number of hosts is halved in ceil(log2 hosts) levels, into parts whose sizes differ by one
 * host at most. */
static void test_halves(void)
{
    for (int hosts = 2; hosts <= 70; hosts++) {
        ddl__topology *t = grid(3, hosts, 1, 1, false);
        ddl__hierarchy hierarchy;
        int levels = 1;
        while (1 << (levels - 1) < hosts)
            levels++;
        CHECK(ddl__hierarchy_create(&hierarchy, t, true, 0), "out of memory");
        CHECK(hierarchy.n == levels, "%d hosts: %d levels", hosts, hierarchy.n);
        for (int l = 1; l <= hierarchy.n; l++) {
            int least = t->size, most = 0;
            for (int g = 0; g < hierarchy.n_groups[l]; g++) {
                int ranks = 0;
                for (int r = 0; r < t->size; r++)
                    ranks += hierarchy.groups[l * t->size + r] == g;
                least = ranks < least ? ranks : least;
                most = ranks > most ? ranks : most;
            }
            CHECK(hierarchy.n_groups[l] == (l == 1 ? hosts : 1 << (levels - l)), "%d hosts", hosts);
            CHECK(most - least <= 3, "%d hosts, level %d: %d to %d ranks", hosts, l, least, most);
        }
        ddl__hierarchy_destroy(&hierarchy);
        ddl__topology_destroy(t);
    }
}

/* The same request with packed spans between hosts. Return false if there is only one host. */
static bool check_packed(ddl__request q)
{
    q.wire = (ddl_wire)(DDL_WIRE_INT8 + random_below(3));
    q.by = DDL__ALGORITHM_PACKED;
    q.element = 4;
    q.count += 4096;
    q.segment_bytes = random_below(2) ? 4096 : 0;
    q.window = random_below(2) ? 16384 : 0;
    if (!ddl__algorithm_fits(q.by, &q))
        return false;
    check_one(&q, HASH);
    return true;
}

/* A sum of more segments than packed plans support is sent as it is. */
static void test_too_many_segments(void)
{
    ddl__topology *t = topology_of((int[]){1, 1}, 2, "", false);
    ddl__request q = request_for(t);
    q.by = DDL__ALGORITHM_NONE;
    q.wire = DDL_WIRE_INT8;
    q.segment_bytes = 4;
    q.window = 0;
    for (q.rank = 0; q.rank < 2; q.rank++)
        for (int few = 0; few < 2; few++) {
            q.count = few ? 1 << 20 : (int64_t)1 << 32;
            ddl__plan *plan = ddl__plan_create(&q);
            CHECK(plan, "no plan for %lld elements", (long long)q.count);
            CHECK(plan->bits == (few ? 8 : 0) && (plan->by == DDL__ALGORITHM_PACKED) == few,
                  "%lld elements: %s, %u bits", (long long)q.count, plan->name,
                  (unsigned)plan->bits);
            ddl__plan_destroy(plan);
        }
    ddl__topology_destroy(t);
}

/* Up to 24 ranks on hosts of up to 7, in random racks and aisles. */
static void test_unequal(void)
{
    enum { MACHINES = SANITIZED ? 50 : 400 };
    int hierarchical = 0, packed = 0;
    for (int n = 0; n < MACHINES; n++) {
        int hosts[12], n_hosts = 1 + (int)random_below(12), size = 0;
        for (int h = 0; h < n_hosts; h++) {
            hosts[h] = 1 + (int)(random_below(3) ? random_below(3) : random_below(7));
            if (size + hosts[h] > 24)
                n_hosts = h;
            size += hosts[h];
        }
        char racks[64] = "";
        for (int h = 0, at = 0; n % 3 && h < n_hosts;) {
            int in_rack = 1 + (int)random_below(4);
            in_rack = in_rack < n_hosts - h ? in_rack : n_hosts - h;
            const char *mark = h == 0 ? "" : random_below(3) ? "," : ";";
            at += snprintf(racks + at, sizeof racks - (size_t)at, "%s%d", mark, in_rack);
            h += in_rack;
        }
        ddl__topology *t = unequal(hosts, n_hosts, racks, n % 2);
        ddl__request q = random_request(t, 3000);
        if (t->size > 1 && is_hierarchical(&q)) {
            check_one(&q, SUM);
            check_one(&q, HASH_SOMEHOW);
            hierarchical++;
        }
        packed += n % 4 == 0 && t->size > 1 && check_packed(q);
        ddl__topology_destroy(t);
    }
    CHECK(hierarchical > MACHINES / 2, "only %d hierarchical", hierarchical);
    CHECK(packed > MACHINES / 8, "only %d packed", packed);
    printf("%d unequal machines, %d with packed sums\n", hierarchical, packed);
}

/* Shapes that are too irregular get a coarser hierarchy, and results stay right. */
static void test_coarse(void)
{
    static const int lonely[] = {1, 1, 20}, mixed[] = {7, 5, 3, 2, 1, 1};
    static const struct {
        const int *hosts;
        int n;
        const char *racks;
    } cases[] = {{lonely, 3, ""}, {mixed, 6, ""}, {mixed, 6, "3,3"}, {mixed, 6, "1,2;1,1;1"}};
    bool capped = false;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ddl__topology *t = unequal(cases[i].hosts, cases[i].n, cases[i].racks, true);
        for (int n = 0; n < 40; n++) {
            ddl__request q = random_request(t, 5000);
            if (is_hierarchical(&q))
                check_one(&q, n % 2 ? HASH_SOMEHOW : SUM);
        }
        ddl__hierarchy hierarchy;
        ddl__exchanges exchanges;
        CHECK(ddl__hierarchy_create(&hierarchy, t, false, 0), "out of memory");
        CHECK(ddl__exchanges_create(&exchanges, &hierarchy, 0, 100000, 16), "out of memory");
        capped = capped || exchanges.pair_ranges > DDL__PAIR_RANGES;
        ddl__exchanges_destroy(&exchanges);
        ddl__hierarchy_destroy(&hierarchy);
        CHECK(ddl__hierarchy_create(&hierarchy, t, false, DDL__COARSEST), "out of memory");
        CHECK(ddl__exchanges_create(&exchanges, &hierarchy, 0, 100000, 16), "out of memory");
        CHECK(exchanges.pair_ranges == 1, "the coarsest: %d", exchanges.pair_ranges);
        ddl__exchanges_destroy(&exchanges);
        ddl__hierarchy_destroy(&hierarchy);
        ddl__topology_destroy(t);
    }
    CHECK(capped, "no shape was too unequal");
}

/* Reduce-scatter on the node, between the nodes, and back: what crosses between two nodes of p
 * ranks is 2 N each way, however many ranks they have. */
static void test_nodes(void)
{
    for (int each = 2; each <= 8; each++) {
        ddl__topology *t = unequal((int[]){2 * each}, 1, "", false);
        ddl__location places[16];
        for (int r = 0; r < t->size; r++)
            places[r] = (ddl__location){.node = 1 + (uint64_t)(r / each)};
        free(t->node);
        CHECK(ddl__topology_locate(t, places) == DDL_OK && t->nodes == 2, "%s", ddl__message());
        ddl__request q = request_for(t);
        q.by = DDL__ALGORITHM_NONE;
        q.all_shared = true;
        q.count = 16 * 100 * t->size;
        world *w = machine_create(&q, SUM);
        CHECK(w->ranks[0].plan->by == DDL__ALGORITHM_HIERARCHICAL, "%s", w->ranks[0].plan->name);
        const char *error = simulate(w, RANDOM);
        CHECK(!error, "%s: %s", error, describe(&q));
        int64_t crossing = 0;
        for (int r = 0; r < each; r++) {
            const ddl__plan *plan = w->ranks[r].plan;
            for (uint32_t i = 0; i < plan->n_steps; i++)
                for (uint32_t to = 0; to < plan->steps[i].targets; to++)
                    if (plan->ranks[plan->steps[i].target + to] >= (uint32_t)each)
                        crossing += plan->steps[i].count * 4;
        }
        CHECK(crossing == q.count * 4, "%lld bytes cross: %s", (long long)crossing, describe(&q));
        world_destroy(w);
        ddl__topology_destroy(t);
    }
}

static void test_large(void)
{
    static const int shapes[][4] = {{4, 8, 8, 1},    {8, 8, 8, 1},    {2, 61, 2, 1},
                                    {1, 1024, 1, 1}, {2, 2048, 1, 1}, {8, 8, 8, 8}};
    enum { SHAPES = sizeof shapes / sizeof *shapes };
    for (int i = 0; i < SHAPES - (SANITIZED ? 2 : 0); i++) {
        const int *d = shapes[i];
        ddl__topology *t = grid(d[0], d[1], d[2], d[3], true);
        ddl__request q = request_for(t);
        q.element = 8;
        q.count = 4000;
        q.segment_bytes = 8192;
        check_one(&q, SUM);
        ddl__topology_destroy(t);
    }
    int hosts[150];
    for (int h = 0; h < 150; h++)
        hosts[h] = 6 + (int)random_below(3);
    ddl__topology *t = unequal(hosts, 150, "50,40;30x2", true);
    ddl__request q = request_for(t);
    q.count = 20000;
    check_one(&q, SUM);
    ddl__topology_destroy(t);
}

/* Plans of the largest counts do not overflow, and their steps lie within the buffers. */
static void test_huge(void)
{
    for (int n = 0; n < 64; n++) {
        ddl__topology *t = n % 2 ? grid(2, 3, 2, 1, n / 2 % 2)
                                 : unequal((int[]){3, 1, 2}, 3, n / 2 % 2 ? "2,1" : "", false);
        ddl__request q = request_for(t);
        q.element = (size_t)1 << n / 4 % 4;
        q.count = ((int64_t)1 << 62) / (int64_t)q.element - n / 16 % 2;
        q.rank = (int)random_below((uint64_t)q.size);
        q.segment_bytes = n / 32 ? INT64_MAX : 0;
        ddl__plan *plan = ddl__plan_create(&q);
        CHECK(plan, "no plan");
        int64_t end = 0;
        for (uint32_t i = 0; i < plan->n_steps; i++) {
            const ddl__step *step = &plan->steps[i];
            int64_t last = step->count / step->piece - 1, at = step->dst + last * step->stride;
            CHECK(step->count % step->piece == 0 && last >= 0, "%s", describe(&q));
            CHECK(at >= 0 && at <= q.count - step->piece, "%s", describe(&q));
            CHECK(last + step->skew < plan->waves, "%s", describe(&q));
            CHECK(step->piece * (int64_t)q.element <= DDL__SEGMENT_MAX, "%s", describe(&q));
            end = at + step->piece > end ? at + step->piece : end;
        }
        CHECK(end == q.count, "ends at %lld: %s", (long long)end, describe(&q));
        ddl__plan_destroy(plan);
        ddl__topology_destroy(t);
    }
}

/* ----------------------------------------------------------------------------------- mutations */

typedef enum mutation {
    DROP,
    DOUBLE,
    SHORTEN,
    SHIFT_SRC,
    SHIFT_DST,
    REORDER,
    PEER,
    MUTATIONS
} mutation;

static void insert_copy(ddl__plan *plan, uint32_t i)
{
    plan->steps = realloc(plan->steps, (plan->n_steps + 1) * sizeof *plan->steps);
    CHECK(plan->steps, "out of memory");
    memmove(plan->steps + i + 1, plan->steps + i, (plan->n_steps - i) * sizeof *plan->steps);
    plan->n_steps++;
}

static bool have_common(const uint32_t *a, uint32_t n, const uint32_t *b, uint32_t m, uint32_t but)
{
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t j = 0; j < m; j++)
            if (a[i] == b[j] && a[i] != but)
                return true;
    return false;
}

/* Swap the step with a later one that uses the same link, or that sends in the same wave what this
 * one makes. */
static bool reorder(ddl__plan *plan, uint32_t i, uint32_t rank)
{
    ddl__step *a = &plan->steps[i];
    for (uint32_t j = i + 1; j < plan->n_steps; j++) {
        ddl__step *b = &plan->steps[j];
        const uint32_t *ranks = plan->ranks;
        bool link =
            have_common(ranks + a->target, a->targets, ranks + b->target, b->targets, rank) ||
            have_common(ranks + a->operand, a->operands, ranks + b->operand, b->operands, rank);
        bool data = a->kind != DDL__PUBLISH && b->kind == DDL__PUBLISH && a->skew == b->skew &&
                    b->space == DDL__OUT && a->dst < b->src + b->piece &&
                    b->src < a->dst + a->piece;
        if (a->count <= 8 * a->piece || b->count <= 8 * b->piece || (!link && !data))
            continue;
        ddl__step other = *a;
        *a = *b;
        *b = other;
        return true;
    }
    return false;
}

/* Break a step of a rank's plan; false if this way does not apply. */
static bool break_step(const world *w, uint32_t rank, uint32_t i, mutation how)
{
    ddl__plan *plan = w->ranks[rank].plan;
    ddl__step *step = &plan->steps[i];
    uint32_t *other = plan->ranks + (step->targets ? step->target : step->operand);
    switch (how) {
    case DROP: step->count = 0; return true;
    case DOUBLE: insert_copy(plan, i); return true;
    case SHORTEN: step->count--; return true;
    case SHIFT_SRC: step->src++; return step->kind != DDL__TAKE;
    case SHIFT_DST: step->dst++; return step->kind != DDL__PUBLISH;
    case REORDER: return reorder(plan, i, rank);
    case PEER:
        do
            *other = (*other + 1) % (uint32_t)w->request.size;
        while (*other == rank);
        return w->request.size > 2;
    case MUTATIONS: break;
    }
    return false;
}

static void test_mutations(void)
{
    ddl__topology *shapes[] = {grid(2, 2, 1, 1, false), grid(3, 2, 2, 1, false),
                               unequal((int[]){3, 1}, 2, "", false),
                               unequal((int[]){2, 3, 1, 2}, 4, "2,2", true)};
    enum { SHAPES = sizeof shapes / sizeof *shapes, SEEDS = SANITIZED ? 5 : 50 };
    int applied[MUTATIONS] = {0}, rejected = 0;
    for (uint64_t seed = 1; rejected < 4 * SEEDS; seed++) {
        random_state = scramble(seed);
        ddl__request q = request_for(shapes[seed % SHAPES]);
        q.count = 4000;
        q.segment_bytes = 512;
        q.in_place = random_below(2);
        uint32_t rank = (uint32_t)random_below((uint64_t)q.size);
        mutation how = (mutation)random_below(MUTATIONS);
        uint64_t place = random_below(1000);
        const char *error = NULL;
        bool does = true;
        addition equal = seed % SHAPES < 2 ? HASH : SUM; /* where the order is known */
        for (int run = 0; run < 4 && does && !error; run++) {
            world *w = machine_create(&q, equal);
            does = break_step(w, rank, (uint32_t)(place % w->ranks[rank].plan->n_steps), how);
            if (does)
                error = simulate(w, run % 2 ? RANDOM : FAR);
            world_destroy(w);
        }
        CHECK(!does || error, "mutation %d of step %llu of rank %u not noticed, seed %llu: %s", how,
              (unsigned long long)place, rank, (unsigned long long)seed, describe(&q));
        applied[how] += does;
        rejected += does;
    }
    for (int i = 0; i < MUTATIONS; i++)
        CHECK(applied[i] > 0, "mutation %d applied nowhere", i);
    for (int i = 0; i < SHAPES; i++)
        ddl__topology_destroy(shapes[i]);
    printf("%d mutations rejected\n", rejected);
}

/* A window that does not hold two waves causes a deadlock, and the simulator detects it. */
static void test_deadlock(void)
{
    ddl__topology *t = grid(2, 2, 1, 1, false);
    ddl__request q = request_for(t);
    q.count = 20000;
    q.segment_bytes = 1024;
    world *w = machine_create(&q, HASH);
    w->window = 512;
    const char *error = simulate(w, FAR);
    CHECK(error && strcmp(error, "deadlock") == 0, "%s", error ? error : "nothing noticed");
    world_destroy(w);
    ddl__topology_destroy(t);
}

int main(void)
{
    test_bytes();
    test_equal();
    test_halves();
    test_unequal();
    test_too_many_segments();
    test_coarse();
    test_nodes();
    test_huge();
    test_deadlock();
    test_mutations();
    test_large();
}
