/* SPDX-License-Identifier: Apache-2.0 */
/* Messages between ranks of one process: matching, order, sizes, credit, independence of
 * collectives and of each other. */
#include "message_ranks.h"

static const size_t sizes[] = {0, 1, 608, 609, 8192, 8193, 65537, MIB + 3, 5 * MIB};
enum { SIZES = sizeof sizes / sizeof *sizes };

/* Exchange messages between rank 0 and each other rank, blocking. */
static void ping_pong(ddl_comm *comm, void *argument)
{
    int rank = ddl_comm_rank(comm), size = ddl_comm_size(comm);
    unsigned char *data = malloc(5 * MIB);
    for (int other = 1; other < size; other++)
        for (unsigned k = 0; k < SIZES; k++) {
            int sender = -2;
            fill(data, sizes[k], rank ? 77 : k);
            if (rank == 0) {
                OK(send_bytes(comm, data, sizes[k], other, (int)k, NULL));
                OK(recv_bytes(comm, data, sizes[k], other, INT32_MAX, &sender, NULL));
                CHECK(sender == other, "sender %d", sender);
                check_filled(data, sizes[k], 100 + k);
            } else if (rank == other) {
                OK(recv_bytes(comm, data, sizes[k], 0, (int)k, NULL, NULL));
                check_filled(data, sizes[k], k);
                fill(data, sizes[k], 100 + k);
                OK(send_bytes(comm, data, sizes[k], 0, INT32_MAX, NULL));
            }
        }
    free(data);
}

/* ----------------------------------------------------------------------------- many outstanding */

enum { MANY = 120, TAGS = 5 };

static int tag_of(int from, int to, int k)
{
    return (int)(mixed(name_of(from, to, k)) % TAGS);
}

static size_t length_of(int from, int to, int k)
{
    uint64_t r = mixed(name_of(from, to, k) + 1);
    return k % 20 == 7 ? r % 400000 : r % 3 ? r % 9000 : r % 50;
}

typedef struct flight {
    ddl_work *work;
    unsigned char *data;
    uint64_t name;
    size_t bytes;
    int sender;
} flight;

/* All ranks send to all, with receives of one tag in order and otherwise in any order, waited for
 * in any order. */
static void many_outstanding(ddl_comm *comm, void *argument)
{
    int rank = ddl_comm_rank(comm), size = ddl_comm_size(comm), n = 0;
    flight *flights = calloc((size_t)size * MANY * 2, sizeof *flights);
    for (int peer = 0; peer < size; peer++) {
        int tag = rank % TAGS, at = 0, received = 0;
        for (int k = 0; k < MANY; k++) {
            flight *out = &flights[n++];
            *out = (flight){.name = name_of(rank, peer, k), .bytes = length_of(rank, peer, k)};
            out->data = malloc(out->bytes + 1);
            fill(out->data, out->bytes, out->name);
            OK(send_bytes(comm, out->data, out->bytes, peer, tag_of(rank, peer, k), &out->work));
            for (int more = k == MANY - 1 ? MANY : k % 3; more && received < MANY; at++) {
                if (at == MANY) { /* continue with the next tag */
                    at = -1;
                    tag = (tag + 1) % TAGS;
                    continue;
                }
                if (tag_of(peer, rank, at) != tag)
                    continue;
                flight *in = &flights[n++];
                *in = (flight){.name = name_of(peer, rank, at), .bytes = length_of(peer, rank, at)};
                in->data = malloc(in->bytes + 1);
                OK(recv_bytes(comm, in->data, in->bytes, peer, tag, &in->sender, &in->work));
                received++;
                more--;
            }
        }
    }
    CHECK(n == size * MANY * 2, "%d", n);
    for (int i = 0, k = 0; i < n; i++, k = (k + 7 * 11 * 13) % n) {
        flight *f = &flights[k];
        finish(f->work);
        check_filled(f->data, f->bytes, f->name);
        CHECK(f->sender == 0 || f->sender == (int)(f->name >> 40), "sender %d", f->sender);
        free(f->data);
    }
    free(flights);
}

