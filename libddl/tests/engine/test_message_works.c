/* SPDX-License-Identifier: Apache-2.0 */
/* The works of messages between ranks of one process: completion, waiting, threads. */
#include "message_ranks.h"

static void completion_queue(ddl_comm *comm, void *argument)
{
    enum { N = 60 };
    int rank = ddl_comm_rank(comm), size = ddl_comm_size(comm);
    int right = (rank + 1) % size, left = (rank + size - 1) % size, seen[2 * N] = {0};
    static _Thread_local unsigned char out[N][9000], in[N][9000];
    ddl_options options = {.struct_size = sizeof options, .queued = 1};
    ddl_work *work, *works[8];
    void *users[8];
    for (int k = 0; k < N; k++) {
        memset(out[k], k, sizeof out[k]);
        options.user = &seen[k];
        OK(ddl_recv(comm, in[k], 8000 + k * 10, DDL_U8, left, k, NULL, &options, &work));
    }
    for (int k = N - 1; k >= 0; k--) {
        options.user = &seen[N + k];
        OK(ddl_send(comm, out[k], 8000 + k * 10, DDL_U8, right, k, &options, &work));
    }
    for (int n = 0, taken; n < 2 * N; n += taken) {
        OK(ddl_comm_completed(comm, works, users, 8, -1, &taken));
        for (int i = 0; i < taken; i++) {
            CHECK(++*(int *)users[i] == 1, "reported twice");
            OK(ddl_work_test(works[i]));
            ddl_work_destroy(works[i]);
        }
    }
    for (int k = 0; k < N; k++)
        CHECK(in[k][7999] == k, "message %d", k);
}

static void waits(ddl_comm *comm, void *argument)
{
    int rank = ddl_comm_rank(comm), size = ddl_comm_size(comm), got = 0;
    ddl_work *work;
    if (size < 2)
        return;
    if (rank == 0) {
        OK(ddl_recv(comm, &got, 1, DDL_I32, 1, 0, NULL, NULL, &work));
        CHECK(ddl_work_wait(work, 0) == DDL_ETIMEDOUT, "looked only");
        CHECK(ddl_work_wait(work, 50) == DDL_ETIMEDOUT, "waited 50 ms");
        OK(ddl_barrier(comm, NULL, NULL));
        finish(work);
        CHECK(got == 1, "%d", got);
    } else {
        OK(ddl_barrier(comm, NULL, NULL));
        if (rank == 1)
            OK(ddl_send(comm, &rank, 1, DDL_I32, 0, 0, NULL, NULL));
    }
}

/* A message wakes a thread that sleeps on it at once, without waiting for its next poll. */
static void wakes(ddl_comm *comm, void *argument)
{
    enum { ROUNDS = 12 };
    static _Thread_local char data[20000];
    int rank = ddl_comm_rank(comm), size = ddl_comm_size(comm);
    double start = seconds();
    for (int k = 0; k < ROUNDS && size > 1; k++)
        for (int turn = 0; turn < 2; turn++) {
            if (rank == turn) {
                usleep(20000);
                OK(send_bytes(comm, data, k % 2 ? 1 : sizeof data, 1 - turn, 0, NULL));
            } else if (rank == 1 - turn) {
                int source = k % 4 < 2 ? turn : DDL_ANY_SOURCE;
                OK(recv_bytes(comm, data, k % 2 ? 1 : sizeof data, source, 0, NULL, NULL));
            }
        }
    CHECK(seconds() - start < ROUNDS, "%g s", seconds() - start);
    OK(ddl_barrier(comm, NULL, NULL));
}

