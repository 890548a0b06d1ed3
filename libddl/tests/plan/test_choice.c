/* SPDX-License-Identifier: Apache-2.0 */
/* test_choice.c - the choice for a request: one-shot in shared memory, and segments of chains. */
#include "check.h"
#include "membership/graph.h"
#include "plan/builder.h"

enum { MOST = 256, FEW = 4, LARGEST = 8 << 10 };

static bool is_one_shot(int size, int64_t bytes, double oversubscription, ddl__kind kind)
{
    const char *name = NULL;
    ddl__topology *t;
    const int dimensions[DDL__DIMENSIONS] = {size, 1, 1, 1};
    CHECK(ddl__topology_declare(dimensions, &t) == DDL_OK, "%d ranks", size);
    t->declared = false;
    t->oversubscription = oversubscription;
    for (int rank = 0; rank<size; rank += size> 1 ? size - 1 : 1) {
        ddl__request request = {.kind = kind,
                                .rank = rank,
                                .size = size,
                                .count = bytes / 4,
                                .element = 4,
                                .all_shared = true,
                                .topology = t};
        ddl__plan *plan = ddl__plan_create(&request);
        CHECK(plan, "no memory");
        CHECK(!name || !strcmp(plan->name, name), "%s on rank 0, %s on the last of %d", name,
              plan->name, size);
        name = plan->name;
        ddl__plan_destroy(plan);
    }
    ddl__topology_destroy(t);
    const char *other = kind == DDL__BARRIER ? "dissemination" : "direct";
    CHECK(!strcmp(name, "one-shot") || !strcmp(name, other), "%s of %d ranks", name, size);
    return !strcmp(name, "one-shot");
}

/* Return the most bytes for which one hop is chosen; above these none is. */
static int64_t most_bytes(int size, double oversubscription, ddl__kind kind)
{
    int64_t most = 0;
    for (int64_t bytes = 4; bytes <= 2 * LARGEST; bytes += bytes < 64 ? 4 : 64) {
        bool one = is_one_shot(size, bytes, oversubscription, kind);
        CHECK(!one || most == bytes - (bytes <= 64 ? 4 : 64), "%d ranks, %lld bytes", size,
              (long long)bytes);
        most = one ? bytes : most;
    }
    return most;
}

/* Chains over slow wires use shorter segments if filling them takes long; others do not. */
static void test_chosen_segments(void)
{
    static const struct {
        ddl__kind kind;
        int64_t count;
        double bandwidth;
        ddl__algorithm by;
        int64_t segment;
    } cases[] = {
        {DDL__BROADCAST, 1 << 20, 1.2e8, DDL__ALGORITHM_CHAIN, DDL__SEGMENT_WIRES_SHORT},
        {DDL__REDUCE_TO_ROOT, 1 << 20, 1.2e8, DDL__ALGORITHM_CHAIN, DDL__SEGMENT_WIRES_SHORT},
        {DDL__BROADCAST, 64 << 20, 1e10, DDL__ALGORITHM_CHAIN, DDL__SEGMENT_WIRES},
        {DDL__BROADCAST, 1 << 20, 1.2e8, DDL__ALGORITHM_TREE, DDL__SEGMENT_WIRES},
        {DDL__ALLREDUCE, 8 << 20, 1.2e8, DDL__ALGORITHM_RING, DDL__SEGMENT_WIRES},
    };
    ddl__sharing none[8];
    for (int r = 0; r < 8; r++)
        none[r] = (ddl__sharing){{{(uint64_t)r, 0}}, 1};
    ddl__topology *t;
    CHECK(ddl__topology_create(none, 8, NULL, false, &t) == DDL_OK, "no topology");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        t->wires[DDL__HOSTS] = (ddl__speed){1e-5, cases[i].bandwidth};
        ddl__request request = {.kind = cases[i].kind,
                                .size = 8,
                                .count = cases[i].count,
                                .element = 1,
                                .in_place = true,
                                .topology = t,
                                .by = cases[i].by};
        ddl__plan *plan = ddl__plan_create(&request);
        CHECK(plan && plan->segment == cases[i].segment, "case %zu: %lld", i,
              (long long)plan->segment);
        ddl__plan_destroy(plan);
    }
    ddl__topology_destroy(t);
}

/* One-shot is chosen up to 8 KiB for few ranks. For many it is chosen only while the reads of all
 * ranks cost less than a second hop. All ranks make the same choice. */
static void test_one_shot(void)
{
    static const ddl__kind kinds[] = {DDL__ALLREDUCE, DDL__REDUCE_TO_ROOT};
    static const int sizes[] = {2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 24, 32, 48, 64, 96, 128, 192, MOST};
    for (int k = 0; k < 2; k++) {
        int64_t before = LARGEST;
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            int size = sizes[i];
            int64_t most = most_bytes(size, 1, kinds[k]),
                    oversubscribed = most_bytes(size, 4, kinds[k]);
            CHECK(size > FEW || most == LARGEST, "%d ranks: up to %lld", size, (long long)most);
            CHECK(most <= before && most <= oversubscribed && oversubscribed <= LARGEST,
                  "%d ranks: up to %lld, among fewer %lld, oversubscribed %lld", size,
                  (long long)most, (long long)before, (long long)oversubscribed);
            CHECK(most >= 1024, "%d ranks: up to %lld", size, (long long)most);
            before = most;
            printf("%d ranks: up to %lld, sharing cores %lld\n", size, (long long)most,
                   (long long)oversubscribed);
        }
        CHECK(before <= LARGEST / 3, "%d ranks: up to %lld", MOST, (long long)before);
    }
}

/* A barrier has one round where few ranks share cores, since each round takes a turn of all of
 * them. */
static void test_barrier(void)
{
    CHECK(!ddl__is_sparse(DDL__ONE_SHOT_BARRIER), "links would open on first use");
    for (int size = 2; size <= MOST; size *= 2) {
        CHECK(!is_one_shot(size, 0, 1, DDL__BARRIER), "%d ranks with a core each", size);
        CHECK(is_one_shot(size, 0, 1.5, DDL__BARRIER) == (size <= DDL__ONE_SHOT_BARRIER),
              "%d ranks that share cores", size);
    }
}

int main(void)
{
    test_one_shot();
    test_barrier();
    test_chosen_segments();
}
