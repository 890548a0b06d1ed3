/* SPDX-License-Identifier: Apache-2.0 */
/* ddl_comm_expel: members that hang, that expel each other, that stop while the next comm is
 * created. Limits on silence do not matter: all are longer than a test may run. Ranks are
 * processes. */
#include "base/test_points.h"
#include "comm/comm.h"
#include "health/health_state.h"
#include "processes.h"
#include "survivors.h"

enum { SIZE = 4, PAIR = 2 };

typedef struct board {
    atomic_int pids[SIZE];
    atomic_int begun, ended;    /* numbers of ranks that have begun, and that have reported */
    atomic_int next_size[SIZE]; /* size of the comm in which the rank continues; -1: none */
    atomic_ulong next_id[SIZE]; /* id of that comm */
} board;

static board *b;
static int rank;
static const ddl_comm_config config = {.struct_size = sizeof config, .timeout_ms = 40000};

static void await(const atomic_int *count, int least)
{
    for (double end = seconds() + 40; atomic_load(count) < least; usleep(500))
        CHECK(seconds() < end, "rank %d waits for the others", rank);
}

static void begin(ddl_comm *comm)
{
    rank = ddl_comm_rank(comm);
    atomic_store(&b->pids[rank], getpid());
    atomic_fetch_add(&b->begun, 1);
    await(&b->begun, ddl_comm_size(comm));
}

/* Wait until the rank's process is stopped. */
static void await_stopped(int peer)
{
    char path[64], state = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", atomic_load(&b->pids[peer]));
    while (state != 'T') {
        FILE *file = fopen(path, "re");
        CHECK(file && fscanf(file, "%*d %*s %c", &state) == 1, "cannot read %s", path);
        fclose(file);
        usleep(1000);
    }
}

/* Check that operations end with an error that has these words. */
static void expect_end(ddl_comm *comm, const char *words)
{
    ddl_status status = DDL_OK;
    while (status == DDL_OK)
        status = ddl_barrier(comm, NULL, NULL);
    REFUSED(status, DDL_EPEER, words);
}

/* Shrink the comm and destroy it. Return NULL if this rank does not continue. */
static ddl_comm *shrink(ddl_comm *comm)
{
    return survivors_shrink(comm, &config);
}

static void go_on(ddl_comm *comm, int size)
{
    int32_t one = 1;
    ddl_comm *next = shrink(comm);
    CHECK(next && ddl_comm_size(next) == size, "rank %d of %d: %s", rank, ddl_comm_size(next),
          ddl_last_error());
    ddl_comm_destroy(comm);
    OK(ddl_allreduce(next, NULL, &one, 1, DDL_I32, DDL_SUM, NULL, NULL));
    CHECK(one == size, "%d", one);
    OK(ddl_barrier(next, NULL, NULL));
    ddl_comm_destroy(next);
}

/* Stop, and find out after being continued that this rank was expelled. */
static void stop_and_stay_out(ddl_comm *comm, const char *words)
{
    raise(SIGSTOP);
    expect_end(comm, words);
    for (int i = 0; i < 2; i++) {
        ddl_comm *next = NULL;
        REFUSED(ddl_comm_shrink(comm, &config, &next), DDL_EMINORITY, words);
    }
    CHECK(ddl_comm_expel(comm, !rank, "revenge") == DDL_EMINORITY, "%s", ddl_last_error());
    ddl_comm_destroy(comm);
}

static void *expel_2_when_stopped(void *comm)
{
    await_stopped(2);
    OK(ddl_comm_expel(comm, 2, "it hangs"));
    return NULL;
}

/* Rank 0 expels it from another thread, while all wait for it. */
static void hangs(ddl_comm *comm)
{
    int failed[SIZE], n;
    pthread_t thread;
    begin(comm);
    if (rank == 2) {
        stop_and_stay_out(comm, "expelled by rank 0 on ");
        return;
    }
    if (rank == 0)
        CHECK(!pthread_create(&thread, NULL, expel_2_when_stopped, comm), "thread");
    expect_end(comm, "rank 2 on ");
    CHECK(strstr(ddl_last_error(), "expelled by rank 0 on ") &&
              strstr(ddl_last_error(), ": it hangs"),
          "%s", ddl_last_error());
    if (rank == 0) {
        pthread_join(thread, NULL);
        CHECK(ddl_barrier(comm, NULL, NULL) == DDL_EPEER, "%s", ddl_last_error());
        OK(ddl_comm_failed(comm, failed, SIZE, &n));
        CHECK(n == 1 && failed[0] == 2, "%d", n);
    }
    go_on(comm, SIZE - 1);
    if (rank == 0)
        kill(b->pids[2], SIGCONT);
}

