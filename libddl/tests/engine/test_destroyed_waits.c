/* SPDX-License-Identifier: Apache-2.0 */
/* A comm is destroyed while other threads wait for its works, or are about to. */
#include "processes.h"

enum { SIZE = 2, WAITERS = 3, ROUNDS = 20 };

typedef struct waiter {
    ddl_work *work;
    int delay_us;
} waiter;

static void *wait_for_work(void *argument)
{
    const waiter *w = argument;
    usleep((unsigned)w->delay_us);
    ddl_status status = ddl_work_wait(w->work, -1);
    CHECK(status == DDL_EABORTED, "%d: %s", status, ddl_last_error());
    ddl_work_destroy(w->work);
    return NULL;
}

/* The peer never calls these operations. */
static void destroy_under_waiters(ddl_comm *comm, int delay_us)
{
    static float data[WAITERS][4];
    pthread_t threads[WAITERS];
    waiter waiters[WAITERS];
    for (int i = 0; i < WAITERS; i++) {
        waiters[i].delay_us = i * delay_us;
        OK(ddl_allreduce(comm, NULL, data[i], 4, DDL_F32, DDL_SUM, NULL, &waiters[i].work));
    }
    for (int i = 0; i < WAITERS; i++)
        CHECK(!pthread_create(&threads[i], NULL, wait_for_work, &waiters[i]), "thread");
    usleep((unsigned)(WAITERS * delay_us / 2));
    ddl_comm_destroy(comm);
    for (int i = 0; i < WAITERS; i++)
        pthread_join(threads[i], NULL);
}

static void destroyed(ddl_comm *comm)
{
    start_together(comm);
    for (int round = 0; round < ROUNDS; round++) {
        ddl_comm *twin;
        OK(ddl_comm_duplicate(comm, NULL, &twin));
        if (ddl_comm_rank(comm) == 0)
            destroy_under_waiters(twin, 100 * round);
        OK(ddl_barrier(comm, NULL, NULL));
        if (ddl_comm_rank(comm) != 0)
            ddl_comm_destroy(twin);
    }
    ddl_comm_destroy(comm);
}

int main(int argc, char **argv)
{
    static const process_test tests[] = {{"destroyed", destroyed, 0}};
    run_process_tests(tests, sizeof tests / sizeof *tests, SIZE, argc, argv);
}
