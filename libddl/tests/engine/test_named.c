/* SPDX-License-Identifier: Apache-2.0 */
/* Operations matched by name: submitted in another order on every rank, alone and in groups, among
 * ordered operations and messages; and errors with names. */
#include "comm/comm.h"
#include "engine/calls/frames.h"
#include "engine/state.h"
#include "ranks.h"

enum { NAMES = 60, LONGEST = 50000 };

static ddl_options named(const char *name)
{
    return (ddl_options){.struct_size = sizeof(ddl_options), .name = name};
}

/* Shuffle differently on every rank and in every round. */
static void shuffle(int *order, int n, uint32_t seed)
{
    for (int i = 0; i < n; i++)
        order[i] = i;
    for (int i = n - 1; i > 0; i--) {
        seed = seed * 1664525 + 1013904223;
        int j = (int)(seed >> 8) % (i + 1), kept = order[i];
        order[i] = order[j];
        order[j] = kept;
    }
}

typedef struct tensor {
    int64_t count;
    int32_t *data;
    ddl_work *work;
} tensor;

static void submit(ddl_comm *comm, tensor *t, int k, int round)
{
    int rank = ddl_comm_rank(comm), size = ddl_comm_size(comm);
    char name[64];
    snprintf(name, sizeof name, "layer_%d/weights%s", k,
             k % 7 ? "" : "/of a very long name indeed");
    ddl_options options = named(name);
    for (int64_t i = 0; i < t->count; i++)
        t->data[i] = (int32_t)(i % 1000) + rank + k + round;
    if (k % 5 == 4)
        OK(ddl_broadcast(comm, t->data, t->count, DDL_I32, k % size, &options, &t->work));
    else
        OK(ddl_allreduce(comm, NULL, t->data, t->count, DDL_I32, DDL_SUM, &options, &t->work));
    memset(name, 'x', sizeof name - 1); /* the name is borrowed for the call only */
}

static void check(ddl_comm *comm, tensor *t, int k, int round)
{
    int size = ddl_comm_size(comm);
    OK(ddl_work_wait(t->work, -1));
    ddl_work_destroy(t->work);
    for (int64_t i = 0; i < t->count; i++) {
        int32_t base = (int32_t)(i % 1000) + k + round;
        int32_t want = k % 5 == 4 ? base + k % size : size * base + size * (size - 1) / 2;
        CHECK(t->data[i] == want, "name %d of round %d, element %d: %d, not %d", k, round, (int)i,
              t->data[i], want);
    }
}

static void any_order(ddl_comm *comm, void *argument)
{
    int rank = ddl_comm_rank(comm), order[NAMES];
    tensor tensors[NAMES];
    for (int k = 0; k < NAMES; k++) {
        tensors[k].count = k % 9 == 8 ? LONGEST : k * 13 % 300;
        tensors[k].data = malloc((size_t)tensors[k].count * sizeof(int32_t) + 1);
    }
    for (int round = 0; round < 4; round++) {
        shuffle(order, NAMES, (uint32_t)(rank * 7919 + round));
        for (int i = 0; i < NAMES; i++) {
            submit(comm, &tensors[order[i]], order[i], round);
            /* Ordered operations in between, at a different moment on every rank, are not
             * affected. */
            if (i == 10 + 5 * rank) {
                int32_t one = 1;
                OK(ddl_allreduce(comm, NULL, &one, 1, DDL_I32, DDL_SUM, NULL, NULL));
                CHECK(one == ddl_comm_size(comm), "ordered: %d", one);
            }
        }
        shuffle(order, NAMES, (uint32_t)(rank * 104729 + round + 77));
        for (int i = 0; i < NAMES; i++)
            check(comm, &tensors[order[i]], order[i], round);
    }
    for (int k = 0; k < NAMES; k++)
        free(tensors[k].data);
}

/* The order of completion is equal on all ranks, whatever the order of submission. */
static void one_order(ddl_comm *comm, void *argument)
{
    enum { N = 20 };
    int rank = ddl_comm_rank(comm), size = ddl_comm_size(comm), order[N], taken;
    float data[N];
    ddl_work *works[N];
    void *users[N];
    shuffle(order, N, (uint32_t)rank * 31 + 5);
    for (int i = 0; i < N; i++) {
        char name[16];
        snprintf(name, sizeof name, "%d", order[i]);
        ddl_options options = named(name);
        options.queued = 1;
        options.user = (void *)(intptr_t)(order[i] + 1);
        data[order[i]] = 1;
        OK(ddl_allreduce(comm, NULL, &data[order[i]], 1, DDL_F32, DDL_SUM, &options,
                         &works[order[i]]));
    }
    int64_t came[N], all[RANKS_MAX * N];
    for (int n = 0; n < N; n += taken) {
        OK(ddl_comm_completed(comm, NULL, users, N, -1, &taken));
        for (int i = 0; i < taken; i++)
            came[n + i] = (intptr_t)users[i];
    }
    OK(ddl_allgather(comm, came, all, N, DDL_I64, NULL, NULL));
    for (int i = 0; i < N * size; i++)
        CHECK(all[i] == came[i % N], "rank %d completed %d as number %d, this rank %d", i / N,
              (int)all[i], i % N, (int)came[i % N]);
    for (int i = 0; i < N; i++)
        ddl_work_destroy(works[i]);
}