/* The expelled rank computes, and gets the error from its own operations. */
static void is_alive(ddl_comm *comm)
{
    begin(comm);
    if (rank == 1)
        OK(ddl_comm_expel(comm, 0, "its host is taken"));
    expect_end(comm, "expelled by rank 1 on ");
    CHECK(strstr(ddl_last_error(), ": its host is taken"), "%s", ddl_last_error());
    if (rank == 0) {
        CHECK(!shrink(comm) && strstr(ddl_last_error(), ": its host is taken"), "it goes on");
        ddl_comm_destroy(comm);
    } else {
        go_on(comm, SIZE - 1);
    }
}

/* Shrink the comm until it works, and report it once all have. A rank that is expelled at the very
 * end may be in the next comm, which is then already dead. */
static void report_next(ddl_comm *comm, int size)
{
    ddl_comm *next = shrink(comm);
    while (next && ddl_barrier(next, NULL, NULL) != DDL_OK)
        next = shrink(next);
    atomic_store(&b->next_size[rank], next ? ddl_comm_size(next) : -1);
    if (next && next->health)
        atomic_store(&b->next_id[rank], ddl__health_comm(next->health).words[0]);
    atomic_fetch_add(&b->ended, 1);
    await(&b->ended, size);
}

static void two_expel_each_other(ddl_comm *comm)
{
    begin(comm);
    if (rank == 1 || rank == 2) {
        ddl_status status = ddl_comm_expel(comm, 3 - rank, "no, you");
        CHECK(status == DDL_OK || status == DDL_EMINORITY, "%d %s", status, ddl_last_error());
    }
    expect_end(comm, "expelled by rank ");
    report_next(comm, SIZE);
    CHECK(b->next_size[0] >= 2 && b->next_size[0] == b->next_size[3] &&
              b->next_id[0] == b->next_id[3],
          "ranks 0 and 3 go on apart: %d %d %d %d", b->next_size[0], b->next_size[1],
          b->next_size[2], b->next_size[3]);
    CHECK(b->next_size[1] < 0 || b->next_size[2] < 0, "both go on");
    for (int other = 1; other <= 2; other++)
        CHECK(b->next_size[other] < 0 || b->next_id[other] == b->next_id[0], "two sides");
}

/* Two ranks expel each other. Neither can know what the other does. */
static void both_expel(ddl_comm *comm)
{
    begin(comm);
    ddl_status status = ddl_comm_expel(comm, !rank, "no, you");
    CHECK(status == DDL_OK || status == DDL_EMINORITY, "%d %s", status, ddl_last_error());
    report_next(comm, PAIR);
    CHECK(b->next_size[0] < 0 || b->next_size[1] < 0, "both go on");
}

/* The higher of two ranks continues without a vote: the caller guarantees that the other has
 * exited. */
static void lower_hangs(ddl_comm *comm)
{
    begin(comm);
    if (rank == 0) {
        stop_and_stay_out(comm, "expelled by rank 1 on ");
        return;
    }
    await_stopped(0);
    OK(ddl_comm_expel(comm, 0, NULL));
    expect_end(comm, ": no reason was given");
    go_on(comm, 1);
    kill(b->pids[0], SIGCONT);
}

/* Without a witness the survivor may not continue, until a caller guarantees the death. */
static void dead_already(ddl_comm *comm)
{
    begin(comm);
    if (rank == 0) {
        OK(ddl_barrier(comm, NULL, NULL));
        kill(getpid(), SIGKILL);
    }
    expect_end(comm, "rank 0 on ");
    CHECK(!shrink(comm), "it goes on without evidence");
    OK(ddl_comm_expel(comm, 0, "its agent has seen it end"));
    go_on(comm, 1);
}

static atomic_bool stops_in_creation;

static ddl_status stop_in_creation(ddl__test_point point, const void *subject)
{
    if (stops_in_creation && point == DDL__AT_WIREUP)
        raise(SIGSTOP);
    return DDL_OK;
}

/* A rank dies, and another one stops while the survivors create their comm. */
static void hangs_in_creation(ddl_comm *comm)
{
    pthread_t thread;
    begin(comm);
    if (rank == 3) {
        OK(ddl_barrier(comm, NULL, NULL));
        kill(getpid(), SIGKILL);
    }
    expect_end(comm, "rank 3 on ");
    if (rank == 0)
        CHECK(!pthread_create(&thread, NULL, expel_2_when_stopped, comm), "thread");
    if (rank == 2) {
        stops_in_creation = true;
        CHECK(!shrink(comm) && strstr(ddl_last_error(), ": it hangs"), "%s", ddl_last_error());
        return;
    }
    ddl_comm *next = shrink(comm);
    CHECK(next && ddl_comm_size(next) == 2, "rank %d: %s", rank, ddl_last_error());
    OK(ddl_barrier(next, NULL, NULL));
    if (rank == 0) {
        pthread_join(thread, NULL);
        kill(b->pids[2], SIGCONT);
    }
    ddl_comm_destroy(comm);
    OK(ddl_barrier(next, NULL, NULL));
    ddl_comm_destroy(next);
}