/* Receives are posted before the sends, and the other way round. */
static void before_and_after(ddl_comm *comm, void *argument)
{
    int rank = ddl_comm_rank(comm), size = ddl_comm_size(comm);
    if (size < 2)
        return;
    unsigned char *data = malloc(SIZES * (size_t)MIB * 5);
    ddl_work *works[SIZES];
    for (int sends_first = 0; sends_first < 2; sends_first++) {
        for (int turn = 0; turn < 2; turn++) {
            bool receives = rank == size - 1 && turn == sends_first;
            bool sends = rank == 0 && turn != sends_first;
            for (unsigned k = 0; k < SIZES; k++) {
                unsigned char *at = data + k * (size_t)MIB * 5;
                if (receives)
                    OK(recv_bytes(comm, at, sizes[k], 0, 1, NULL, &works[k]));
                if (sends) {
                    fill(at, sizes[k], k);
                    OK(send_bytes(comm, at, sizes[k], size - 1, 1, &works[k]));
                }
            }
            OK(ddl_barrier(comm, NULL, NULL));
        }
        for (unsigned k = 0; k < SIZES && (rank == 0 || rank == size - 1); k++) {
            finish(works[k]);
            check_filled(data + k * (size_t)MIB * 5, sizes[k], k);
        }
    }
    free(data);
}

/* ------------------------------------------------------------------------------------- matching */

static void any_source(ddl_comm *comm, void *argument)
{
    enum { EACH = 50 };
    int rank = ddl_comm_rank(comm), size = ddl_comm_size(comm), next[RANKS_MAX] = {0};
    static _Thread_local unsigned char large[20000];
    if (rank) {
        for (int k = 0; k < EACH; k++) {
            memset(large, rank, sizeof large);
            memcpy(large, &k, sizeof k);
            OK(send_bytes(comm, large, k % 7 ? 100 : sizeof large, 0, k % 7 ? 3 : 4, NULL));
        }
    } else {
        for (int i = 0; i < EACH * (size - 1); i++) {
            int sender = -2, k;
            bool is_large = next[0]++ % EACH < (EACH + 6) / 7; /* large ones come first */
            OK(recv_bytes(comm, large, is_large ? sizeof large : 100, DDL_ANY_SOURCE,
                          is_large ? 4 : 3, &sender, NULL));
            memcpy(&k, large, sizeof k);
            CHECK(sender > 0 && sender < size && large[99] == sender, "sender %d", sender);
            CHECK(is_large == (k % 7 == 0), "message %d", k);
        }
    }
    OK(ddl_barrier(comm, NULL, NULL));
}

/* Of matching receives the oldest gets the message, whether or not it names its source; of messages
 * the oldest is taken. */
static void order(ddl_comm *comm, void *argument)
{
    int rank = ddl_comm_rank(comm), size = ddl_comm_size(comm);
    for (int way = 0; way < 4 && size > 1; way++) {
        int data[2] = {-1, -1}, senders[2] = {-1, -1};
        ddl_work *works[2];
        for (int turn = 0; turn < 2; turn++) {
            for (int k = 0; k < 2; k++) {
                int source = k == way / 2 ? 1 : DDL_ANY_SOURCE;
                if (rank == 0 && turn == way % 2)
                    OK(ddl_recv(comm, &data[k], 1, DDL_I32, source, 9, &senders[k], NULL,
                                &works[k]));
                if (rank == 1 && turn != way % 2)
                    OK(ddl_send(comm, &k, 1, DDL_I32, 0, 9, NULL, NULL));
            }
            OK(ddl_barrier(comm, NULL, NULL));
        }
        for (int k = 0; rank == 0 && k < 2; k++) {
            finish(works[k]);
            CHECK(data[k] == k && senders[k] == 1, "receive %d got %d from %d", k, data[k],
                  senders[k]);
        }
    }
}

/* A receive from any rank takes the oldest message. */
static void oldest_of_all(ddl_comm *comm, void *argument)
{
    enum { MESSAGE = 3, END = 4 };
    int rank = ddl_comm_rank(comm), size = ddl_comm_size(comm);
    for (int way = 0; way < 2 && size > 2; way++) {
        for (int k = 0; k < 2; k++) {
            int turn = k == way ? 1 : 2, end;
            if (rank == turn) {
                OK(ddl_send(comm, &rank, 1, DDL_I32, 0, MESSAGE, NULL, NULL));
                OK(ddl_send(comm, &rank, 1, DDL_I32, 0, END, NULL, NULL));
            }
            if (rank == 0)
                OK(ddl_recv(comm, &end, 1, DDL_I32, turn, END, NULL, NULL, NULL));
            OK(ddl_barrier(comm, NULL, NULL));
        }
        for (int k = 0; k < 2 && rank == 0; k++) {
            int got = -1, sender = -1;
            OK(ddl_recv(comm, &got, 1, DDL_I32, DDL_ANY_SOURCE, MESSAGE, &sender, NULL, NULL));
            CHECK(got == (k == way ? 1 : 2) && sender == got, "message %d is %d from %d", k, got,
                  sender);
        }
    }
}

