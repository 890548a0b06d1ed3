/* SPDX-License-Identifier: Apache-2.0 */
/* If a peer dies, leaves, aborts, or sends something else or nothing, messages fail soon with an
 * error that names it; data that was sent before still arrives. Ranks are processes. */
#include "processes.h"

enum { SIZE = 3, VICTIM = 1, LARGE = 4 << 20 };

static char data[LARGE];

static ddl_status recv_from(ddl_comm *comm, int64_t count, int source, int tag)
{
    return ddl_recv(comm, data, count, DDL_U8, source, tag, NULL, NULL, NULL);
}

static ddl_status send_to(ddl_comm *comm, int64_t count, int dest, int tag)
{
    return ddl_send(comm, data, count, DDL_U8, dest, tag, NULL, NULL);
}

/* Receives wait for a rank that dies, by its rank or from any. */
static void killed_sender(ddl_comm *comm)
{
    int rank = ddl_comm_rank(comm);
    start_together(comm);
    if (rank == VICTIM) {
        OK(send_to(comm, 10, 0, 1));
        await_ready(1);
        usleep(100000);
        kill(getpid(), SIGKILL);
    }
    if (rank == 0) {
        OK(recv_from(comm, 10, VICTIM, 1));
        become_ready();
        EXPECT(recv_from(comm, 10, VICTIM, 1), DDL_EPEER, "rank 1 on ");
    } else {
        EXPECT(recv_from(comm, 10, DDL_ANY_SOURCE, 1), DDL_EPEER, "rank 1 on ");
    }
    EXPECT(ddl_comm_status(comm), DDL_EPEER, "rank 1 on ");
    EXPECT(send_to(comm, 10, rank, 1), DDL_EPEER, "rank 1 on "); /* sticky */
    ddl_comm_destroy(comm);
}

/* Sends are not accepted, or in progress, when the receiver dies. */
static void killed_receiver(ddl_comm *comm)
{
    int rank = ddl_comm_rank(comm);
    start_together(comm);
    if (rank == VICTIM) {
        ddl_work *work;
        OK(ddl_recv(comm, data, LARGE, DDL_U8, 0, 1, NULL, NULL, &work));
        usleep(100000);
        kill(getpid(), SIGKILL);
    }
    ddl_status status = DDL_OK;
    for (int k = 0; k < 1000 && status == DDL_OK; k++)
        status = send_to(comm, rank ? 100 : LARGE, VICTIM, 1);
    if (rank == 2)
        while (status == DDL_OK) /* until no credit is left */
            status = send_to(comm, 8000, VICTIM, 1);
    EXPECT(status, DDL_EPEER, "rank 1 on ");
    ddl_comm_destroy(comm);
}

/* A rank that leaves after its last send disturbs no other rank; a rank that waits for more gets an
 * error. */
static void leaves_politely(ddl_comm *comm)
{
    int rank = ddl_comm_rank(comm);
    OK(ddl_barrier(comm, NULL, NULL));
    if (rank == VICTIM) {
        for (int k = 0; k < 20; k++) {
            memset(data, k, 8000);
            OK(send_to(comm, 8000, 0, k));
        }
        OK(send_to(comm, LARGE, 0, 100)); /* is received first */
    } else if (rank == 0) {
        OK(recv_from(comm, LARGE, VICTIM, 100));
        usleep(100000);
        for (int k = 19; k >= 0; k--) {
            OK(recv_from(comm, 8000, VICTIM, k));
            CHECK(data[7999] == k, "message %d", k);
        }
        OK(recv_from(comm, 10, DDL_ANY_SOURCE, 7)); /* other ranks may still send */
        ddl_status status = recv_from(comm, 10, VICTIM, 7);
        EXPECT(status, DDL_EPEER, "rank 1 on ");
        EXPECT(status, DDL_EPEER, "called receive(u8, 10, from rank 1, tag 7)");
    } else {
        usleep(300000);
        OK(send_to(comm, 10, 0, 7));
        EXPECT(recv_from(comm, 10, 0, 7), DDL_EPEER, "rank 1 on ");
    }
    ddl_comm_destroy(comm);
}

/* A rank exits without leaving. Messages that were requested before still arrive. */
static void leaves_silently(ddl_comm *comm)
{
    static char parts[20][8000];
    int rank = ddl_comm_rank(comm);
    ddl_work *works[20];
    for (int k = 19; rank == 0 && k >= 0; k--)
        OK(ddl_recv(comm, parts[k], 8000, DDL_U8, VICTIM, k, NULL, NULL, &works[k]));
    start_together(comm);
    if (rank == VICTIM) {
        for (int k = 0; k < 20; k++) {
            memset(data, k, 8000);
            OK(send_to(comm, 8000, 0, k));
        }
        return;
    }
    if (rank == 0) {
        usleep(200000);
        for (int k = 0; k < 20; k++) {
            OK(ddl_work_wait(works[k], -1));
            CHECK(parts[k][7999] == k, "message %d", k);
            ddl_work_destroy(works[k]);
        }
        EXPECT(recv_from(comm, 10, VICTIM, 7), DDL_EPEER, "rank 1 on ");
    } else {
        EXPECT(recv_from(comm, 10, 0, 7), DDL_EPEER, "rank 1 on ");
    }
    ddl_comm_destroy(comm);
}