static void *expel_1_often(void *comm)
{
    for (int i = 0; i < 20; i++)
        OK(ddl_comm_expel(comm, 1, "once more"));
    return NULL;
}

/* Expel from several threads of several ranks, while operations run. */
static void many_threads(ddl_comm *comm)
{
    enum { THREADS = 3 };
    pthread_t threads[THREADS];
    begin(comm);
    for (int i = 0; i < THREADS && rank != 1; i++)
        CHECK(!pthread_create(&threads[i], NULL, expel_1_often, comm), "thread");
    expect_end(comm, "expelled by rank ");
    for (int i = 0; i < THREADS && rank != 1; i++)
        pthread_join(threads[i], NULL);
    if (rank != 1)
        go_on(comm, SIZE - 1);
    else
        CHECK(!shrink(comm), "it goes on");
}

static void arguments(ddl_comm *comm)
{
    char reason[300];
    begin(comm);
    const int wrong[] = {-1, PAIR, 1 << 30, rank};
    for (unsigned i = 0; i < sizeof wrong / sizeof *wrong; i++)
        REFUSED(ddl_comm_expel(comm, wrong[i], "x"), DDL_EINVAL, "rank is ");
    CHECK(ddl_comm_expel(NULL, 0, "x") == DDL_EINVAL, "no comm");
    OK(ddl_barrier(comm, NULL, NULL));
    memset(reason, 'a', sizeof reason);
    memcpy(reason + sizeof reason - 2, "b", 2);
    memcpy(reason, "\n\x1b[2J", 5);
    if (rank == 0)
        OK(ddl_comm_expel(comm, 1, reason));
    expect_end(comm, "expelled by rank 0 on ");
    CHECK(strstr(ddl_last_error(), ": ??[2Jaaa") && !strchr(ddl_last_error(), '\n') &&
              !strstr(ddl_last_error(), "ab"),
          "%s", ddl_last_error());
}

/* Messages that no member sends expel no rank. */
static void malformed(ddl_comm *comm)
{
    struct {
        int32_t rank;
        char reason[300];
    } e = {.reason = "x"};
    int n;
    begin(comm);
    const int32_t ranks[] = {-1, PAIR, INT32_MIN, INT32_MAX, !rank}; /* the last: its sender */
    ddl__health *h = comm->health;
    pthread_mutex_lock(&h->detector->lock);
    for (unsigned i = 0; i < sizeof ranks / sizeof *ranks; i++) {
        e.rank = ranks[i];
        ddl__ports_receive(h, !rank, DDL__EXPELLED, (unsigned char *)&e, sizeof e.rank + 1);
    }
    e.rank = rank;
    ddl__ports_receive(h, !rank, DDL__EXPELLED, (unsigned char *)&e, sizeof e.rank - 1);
    ddl__ports_receive(h, !rank, DDL__EXPELLED, (unsigned char *)&e, sizeof e);
    pthread_mutex_unlock(&h->detector->lock);
    OK(ddl_comm_failed(comm, NULL, 0, &n));
    CHECK(n == 0, "%d", n);
    OK(ddl_barrier(comm, NULL, NULL)); /* then the process exits, which is a death */
}

/* A member that has left is not missed. */
static void has_left(ddl_comm *comm)
{
    int n = 1;
    begin(comm);
    if (rank == 1) {
        ddl_comm_destroy(comm);
        return;
    }
    while (n) {
        char text[4096];
        size_t length;
        OK(ddl_comm_report(comm, text, sizeof text, &length));
        n = !strstr(text, "\"left\"");
        usleep(1000);
    }
    OK(ddl_comm_expel(comm, 1, "x"));
    OK(ddl_comm_failed(comm, NULL, 0, &n));
    CHECK(n == 0, "%d", n);
    OK(ddl_comm_status(comm));
    ddl_comm_destroy(comm);
}

static const process_test tests[] = {
    {"hangs", hangs, 0},
    {"is_alive", is_alive, 0},
    {"two_expel_each_other", two_expel_each_other, 0},
    {"hangs_in_creation", hangs_in_creation, 1 << 3},
    {"many_threads", many_threads, 0},
    {"both_expel", both_expel, 0, .size = PAIR},
    {"lower_hangs", lower_hangs, 0, .size = PAIR},
    {"dead_already", dead_already, 1, DDL_LINK_TCP, .size = PAIR},
    {"arguments", arguments, 0, .size = PAIR},
    {"malformed", malformed, 0, DDL_LINK_TCP, .size = PAIR},
    {"has_left", has_left, 0, DDL_LINK_TCP, .size = PAIR},
};

int main(int argc, char **argv)
{
    setenv("DDL_SUSPECT_MS", "600000", 1);
    setenv("DDL_DEAD_MS", "600000", 1);
    ddl__test_hook = stop_in_creation;
    b = map_per_run(sizeof *b);
    run_process_tests(tests, sizeof tests / sizeof *tests, SIZE, argc, argv);
}
