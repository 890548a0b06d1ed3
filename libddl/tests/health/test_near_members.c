/* SPDX-License-Identifier: Apache-2.0 */
/* In a large comm, members that are not near each other in the ring exchange heartbeats less often.
 * Ranks are processes; their comm counts as so large that far members are silent for longer than a
 * dead one. */
#include "base/test_points.h"
#include "membership/graph.h"
#include "processes.h"

enum {
    SIZE = 8,
    FIRST_STOPPED = 3, /* the first of three stopped ranks; none is near rank 0 */
    LAST_STOPPED = 5,
    FAR_BEATS = 40, /* 4 s; silence is 3 s */
    QUIET_BEATS = 36,
    NEAR_EACH = 4,
    SLACK = 8
};

static atomic_uint n_beats, n_sent;

WRAP(int, ddl__far_beats, (int size, int64_t heartbeat))
{
    return FAR_BEATS;
}

static ddl_status count(ddl__test_point point, const void *subject)
{
    atomic_fetch_add(&n_beats, point == DDL__AT_BEAT);
    atomic_fetch_add(&n_sent, point == DDL__AT_HEARTBEAT);
    return DDL_OK;
}

/* Neighbours are mutual, and each staying member is a neighbour of some that become silent. */
static void test_ring(void)
{
    for (int size = 1; size < 40; size++)
        for (int rank = 0; rank < size; rank++) {
            int near = 0;
            for (int other = 0; other < size; other++) {
                CHECK(ddl__is_near(rank, other, size) == ddl__is_near(other, rank, size),
                      "%d and %d of %d", rank, other, size);
                near += other != rank && ddl__is_near(rank, other, size);
            }
            CHECK(near == (size <= NEAR_EACH ? size - 1 : NEAR_EACH), "%d near %d of %d", near,
                  rank, size);
            CHECK(ddl__is_near(rank, (rank + 1) % size, size), "%d of %d", rank, size);
        }
}

static void test_rates(void)
{
    const int64_t heartbeats[] = {10 * 1000000, 100 * 1000000, 1000 * 1000000};
    for (size_t i = 0; i < sizeof heartbeats / sizeof *heartbeats; i++) {
        for (int size = 1; size <= 16; size++)
            CHECK(__real_ddl__far_beats(size, heartbeats[i]) == 1, "%d ranks", size);
        for (int size = 17; size <= 4096; size++) {
            double beats = __real_ddl__far_beats(size, heartbeats[i]);
            double a_second = (size - 1) / beats / (1e-9 * (double)heartbeats[i]);
            CHECK(beats >= 1 && a_second < 170, "%d ranks: %g", size, a_second);
        }
    }
}

/* Far members send each other one message in FAR_BEATS, and none of them is declared dead. */
static void far_members_live(ddl_comm *comm)
{
    int64_t value = 1;
    OK(ddl_barrier(comm, NULL, NULL));
    unsigned beats = atomic_load(&n_beats), sent = atomic_load(&n_sent);
    while (atomic_load(&n_beats) < beats + QUIET_BEATS)
        usleep(10000);
    unsigned more = atomic_load(&n_beats) - beats, far = SIZE - 1 - NEAR_EACH;
    unsigned most = (more + 1) * NEAR_EACH + 2 * far;
    sent = atomic_load(&n_sent) - sent;
    CHECK(sent > more && sent <= most, "%u heartbeats in %u beats", sent, more);
    OK(ddl_allreduce(comm, &value, &value, 1, DDL_I64, DDL_SUM, NULL, NULL));
    CHECK(value == SIZE, "%lld", (long long)value);
    ddl_comm_destroy(comm);
}

static bool is_stopped(int rank)
{
    return rank >= FIRST_STOPPED && rank <= LAST_STOPPED;
}

static ddl_status await_status(ddl_comm *comm, double end)
{
    ddl_status status;
    while ((status = ddl_comm_status(comm)) == DDL_OK && seconds() < end)
        usleep(1000);
    return status;
}

/* Neighbours are stopped together. All others learn it as fast as in a small comm, and continue. */
static void neighbours_stopped(ddl_comm *comm)
{
    int rank = ddl_comm_rank(comm), n = 0, stopped[SIZE];
    int32_t pids[SIZE], own = getpid();
    ddl_comm *next;
    const ddl_comm_config config = {.struct_size = sizeof config, .timeout_ms = 30000};
    OK(ddl_allgather(comm, &own, pids, 1, DDL_I32, NULL, NULL));
    OK(ddl_barrier(comm, NULL, NULL));
    double start = seconds();
    if (is_stopped(rank)) {
        raise(SIGSTOP);
        pause();
    }
    ddl_status status = await_status(comm, start + 4 + SLACK);
    REFUSED(status, DDL_EPEER, " is dead: silent for 3.");
    OK(ddl_comm_shrink(comm, &config, &next));
    CHECK(seconds() - start < 7 + SLACK, "rank %d has shrunk after %g s", rank, seconds() - start);
    CHECK(ddl_comm_size(next) == SIZE - 3, "%d", ddl_comm_size(next));
    OK(ddl_comm_failed(comm, stopped, SIZE, &n));
    CHECK(n == 3 && stopped[0] == FIRST_STOPPED && stopped[2] == LAST_STOPPED, "%d", n);
    OK(ddl_barrier(next, NULL, NULL));
    ddl_comm_destroy(next);
    for (int i = FIRST_STOPPED; rank == 0 && i <= LAST_STOPPED; i++)
        kill(pids[i], SIGKILL);
    ddl_comm_destroy(comm);
}

static const process_test tests[] = {
    {"far members live", far_members_live, 0, DDL_LINK_TCP},
    {"neighbours stopped", neighbours_stopped, 7 << FIRST_STOPPED},
};

int main(int argc, char **argv)
{
    test_ring();
    test_rates();
    ddl__test_hook = count;
    run_process_tests(tests, sizeof tests / sizeof *tests, SIZE, argc, argv);
}