/* Send to the right and receive from the left, as a pipeline or ring attention does. */
static void ring(ddl_comm *comm, void *argument)
{
    int rank = ddl_comm_rank(comm), size = ddl_comm_size(comm);
    int right = (rank + 1) % size, left = (rank + size - 1) % size;
    unsigned char *out = malloc(MIB), *in = malloc(MIB);
    for (unsigned round = 0; round < 30; round++) {
        size_t bytes = round % 10 == 9 ? MIB - round : mixed(round) % 20000;
        ddl_work *works[2];
        fill(out, bytes, name_of(rank, 0, (int)round));
        OK(send_bytes(comm, out, bytes, right, 5, &works[0]));
        OK(recv_bytes(comm, in, bytes, left, 5, NULL, &works[1]));
        finish(works[round % 2]);
        finish(works[1 - round % 2]);
        check_filled(in, bytes, name_of(left, 0, (int)round));
    }
    free(out);
    free(in);
}

static void to_self(ddl_comm *comm, void *argument)
{
    int rank = ddl_comm_rank(comm);
    unsigned char *out = malloc(MIB), *in = malloc(MIB);
    fill(out, 100, 1);
    OK(send_bytes(comm, out, 100, rank, 1, NULL)); /* kept, although no receive is posted yet */
    OK(recv_bytes(comm, in, 100, rank, 1, NULL, NULL));
    check_filled(in, 100, 1);
    for (int way = 0; way < 80; way++) {
        ddl_work *works[2];
        size_t bytes = way % 4 < 2 ? MIB - 5 : 5000;
        int sender = -2, source = way % 8 < 4 ? DDL_ANY_SOURCE : rank;
        fill(out, bytes, (uint64_t)way);
        if (way % 2) {
            OK(send_bytes(comm, out, bytes, rank, 2, &works[0]));
            OK(recv_bytes(comm, in, bytes, source, 2, &sender, &works[1]));
        } else {
            OK(recv_bytes(comm, in, bytes, source, 2, &sender, &works[1]));
            OK(send_bytes(comm, out, bytes, rank, 2, &works[0]));
        }
        finish(works[1]);
        finish(works[0]);
        CHECK(sender == rank, "sender %d", sender);
        check_filled(in, bytes, (uint64_t)way);
    }
    OK(ddl_barrier(comm, NULL, NULL)); /* a receive from any rank fails once all others have left */
    free(out);
    free(in);
}

/* --------------------------------------------------------------------------------- independence */

/* Ranks call their collectives before or after their messages. */
static void among_collectives(ddl_comm *comm, void *argument)
{
    int rank = ddl_comm_rank(comm), size = ddl_comm_size(comm);
    unsigned char *data = malloc(3 * MIB);
    static _Thread_local int32_t sums[100000];
    for (int round = 0; round < 6 && size > 1; round++) {
        size_t bytes = round % 2 ? 3 * MIB : 500;
        int peer = rank == 0 ? 1 : 0, count = round < 3 ? 1 : 100000;
        ddl_work *work = NULL, *sum = NULL;
        for (int i = 0; i < count; i++)
            sums[i] = rank;
        fill(data, bytes, rank > 0 ? 99 : (uint64_t)round);
        if (rank == 0) {
            OK(send_bytes(comm, data, bytes, peer, 0, &work));
            OK(ddl_allreduce(comm, NULL, sums, count, DDL_I32, DDL_SUM, NULL, NULL));
            finish(work);
        } else if (rank == 1 && round % 3) {
            OK(recv_bytes(comm, data, bytes, peer, 0, NULL, NULL));
            OK(ddl_allreduce(comm, NULL, sums, count, DDL_I32, DDL_SUM, NULL, NULL));
        } else if (rank == 1) {
            OK(ddl_allreduce(comm, NULL, sums, count, DDL_I32, DDL_SUM, NULL, &sum));
            OK(recv_bytes(comm, data, bytes, peer, 0, NULL, NULL));
            finish(sum);
        } else {
            OK(ddl_allreduce(comm, NULL, sums, count, DDL_I32, DDL_SUM, NULL, NULL));
        }
        if (rank < 2)
            check_filled(data, bytes, (uint64_t)round);
        CHECK(sums[count - 1] == size * (size - 1) / 2, "%d", sums[count - 1]);
    }
    free(data);
}

