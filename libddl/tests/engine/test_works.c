/* SPDX-License-Identifier: Apache-2.0 */
/* Asynchronous operations: order, the completion queue, waiting by several threads, abandoning. */
#include "ranks.h"

enum { WORKS = 200, COUNT = 3000 };

static void many_pending(ddl_comm *comm, void *argument)
{
    int rank = ddl_comm_rank(comm), size = ddl_comm_size(comm);
    ddl_work *works[WORKS];
    int32_t(*data)[COUNT] = malloc(sizeof(int32_t[WORKS][COUNT]));
    for (int w = 0; w < WORKS; w++) {
        for (int i = 0; i < COUNT; i++)
            data[w][i] = rank + w + i;
        OK(ddl_allreduce(comm, NULL, data[w], w % 7 ? COUNT : 1, DDL_I32, DDL_SUM, NULL,
                         &works[w]));
    }
    /* Waited for in another order than submitted. */
    for (int w = WORKS - 1; w >= 0; w--) {
        OK(ddl_work_wait(works[w], -1));
        OK(ddl_work_test(works[w]));
        int n = w % 7 ? COUNT : 1;
        for (int i = 0; i < n; i++)
            CHECK(data[w][i] == size * (w + i) + size * (size - 1) / 2, "work %d, %d", w, i);
        ddl_work_destroy(works[w]);
    }
    free(data);
}

static void completion_queue(ddl_comm *comm, void *argument)
{
    int32_t data[WORKS];
    ddl_work *works[WORKS], *got[16];
    void *users[16];
    ddl_options options = {.struct_size = sizeof options, .queued = 1};
    for (intptr_t w = 0; w < WORKS; w++) {
        data[w] = 1;
        options.user = (void *)w;
        OK(ddl_allreduce(comm, NULL, &data[w], 1, DDL_I32, DDL_SUM, &options, &works[w]));
    }
    for (intptr_t next = 0; next < WORKS;) {
        int taken = 0;
        OK(ddl_comm_completed(comm, got, users, 16, -1, &taken));
        for (int i = 0; i < taken; i++, next++) {
            CHECK(users[i] == (void *)next && got[i] == works[next], "out of order at %d",
                  (int)next);
            CHECK(data[next] == ddl_comm_size(comm), "data");
            OK(ddl_work_test(got[i]));
            ddl_work_destroy(got[i]);
        }
    }
    int taken;
    CHECK(ddl_comm_completed(comm, got, users, 16, -1, &taken) == DDL_ESTATE,
          "more than asked for");
}

/* No caller waits: the endpoint's thread drives. */
static void in_background(ddl_comm *comm, void *argument)
{
    enum { N = 1 << 20 };
    float *a = malloc(N * sizeof *a);
    ddl_work *work;
    for (int round = 0; round < 5; round++) {
        for (int i = 0; i < N; i++)
            a[i] = 1;
        OK(ddl_allreduce(comm, NULL, a, N, DDL_F32, DDL_SUM, NULL, &work));
        int tries = 0;
        while (ddl_work_test(work) == DDL_INPROGRESS) {
            usleep(1000);
            CHECK(++tries < 30000, "no progress in the background");
        }
        OK(ddl_work_test(work));
        CHECK(a[0] == (float)ddl_comm_size(comm) && a[N - 1] == a[0], "%g", (double)a[0]);
        ddl_work_destroy(work);
    }
    free(a);
}

/* Works that are abandoned while pending: the buffers are still used, and the works free
 * themselves. */
static void abandoned(ddl_comm *comm, void *argument)
{
    static _Thread_local float data[50][100];
    for (int w = 0; w < 50; w++) {
        ddl_work *work;
        OK(ddl_allreduce(comm, NULL, data[w], 100, DDL_F32, DDL_SUM, NULL, &work));
        ddl_work_destroy(work);
    }
    OK(ddl_barrier(comm, NULL, NULL)); /* runs behind them */
}

typedef struct waiter {
    ddl_work *work;
    ddl_status status;
    pthread_t thread;
} waiter;

static void *wait_for(void *argument)
{
    waiter *w = argument;
    w->status = ddl_work_wait(w->work, -1);
    return NULL;
}