typedef struct worker {
    ddl_comm *comm;
    int first;
    pthread_t thread;
} worker;

/* Block in threads without a common order, like a framework's executor. */
static void *work_on(void *argument)
{
    worker *w = argument;
    for (int i = 0; i < 40; i++) {
        char name[32];
        snprintf(name, sizeof name, "thread %d, step %d", w->first, i % 3);
        ddl_options options = named(name);
        double x = w->first + i;
        OK(ddl_allreduce(w->comm, NULL, &x, 1, DDL_F64, DDL_SUM, &options, NULL));
        CHECK(x == (w->first + i) * ddl_comm_size(w->comm), "%g", x);
    }
    return NULL;
}

static void by_threads(ddl_comm *comm, void *argument)
{
    enum { N = 4 };
    worker workers[N];
    for (int i = 0; i < N; i++) {
        workers[i] = (worker){.comm = comm, .first = (i + ddl_comm_rank(comm)) % N};
        CHECK(!pthread_create(&workers[i].thread, NULL, work_on, &workers[i]), "thread");
    }
    for (int i = 0; i < N; i++)
        pthread_join(workers[i].thread, NULL);
}

static void groups(ddl_comm *comm, void *argument)
{
    enum { N = 5, M = 12 };
    int rank = ddl_comm_rank(comm), size = ddl_comm_size(comm), order[N];
    float(*data)[M][64] = calloc(N, sizeof *data);
    CHECK(data, "no memory");
    ddl_group *all[N];
    ddl_work *works[N];
    for (int g = 0; g < N; g++) {
        OK(ddl_group_create(comm, &all[g]));
        ddl_options in = {.struct_size = sizeof in, .group = all[g]};
        for (int m = 0; m < M; m++)
            OK(ddl_allreduce(comm, NULL, data[g][m], 64 - m, DDL_F32, DDL_SUM, &in, NULL));
    }
    for (int round = 0; round < 3; round++) {
        shuffle(order, N, (uint32_t)(rank + 1) * 97 + (uint32_t)round);
        for (int i = 0; i < N; i++) {
            int g = order[i];
            for (int m = 0; m < M; m++)
                for (int e = 0; e < 64 - m; e++)
                    data[g][m][e] = (float)(rank + g + e);
            char name[16];
            snprintf(name, sizeof name, "bucket %d", g);
            ddl_options options = named(name);
            OK(ddl_group_submit(all[g], &options, &works[g]));
        }
        for (int g = 0; g < N; g++) {
            OK(ddl_work_wait(works[g], -1));
            ddl_work_destroy(works[g]);
            for (int m = 0; m < M; m++)
                for (int e = 0; e < 64 - m; e++)
                    CHECK(data[g][m][e] == (float)(size * (g + e) + size * (size - 1) / 2),
                          "group %d", g);
        }
    }
    for (int g = 0; g < N; g++)
        ddl_group_destroy(all[g]);
    free(data);
}