/* A rank that does not poll its messages blocks no other rank. */
static void holds_up_nobody(ddl_comm *comm, void *argument)
{
    enum { UNREAD = 100 };
    int rank = ddl_comm_rank(comm), size = ddl_comm_size(comm);
    unsigned char *data = malloc(3 * MIB);
    ddl_work *works[UNREAD];
    float one = 1;
    if (size >= 3 && rank == 0) {
        fill(data, 3 * MIB, 3);
        for (int k = 0; k < UNREAD; k++)
            OK(send_bytes(comm, data, 8000, 2, 0, &works[k]));
        OK(send_bytes(comm, data, 3 * MIB, 1, 0, NULL));
    } else if (size >= 3 && rank == 1) {
        OK(recv_bytes(comm, data, 3 * MIB, 0, 0, NULL, NULL));
        check_filled(data, 3 * MIB, 3);
        OK(send_bytes(comm, data, 3 * MIB, 2, 0, NULL));
    } else if (size >= 3 && rank == 2) {
        OK(recv_bytes(comm, data, 3 * MIB, 1, 0, NULL, NULL));
        check_filled(data, 3 * MIB, 3);
    }
    OK(ddl_allreduce(comm, NULL, &one, 1, DDL_F32, DDL_SUM, NULL, NULL));
    for (int k = 0; size >= 3 && rank == 2 && k < UNREAD; k++) {
        OK(recv_bytes(comm, data, 8000, 0, 0, NULL, NULL));
        check_filled(data, 8000, 3);
    }
    for (int k = 0; size >= 3 && rank == 0 && k < UNREAD; k++)
        finish(works[k]);
    free(data);
}

/* Send many messages without a receive: all are kept, with credit and then without. */
static void flood(ddl_comm *comm, void *argument)
{
    enum { N = 10000 };
    int rank = ddl_comm_rank(comm), size = ddl_comm_size(comm), last = size - 1, end = -1;
    ddl_work **works = calloc(N, sizeof(ddl_work *));
    int32_t *data = calloc(N, sizeof *data);
    for (int looks = 0; looks < 2 && size > 1; looks++) {
        for (int k = 0; rank == 0 && k < N; k++) {
            data[k] = k;
            OK(ddl_send(comm, &data[k], k % 3 == 0 ? 0 : 1, DDL_I32, last, 1, NULL, &works[k]));
        }
        if (looks && rank == 0)
            OK(ddl_send(comm, &last, 1, DDL_I32, last, 2, NULL, NULL));
        if (looks && rank == last)
            OK(ddl_recv(comm, &end, 1, DDL_I32, 0, 2, NULL, NULL, NULL));
        OK(ddl_barrier(comm, NULL, NULL));
        for (int k = 0; rank == last && k < N; k++) {
            int32_t got = -1;
            OK(ddl_recv(comm, &got, k % 3 == 0 ? 0 : 1, DDL_I32, 0, 1, NULL, NULL, NULL));
            CHECK(got == (k % 3 == 0 ? -1 : k), "message %d is %d", k, got);
        }
        for (int k = 0; rank == 0 && k < N; k++)
            finish(works[k]);
    }
    free(data);
    free(works);
}

/* Send endlessly in one direction: credit is returned, so a short message is still sent at once
 * without a receive. */
static void stream(ddl_comm *comm, void *argument)
{
    enum { N = 3000 };
    static _Thread_local unsigned char data[4000];
    int rank = ddl_comm_rank(comm), size = ddl_comm_size(comm);
    for (int k = 0; k < N && size > 1; k++) {
        memset(data, k, sizeof data);
        if (rank == 0)
            OK(send_bytes(comm, data, sizeof data, size - 1, 1, NULL));
        data[7]++;
        if (rank == size - 1)
            OK(recv_bytes(comm, data, sizeof data, 0, 1, NULL, NULL));
        CHECK(rank != size - 1 || data[7] == k % 256, "message %d", k);
    }
    ddl_options soon = {.struct_size = sizeof soon, .timeout_ms = 20000};
    OK(ddl_barrier(comm, NULL, NULL));
    if (rank == 0)
        OK(ddl_send(comm, data, sizeof data, DDL_U8, size - 1, 1, &soon, NULL));
    OK(ddl_barrier(comm, NULL, NULL));
    if (rank == size - 1)
        OK(recv_bytes(comm, data, sizeof data, 0, 1, NULL, NULL));
}