/* Receive from any rank after all other ranks have left. */
static void all_leave(ddl_comm *comm)
{
    OK(ddl_barrier(comm, NULL, NULL));
    if (ddl_comm_rank(comm) == 0) {
        OK(recv_from(comm, 10, DDL_ANY_SOURCE, 7));
        OK(recv_from(comm, 10, DDL_ANY_SOURCE, 7));
        EXPECT(recv_from(comm, 10, DDL_ANY_SOURCE, 7), DDL_EPEER, "every other rank left the comm");
        EXPECT(ddl_comm_status(comm), DDL_EPEER, "receive(u8, 10, from any rank, tag 7)");
    } else {
        OK(send_to(comm, 10, 0, 7));
    }
    ddl_comm_destroy(comm);
}

/* Offer a message to a receiver that has left. */
static void left_receiver(ddl_comm *comm)
{
    OK(ddl_barrier(comm, NULL, NULL));
    if (ddl_comm_rank(comm) != VICTIM)
        EXPECT(send_to(comm, LARGE, VICTIM, 7), DDL_EPEER, "rank 1 on ");
    ddl_comm_destroy(comm);
}

/* On a mismatch, the error on both sides has both calls. */
static void mismatch(ddl_comm *comm, int64_t count, ddl_dtype dtype, const char *sent)
{
    ddl_status status = DDL_OK;
    OK(ddl_barrier(comm, NULL, NULL));
    if (ddl_comm_rank(comm) == VICTIM) {
        status = ddl_send(comm, data, count, dtype, 0, 7, NULL, NULL);
        if (status == DDL_OK)
            status = recv_from(comm, 1, 0, 0);
    } else if (ddl_comm_rank(comm) == 0) {
        status = ddl_recv(comm, data, 50, DDL_F32, DDL_ANY_SOURCE, 7, NULL, NULL, NULL);
    } else {
        status = ddl_barrier(comm, NULL, NULL);
    }
    EXPECT(status, DDL_EMISMATCH, sent);
    EXPECT(status, DDL_EMISMATCH, "called receive(f32, 50, from any rank, tag 7)");
    EXPECT(status, DDL_EMISMATCH, "rank 1 on ");
    ddl_comm_destroy(comm);
}

static void mismatched_count(ddl_comm *comm)
{
    mismatch(comm, 100, DDL_F32, "send(f32, 100, to rank 0, tag 7)");
}

static void mismatched_dtype(ddl_comm *comm)
{
    mismatch(comm, 50, DDL_I32, "send(i32, 50, to rank 0, tag 7)");
}

static void mismatched_large(ddl_comm *comm)
{
    mismatch(comm, LARGE, DDL_U8, "send(u8, 4194304, to rank 0, tag 7)");
}

static void expired(ddl_comm *comm)
{
    int rank = ddl_comm_rank(comm);
    OK(ddl_barrier(comm, NULL, NULL));
    if (rank == VICTIM) {
        await_ready(SIZE - 1);
    } else {
        ddl_options options = {.struct_size = sizeof options, .timeout_ms = 300};
        double start = seconds();
        ddl_status status =
            rank ? ddl_send(comm, data, LARGE, DDL_U8, VICTIM, 3, &options, NULL)
                 : ddl_recv(comm, data, 5, DDL_U8, DDL_ANY_SOURCE, 3, NULL, &options, NULL);
        EXPECT(status, DDL_EEXPIRED, "ran past its limit of 300 ms");
        CHECK(strstr(ddl_last_error(), "receive(u8, 5, from any rank, tag 3)") ||
                  strstr(ddl_last_error(), "send(u8, 4194304, to rank 1, tag 3)"),
              "%s", ddl_last_error());
        CHECK(seconds() - start < 10, "%g s", seconds() - start);
        become_ready();
    }
    ddl_comm_destroy(comm);
}

/* No thread waits for the work, but its limit applies, even if a collective progresses. */
static void expired_beside(ddl_comm *comm)
{
    static float sums[1000];
    ddl_options options = {.struct_size = sizeof options, .timeout_ms = 300};
    ddl_status status = DDL_OK;
    ddl_work *work = NULL;
    OK(ddl_barrier(comm, NULL, NULL));
    if (ddl_comm_rank(comm) == 0)
        OK(ddl_recv(comm, data, 5, DDL_U8, 2, 3, NULL, &options, &work));
    double start = seconds();
    while (status == DDL_OK && seconds() - start < 20)
        status = ddl_allreduce(comm, NULL, sums, 1000, DDL_F32, DDL_SUM, NULL, NULL);
    EXPECT(status, DDL_EEXPIRED, "receive(u8, 5, from rank 2, tag 3)");
    if (work)
        EXPECT(ddl_work_wait(work, -1), DDL_EEXPIRED, "receive(u8, 5, from rank 2, tag 3)");
    ddl_work_destroy(work);
    ddl_comm_destroy(comm);
}