/* Several threads wait for several works of one comm, and two for the same work. */
static void many_waiters(ddl_comm *comm, void *argument)
{
    enum { N = 4 };
    waiter waiters[2 * N];
    static _Thread_local int64_t data[N][5000];
    for (int round = 0; round < 20; round++) {
        for (int i = 0; i < N; i++) {
            data[i][4999] = i;
            OK(ddl_allreduce(comm, NULL, data[i], 5000, DDL_I64, DDL_MAX, NULL, &waiters[i].work));
            waiters[N + i].work = waiters[i].work;
        }
        for (int i = 2 * N - 1; i >= 0; i--)
            CHECK(!pthread_create(&waiters[i].thread, NULL, wait_for, &waiters[i]), "thread");
        for (int i = 0; i < 2 * N; i++) {
            pthread_join(waiters[i].thread, NULL);
            CHECK(waiters[i].status == DDL_OK, "waiter %d: %d", i, waiters[i].status);
        }
        for (int i = 0; i < N; i++) {
            CHECK(data[i][4999] == i, "data");
            ddl_work_destroy(waiters[i].work);
        }
    }
}

/* Rank 1 is late: a wait times out and can be repeated. */
static void late(ddl_comm *comm, void *argument)
{
    int32_t one = 1, go = 0;
    ddl_work *work;
    if (ddl_comm_rank(comm) == 1)
        OK(ddl_recv(comm, &go, 1, DDL_I32, 0, 1, NULL, NULL, NULL));
    OK(ddl_allreduce(comm, NULL, &one, 1, DDL_I32, DDL_SUM, NULL, &work));
    if (ddl_comm_rank(comm) == 0 && ddl_comm_size(comm) > 1) {
        CHECK(ddl_work_wait(work, 0) == DDL_ETIMEDOUT, "looked only");
        CHECK(ddl_work_wait(work, 50) == DDL_ETIMEDOUT, "waited 50 ms");
        CHECK(strstr(ddl_last_error(), "after 50 ms"), "%s", ddl_last_error());
        OK(ddl_send(comm, &go, 1, DDL_I32, 1, 1, NULL, NULL));
    }
    OK(ddl_work_wait(work, -1));
    CHECK(one == ddl_comm_size(comm), "%d", one);
    ddl_work_destroy(work);
}

/* Abort from another thread, at any moment: the comm ends on all ranks at once. */
static void *abort_soon(void *comm)
{
    usleep(20000);
    OK(ddl_comm_abort(comm, "enough"));
    return NULL;
}

static void aborted(ddl_comm *comm, void *argument)
{
    float data[64] = {0};
    pthread_t thread;
    if (ddl_comm_rank(comm) == 0)
        CHECK(!pthread_create(&thread, NULL, abort_soon, comm), "thread");
    ddl_status status = DDL_OK;
    double start = seconds();
    while (status == DDL_OK && seconds() - start < 20)
        status = ddl_allreduce(comm, NULL, data, 64, DDL_F32, DDL_SUM, NULL, NULL);
    CHECK(status == DDL_EABORTED, "%d after %g s", status, seconds() - start);
    if (ddl_comm_rank(comm) == 0)
        pthread_join(thread, NULL);
}

/* A wait ends in time although earlier operations make progress. */
static void waits_end_in_time(ddl_comm *comm, void *argument)
{
    enum { N = SANITIZED ? 1 << 20 : 4 << 20, BACKLOG = 40 };
    static _Thread_local float *data;
    ddl_work *works[BACKLOG];
    data = calloc(N, sizeof *data);
    for (int i = 0; i < BACKLOG; i++)
        OK(ddl_allreduce(comm, NULL, data, N, DDL_F32, DDL_MAX, NULL, &works[i]));
    double start = seconds();
    ddl_status status = ddl_work_wait(works[BACKLOG - 1], 5);
    double took = seconds() - start;
    CHECK(took < (status == DDL_ETIMEDOUT ? 5 : 0.1), "%d after %g s", status, took);
    for (int i = 0; i < BACKLOG; i++) {
        OK(ddl_work_wait(works[i], -1));
        ddl_work_destroy(works[i]);
    }
    free(data);
}

static _Atomic double answered;

