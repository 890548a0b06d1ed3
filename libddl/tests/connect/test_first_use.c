/* SPDX-License-Identifier: Apache-2.0 */
/* The TCP links of a large comm are opened on first use. All comms here count as large. Ranks are
 * processes. */

#include "base/test_points.h"

enum { SIZE = 4, MANY = 16, VICTIM = 2, TWINS = 20, DIAL = DDL__AT_PATH };
#include "opening_links.h"

WRAP(bool, ddl__first_use_is_for, (int size))
{
    return size > 1;
}

/* Count the TCP connections of this process. */
static int count_connections(void)
{
    int n = 0;
    DIR *folder = opendir("/proc/self/fd");
    CHECK(folder, "no /proc");
    for (const struct dirent *entry; (entry = readdir(folder));) {
        struct sockaddr_storage peer;
        socklen_t length = sizeof peer;
        n += !getpeername(atoi(entry->d_name), (struct sockaddr *)&peer, &length) &&
             peer.ss_family != AF_UNIX;
    }
    closedir(folder);
    return n;
}

/* Wait until the number of connections is in this range: if both ends dial at once, one drops its
 * connection. */
static void await_connections(int rank, int least, int most)
{
    double end = seconds() + 30;
    int n;
    if (getenv("DDL_TEST_UCX")) /* which has connections of its own */
        return;
    while ((n = count_connections()) < least || n > most) {
        CHECK(seconds() < end, "rank %d has %d connections, not %d to %d", rank, n, least, most);
        usleep(2000);
    }
}

/* Ranks that have sent each other nothing are connected only by their control connection. */
static void opens_what_is_used(ddl_comm *comm)
{
    int rank = ddl_comm_rank(comm), size = ddl_comm_size(comm), step = 1, near = 0;
    for (int i = 1; i < size; i++) /* the creation's trees and its barrier use these */
        near += !(i & (i - 1)) || !((size - i) & (size - i - 1));
    reach_step(step++, size);
    int before = size - 1 + near;
    await_connections(rank, before, before);
    reach_step(step++, size);
    if (rank < 2)
        exchange(comm, 1 - rank);
    if (rank < 2)
        exchange(comm, 1 - rank);
    reach_step(step++, size);
    await_connections(rank, before + (rank < 2), before + (rank < 2));
    reach_step(step++, size);
    int32_t ours[MANY] = {0}, theirs[MANY];
    OK(ddl_alltoall(comm, ours, theirs, 1, DDL_I32, NULL, NULL));
    reach_step(step++, size);
    await_connections(rank, before, 2 * (size - 1) + (rank < 2));
    reach_step(step++, size);
    ddl_comm_destroy(comm);
}

/* Both ends of all pairs open their link at the same moment. */
static void both_open(ddl_comm *comm)
{
    int rank = ddl_comm_rank(comm), size = ddl_comm_size(comm);
    for (int i = 0; i < TWINS; i++) {
        ddl_comm *twin;
        OK(ddl_comm_duplicate(comm, &config, &twin));
        for (int round = 1; round < size; round++) {
            reach_step(i * (size - 1) + round, size);
            exchange(twin, rank ^ round);
        }
        OK(ddl_barrier(twin, NULL, NULL));
        ddl_comm_destroy(twin);
    }
    ddl_comm_destroy(comm);
}

/* Rank 0 receives from any rank, over links that were idle for a while. */
static void any_sends(ddl_comm *comm)
{
    int rank = ddl_comm_rank(comm), size = ddl_comm_size(comm);
    for (int32_t round = 1; round <= 4; round++) {
        reach_step(round, size);
        if (rank)
            OK(ddl_send(comm, &round, 1, DDL_I32, 0, 0, NULL, NULL));
        for (int i = 1; !rank && i < size; i++) {
            int32_t got = 0;
            OK(ddl_recv(comm, &got, 1, DDL_I32, DDL_ANY_SOURCE, 0, NULL, NULL, NULL));
            CHECK(got == round, "%d in round %d", got, round);
            usleep(2000);
        }
    }
    OK(ddl_barrier(comm, NULL, NULL));
    ddl_comm_destroy(comm);
}

/* A living member cannot be reached. */
static void is_out_of_reach(ddl_comm *comm)
{
    int rank = ddl_comm_rank(comm);
    int32_t word = 0;
    reach_step(1, SIZE);
    if (rank == 0)
        atomic_store(&dies, CANNOT_DIAL);
    ddl_status status = rank == 0 ? ddl_send(comm, &word, 1, DDL_I32, VICTIM, 0, NULL, NULL)
                                  : ddl_recv(comm, &word, 1, DDL_I32, 0, 0, NULL, NULL, NULL);
    while (status == DDL_OK)
        status = ddl_barrier(comm, NULL, NULL);
    CHECK(status == DDL_EPEER && strstr(ddl_last_error(), "rank 2 on ") &&
              strstr(ddl_last_error(), "cannot be reached by rank 0 on "),
          "rank %d: %d %s", rank, status, ddl_last_error());
    ddl_comm_destroy(comm);
}

static const process_test tests[] = {
    {"opens what is used", opens_what_is_used, 0, DDL_LINK_TCP},
    {"opens what is used", opens_what_is_used, 0, DDL_LINK_TCP, MANY},
    {"both open", both_open, 0, DDL_LINK_TCP},
    {"any sends", any_sends, 0, DDL_LINK_TCP, MANY},
    {"dies before dialing", dies_before_dialing, 1 << VICTIM, DDL_LINK_TCP},
    {"dies after dialing", dies_after_dialing, 1 << VICTIM, DDL_LINK_TCP},
    {"dies before answering", dies_before_answering, 1 << VICTIM, DDL_LINK_TCP},
    {"dies after answering", dies_after_answering, 1 << VICTIM, DDL_LINK_TCP},
    {"is killed", is_killed, 1 << VICTIM, DDL_LINK_TCP},
    {"leaves", leaves, 0, DDL_LINK_TCP},
    {"is out of reach", is_out_of_reach, 0, DDL_LINK_TCP},
};

int main(int argc, char **argv)
{
    arrived = map_per_run(sizeof *arrived);
    ddl__test_hook = disturb_opening;
    run_process_tests(tests, sizeof tests / sizeof *tests, SIZE, argc, argv);
}
