/* SPDX-License-Identifier: Apache-2.0 */
/* The choice between plain and non-temporal stores follows the machine, and one slow sample does
 * not change it. */
#include "net/shm/stores.h"

#include "comm/comm.h"
#include "engine/state.h"
#include "ranks.h"

enum { SPAN = 256 * 1024, SHORT = 8 * 1024, SHORTEST = 1024, MANY = 24800 };

/* Store spans on a machine with these rates in bytes per ns: plain, and bypassing the caches.
 * Return how many stores were non-temporal. */
static int run_from(bool memory, ddl__stores *stores, int spans, double plain, double past)
{
    int n = 0;
    for (int i = 0; i < spans; i++) {
        bool nontemporal = ddl__stores_choose(stores);
        ddl__stores_learn(stores, nontemporal, SPAN, memory,
                          (int64_t)(SPAN / (nontemporal ? past : plain)));
        n += nontemporal;
    }
    return n;
}

/* Store data from a cache. */
static int run(ddl__stores *stores, int spans, double plain, double past)
{
    return run_from(false, stores, spans, plain, past);
}

/* Store short spans. The rates depend on how most spans are stored: the first pair applies while
 * plainly, the second while non-temporally. */
static int run_short(ddl__stores *stores, size_t bytes, const double rates[2][2])
{
    int n = 0;
    for (int i = 0; i < MANY; i++) {
        bool timed = ddl__stores_time(stores, bytes);
        bool nontemporal = timed ? ddl__stores_choose(stores) : stores->nontemporal;
        if (timed)
            ddl__stores_learn(stores, nontemporal, bytes, false,
                              (int64_t)((double)bytes / rates[stores->nontemporal][nontemporal]));
        n += nontemporal;
    }
    return n;
}

static void test_short_spans(void)
{
    static const double near[2][2] = {{16, 34}, {14, 70}}, far[2][2] = {{3.1, 23}, {2.7, 60}};
    ddl__stores stores = {0};
    int n = run_short(&stores, SHORT, near);
    CHECK(n >= 90 && n <= 110, "%d nontemporal while near", n);
    n = run_short(&stores, SHORT, far);
    CHECK(n >= MANY - 200, "%d nontemporal while far", n);
    n = run_short(&stores, SHORT, near);
    CHECK(n < MANY / 3 && !stores.nontemporal, "%d nontemporal when near again", n);

    n = 0;
    for (int i = 0; i < 80; i++)
        n += ddl__stores_time(&stores, SHORT);
    CHECK(n == 10, "%d of 80 short spans timed", n);
    CHECK(ddl__stores_time(&stores, SPAN), "a long one was not timed");
}

/* For the shortest spans, the kind in use does not change the rate of either. */
static void test_shortest_spans(void)
{
    static const double near[2][2] = {{5.7, 3.4}, {5.7, 3.4}}, far[2][2] = {{1.7, 3.2}, {1.7, 3.2}};
    ddl__stores stores = {0};
    for (int times = 0; times < 3; times++) {
        int n = run_short(&stores, SHORTEST, near);
        CHECK(n < MANY / 5 && !stores.nontemporal, "%d nontemporal while near", n);
        n = run_short(&stores, SHORTEST, far);
        CHECK(n > MANY - MANY / 10 && stores.nontemporal, "%d nontemporal while far", n);
    }
    int n = 0;
    for (int i = 0; i < 320; i++)
        n += ddl__stores_time(&stores, SHORTEST);
    CHECK(n == 10, "%d of 320 of the shortest spans timed", n);
}

/* The stored data comes from memory, which bounds both kinds. */
static void test_data_from_memory(void)
{
    ddl__stores stores = {0};
    int n = run_from(true, &stores, 310, 11.1, 9.3);
    CHECK(n >= 6 && n <= 10, "%d of 310 nontemporal while near", n);
    n = run_from(true, &stores, 310, 5.5, 9.8);
    CHECK(n >= 260, "%d of 310 nontemporal while far", n);
    n = run_from(true, &stores, 310, 9.6, 9.3);
    CHECK(n < 70 && !stores.nontemporal, "%d of 310 nontemporal when near again", n);
}

/* The first span was as slow as one whose pages the kernel provides. */
static void test_slow_start(void)
{
    ddl__stores stores = {0};
    ddl__stores_learn(&stores, false, SPAN, false, SPAN * 2);
    int n = run(&stores, 1240, 12, 8);
    CHECK(n < 300, "%d of 1240 nontemporal after a slow start", n);
}

/* All-gather in place, with `bytes` of each rank. */
static void gather(ddl_comm *comm, size_t bytes)
{
    char *all = calloc(2, bytes);
    CHECK(all, "no memory");
    OK(ddl_allgather(comm, NULL, all, (int64_t)bytes, DDL_U8, NULL, NULL));
    free(all);
}

/* Return true if a long span was timed, from a cache or from memory. */
static bool has_learnt(ddl_comm *comm)
{
    ddl__engine *engine = comm->engine;
    const ddl__link *link = engine->config.links[1 - ddl_comm_rank(comm)];
    return ddl__link_stores(link, false, SPAN, false)->rate[0] > 0 ||
           ddl__link_stores(link, false, SPAN, true)->rate[0] > 0;
}

/* While a ring is filled for the first time, the kernel provides its pages: nothing is learned. The
 * shortest ring has two long spans. */
static void first_round(ddl_comm *comm, void *argument)
{
    gather(comm, SPAN);
    CHECK(!has_learnt(comm), "a span was timed in the first round");
    gather(comm, 8 << 20);
    CHECK(has_learnt(comm), "no span was timed in later rounds");
}

int main(void)
{
    ddl__stores stores = {0};
    int n = run(&stores, 310, 12, 8); /* near */
    CHECK(n >= 6 && n <= 9, "%d of 310 nontemporal while near", n);
    n = run(&stores, 310, 1.8, 16); /* the core moved away */
    CHECK(n >= 290, "%d of 310 nontemporal while far", n);
    n = run(&stores, 620, 12, 8); /* and back */
    CHECK(n < 300, "%d of 620 nontemporal when near again", n);

    CHECK(!stores.nontemporal, "plain is better by now");
    ddl__stores equal = {0};
    n = run(&equal, 310, 32, 45); /* one cache for both: readers pay for non-temporal stores */
    CHECK(n >= 10 && n <= 12, "%d of 310 nontemporal for a small gain of the writer alone", n);
    ddl__stores slow = {0};
    n = run(&slow, 3100, 16, 1); /* tries must cost little, but must be made */
    CHECK(n >= 12 && n <= 14, "%d of 3100 nontemporal where that is far slower", n);
    ddl__stores_learn(&stores, false, SPAN, false, 50 * 1000 * 1000); /* preempted once */
    CHECK(!stores.nontemporal, "one slow sample turned the choice");
    test_data_from_memory();
    test_slow_start();
    test_short_spans();
    test_shortest_spans();
    run_ranks(2, DDL_LINK_SHM, first_round, NULL);
}