/* Named operations and messages use the same links. */
static void among_messages(ddl_comm *comm, void *argument)
{
    enum { N = 30, LONG = 70000 };
    int rank = ddl_comm_rank(comm), size = ddl_comm_size(comm);
    int next = (rank + 1) % size, before = (rank + size - 1) % size;
    int32_t(*out)[LONG] = calloc(N, sizeof *out), (*in)[LONG] = calloc(N, sizeof *in);
    int32_t(*sums)[2000] = calloc(N, sizeof *sums);
    CHECK(out && in && sums, "no memory");
    ddl_work *sent[N], *received[N], *reduced[N];
    for (int i = 0; i < N; i++) {
        char name[16];
        int k = rank % 2 ? N - 1 - i : i;
        snprintf(name, sizeof name, "n%d", k);
        ddl_options options = named(name);
        out[i][0] = out[i][LONG - 1] = rank * 100 + i;
        sums[k][0] = sums[k][1999] = k;
        OK(ddl_send(comm, out[i], i % 3 ? 10 : LONG, DDL_I32, next, i, NULL, &sent[i]));
        OK(ddl_allreduce(comm, NULL, sums[k], 2000, DDL_I32, DDL_SUM, &options, &reduced[k]));
        OK(ddl_recv(comm, in[N - 1 - i], (N - 1 - i) % 3 ? 10 : LONG, DDL_I32, before, N - 1 - i,
                    NULL, NULL, &received[N - 1 - i]));
    }
    for (int i = 0; i < N; i++) {
        OK(ddl_work_wait(received[i], -1));
        OK(ddl_work_wait(reduced[i], -1));
        OK(ddl_work_wait(sent[i], -1));
        CHECK(in[i][0] == before * 100 + i, "message %d: %d", i, in[i][0]);
        CHECK(i % 3 || in[i][LONG - 1] == before * 100 + i, "message %d's end", i);
        CHECK(sums[i][1999] == i * size, "sum %d", i);
        ddl_work_destroy(received[i]);
        ddl_work_destroy(reduced[i]);
        ddl_work_destroy(sent[i]);
    }
    free(out);
    free(in);
    free(sums);
}

/* -------------------------------------------------------------------------------- what is wrong */

/* A link is full of messages without a receive, and the operation's spans are behind them. */
static void behind_messages(ddl_comm *comm, void *argument)
{
    enum { MANY = 300 };
    int rank = ddl_comm_rank(comm), size = ddl_comm_size(comm), got;
    ddl_work *sent[MANY];
    float x = 1;
    ddl_options options = named("behind");
    for (int i = 0; i < MANY; i++)
        OK(ddl_send(comm, &rank, 1, DDL_I32, (rank + 1) % size, i, NULL, &sent[i]));
    usleep(1000 * (useconds_t)(rank % 2)); /* some announce it later than others */
    OK(ddl_allreduce(comm, NULL, &x, 1, DDL_F32, DDL_SUM, &options, NULL));
    CHECK(x == (float)size, "%g", (double)x);
    for (int i = 0; i < MANY; i++) {
        OK(ddl_recv(comm, &got, 1, DDL_I32, (rank + size - 1) % size, i, NULL, NULL, NULL));
        CHECK(got == (rank + size - 1) % size, "message %d is of rank %d", i, got);
        OK(ddl_work_wait(sent[i], -1));
        ddl_work_destroy(sent[i]);
    }
}

static void refusals(ddl_comm *comm, void *argument)
{
    float x = 1, y = 1;
    char longest[DDL_NAME_MAX + 1];
    ddl_work *work;
    memset(longest, 'a', sizeof longest);
    longest[DDL_NAME_MAX] = 0;
    ddl_options options = named(longest);
    REFUSED(ddl_allreduce(comm, NULL, &x, 1, DDL_F32, DDL_SUM, &options, NULL), DDL_EINVAL,
            "which has 256 bytes");
    options.name = "message";
    REFUSED(ddl_send(comm, &x, 1, DDL_F32, 0, 0, &options, NULL), DDL_EINVAL, "name");
    options.name = "twice";
    if (ddl_comm_size(comm) > 1) {
        if (ddl_comm_rank(comm) == 0) {
            OK(ddl_allreduce(comm, NULL, &x, 1, DDL_F32, DDL_SUM, &options, &work));
            REFUSED(ddl_allreduce(comm, NULL, &y, 1, DDL_F32, DDL_SUM, &options, NULL), DDL_EINVAL,
                    "\"twice\" is already pending");
            OK(ddl_barrier(comm, NULL, NULL));
        } else {
            OK(ddl_barrier(comm, NULL, NULL));
            OK(ddl_allreduce(comm, NULL, &x, 1, DDL_F32, DDL_SUM, &options, &work));
        }
        OK(ddl_work_wait(work, -1));
        ddl_work_destroy(work);
    }
    /* A name is free again when its operation is complete. */
    for (int i = 0; i < 3; i++)
        OK(ddl_allreduce(comm, NULL, &y, 1, DDL_F32, DDL_MAX, &options, NULL));
    longest[DDL_NAME_MAX - 1] = 0;
    options.name = longest;
    OK(ddl_allreduce(comm, NULL, &y, 1, DDL_F32, DDL_MAX, &options, NULL));
    CHECK(y == 1, "%g", (double)y);
}

