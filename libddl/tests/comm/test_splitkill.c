/* SPDX-License-Identifier: Apache-2.0 */
/* A member is killed at a random moment while all members create comms from their comm: no survivor
 * waits for a limit, and all of them soon continue in a new comm. `test_splitkill [RUNS [SEED]]`:
 * runs of each of the nine cases; reports the distribution of the times. */
#include "processes.h"

enum { SIZE = 8, LIMIT_MS = 60000 };

/* The longest accepted time from the kill to the last survivor's next comm, in seconds. */
static const double LIMIT = 10;

typedef enum operation { SPLIT, DUPLICATE, SUBSET, N_OPERATIONS } operation;
static const char *const OPERATIONS[] = {"split", "duplicate", "subset"};

/* MIXED: the lower half of the ranks shares memory, the upper half uses TCP. */
typedef enum transport { SHM, TCP, MIXED, N_TRANSPORTS } transport;
static const char *const TRANSPORTS[] = {"shm", "tcp", "mixed"};

typedef struct outcome {
    double failed, known, shrunk;
    ddl_status status, shrink_status;
    int size;
    char why[200];
} outcome;

typedef struct board {
    atomic_int created, armed;
    double killed_at;
    outcome outcomes[SIZE];
} board;

static board *b;

/* A case with its random parameters. */
typedef struct run {
    operation operation;
    transport transport;
    int victim, delay_us;
    char url[64];
} run;

/* The victim's second thread. */
static void *kill_self(void *argument)
{
    const run *r = argument;
    while (!atomic_load(&b->armed))
        sched_yield();
    for (double end = seconds() + 1e-6 * r->delay_us; seconds() < end;)
        ;
    b->killed_at = seconds();
    kill(getpid(), SIGKILL);
    return NULL;
}

/* Create a child and use it. A subset consists of the even ranks only. */
static ddl_status create_once(const run *r, ddl_comm *comm, int rank)
{
    static const int even[] = {0, 2, 4, 6};
    ddl_comm *child = NULL;
    ddl_status status = DDL_OK;
    if (r->operation == SPLIT)
        status = ddl_comm_split(comm, rank % 2, rank, NULL, &child);
    else if (r->operation == DUPLICATE)
        status = ddl_comm_duplicate(comm, NULL, &child);
    else if (rank % 2 == 0)
        status = ddl_comm_subset(comm, even, SIZE / 2, NULL, &child);
    else
        usleep(100);
    if (child)
        status = ddl_barrier(child, NULL, NULL);
    ddl_comm_destroy(child);
    return status;
}

static void create_until_death(const run *r, ddl_comm *comm, int rank)
{
    outcome *o = &b->outcomes[rank];
    ddl_status status = DDL_OK;
    for (int round = 0; status == DDL_OK; round++) {
        if (round == 2 && rank == r->victim)
            atomic_store(&b->armed, 1);
        status = create_once(r, comm, rank);
        if (status == DDL_OK && r->operation == SUBSET && rank % 2)
            status = ddl_comm_status(comm);
    }
    o->failed = seconds();
    o->status = status;
    snprintf(o->why, sizeof o->why, "%s", ddl_last_error());
    /* The child may have died first. */
    while (ddl_comm_status(comm) == DDL_OK && seconds() < o->failed + LIMIT)
        usleep(100);
    o->known = seconds();
}

static int be_rank(const run *r, int rank)
{
    bool tcp = r->transport == TCP || (r->transport == MIXED && rank >= SIZE / 2);
    uint32_t mixed = r->transport == MIXED ? DDL_LINK_TCP : 0;
    outcome *o = &b->outcomes[rank];
    ddl_comm_config config = {.struct_size = sizeof config,
                              .links = tcp ? DDL_LINK_TCP : DDL_LINK_SHM | mixed,
                              .timeout_ms = LIMIT_MS,
                              .stall_warn_ms = -1};
    ddl_endpoint_config endpoint_config = {.struct_size = sizeof endpoint_config,
                                           .host = "127.0.0.1"};
    ddl_endpoint *endpoint;
    ddl_comm *comm, *next = NULL;
    pthread_t thread;
    OK(ddl_endpoint_create(&endpoint_config, &endpoint));
    OK(ddl_rendezvous(endpoint, r->url, rank, SIZE, &config, &comm));
    OK(ddl_barrier(comm, NULL, NULL));
    if (rank == r->victim)
        CHECK(!pthread_create(&thread, NULL, kill_self, (void *)r), "no thread");
    create_until_death(r, comm, rank);
    o->shrink_status = ddl_comm_shrink(comm, NULL, &next);
    if (o->shrink_status == DDL_OK)
        o->shrink_status = ddl_barrier(next, NULL, NULL);
    if (o->shrink_status != DDL_OK)
        snprintf(o->why, sizeof o->why, "shrink: %s", ddl_last_error());
    o->shrunk = seconds();
    o->size = next ? ddl_comm_size(next) : 0;
    ddl_comm_destroy(next);
    ddl_comm_destroy(comm);
    ddl_endpoint_destroy(endpoint);
    return 0;
}