/* ------------------------------------------------------------------------------------- refusals */

static void refusals(ddl_comm *comm, void *argument)
{
    float f = 5;
    int sender = 77;
    ddl_work *work = (ddl_work *)&f;
    ddl_options options = {.struct_size = sizeof options};
    INVALID(ddl_send(NULL, &f, 1, DDL_F32, 0, 0, NULL, NULL), "comm is NULL");
    INVALID(ddl_recv(NULL, &f, 1, DDL_F32, 0, 0, NULL, NULL, NULL), "comm is NULL");
    INVALID(ddl_send(comm, &f, 1, DDL_F32, 2, 0, NULL, NULL), "dest is 2; must be from 0 to 1");
    INVALID(ddl_send(comm, &f, 1, DDL_F32, -1, 0, NULL, NULL), "dest is -1");
    INVALID(ddl_recv(comm, &f, 1, DDL_F32, 2, 0, NULL, NULL, NULL),
            "source is 2; must be from 0 to 1");
    INVALID(ddl_recv(comm, &f, 1, DDL_F32, -2, 0, &sender, NULL, &work), "source is -2");
    INVALID(ddl_send(comm, &f, 1, DDL_F32, 0, -1, NULL, NULL), "tag is -1");
    INVALID(ddl_recv(comm, &f, 1, DDL_F32, 0, -5, NULL, NULL, NULL), "tag is -5");
    INVALID(ddl_send(comm, &f, -1, DDL_F32, 0, 0, NULL, NULL), "count is -1");
    INVALID(ddl_send(comm, &f, (int64_t)1 << 48, DDL_U8, 0, 0, NULL, NULL), "too large");
    INVALID(ddl_send(comm, &f, 1, (ddl_dtype)99, 0, 0, NULL, NULL), "dtype is 99");
    INVALID(ddl_send(comm, NULL, 3, DDL_F32, 0, 0, NULL, NULL), "buffer is NULL, but count is 3");
    INVALID(ddl_recv(comm, NULL, 3, DDL_F32, 0, 0, NULL, NULL, NULL), "buffer is NULL");
    options.name = "grad";
    INVALID(ddl_send(comm, &f, 1, DDL_F32, 0, 0, &options, NULL), "options.name is \"grad\"");
    options.name = "";
    options.prescale = 2;
    INVALID(ddl_recv(comm, &f, 1, DDL_F32, 0, 0, NULL, &options, NULL), "options.prescale is 2");
    options.prescale = 0;
    options.postscale = 0.5;
    INVALID(ddl_send(comm, &f, 1, DDL_F32, 0, 0, &options, NULL), "options.postscale is 0.5");
    options.postscale = 0;
    options.queued = 1;
    INVALID(ddl_send(comm, &f, 1, DDL_F32, 0, 0, &options, NULL), "options.queued is 1");
    options.timeout_ms = -1;
    INVALID(ddl_send(comm, &f, 1, DDL_F32, 0, 0, &options, &work), "timeout_ms is -1");
    CHECK(sender == 77 && work == (ddl_work *)&f && f == 5, "outputs were touched");
    OK(ddl_comm_status(comm));
}

int main(int argc, char **argv)
{
    static const message_test tests[] = {{"ping_pong", ping_pong, 1, 3},
                                         {"many_outstanding", many_outstanding, 1, 4},
                                         {"before_and_after", before_and_after, 1, 3},
                                         {"any_source", any_source, 1, 4},
                                         {"order", order, 1, 3},
                                         {"oldest_of_all", oldest_of_all, 1, 3},
                                         {"ring", ring, 1, 5},
                                         {"to_self", to_self, 1, 2},
                                         {"among_collectives", among_collectives, 1, 3},
                                         {"holds_up_nobody", holds_up_nobody, 1, 3},
                                         {"flood", flood, 1, 3},
                                         {"stream", stream, 1, 2},
                                         {"refusals", refusals, 2, 2}};
    return run_message_tests(argc, argv, tests, sizeof tests / sizeof *tests);
}
