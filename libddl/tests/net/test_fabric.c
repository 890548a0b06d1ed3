/* SPDX-License-Identifier: Apache-2.0 */
/* What a job needs of a network, with two and four ranks as processes: sums, messages, a dead rank
 * that is named, and a comm of the survivors. `make test-rdma` runs it over RoCE. */
#include "processes.h"
#include "survivors.h"

enum { COUNTS = 4, LONGEST = 300000, VICTIM = 1 };

/* From one packet to messages that the receiver fetches. */
static const int64_t counts[COUNTS] = {1, 1000, 20000, LONGEST};
static int32_t data[LONGEST], received[LONGEST];

static void sums(ddl_comm *comm)
{
    int rank = ddl_comm_rank(comm), size = ddl_comm_size(comm);
    for (int k = 0; k < 2 * COUNTS; k++) {
        int64_t n = counts[k % COUNTS];
        for (int64_t i = 0; i < n; i++)
            data[i] = (int32_t)i + rank;
        OK(ddl_allreduce(comm, NULL, data, n, DDL_I32, DDL_SUM, NULL, NULL));
        for (int64_t i = 0; i < n; i++)
            CHECK(data[i] == size * (int32_t)i + size * (size - 1) / 2, "%jd of %jd: %d",
                  (intmax_t)i, (intmax_t)n, data[i]);
    }
    ddl_comm_destroy(comm);
}

static void messages(ddl_comm *comm)
{
    int rank = ddl_comm_rank(comm), size = ddl_comm_size(comm);
    int next = (rank + 1) % size, before = (rank + size - 1) % size;
    for (int k = 0; k < COUNTS; k++) {
        int64_t n = counts[k];
        ddl_work *sent, *arrived;
        for (int64_t i = 0; i < n; i++)
            data[i] = (int32_t)i ^ rank;
        OK(ddl_recv(comm, received, n, DDL_I32, before, k, NULL, NULL, &arrived));
        OK(ddl_send(comm, data, n, DDL_I32, next, k, NULL, &sent));
        OK(ddl_work_wait(sent, -1));
        OK(ddl_work_wait(arrived, -1));
        ddl_work_destroy(sent);
        ddl_work_destroy(arrived);
        for (int64_t i = 0; i < n; i++)
            CHECK(received[i] == ((int32_t)i ^ before), "%jd of %jd: %d", (intmax_t)i, (intmax_t)n,
                  received[i]);
    }
    ddl_comm_destroy(comm);
}

/* A short message is sent although the receiver is in no call, and has been in none but the
 * creation. */
static void sent_to_idle(ddl_comm *comm)
{
    int32_t one = ddl_comm_rank(comm) == 0;
    if (ddl_comm_rank(comm) == 0) {
        OK(ddl_send(comm, &one, 1, DDL_I32, VICTIM, 0, NULL, NULL));
        become_ready();
    } else if (ddl_comm_rank(comm) == VICTIM) {
        await_ready(1);
        OK(ddl_recv(comm, &one, 1, DDL_I32, 0, 0, NULL, NULL, NULL));
        CHECK(one == 1, "%d", one);
    }
    ddl_comm_destroy(comm);
}

/* All parts of sent messages arrive although the sender is in no call any more. */
static void idle_after_sending(ddl_comm *comm)
{
    enum { MESSAGES = 40, LENGTH = LONGEST / MESSAGES };
    ddl_work *works[MESSAGES];
    int rank = ddl_comm_rank(comm);
    for (int k = 0; rank == 0 && k < MESSAGES; k++)
        OK(ddl_send(comm, data, LENGTH, DDL_I32, VICTIM, k, NULL, &works[k]));
    for (int k = 0; rank == 0 && k < MESSAGES; k++) {
        OK(ddl_work_wait(works[k], -1));
        ddl_work_destroy(works[k]);
    }
    if (rank == 0)
        await_ready(1);
    if (rank == VICTIM) {
        usleep(300000); /* the sockets are full */
        for (int k = 0; k < MESSAGES; k++)
            OK(ddl_recv(comm, data, LENGTH, DDL_I32, 0, k, NULL, NULL, NULL));
        become_ready();
    }
    ddl_comm_destroy(comm);
}

/* The survivors name the rank before the limit of their operation, and continue without it. */
static void killed(ddl_comm *comm)
{
    static const ddl_comm_config config = {.struct_size = sizeof config, .timeout_ms = 30000};
    int rank = ddl_comm_rank(comm), size = ddl_comm_size(comm);
    double start = start_together(comm);
    ddl_status status = DDL_OK;
    for (int i = 0; status == DDL_OK; i++) {
        if (rank == VICTIM && i == 10)
            kill(getpid(), SIGKILL);
        start = seconds();
        status = ddl_allreduce(comm, NULL, data, counts[i % COUNTS], DDL_I32, DDL_MAX, NULL, NULL);
    }
    EXPECT(status, DDL_EPEER, "rank 1 on ");
    if (rank == 0)
        printf("    named after at most %.3f s\n", seconds() - start);
    fflush(stdout);
    if (size == 2)
        return;
    ddl_comm *next;
    survivors_await_death(comm);
    OK(ddl_comm_shrink(comm, &config, &next));
    ddl_comm_destroy(comm);
    int32_t one = 1;
    OK(ddl_allreduce(next, NULL, &one, 1, DDL_I32, DDL_SUM, NULL, NULL));
    CHECK(one == size - 1 && ddl_comm_size(next) == one, "%d", one);
    ddl_comm_destroy(next);
}

int main(int argc, char **argv)
{
    static const process_test tests[] = {
        {"sums", sums, .size = 2},
        {"sums", sums, .size = 4},
        {"messages", messages, .size = 2},
        {"messages", messages, .size = 4},
        {"sent_to_idle", sent_to_idle},
        {"idle_after_sending", idle_after_sending, .size = 2, .runs = 5},
        {"killed", killed, 1 << VICTIM, .size = 2},
        {"killed", killed, 1 << VICTIM},
    };
    run_process_tests(tests, sizeof tests / sizeof *tests, 4, argc, argv);
    return 0;
}