static void *answer(void *comm)
{
    int32_t x = 7;
    atomic_store(&answered, seconds());
    OK(ddl_send(comm, &x, 1, DDL_I32, 1, 2, NULL, NULL));
    return NULL;
}

/* Rank 0 sleeps in a receive; what another of its threads sends is sent at once all the same. */
static void beside_a_sleeper(ddl_comm *comm, void *argument)
{
    int32_t x = 0;
    if (ddl_comm_size(comm) < 2 || ddl_comm_rank(comm) > 1)
        return;
    if (ddl_comm_rank(comm) == 1) {
        OK(ddl_recv(comm, &x, 1, DDL_I32, 0, 2, NULL, NULL, NULL));
        double took = seconds() - atomic_load(&answered);
        OK(ddl_send(comm, &x, 1, DDL_I32, 0, 1, NULL, NULL));
        CHECK(x == 7 && took < 0.9, "%d after %g s", x, took);
        return;
    }
    ddl_work *work;
    pthread_t thread;
    waiter sleeper;
    OK(ddl_recv(comm, &x, 1, DDL_I32, 1, 1, NULL, NULL, &work));
    sleeper.work = work;
    CHECK(!pthread_create(&sleeper.thread, NULL, wait_for, &sleeper), "thread");
    usleep(200000); /* it sleeps for a second by now */
    CHECK(!pthread_create(&thread, NULL, answer, comm), "thread");
    pthread_join(thread, NULL);
    pthread_join(sleeper.thread, NULL);
    CHECK(sleeper.status == DDL_OK && x == 7, "%d", x);
    ddl_work_destroy(work);
}

/* wait_ms: a caller that waits long enough has no work; otherwise the work is like any other. */
static void patient(ddl_comm *comm, void *argument)
{
    int rank = ddl_comm_rank(comm), size = ddl_comm_size(comm);
    int32_t data[2] = {1, 1}, number = 0;
    ddl_work *work = (ddl_work *)(intptr_t)1;
    ddl_options options = {.struct_size = sizeof options, .wait_ms = 30000};
    OK(ddl_allreduce(comm, NULL, data, 2, DDL_I32, DDL_SUM, &options, &work));
    CHECK(!work && data[1] == size, "waited for, work %p, sum %d", (void *)work, data[1]);
    OK(ddl_barrier(comm, NULL, NULL));
    if (size > 1) { /* the last rank calls after the others have got their works */
        options.wait_ms = 1;
        if (rank < size - 1) {
            OK(ddl_broadcast(comm, &number, 1, DDL_I32, size - 1, &options, &work));
            CHECK(work, "rank %d waited for a rank that had not called", rank);
        }
        for (int r = 0; r < size - 1; r++) {
            if (rank == size - 1)
                OK(ddl_recv(comm, data, 1, DDL_I32, r, 0, NULL, NULL, NULL));
            else if (rank == r)
                OK(ddl_send(comm, data, 1, DDL_I32, size - 1, 0, NULL, NULL));
        }
        if (rank == size - 1) {
            number = 7;
            OK(ddl_broadcast(comm, &number, 1, DDL_I32, size - 1, NULL, NULL));
        } else {
            OK(ddl_work_wait(work, -1));
            ddl_work_destroy(work);
        }
        CHECK(number == 7, "rank %d has %d", rank, number);
    }
    CHECK(ddl_barrier(comm, &options, NULL) == DDL_EINVAL, "a wait without a work");
    options.queued = 1;
    CHECK(ddl_barrier(comm, &options, &work) == DDL_EINVAL, "a wait and a queue");
    OK(ddl_barrier(comm, NULL, NULL));
}

int main(void)
{
    static const uint32_t links[] = {DDL_LINK_INPROC, DDL_LINK_SHM, DDL_LINK_TCP};
    static rank_fn *const tests[] = {
        many_pending, completion_queue, in_background,     abandoned,        many_waiters,
        late,         aborted,          waits_end_in_time, beside_a_sleeper, patient};
    for (unsigned l = SANITIZED; l < 3; l++) /* inproc uses the code of shm */
        for (unsigned t = 0; t < sizeof tests / sizeof *tests; t++)
            for (int size = 1; size <= 3; size++)
                run_ranks(size, links[l], tests[t], NULL);
}
