/* SPDX-License-Identifier: Apache-2.0 */
/* All members count the creations over one address list equally, even if a creation failed on only
 * one of them, at its very end: the next creation succeeds. */
#include "base/status.h"
#include "base/test_points.h"
#include "processes.h"

enum { RANKS_MAX = 3, LIMIT_MS = 20000, LATE_MS = 200 };

typedef struct shared {
    unsigned char addresses[RANKS_MAX][DDL_ADDRESS_MAX];
    size_t lengths[RANKS_MAX];
    atomic_int ready;
    ddl_status first[RANKS_MAX];
} shared;

/* The point at which this process's next creation fails. It then succeeds on no rank, except that
 * the other rank of a pair may succeed after the agreement. */
typedef enum place { NOWHERE, BEFORE_AGREEMENT, AFTER_AGREEMENT } place;

static place fails;

static ddl_status fail_late(void)
{
    fails = NOWHERE;
    usleep(LATE_MS * 1000);
    return ddl__fail(DDL_ENOMEM, "no memory");
}

static ddl_status fail_at_place(ddl__test_point point, const void *subject)
{
    bool is_there = (fails == BEFORE_AGREEMENT && point == DDL__AT_AGREEMENT) ||
                    (fails == AFTER_AGREEMENT && point == DDL__AT_LAYOUT);
    return is_there ? fail_late() : DDL_OK;
}

static int member(shared *s, int rank, int size, uint32_t links, place where)
{
    ddl_endpoint *endpoint;
    ddl_comm *comm;
    const void *addresses[RANKS_MAX];
    ddl_comm_config config = {.struct_size = sizeof config, .timeout_ms = LIMIT_MS, .links = links};
    for (int i = 0; i < size; i++)
        addresses[i] = s->addresses[i];
    OK(ddl_endpoint_create(NULL, &endpoint));
    OK(ddl_endpoint_address(endpoint, s->addresses[rank], DDL_ADDRESS_MAX, &s->lengths[rank]));
    atomic_fetch_add(&s->ready, 1);
    for (double end = seconds() + 30; atomic_load(&s->ready) < size; usleep(200))
        CHECK(seconds() < end, "not all come");
    fails = where;
    s->first[rank] = ddl_comm_create(endpoint, addresses, s->lengths, rank, size, &config, &comm);
    if (s->first[rank] == DDL_OK) {
        CHECK(ddl_barrier(comm, NULL, NULL) != DDL_OK, "a comm without one of its members");
        ddl_comm_destroy(comm);
    }
    double start = seconds();
    for (int k = 0; k < 3; k++) {
        int32_t one = 1;
        OK(ddl_comm_create(endpoint, addresses, s->lengths, rank, size, &config, &comm));
        OK(ddl_allreduce(comm, &one, &one, 1, DDL_I32, DDL_SUM, NULL, NULL));
        CHECK(one == size, "%d", one);
        ddl_comm_destroy(comm);
    }
    CHECK(seconds() - start < 1e-3 * LIMIT_MS / 2, "created after %g s", seconds() - start);
    ddl_endpoint_destroy(endpoint);
    return 0;
}

static void test(int size, uint32_t links, int failing, place where)
{
    pid_t pids[RANKS_MAX];
    shared *s = map_shared(sizeof *s);
    fflush(NULL);
    for (int rank = 0; rank < size; rank++)
        if (!(pids[rank] = fork()))
            _exit(member(s, rank, size, links, rank == failing ? where : NOWHERE));
    await_exits(pids, size);
    for (int rank = 0; rank < size; rank++)
        CHECK(s->first[rank] != DDL_OK ||
                  (size == 2 && where == AFTER_AGREEMENT && rank != failing),
              "rank %d has a comm that rank %d has not", rank, failing);
    munmap(s, sizeof *s);
}

int main(void)
{
    setenv("DDL_LOG", "off", 0);
    ddl__test_hook = fail_at_place;
    for (int size = 2; size <= RANKS_MAX; size++)
        for (int failing = 0; failing < size; failing++) {
            test(size, DDL_LINK_SHM, failing, BEFORE_AGREEMENT);
            test(size, DDL_LINK_TCP, failing, BEFORE_AGREEMENT);
            test(size, DDL_LINK_SHM, failing, AFTER_AGREEMENT);
        }
}
