/* SPDX-License-Identifier: Apache-2.0 */
/* All algorithms that use hosts of several ranks, simulated with hosts of many shapes. */
#include "host_topology.h"
#include "plan_results.h"

static const char *describe(const ddl__request *q)
{
    static char text[512];
    int n = snprintf(text, sizeof text,
                     "kind %d, %d ranks, count %lld of %zu bytes, in place %d, segments of %lld, "
                     "window %lld, hosts:",
                     (int)q->kind, q->size, (long long)q->count, q->element, q->in_place,
                     (long long)q->segment_bytes, (long long)q->window);
    for (int r = 0; r < q->size && n < 480; r++)
        n += snprintf(text + n, sizeof text - (size_t)n, " %d",
                      ddl__topology_group(q->topology, DDL__HOSTS, r));
    return text;
}

static ddl__request request_for(const ddl__topology *t, ddl__kind kind)
{
    bool led = kind == DDL__BROADCAST || kind == DDL__REDUCE_TO_ROOT;
    bool to_one = kind == DDL__GATHER || kind == DDL__SCATTER;
    ddl__algorithm by = to_one || (led && random_below(2)) ? DDL__ALGORITHM_TREE
                        : led                              ? DDL__ALGORITHM_LEADERS
                                                           : DDL__ALGORITHM_HOSTS;
    return (ddl__request){.kind = kind, .size = t->size, .element = 4, .topology = t, .by = by};
}

/* Return the same request with packed spans between hosts. */
static ddl__request packed(ddl__request q)
{
    q.wire = (ddl_wire)(DDL_WIRE_INT8 + random_below(3));
    q.by = DDL__ALGORITHM_PACKED;
    q.element = sizeof(float);
    return q;
}

static int ranks_on(const ddl__topology *t, int host)
{
    int ranks = 0;
    for (int r = 0; r < t->size; r++)
        ranks += ddl__topology_group(t, DDL__HOSTS, r) == host;
    return ranks;
}

/* Return the blocks that the messages of a tree carry: each block once for each edge to the
 * root. */
static int64_t blocks_in_tree(const ddl__topology *t, int root)
{
    int64_t blocks = 0;
    int hosts = t->groups[DDL__HOSTS], first = ddl__topology_group(t, DDL__HOSTS, root);
    for (int place = 1; place < hosts; place++)
        for (int up = place; up; up &= up - 1)
            blocks += ranks_on(t, (first + place) % hosts);
    return blocks;
}

/* Return the blocks of an all-to-all that leave their host. */
static int64_t blocks_between(const ddl__topology *t)
{
    int64_t blocks = 0;
    for (int h = 0; h < t->groups[DDL__HOSTS]; h++)
        blocks += (int64_t)ranks_on(t, h) * (t->size - ranks_on(t, h));
    return blocks;
}

/* Return false if the sizes of hosts differ too much, or if blocks are too long. */
static bool check_one(const ddl__request *request, uint64_t uneven)
{
    world *w = world_create(request, uneven);
    const ddl__topology *t = request->topology;
    bool rooted = request->kind == DDL__BROADCAST || request->kind == DDL__REDUCE_TO_ROOT;
    bool over_hosts = w->ranks[0].plan->by == request->by;
    w->queue_room = DDL__LINK_SPANS / 2;
    const char *error = simulate(w, (schedule)random_below(SCHEDULES));
    CHECK(!error, "%s: %s, %s", error, w->ranks[0].plan->name, describe(request));
    int64_t wires = 0, blocks = request->count * (int64_t)request->element;
    blocks *= rooted ? 1 : request->size;
    if (uneven) {
        blocks = 0;
        for (int i = 0; i < request->size; i++)
            blocks += request->kind == DDL__ALLGATHER ? w->ranks[0].from[i].count
                                                      : w->ranks[0].to[i].count;
        blocks *= (int64_t)request->element;
    }
    for (int r = 0; r < request->size; r++)
        wires += w->ranks[r].wires;
    /* Each block is sent to every other host once, or from it. */
    int64_t block = request->count * (int64_t)request->element;
    int64_t want = request->kind == DDL__ALLTOALL ? block * blocks_between(t)
                   : request->kind >= DDL__GATHER ? block * blocks_in_tree(t, request->root)
                                                  : blocks * (t->groups[DDL__HOSTS] - 1);
    if (over_hosts)
        CHECK(wires == want, "%lld bytes, not %lld: %s", (long long)wires, (long long)want,
              describe(request));
    world_destroy(w);
    return over_hosts;
}

