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

/* Destroy the comm, and copy what this logs to `text`. */
static void destroy_and_read_log(ddl_comm *comm, char *text, size_t size)
{
    FILE *log = tmpfile();
    int terminal = dup(STDERR_FILENO);
    CHECK(log && terminal >= 0, "%s", strerror(errno));
    dup2(fileno(log), STDERR_FILENO);
    ddl_comm_destroy(comm);
    dup2(terminal, STDERR_FILENO);
    close(terminal);
    rewind(log);
    text[fread(text, 1, size - 1, log)] = 0;
    fclose(log);
}

/* The peer calls none of the pending operations. */
static void forgotten(ddl_comm *comm)
{
    float data[2][4] = {{0}};
    ddl_work *works[2];
    char text[1024];
    ddl_comm *twin;
    OK(ddl_comm_duplicate(comm, NULL, &twin));
    if (ddl_comm_rank(comm) == 0) {
        for (int i = 0; i < 2; i++)
            OK(ddl_allreduce(twin, NULL, data[i], 4, DDL_F32, DDL_SUM, NULL, &works[i]));
        destroy_and_read_log(twin, text, sizeof text);
        CHECK(strstr(text, "ddl_comm_destroy while 2 operations were pending, the oldest is "
                           "all-reduce(f32, 4, sum): wait for their works first"),
              "\"%s\"", text);
        for (int i = 0; i < 2; i++)
            ddl_work_destroy(works[i]);
    }
    OK(ddl_barrier(comm, NULL, NULL));
    if (ddl_comm_rank(comm) != 0)
        ddl_comm_destroy(twin);
    destroy_and_read_log(comm, text, sizeof text);
    CHECK(!*text, "\"%s\"", text);
}

int main(int argc, char **argv)
{
    static const process_test tests[] = {
        {"destroyed", destroyed, 0},
        {"forgotten", forgotten, 0, .settings = {"DDL_LOG=warn"}},
    };
    run_process_tests(tests, sizeof tests / sizeof *tests, SIZE, argc, argv);
}
