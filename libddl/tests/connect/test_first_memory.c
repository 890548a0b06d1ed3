/* SPDX-License-Identifier: Apache-2.0 */
/* In a sparse comm, members of one host share memory when they first use it. All comms here count
 * as sparse (sparse_comms.c). Ranks are processes. */
#include <time.h>

#include "base/test_points.h"
#include "entries.h"

/* Barriers and the creation use the pairs with distances 1, 2 and 4 in the ring. So rank 0 and the
 * victim have not shared memory before. */
enum { SIZE = 8, VICTIM = 3, LARGE = 3 << 20, ROUNDS = 20, DIAL = DDL__AT_HELLO };
#include "opening_links.h"

/* The peers close their sockets while the engine ends, after this rank has left. */
static atomic_bool others_leave_later;

static void check_detector_rests(void)
{
    reach_step(1, SIZE); /* the others leave */
    usleep(100000);
    clock_t start = clock();
    double begin = seconds();
    usleep(300000);
    double used = (double)(clock() - start) / CLOCKS_PER_SEC, took = seconds() - begin;
    CHECK(used < took / 10, "%g s of processor time in %g s", used, took);
}

static ddl_status disturb(ddl__test_point point, const void *subject)
{
    ddl_status status = disturb_opening(point, subject);
    if (point == DDL__AT_ENGINE_END && others_leave_later)
        check_detector_rests();
    return status;
}

/* Count the mappings of shared memory, this process's and its peers'. */
static int count_mappings(void)
{
    char line[512];
    int n = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    CHECK(maps, "no /proc");
    while (fgets(line, sizeof line, maps))
        n += strstr(line, "/memfd:libddl") != NULL;
    fclose(maps);
    return n;
}

/* The numbers once they no longer change: if both ends dial at once, one drops its connection. */
typedef struct held {
    int descriptors, mappings;
} held;

static held settled(void)
{
    held h = {count_descriptors(), count_mappings()};
    for (int same = 0; same < 100; same++) {
        usleep(2000);
        held now = {count_descriptors(), count_mappings()};
        same = now.descriptors == h.descriptors && now.mappings == h.mappings ? same : 0;
        h = now;
    }
    return h;
}

static void check_descriptors(held now, held before)
{
    CHECK(now.descriptors == before.descriptors, "%d descriptors, before %d", now.descriptors,
          before.descriptors);
}

/* Ranks that have sent each other nothing share no memory. Then all pairs open at once, from both
 * ends. No pair keeps a descriptor. */
static void opens_what_is_used(ddl_comm *comm)
{
    int rank = ddl_comm_rank(comm);
    bool uses = rank == 0 || rank == VICTIM;
    reach_step(1, SIZE);
    held before = settled();
    reach_step(2, SIZE);
    if (uses)
        exchange(comm, VICTIM - rank);
    reach_step(3, SIZE);
    held after = settled();
    CHECK((after.mappings > before.mappings) == uses, "rank %d: %d mappings, before %d", rank,
          after.mappings, before.mappings);
    check_descriptors(after, before);
    reach_step(4, SIZE);
    int32_t out[SIZE], in[SIZE];
    for (int i = 0; i < SIZE; i++)
        out[i] = rank * SIZE + i;
    OK(ddl_alltoall(comm, out, in, 1, DDL_I32, NULL, NULL));
    for (int i = 0; i < SIZE; i++)
        CHECK(in[i] == i * SIZE + rank, "%d from %d", in[i], i);
    reach_step(5, SIZE);
    held all = settled();
    CHECK(all.mappings > after.mappings, "rank %d: %d mappings, before %d", rank, all.mappings,
          after.mappings);
    check_descriptors(all, before);
    reach_step(6, SIZE);
    OK(ddl_alltoall(comm, out, in, 1, DDL_I32, NULL, NULL));
    reach_step(7, SIZE);
    held same = settled();
    CHECK(same.mappings == all.mappings, "rank %d: %d mappings, before %d", rank, same.mappings,
          all.mappings);
    reach_step(8, SIZE);
    ddl_comm_destroy(comm);
}

/* Send more than the ring holds, in both directions at once, followed by small messages. */
static void begins_with_much(ddl_comm *comm)
{
    int rank = ddl_comm_rank(comm), peer = VICTIM - rank;
    if (rank == 0 || rank == VICTIM) {
        unsigned char *out = malloc(LARGE), *in = calloc(1, LARGE);
        ddl_work *sending;
        CHECK(out && in, "memory");
        for (int i = 0; i < LARGE; i++)
            out[i] = (unsigned char)(i % 251 + rank);
        OK(ddl_send(comm, out, LARGE, DDL_U8, peer, 0, NULL, &sending));
        OK(ddl_recv(comm, in, LARGE, DDL_U8, peer, 0, NULL, NULL, NULL));
        OK(ddl_work_wait(sending, -1));
        for (int i = 0; i < LARGE; i++)
            CHECK(in[i] == (unsigned char)(i % 251 + peer), "byte %d", i);
        for (int i = 0; i < ROUNDS; i++)
            exchange(comm, peer);
        free(out);
        free(in);
    }
    ddl_comm_destroy(comm);
}