/* Return the time from the kill to the last survivor's next comm. */
static double check_run(const run *r, int number)
{
    double last = 0;
    char name[120];
    snprintf(name, sizeof name, "%s, %s, run %d: rank %d killed after %d us",
             OPERATIONS[r->operation], TRANSPORTS[r->transport], number, r->victim, r->delay_us);
    for (int rank = 0; rank < SIZE; rank++) {
        const outcome *o = &b->outcomes[rank];
        if (rank == r->victim)
            continue;
        CHECK(o->status == DDL_EPEER, "%s: rank %d: %d %s", name, rank, o->status, o->why);
        CHECK(o->shrink_status == DDL_OK && o->size == SIZE - 1, "%s: rank %d: %d, size %d: %s",
              name, rank, o->shrink_status, o->size, o->why);
        last = o->shrunk > last ? o->shrunk : last;
        CHECK(o->shrunk - b->killed_at < LIMIT,
              "%s: rank %d: failed after %g s, knew after %g s, continued after %g s: %s", name,
              rank, o->failed - b->killed_at, o->known - b->killed_at, o->shrunk - b->killed_at,
              o->why);
    }
    return last - b->killed_at;
}

static double run_once(run *r, int number)
{
    pid_t pids[SIZE];
    int status;
    memset(b, 0, sizeof *b);
    snprintf(r->url, sizeof r->url, "tcp://127.0.0.1:%d", free_port());
    fflush(NULL);
    for (int rank = 0; rank < SIZE; rank++) {
        pids[rank] = fork();
        CHECK(pids[rank] >= 0, "no process");
        if (!pids[rank])
            _exit(be_rank(r, rank));
    }
    double end = seconds() + 2e-3 * LIMIT_MS;
    for (int rank = 0; rank < SIZE; rank++) {
        while (!waitpid(pids[rank], &status, WNOHANG)) {
            CHECK(seconds() < end, "rank %d hangs", rank);
            usleep(500);
        }
        bool killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
        CHECK(rank == r->victim ? killed : !status, "rank %d ended with %x", rank,
              (unsigned)status);
    }
    return check_run(r, number);
}

static int compare(const void *a, const void *other)
{
    double x = *(const double *)a, y = *(const double *)other;
    return (x > y) - (x < y);
}

static void run_case(operation o, transport t, int runs)
{
    double *times = calloc((size_t)runs, sizeof *times);
    CHECK(times, "no memory");
    for (int i = 0; i < runs; i++) {
        /* A creation over TCP takes some milliseconds. */
        run r = {o, t, rand() % SIZE, rand() % (t == SHM ? 2000 : 10000), ""};
        times[i] = run_once(&r, i);
    }
    qsort(times, (size_t)runs, sizeof *times, compare);
    printf("%-9s over %-5s: %d runs, continued after %.3f s (median), %.3f s (9 of 10), %.3f s "
           "(all)\n",
           OPERATIONS[o], TRANSPORTS[t], runs, times[runs / 2], times[runs * 9 / 10],
           times[runs - 1]);
    fflush(stdout);
    free(times);
}

int main(int argc, char **argv)
{
    int runs = argc > 1 ? atoi(argv[1]) : 3;
    srand(argc > 2 ? (unsigned)atoi(argv[2]) : 1);
    setenv("DDL_LOG", "off", 0);
    b = map_shared(sizeof *b);
    for (operation o = SPLIT; o < N_OPERATIONS; o++)
        for (transport t = SHM; t < N_TRANSPORTS; t++)
            run_case(o, t, runs);
}