static void test_shapes(void)
{
    static const int64_t segments[] = {0, 1, 64, 1000}, windows[] = {0, 1, 1000, 16384};
    int over_hosts = 0;
    static const ddl__kind kinds[] = {DDL__REDUCE_SCATTER, DDL__ALLGATHER, DDL__BROADCAST,
                                      DDL__REDUCE_TO_ROOT, DDL__ALLTOALL,  DDL__GATHER,
                                      DDL__SCATTER};
    int by_kind[DDL__ALLTOALL + 1] = {0};
    enum { MACHINES = SANITIZED ? 450 : 4500 };
    for (int n = 0; n < MACHINES; n++) {
        int hosts[10], n_hosts = 2 + (int)random_below(9), size = 0;
        int most = n % 3 ? 1 + (int)random_below(9) : 3;
        for (int h = 0; h < n_hosts; h++) {
            hosts[h] = n % 2 ? most : 1 + (int)random_below((uint64_t)most);
            if (size + hosts[h] > RANKS_MAX)
                n_hosts = h;
            else
                size += hosts[h];
        }
        ddl__topology *t = topology_of(hosts, n_hosts, NULL, n % 5 == 0);
        ddl__request q = request_for(t, kinds[n / 6 % 7]);
        q.root = (int)random_below((uint64_t)q.size);
        q.element = (size_t)1 << random_below(4);
        bool has_blocks = q.kind == DDL__REDUCE_SCATTER || q.kind == DDL__ALLGATHER;
        if (has_blocks && random_below(2))
            q = packed(q);
        q.count = (int64_t)random_below(q.kind < DDL__GATHER ? 200 : random_below(2) ? 6 : 40);
        q.in_place = q.kind == DDL__BROADCAST || random_below(2);
        q.segment_bytes = segments[random_below(4)];
        q.window = windows[random_below(4)];
        if (q.window == 1) /* the smallest possible window */
            q.window = (q.size < 3 ? 12 : 4 * q.size) * (int64_t)q.element;
        bool done = check_one(&q, has_blocks && n % 4 < 2 ? (uint64_t)n + 1 : 0);
        over_hosts += done;
        by_kind[q.kind] += done;
        ddl__topology_destroy(t);
    }
    for (int k = 0; k < 7; k++)
        CHECK(by_kind[kinds[k]] > MACHINES / 23, "only %d of kind %d", by_kind[kinds[k]],
              (int)kinds[k]);
    CHECK(over_hosts > MACHINES / 8 * 5, "only %d over hosts", over_hosts);
    printf("%d machines\n", over_hosts);
}

/* A wire carries (1 - 1/hosts) of all blocks each way, if hosts have the same size. */
static void test_bytes(void)
{
    for (int kind = DDL__REDUCE_SCATTER; kind <= DDL__ALLGATHER; kind++) {
        ddl__topology *t = topology_of((int[]){3, 3, 3, 3}, 4, NULL, false);
        ddl__request q = request_for(t, (ddl__kind)kind);
        q.count = 100;
        world *w = world_create(&q, 0);
        CHECK(!simulate(w, IN_TURN), "%s", describe(&q));
        for (int h = 0; h < 4; h++) {
            int64_t sent = 0;
            for (int r = 3 * h; r < 3 * h + 3; r++)
                sent += w->ranks[r].wires;
            CHECK(sent == 12 * 400 / 4 * 3, "host %d sent %lld", h, (long long)sent);
        }
        world_destroy(w);
        ddl__topology_destroy(t);
    }
}

/* Every step is necessary: without it the result is wrong. */
static void drop_each(ddl__request q, uint64_t uneven)
{
    for (int r = 0; r < q.size; r++)
        for (uint32_t i = 0, n = 1; i < n; i++) {
            world *w = world_create(&q, uneven);
            n = w->ranks[r].plan->n_steps;
            w->ranks[r].plan->steps[i].count = 0;
            CHECK(simulate(w, RANDOM), "step %u of rank %d is not missed: %s", i, r, describe(&q));
            world_destroy(w);
        }
}

