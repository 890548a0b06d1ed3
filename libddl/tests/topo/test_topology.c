/* SPDX-License-Identifier: Apache-2.0 */
/* test_topology.c - in random matrices of shared memory, hosts are found by their definition, in a
 * time that grows no faster than the matrix. */
#include "check.h"
#include "topo/topology.h"

enum { MOST = 24, LARGE = 1024, TIMES = 5 };

static uint64_t random_bits(void)
{
    static uint64_t state = 0x9e3779b97f4a7c15;
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state * 0x2545f4914f6cdd1d >> 32;
}

/* Return true if rank i has opened memory of rank j. */
static bool share(const unsigned char *shared, int size, int i, int j)
{
    return i == j || shared[i * size + j];
}

/* Apply the definition: the ranks whose memory a rank has opened are its host if each of them has
 * opened memory of the same ranks. Hosts are numbered by their first ranks. */
static int define(const unsigned char *shared, int size, int *host)
{
    int hosts = 0;
    for (int r = 0; r < size; r++) {
        bool alike = true;
        int first = r;
        for (int i = size - 1; i >= 0; i--)
            for (int j = 0; share(shared, size, r, i) && j < size; j++)
                alike = alike && share(shared, size, i, j) == share(shared, size, r, j);
        for (int i = r; alike && i >= 0; i--)
            first = share(shared, size, r, i) ? i : first;
        host[r] = first < r ? host[first] : hosts++;
    }
    return hosts;
}

/* Draw groups of ranks that share memory, in which some pairs do not, or only one way. */
static void draw(unsigned char *shared, int size, unsigned groups, unsigned flaws)
{
    unsigned group[MOST];
    for (int i = 0; i < size; i++)
        group[i] = (unsigned)random_bits() % groups;
    for (int i = 0; i < size; i++)
        for (int j = 0; j < size; j++)
            shared[i * size + j] = (unsigned char)(group[i] == group[j]);
    for (unsigned f = 0; f < flaws; f++)
        shared[random_bits() % (uint64_t)(size * size)] ^= 1;
}

static ddl_status create(const unsigned char *shared, int size, ddl__topology **t)
{
    ddl__sharing *sharing = malloc((size_t)size * sizeof *sharing);
    CHECK(sharing, "no memory");
    for (int r = 0; r < size; r++)
        sharing[r] = ddl__sharing_of(shared + r * size, r, size);
    ddl_status status = ddl__topology_create(sharing, size, NULL, false, t);
    CHECK(ddl__all_share(sharing, size) == ((*t)->groups[DDL__HOSTS] == 1), "%d hosts",
          (*t)->groups[DDL__HOSTS]);
    free(sharing);
    return status;
}

static void test_random(void)
{
    unsigned char shared[MOST * MOST];
    int want[MOST];
    for (int round = 0; round < 20000; round++) {
        int size = 1 + (int)(random_bits() % MOST);
        draw(shared, size, 1 + (unsigned)random_bits() % 6, (unsigned)random_bits() % 5);
        int hosts = define(shared, size, want);
        ddl__topology *t;
        CHECK(create(shared, size, &t) == DDL_OK, "round %d", round);
        CHECK(t->groups[DDL__HOSTS] == hosts, "round %d: %d hosts of %d ranks, not %d", round,
              t->groups[DDL__HOSTS], size, hosts);
        for (int r = 0; r < size; r++)
            CHECK(ddl__topology_group(t, DDL__HOSTS, r) == want[r],
                  "round %d: rank %d of %d is on "
                  "host %d, not %d",
                  round, r, size, ddl__topology_group(t, DDL__HOSTS, r), want[r]);
        ddl__topology_destroy(t);
    }
}

static double cpu_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Return the least of several times. `flawed`: one pair does not share memory, so each rank is a
 * host. */
static double time_of(int size, bool flawed)
{
    unsigned char *shared = malloc((size_t)size * (size_t)size);
    double least = 1e9;
    CHECK(shared, "no memory");
    memset(shared, 1, (size_t)size * (size_t)size);
    shared[size - 1] = !flawed;
    for (int i = 0; i < TIMES; i++) {
        ddl__topology *t;
        double start = cpu_seconds();
        CHECK(create(shared, size, &t) == DDL_OK, "%d ranks", size);
        double seconds = cpu_seconds() - start;
        least = seconds < least ? seconds : least;
        CHECK(t->groups[DDL__HOSTS] == (flawed ? size : 1), "%d", t->groups[DDL__HOSTS]);
        ddl__topology_destroy(t);
    }
    free(shared);
    return least;
}

/* Four times the ranks have sixteen times the matrix. Cubic time would be 64 times as long. */
static void test_growth(void)
{
    for (int flawed = 0; flawed < 2; flawed++) {
        double small = time_of(LARGE / 4, flawed), large = time_of(LARGE, flawed);
        CHECK(large < 40 * small, "%d ranks take %.2f ms, %d ranks %.2f ms", LARGE / 4, 1e3 * small,
              LARGE, 1e3 * large);
        printf("%s: %.2f ms, %.2f ms\n", flawed ? "one pair flawed" : "one host", 1e3 * small,
               1e3 * large);
    }
}

int main(void)
{
    test_random();
    test_growth();
}