static void aborted(ddl_comm *comm)
{
    ddl_work *works[4];
    int rank = ddl_comm_rank(comm), other = rank == 2 ? 0 : 2;
    OK(ddl_barrier(comm, NULL, NULL));
    if (rank == VICTIM) {
        await_ready(SIZE - 1);
        usleep(50000);
        OK(ddl_comm_abort(comm, "loss is NaN"));
        EXPECT(send_to(comm, 5, 0, 0), DDL_EABORTED, "loss is NaN");
    } else {
        static char parts[4][LARGE];
        OK(ddl_send(comm, parts[0], LARGE, DDL_U8, VICTIM, 0, NULL, &works[0]));
        OK(ddl_recv(comm, parts[1], 5, DDL_U8, VICTIM, 0, NULL, NULL, &works[1]));
        OK(ddl_recv(comm, parts[2], 5, DDL_U8, DDL_ANY_SOURCE, 0, NULL, NULL, &works[2]));
        OK(ddl_send(comm, parts[3], LARGE, DDL_U8, other, 9, NULL, &works[3]));
        become_ready();
        for (int k = 0; k < 4; k++) {
            EXPECT(ddl_work_wait(works[k], -1), DDL_EABORTED, "loss is NaN");
            ddl_work_destroy(works[k]);
        }
    }
    ddl_comm_destroy(comm);
}

/* A member leaves while a receive, a named operation and one by order wait for it. */
static void left_all(ddl_comm *comm)
{
    float values[4] = {0};
    ddl_work *works[4];
    ddl_options by_name = {.struct_size = sizeof by_name, .name = "gradient"};
    OK(ddl_barrier(comm, NULL, NULL));
    if (ddl_comm_rank(comm) == VICTIM) {
        await_ready(SIZE - 1);
        usleep(100000);
        ddl_comm_destroy(comm);
        return;
    }
    OK(ddl_recv(comm, data, 5, DDL_U8, VICTIM, 0, NULL, NULL, &works[0]));
    OK(ddl_allreduce(comm, values, values, 2, DDL_F32, DDL_SUM, &by_name, &works[1]));
    OK(ddl_allreduce(comm, values + 2, values + 2, 2, DDL_F32, DDL_SUM, NULL, &works[2]));
    OK(ddl_recv(comm, data + 5, 5, DDL_U8, DDL_ANY_SOURCE, 0, NULL, NULL, &works[3]));
    become_ready();
    for (int k = 0; k < 4; k++) {
        EXPECT(ddl_work_wait(works[k], -1), DDL_EPEER, "left the comm");
        ddl_work_destroy(works[k]);
    }
    ddl_comm_destroy(comm);
}

/* Destroying the comm completes pending works, and frees messages without a receive. */
static void destroyed(ddl_comm *comm)
{
    int rank = ddl_comm_rank(comm), last = -1;
    ddl_work *works[2];
    OK(ddl_barrier(comm, NULL, NULL));
    if (rank == VICTIM) {
        for (int k = 0; k < 30; k++)
            OK(send_to(comm, 100 * k, 0, 5));
        OK(ddl_send(comm, &rank, 1, DDL_I32, 0, 6, NULL, NULL));
    } else if (rank == 0) {
        OK(ddl_recv(comm, &last, 1, DDL_I32, VICTIM, 6, NULL, NULL, NULL));
        CHECK(last == VICTIM, "%d", last);
        OK(ddl_recv(comm, data, 5, DDL_U8, 0, 1, NULL, NULL, &works[0]));
        OK(ddl_send(comm, data + 5, LARGE - 5, DDL_U8, 2, 1, NULL, &works[1]));
    }
    ddl_comm_destroy(comm);
    for (int k = 0; rank == 0 && k < 2; k++) {
        ddl_status status = ddl_work_wait(works[k], -1);
        CHECK(status == DDL_EABORTED || status == DDL_EPEER, "%d %s", status, ddl_last_error());
        ddl_work_destroy(works[k]);
    }
}

static const process_test tests[] = {
    {"killed_sender", killed_sender, 1 << VICTIM},
    {"killed_receiver", killed_receiver, 1 << VICTIM},
    {"leaves_politely", leaves_politely, 0},
    {"leaves_silently", leaves_silently, 0},
    {"all_leave", all_leave, 0},
    {"left_receiver", left_receiver, 0},
    {"left_all", left_all, 0},
    {"mismatched_count", mismatched_count, 0},
    {"mismatched_dtype", mismatched_dtype, 0},
    {"mismatched_large", mismatched_large, 0},
    {"expired", expired, 0},
    {"expired_beside", expired_beside, 0},
    {"aborted", aborted, 0},
    {"destroyed", destroyed, 0},
};

int main(int argc, char **argv)
{
    run_process_tests(tests, sizeof tests / sizeof *tests, SIZE, argc, argv);
}
