/* SPDX-License-Identifier: Apache-2.0 */
/* test_late_event.c - an event that arrives when the driver has announced its sleep, and looks once
 * more, is not lost: the driver does not sleep until its next tick. Messages of this many ranks go
 * by events, and the driver itself reads the event. */
#include "base/clock.h"
#include "base/test_points.h"
#include "base/time_limits.h"
#include "ranks.h"

enum { SIZE = 12, ATTEMPTS = 5 };

static ddl_comm *_Atomic waiting; /* the comm of rank 0 while it receives */
static int64_t aborted_at, quickest = INT64_MAX;

/* Abort while the driver falls asleep. */
static ddl_status abort_late(ddl__test_point point, const void *engine)
{
    ddl_comm *comm = point == DDL__AT_SLEEP ? atomic_exchange(&waiting, NULL) : NULL;
    if (comm) {
        aborted_at = ddl__now();
        ddl_comm_abort(comm, "late");
    }
    return DDL_OK;
}

static void wait_for_any(ddl_comm *comm, void *unused)
{
    char byte;
    if (ddl_comm_rank(comm)) {
        while (ddl_comm_status(comm) == DDL_OK)
            usleep(1000);
        return;
    }
    atomic_store(&waiting, comm);
    ddl_status status = ddl_recv(comm, &byte, 1, DDL_U8, DDL_ANY_SOURCE, 1, NULL, NULL, NULL);
    CHECK(status == DDL_EABORTED, "%d: %s", status, ddl_last_error());
    int64_t took = ddl__now() - aborted_at;
    quickest = took < quickest ? took : quickest;
}

int main(void)
{
    ddl__test_hook = abort_late;
    for (int i = 0; i < ATTEMPTS; i++)
        run_ranks(SIZE, DDL_LINK_TCP, wait_for_any, NULL);
    CHECK(quickest < DDL__SLEEP_LIMIT / 2, "the event was read %g s after it came",
          1e-9 * (double)quickest);
}
