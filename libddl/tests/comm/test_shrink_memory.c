/* SPDX-License-Identifier: Apache-2.0 */
/* Rank 0 runs out of memory at one point of a shrink: no rank waits for its limit. */
#include "processes.h"

enum { SIZE = 3, PLACES = 24 };

/* number of successful allocations before one fails; -1: none fails */
static atomic_int allocations_left = -1;

static bool fails_now(void)
{
    return atomic_load(&allocations_left) >= 0 && !atomic_fetch_sub(&allocations_left, 1);
}

WRAP(void *, malloc, (size_t bytes))
{
    return fails_now() ? NULL : __real_malloc(bytes);
}

WRAP(void *, calloc, (size_t n, size_t bytes))
{
    return fails_now() ? NULL : __real_calloc(n, bytes);
}

static int place;

static void shrink_without_memory(ddl_comm *comm)
{
    ddl_comm *next = NULL;
    int rank = ddl_comm_rank(comm);
    double start = start_together(comm);
    if (rank == SIZE - 1)
        raise(SIGKILL);
    while (ddl_comm_status(comm) == DDL_OK)
        CHECK(seconds() - start < 20, "the death was not noticed");
    if (rank == 0)
        atomic_store(&allocations_left, place);
    start = seconds();
    ddl_status status = ddl_comm_shrink(comm, NULL, &next);
    CHECK(seconds() - start < 5, "place %d: %g s: %d: %s", place, seconds() - start, status,
          ddl_last_error());
    atomic_store(&allocations_left, -1);
    ddl_comm_destroy(next);
    ddl_comm_destroy(comm);
}

int main(void)
{
    setenv("DDL_LOG", "off", 0);
    for (place = 0; place < PLACES; place++)
        run_silent_test(&(process_test){"shrink without memory", shrink_without_memory,
                                        1 << (SIZE - 1), place % 2 ? DDL_LINK_SHM : DDL_LINK_TCP},
                        SIZE);
}