/* What was sent arrives even if the sender leaves at once. */
static void sends_and_leaves(ddl_comm *comm)
{
    int32_t word = 41;
    if (ddl_comm_rank(comm) == 0) {
        OK(ddl_send(comm, &word, 1, DDL_I32, VICTIM, 0, NULL, NULL));
    } else if (ddl_comm_rank(comm) == VICTIM) {
        usleep(300000);
        OK(ddl_recv(comm, &word, 1, DDL_I32, 0, 0, NULL, NULL, NULL));
        CHECK(word == 41, "%d", word);
    }
    ddl_comm_destroy(comm);
}

static void check_lost(ddl_comm *comm)
{
    int32_t word;
    double start = seconds();
    ddl_status status = ddl_recv(comm, &word, 1, DDL_I32, VICTIM, 0, NULL, NULL, NULL);
    REFUSED(status, DDL_EPEER, victim_name());
    CHECK(seconds() - start < 20, "after %g s", seconds() - start);
}

/* A member dies after it has notified the failure detector that it leaves, but before it notifies
 * its peers. */
static void dies_after_leaving(ddl_comm *comm)
{
    int rank = ddl_comm_rank(comm);
    if (rank == 0 || rank == VICTIM)
        exchange(comm, VICTIM - rank);
    reach_step(1, SIZE);
    if (rank == VICTIM) {
        atomic_fetch_add(arrived, 1);
        atomic_store(&dies, AFTER_LEAVING);
    } else {
        if (rank == 0)
            check_lost(comm);
        reach_step(2, SIZE);
    }
    ddl_comm_destroy(comm);
}

/* A member dies after all members with a control connection to it have left. */
static void dies_unseen(ddl_comm *comm)
{
    int rank = ddl_comm_rank(comm);
    bool stays = rank == 0 || rank == VICTIM;
    if (stays)
        exchange(comm, VICTIM - rank);
    else
        ddl_comm_destroy(comm);
    reach_step(1, SIZE);
    if (rank == VICTIM)
        raise(SIGKILL);
    if (rank == 0)
        check_lost(comm);
    if (stays)
        ddl_comm_destroy(comm);
}

/* Memory cannot be shared with a living member. */
static void cannot_share(ddl_comm *comm)
{
    int rank = ddl_comm_rank(comm);
    int32_t word = 0;
    reach_step(1, SIZE);
    if (rank == 0)
        atomic_store(&dies, CANNOT_DIAL);
    ddl_status status =
        rank == 0 ? ddl_send(comm, &word, 1, DDL_I32, VICTIM, 0, NULL, NULL) : DDL_OK;
    while (status == DDL_OK)
        status = ddl_barrier(comm, NULL, NULL);
    CHECK(status == DDL_EPEER && strstr(ddl_last_error(), victim_name()) &&
              strstr(ddl_last_error(), "cannot be reached by rank 0 on "),
          "rank %d: %d %s", rank, status, ddl_last_error());
    ddl_comm_destroy(comm);
}

static void leaves_first(ddl_comm *comm)
{
    others_leave_later = ddl_comm_rank(comm) == 0;
    if (!others_leave_later)
        reach_step(1, SIZE);
    ddl_comm_destroy(comm);
}

static const process_test tests[] = {
    {"opens what is used", opens_what_is_used, 0, DDL_LINK_SHM},
    {"begins with much", begins_with_much, 0, DDL_LINK_SHM},
    {"sends and leaves", sends_and_leaves, 0, DDL_LINK_SHM},
    {"dies before dialing", dies_before_dialing, 1 << VICTIM, DDL_LINK_SHM},
    {"dies after dialing", dies_after_dialing, 1 << VICTIM, DDL_LINK_SHM},
    {"dies before answering", dies_before_answering, 1 << VICTIM, DDL_LINK_SHM},
    {"dies after answering", dies_after_answering, 1 << VICTIM, DDL_LINK_SHM},
    {"is killed", is_killed, 1 << VICTIM, DDL_LINK_SHM},
    {"leaves", leaves, 0, DDL_LINK_SHM},
    {"leaves first", leaves_first, 0, DDL_LINK_SHM},
    {"cannot share", cannot_share, 0, DDL_LINK_SHM},
    {"dies after leaving", dies_after_leaving, 1 << VICTIM, DDL_LINK_SHM},
    {"dies unseen", dies_unseen, 1 << VICTIM, DDL_LINK_SHM},
};

int main(int argc, char **argv)
{
    arrived = map_per_run(sizeof *arrived);
    ddl__test_hook = disturb;
    run_process_tests(tests, sizeof tests / sizeof *tests, SIZE, argc, argv);
}
