/* SPDX-License-Identifier: Apache-2.0 */
/* The choice of members of a sparse comm that are connected. */
#include "check.h"
#include "connect/addresses/neighbours.h"
#include "membership/graph.h"

enum { FIRST = 33, LAST = 300, LARGE = 1024, NEIGHBOURS_OF_LARGE = 19 };

static int count_neighbours(int rank, int size)
{
    int n = 0;
    for (int other = 0; other < size; other++)
        if (other != rank && ddl__are_neighbours(rank, other, size)) {
            CHECK(ddl__are_neighbours(other, rank, size), "%d and %d of %d", rank, other, size);
            n++;
        }
    return n;
}

static void test_ring(void)
{
    CHECK(!ddl__is_sparse(FIRST - 1) && ddl__is_sparse(FIRST), "from %d on", FIRST);
    for (int size = FIRST; size <= LAST; size++)
        for (int rank = 0; rank < size; rank++) {
            int n = count_neighbours(rank, size);
            CHECK(n <= ddl__neighbours_most(size), "%d of rank %d of %d", n, rank, size);
            for (int other = 0; other < size; other++)
                CHECK(other == rank || !ddl__is_near(rank, other, size) ||
                          ddl__are_neighbours(rank, other, size),
                      "%d is near %d of %d", other, rank, size);
        }
    int n = count_neighbours(5, LARGE);
    CHECK(n == NEIGHBOURS_OF_LARGE, "%d neighbours", n);
}

/* A message gets from each rank to rank 0 and back over neighbours, in few hops. */
static void test_hops(void)
{
    for (int size = FIRST; size <= LAST; size++)
        for (int rank = 1; rank < size; rank++) {
            int at = rank, hops = 0;
            for (int next; at; at = next, hops++) {
                next = ddl__next_hop(at, 0);
                CHECK(ddl__are_neighbours(at, next, size), "%d to %d of %d", at, next, size);
                CHECK(ddl__next_hop(next, rank) == at, "back from %d to %d", next, rank);
            }
            CHECK(hops <= 9, "%d hops from %d", hops, rank);
        }
    CHECK(ddl__next_hop(2, 5) == -1, "2 is not on the way from 0 to 5");
    CHECK(ddl__next_hop(0, 0) == -1, "0 is there");
}

static ddl__address make_address(uint64_t network, unsigned interfaces)
{
    static ddl__interface ips[] = {{.family = 4, .loopback = true, .name = "e0"},
                                   {.family = 4, .name = "e1"},
                                   {.family = 4, .name = "e2"}};
    return (ddl__address){.network = network, .n_ips = (uint8_t)(interfaces + 1), .ips = ips};
}

/* Ranks 5 and 20 of 40 are not neighbours. */
enum { SIZE = 40, ONE = 5, OTHER = 20, BOTH = DDL_LINK_SHM | DDL_LINK_TCP };

static bool is_early(const ddl__address *one, const ddl__address *other, uint32_t kinds)
{
    static ddl__address all[SIZE];
    for (int i = 0; i < SIZE; i++)
        all[i] = make_address(100 + (uint64_t)i, 1);
    all[ONE] = *one;
    all[OTHER] = *other;
    ddl__find_places(all, SIZE);
    bool early = ddl__are_connected_early(all, SIZE, kinds, ONE, OTHER);
    CHECK(ddl__are_connected_early(all, SIZE, kinds, OTHER, ONE) == early, "the other way round");
    return early;
}

static void expect_early(const ddl__address *one, const ddl__address *other, bool early)
{
    CHECK(is_early(one, other, BOTH) == early, "wants %d", early);
}

static void test_early_links(void)
{
    ddl__address a = make_address(1, 1), b = make_address(1, 1), far = make_address(2, 1);
    CHECK(!ddl__are_neighbours(ONE, OTHER, SIZE), "%d and %d", ONE, OTHER);
    expect_early(&a, &far, false);
    expect_early(&a, &b, false); /* on one host, but neither shares memory */
    a.shares_memory = true;
    expect_early(&a, &b, false);
    b.shares_memory = far.shares_memory = true;
    expect_early(&a, &b, true); /* the only members on their host are neighbours */
    CHECK(is_early(&a, &b, DDL_LINK_SHM) && is_early(&a, &b, DDL_LINK_INPROC), "without TCP");
    expect_early(&a, &far, false);
    CHECK(is_early(&a, &far, DDL_LINK_SHM), "no late link without TCP");
    far.network = 0; /* unknown: it may be on this host */
    expect_early(&a, &far, true);
    ddl__address two = make_address(2, 2), other_two = make_address(3, 2), one = make_address(3, 1);
    expect_early(&two, &other_two, true);
    expect_early(&two, &one, false);
    other_two.network = 2; /* within a host one path is used */
    expect_early(&two, &other_two, false);
    one.several_sockets = true;
    expect_early(&two, &one, true);
}

static int count_early(const ddl__address *all, int size, uint32_t kinds, int rank)
{
    int n = 0;
    for (int i = 0; i < size; i++)
        n += i != rank && ddl__are_connected_early(all, size, kinds, rank, i);
    return n;
}

/* Members of one host are connected with their neighbours there, whatever their ranks are. */
static void test_hosts(void)
{
    enum { HOSTS = 3, RANKS = 120 };
    static ddl__address all[RANKS];
    /* hosts in turn, so that no two ranks with a ring distance of 2^k are on one host */
    for (int i = 0; i < RANKS; i++) {
        all[i] = make_address(1 + (uint64_t)(i % HOSTS), 1);
        all[i].shares_memory = true;
        all[i].user = 7;
    }
    ddl__find_places(all, RANKS);
    for (int i = 0; i < RANKS; i++)
        CHECK(all[i].place == i / HOSTS && all[i].sharing == RANKS / HOSTS, "%d: %d of %d", i,
              all[i].place, all[i].sharing);
    CHECK(ddl__are_connected_early(all, RANKS, BOTH, 4, 7), "the next of the host");
    CHECK(!ddl__are_connected_early(all, RANKS, BOTH, 4, 13), "the third of the host");
    int n = count_early(all, RANKS, BOTH, 4), most = 2 * ddl__neighbours_most(RANKS);
    CHECK(n < most, "%d connections, at most %d", n, most);
    all[7].user = 8; /* it shares memory with no member */
    ddl__find_places(all, RANKS);
    CHECK(all[7].sharing == 1 && all[10].place == 2, "%d of %d", all[10].place, all[7].sharing);
    CHECK(ddl__are_connected_early(all, RANKS, BOTH, 4, 7), "it is not known how");
}

int main(void)
{
    test_ring();
    test_hops();
    test_early_links();
    test_hosts();
}