static void test_dropped(void)
{
    static const ddl__kind kinds[] = {DDL__REDUCE_SCATTER, DDL__ALLGATHER, DDL__BROADCAST,
                                      DDL__REDUCE_TO_ROOT, DDL__ALLTOALL,  DDL__GATHER,
                                      DDL__SCATTER};
    ddl__topology *t = topology_of((int[]){2, 3, 1}, 3, NULL, false);
    for (int k = 0; k < 7; k++) {
        ddl__request q = request_for(t, kinds[k]);
        q.count = 100;
        q.root = 3;
        q.segment_bytes = 64;
        q.in_place = q.kind == DDL__BROADCAST;
        if (q.kind >= DDL__GATHER) { /* in one segment */
            q.count = 5;
            q.segment_bytes = 0;
        }
        drop_each(q, 0);
        if (q.by != DDL__ALGORITHM_HOSTS || q.kind == DDL__ALLTOALL)
            continue;
        drop_each(q, 7);
        drop_each(packed(q), 0);
        q.in_place = true;
        drop_each(packed(q), 7);
    }
    ddl__topology_destroy(t);
}

static void test_choice(void)
{
    static const struct {
        int hosts[3];
        ddl__kind kind;
        int64_t count;
        bool all_shared;
        const char *name;
        ddl_wire wire;
    } cases[] = {
        {{2, 2, 2}, DDL__ALLGATHER, 1 << 18, false, "hosts"},
        {{2, 1, 1},
         DDL__REDUCE_SCATTER,
         1 << 18,
         false,
         "ring"}, /* host 0 would get 4 blocks of 4 */
        {{3, 2, 3}, DDL__REDUCE_SCATTER, 1 << 18, false, "hosts"},
        {{1, 1, 1}, DDL__ALLGATHER, 5, false, "direct"},
        {{2, 2, 2}, DDL__ALLGATHER, 5, true, "direct"},
        {{20, 2, 1}, DDL__ALLGATHER, 1 << 18, false, "ring"},         /* sizes differ too much */
        {{2, 2, 2}, DDL__ALLGATHER, (int64_t)1 << 55, false, "ring"}, /* too many waves */
        {{2, 2, 2}, DDL__BROADCAST, 1 << 20, false, "leaders"},
        {{2, 1, 1}, DDL__REDUCE_TO_ROOT, 1 << 20, false, "leaders"},
        {{1, 1, 1}, DDL__BROADCAST, 1 << 20, false, "chain"},
        {{2, 2, 2}, DDL__ALLTOALL, 16, false, "hosts"},
        {{2, 2, 2}, DDL__ALLTOALL, 1 << 16, false, "pairwise"},
        {{2, 2, 2}, DDL__ALLTOALL, 16, true, "pairwise"},
        {{1, 1, 1}, DDL__ALLTOALL, 16, false, "pairwise"},
        {{2, 2, 2}, DDL__GATHER, 16, false, "tree"},
        {{2, 2, 2}, DDL__SCATTER, 1 << 20, false, "pairwise"},
        {{2, 2, 2}, DDL__ALLREDUCE, 2000, false, "hierarchical"},
        {{2, 2, 2}, DDL__ALLREDUCE, 1 << 20, false, "hierarchical"},
        {{1, 1, 1}, DDL__ALLREDUCE, 3 * 16384 - 1, false, "hierarchical"},
        {{2, 2, 2},
         DDL__ALLREDUCE,
         3 * 16384,
         true,
         "hierarchical"}, /* a contradiction, but right */
        {{1, 1, 1}, DDL__ALLREDUCE, 3000, true, "direct"},
        {{1, 1, 1}, DDL__ALLGATHER, 1 << 18, false, "packed", DDL_WIRE_INT8},
        {{3, 2, 3}, DDL__REDUCE_SCATTER, 1 << 18, false, "packed", DDL_WIRE_INT4},
        {{20, 2, 1}, DDL__REDUCE_SCATTER, 1 << 18, false, "ring", DDL_WIRE_INT8},
        {{2, 2, 2}, DDL__ALLGATHER, (int64_t)1 << 55, false, "ring", DDL_WIRE_BF16},
        {{2, 2, 2}, DDL__BROADCAST, 1 << 20, false, "leaders", DDL_WIRE_INT8},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ddl__topology *t = topology_of(cases[i].hosts, 3, NULL, false);
        ddl__request q = request_for(t, cases[i].kind);
        q.count = cases[i].count;
        q.all_shared = cases[i].all_shared;
        q.wire = cases[i].wire;
        q.by = DDL__ALGORITHM_NONE;
        ddl__plan *plan = ddl__plan_create(&q);
        CHECK(plan && strcmp(plan->name, cases[i].name) == 0, "case %zu: %s", i, plan->name);
        ddl__plan_destroy(plan);
        ddl__topology_destroy(t);
    }
}

int main(void)
{
    test_choice();
    test_bytes();
    test_shapes();
    test_dropped();
}