/* One name for two operations: an error on every rank, with both calls. */
static void different(ddl_comm *comm, void *argument)
{
    int rank = ddl_comm_rank(comm), size = ddl_comm_size(comm);
    float x[20] = {0};
    ddl_options options = named("the name");
    if (size == 1)
        return;
    ddl_status status = rank == size - 1
                            ? ddl_allreduce(comm, NULL, x, 20, DDL_F32, DDL_SUM, &options, NULL)
                            : ddl_broadcast(comm, x, 10, DDL_F32, 0, &options, NULL);
    CHECK(status == DDL_EMISMATCH, "%d: %s", status, ddl_last_error());
    CHECK(strstr(ddl_last_error(), "all-reduce(f32, 20, sum)") &&
              strstr(ddl_last_error(), "broadcast(f32, 10, root 0)") &&
              strstr(ddl_last_error(), "\"the name\""),
          "%s", ddl_last_error());
}

/* Number of threads that have called what the last one waits for. */
static atomic_int called;

static void await_calls(int calls)
{
    while (atomic_load(&called) < calls)
        usleep(1000);
    atomic_store(&called, 0);
}

/* A name that not all ranks call: the limit ends it, and the error names the missing ranks. */
static void missing(ddl_comm *comm, void *argument)
{
    int rank = ddl_comm_rank(comm), size = ddl_comm_size(comm);
    float x = 0;
    ddl_options options = named("lonely");
    options.timeout_ms = rank == 0 ? 300 : 30000;
    if (size == 1)
        return;
    ddl_work *work = NULL;
    if (rank == 0)
        await_calls(size - 2);
    ddl_status status = rank == size - 1
                            ? ddl_barrier(comm, NULL, NULL)
                            : ddl_allreduce(comm, NULL, &x, 1, DDL_F32, DDL_SUM, &options, &work);
    if (rank > 0 && rank < size - 1)
        atomic_fetch_add(&called, 1);
    if (work)
        status = ddl_work_wait(work, -1);
    ddl_work_destroy(work);
    CHECK(status == DDL_EEXPIRED, "%d: %s", status, ddl_last_error());
    char who[64];
    snprintf(who, sizeof who, "not called by rank %d", size - 1);
    CHECK(strstr(ddl_last_error(), "\"lonely\"") && strstr(ddl_last_error(), who), "%s",
          ddl_last_error());
}

/* The comm ends while named operations wait: all of them end. */
static void aborted(ddl_comm *comm, void *argument)
{
    enum { N = 10 };
    if (ddl_comm_size(comm) == 1)
        return;
    if (ddl_comm_rank(comm) == 0) {
        await_calls(ddl_comm_size(comm) - 1);
        OK(ddl_comm_abort(comm, "enough"));
        return;
    }
    float x[N];
    ddl_work *works[N];
    for (int i = 0; i < N; i++) {
        char name[16];
        snprintf(name, sizeof name, "%d", i);
        ddl_options options = named(name);
        OK(ddl_allreduce(comm, NULL, &x[i], 1, DDL_F32, DDL_SUM, &options, &works[i]));
    }
    atomic_fetch_add(&called, 1);
    for (int i = 0; i < N; i++) {
        CHECK(ddl_work_wait(works[i], -1) == DDL_EABORTED, "%s", ddl_last_error());
        ddl_work_destroy(works[i]);
    }
}

/* Rank 0 orders the same name twice: the second order is rejected, whatever happens to the
 * first. */
static void ordered_twice(ddl_comm *comm, void *argument)
{
    float x = 0;
    ddl_options options = named("twice");
    if (ddl_comm_size(comm) == 1)
        return;
    if (ddl_comm_rank(comm) == 1) {
        ddl_status status = ddl_allreduce(comm, NULL, &x, 1, DDL_F32, DDL_SUM, &options, NULL);
        REFUSED(status, DDL_EINTERNAL, "or is already running");
        return;
    }
    usleep(50000); /* until it is announced */
    for (int i = 0; i < 2 && ddl_comm_rank(comm) == 0; i++)
        ddl__messages_send_name(comm->engine->messages, 1, DDL__ORDER, "twice", 5);
    CHECK(ddl_barrier(comm, NULL, NULL) == DDL_EINTERNAL, "%s", ddl_last_error());
}

int main(void)
{
    static const uint32_t links[] = {DDL_LINK_INPROC, DDL_LINK_SHM, DDL_LINK_TCP, LINKS_MIXED};
    static rank_fn *const tests[] = {any_order,      one_order,     by_threads,     groups,
                                     among_messages, refusals,      different,      missing,
                                     aborted,        ordered_twice, behind_messages};
    for (unsigned l = SANITIZED; l < 4; l++) /* inproc uses the code of shm */
        for (unsigned t = 0; t < sizeof tests / sizeof *tests; t++)
            for (int size = 1; size <= 4; size += 1 + (SANITIZED && size == 2))
                run_ranks(size, links[l], tests[t], NULL);
}
