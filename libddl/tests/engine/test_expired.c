/* SPDX-License-Identifier: Apache-2.0 */
/* Operations that exceed their limits fail in time, even behind other operations, and all ranks get
 * an error with the missing rank and what it was doing. */
#include "processes.h"

enum { SIZE = 3, LIMIT_MS = 700 };

/* Check that the comm has ended on this rank, too, with the error of the others. */
static void check_told(ddl_comm *comm, const char *missing, const char *where)
{
    double end = seconds() + 20;
    while (ddl_comm_status(comm) == DDL_OK)
        CHECK(seconds() < end, "the comm has not ended");
    CHECK(ddl_comm_status(comm) == DDL_EEXPIRED && strstr(ddl_last_error(), missing) &&
              strstr(ddl_last_error(), where),
          "%d: %s", ddl_comm_status(comm), ddl_last_error());
}

/* All ranks but `late` call an all-reduce, by this name or by order. */
static void expire(ddl_comm *comm, int late, const char *name)
{
    char missing[40];
    float x[4] = {0};
    ddl_options options = {.struct_size = sizeof options, .timeout_ms = LIMIT_MS, .name = name};
    snprintf(missing, sizeof missing, "not called by rank %d", late);
    double start = start_together(comm);
    if (ddl_comm_rank(comm) != late) {
        ddl_status status = ddl_allreduce(comm, NULL, x, 4, DDL_F32, DDL_SUM, &options, NULL);
        CHECK(status == DDL_EEXPIRED, "%d: %s", status, ddl_last_error());
        CHECK(seconds() - start < 1e-3 * LIMIT_MS + 1, "after %g s", seconds() - start);
    }
    check_told(comm, missing, "barrier");
    ddl_comm_destroy(comm);
}

static void late_by_order(ddl_comm *comm)
{
    expire(comm, 1, NULL);
}

static void late_by_name(ddl_comm *comm)
{
    expire(comm, 1, "x");
}

static void rank_0_late_by_name(ddl_comm *comm)
{
    expire(comm, 0, "x");
}

/* A short limit applies although an operation with a long limit is before it. */
static void behind_another(ddl_comm *comm)
{
    float x[4] = {0}, y[4] = {0};
    ddl_work *work;
    ddl_options options = {.struct_size = sizeof options, .timeout_ms = LIMIT_MS};
    double start = start_together(comm);
    if (ddl_comm_rank(comm) != 1) {
        OK(ddl_allreduce(comm, NULL, x, 4, DDL_F32, DDL_SUM, NULL, &work));
        ddl_status status = ddl_allreduce(comm, NULL, y, 4, DDL_F32, DDL_MAX, &options, NULL);
        REFUSED(status, DDL_EEXPIRED, "max");
        CHECK(seconds() - start < 1e-3 * LIMIT_MS + 1, "after %g s", seconds() - start);
        CHECK(ddl_work_wait(work, -1) == DDL_EEXPIRED, "%s", ddl_last_error());
        ddl_work_destroy(work);
    }
    check_told(comm, "not called by rank 1", "waited for all-reduce(f32, 4, sum)");
    ddl_comm_destroy(comm);
}

/* The same while no thread waits. */
static void behind_another_alone(ddl_comm *comm)
{
    float x[4] = {0}, y[4] = {0};
    ddl_work *works[2];
    ddl_options options = {.struct_size = sizeof options, .timeout_ms = LIMIT_MS};
    double start = start_together(comm);
    if (ddl_comm_rank(comm) != 1) {
        OK(ddl_allreduce(comm, NULL, x, 4, DDL_F32, DDL_SUM, NULL, &works[0]));
        OK(ddl_allreduce(comm, NULL, y, 4, DDL_F32, DDL_MAX, &options, &works[1]));
    }
    check_told(comm, "not called by rank 1", "waited for all-reduce(f32, 4, sum)");
    CHECK(seconds() - start < 1e-3 * LIMIT_MS + 2.5, "after %g s", seconds() - start);
    for (int i = 0; ddl_comm_rank(comm) != 1 && i < 2; i++)
        ddl_work_destroy(works[i]);
    ddl_comm_destroy(comm);
}

int main(int argc, char **argv)
{
    static const process_test tests[] = {
        {"late_by_order", late_by_order, 0},
        {"late_by_name", late_by_name, 0},
        {"rank_0_late_by_name", rank_0_late_by_name, 0},
        {"behind_another", behind_another, 0},
        {"behind_another_alone", behind_another_alone, 0},
    };
    run_process_tests(tests, sizeof tests / sizeof *tests, SIZE, argc, argv);
}