/* No thread waits: the endpoints' threads drive. */
static void in_background(ddl_comm *comm, void *argument)
{
    int rank = ddl_comm_rank(comm), size = ddl_comm_size(comm);
    unsigned char *out = malloc(3 * MIB), *in = malloc(3 * MIB);
    for (int round = 0; round < 5; round++) {
        ddl_work *works[2];
        size_t bytes = round % 2 ? 3 * MIB : 100;
        fill(out, bytes, (uint64_t)rank);
        OK(send_bytes(comm, out, bytes, (rank + 1) % size, 0, &works[0]));
        OK(recv_bytes(comm, in, bytes, (rank + size - 1) % size, 0, NULL, &works[1]));
        for (int k = 0, tries = 0; k < 2; k++, tries = 0)
            while (ddl_work_test(works[k]) == DDL_INPROGRESS) {
                usleep(1000);
                CHECK(++tries < 30000, "no progress in the background");
            }
        finish(works[0]);
        finish(works[1]);
        check_filled(in, bytes, (uint64_t)((rank + size - 1) % size));
    }
    free(out);
    free(in);
}

/* Works that are abandoned while pending are matched in their turn all the same. */
static void abandoned(ddl_comm *comm, void *argument)
{
    enum { N = 40, LENGTH = 12000 };
    int rank = ddl_comm_rank(comm), size = ddl_comm_size(comm);
    static _Thread_local unsigned char out[N][LENGTH], in[N + 1][LENGTH];
    ddl_work *work;
    for (int k = 0; k < N; k++) {
        OK(recv_bytes(comm, in[k], k % 2 ? LENGTH : 10, (rank + size - 1) % size, 1, NULL, &work));
        ddl_work_destroy(work);
    }
    for (int k = 0; k < N; k++) {
        memset(out[k], k + 1, LENGTH);
        OK(send_bytes(comm, out[k], k % 2 ? LENGTH : 10, (rank + 1) % size, 1, &work));
        ddl_work_destroy(work);
    }
    OK(recv_bytes(comm, in[N], LENGTH, (rank + size - 1) % size, 1, NULL, &work));
    OK(send_bytes(comm, out[0], LENGTH, (rank + 1) % size, 1, NULL));
    finish(work); /* runs behind them */
    for (int k = 0; k < N; k++)
        CHECK(in[k][k % 2 ? LENGTH - 1 : 9] == k + 1, "message %d", k);
    OK(ddl_barrier(comm, NULL, NULL));
}

typedef struct talker {
    ddl_comm *comm;
    int number;
    pthread_t thread;
} talker;

static void *talk(void *argument)
{
    talker *t = argument;
    int rank = ddl_comm_rank(t->comm), size = ddl_comm_size(t->comm);
    unsigned char *out = malloc(20000), *in = malloc(20000);
    for (int k = 0; k < 60; k++) {
        ddl_work *work;
        size_t bytes = k % 5 ? 200 : 20000;
        fill(out, bytes, name_of(rank, t->number, k));
        OK(recv_bytes(t->comm, in, bytes, (rank + size - 1) % size, t->number, NULL, &work));
        OK(send_bytes(t->comm, out, bytes, (rank + 1) % size, t->number, NULL));
        finish(work);
        check_filled(in, bytes, name_of((rank + size - 1) % size, t->number, k));
    }
    free(out);
    free(in);
    return NULL;
}

/* Several threads of one rank exchange messages with their own tags, and one reduces meanwhile. */
static void threads(ddl_comm *comm, void *argument)
{
    enum { N = 3 };
    talker talkers[N];
    for (int i = 0; i < N; i++) {
        talkers[i] = (talker){.comm = comm, .number = i};
        CHECK(!pthread_create(&talkers[i].thread, NULL, talk, &talkers[i]), "thread");
    }
    for (int k = 0; k < 50; k++) {
        int32_t one = 1;
        OK(ddl_allreduce(comm, NULL, &one, 1, DDL_I32, DDL_SUM, NULL, NULL));
        CHECK(one == ddl_comm_size(comm), "%d", one);
    }
    for (int i = 0; i < N; i++)
        pthread_join(talkers[i].thread, NULL);
}

int main(int argc, char **argv)
{
    static const message_test tests[] = {{"completion_queue", completion_queue, 1, 3},
                                         {"waits", waits, 1, 3},
                                         {"wakes", wakes, 1, 3},
                                         {"in_background", in_background, 1, 3},
                                         {"abandoned", abandoned, 1, 3},
                                         {"threads", threads, 1, 3}};
    return run_message_tests(argc, argv, tests, sizeof tests / sizeof *tests);
}
