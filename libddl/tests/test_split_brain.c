/* Members that are stopped, cut off, given up, killed later: whatever happens, of those who go on
 * all do so in one comm. Every rank that is left says in which one it ended, and stays until all
 * have. Ranks are processes. Most of these ended in two worlds once. */
#include "comm/comm.h"
#include "health/health_state.h"
#include "processes.h"

enum { MOST = 4 };

typedef struct board {
    atomic_int stage, said, pids[MOST];
    atomic_int world[MOST]; /* the lowest rank that goes on with it, + 1; -1: it does not go on */
} board;

static board *b;
static int rank, left; /* this process; those who are to say where they ended */
static const ddl_comm_config config = {.struct_size = sizeof config, .timeout_ms = 20000};

static void await(const atomic_int *value, int least)
{
    for (double end = seconds() + 15; atomic_load(value) < least; usleep(500))
        CHECK(seconds() < end, "rank %d waits for %d", rank, least);
}

static void begin(ddl_comm *comm, int survivors)
{
    rank = ddl_comm_rank(comm);
    left = survivors;
    atomic_store(&b->pids[rank], getpid());
    OK(ddl_barrier(comm, NULL, NULL));
    OK(ddl_barrier(comm, NULL, NULL));
    usleep(100000); /* until all are through */
}

static void fail_once(ddl_comm *comm)
{
    while (ddl_barrier(comm, NULL, NULL) == DDL_OK)
        ;
}

static ddl_comm *shrink(ddl_comm *comm)
{
    ddl_comm *next = NULL;
    ddl_status status = ddl_comm_shrink(comm, &config, &next);
    CHECK(status == DDL_OK || status == DDL_EMINORITY, "rank %d: %d %s", rank, status,
          ddl_last_error());
    return next;
}

/* Where this rank has ended; those who go on together find the same. */
static int end_in(ddl_comm *next)
{
    int32_t lowest = rank;
    bool goes_on =
        next && ddl_allreduce(next, NULL, &lowest, 1, DDL_I32, DDL_MIN, NULL, NULL) == DDL_OK;
    atomic_store(&b->world[rank], goes_on ? lowest + 1 : -1);
    atomic_fetch_add(&b->said, 1);
    await(&b->said, left);
    return 0;
}

static void stop(int peer)
{
    kill(b->pids[peer], SIGSTOP);
}

static void go_on(int peer)
{
    kill(b->pids[peer], SIGCONT);
}

/* The connection of the failure detector with this member ends, as by a reset. */
static void cut(ddl_comm *comm, int peer)
{
    ddl__health *c = comm->health;
    pthread_mutex_lock(&c->detector->lock);
    shutdown(c->members[peer].conn.fd, SHUT_RDWR);
    pthread_mutex_unlock(&c->detector->lock);
}

/* 1 and 2 are stopped, given up by 0, and back; 0 computes while they go on and leave. */
static int leave_later(ddl_comm *comm)
{
    begin(comm, 3);
    if (rank == 0) {
        stop(1);
        stop(2);
        usleep(1500000);
        go_on(1);
        go_on(2);
        await(&b->stage, 2);
        usleep(500000);
        return end_in(shrink(comm));
    }
    fail_once(comm);
    ddl_comm *next = shrink(comm);
    ddl_comm_destroy(comm);
    atomic_fetch_add(&b->stage, 1);
    return end_in(next);
}

/* 1 and 2 go on together, and 1 says so and waits to be killed. */
static int go_on_until_1_dies(ddl_comm *comm)
{
    fail_once(comm);
    ddl_comm *next = shrink(comm);
    OK(ddl_barrier(next, NULL, NULL));
    if (rank == 1) {
        usleep(100000);
        atomic_store(&b->stage, 1);
        pause();
    }
    fail_once(next);
    return end_in(shrink(next));
}

/* As leave_later, but one of them is killed after they went on. */
static int die_later(ddl_comm *comm)
{
    begin(comm, 2);
    if (rank == 0) {
        stop(1);
        stop(2);
        usleep(1500000);
        go_on(1);
        go_on(2);
        await(&b->stage, 1);
        kill(b->pids[1], SIGKILL);
        usleep(300000);
        return end_in(shrink(comm));
    }
    return go_on_until_1_dies(comm);
}

/* 0 is cut off, 1 and 2 go on, 1 is killed: whoever says so to 0 then says it too late. */
static int confirm_late(ddl_comm *comm)
{
    begin(comm, 2);
    if (rank == 0) {
        cut(comm, 1);
        cut(comm, 2);
        await(&b->stage, 1);
        usleep(1200000);
        kill(b->pids[1], SIGKILL);
        usleep(200000);
        ddl__health *c = comm->health;
        pthread_mutex_lock(&c->detector->lock);
        ddl__member_confirm(c, 1); /* as the launcher would */
        pthread_mutex_unlock(&c->detector->lock);
        return end_in(shrink(comm));
    }
    return go_on_until_1_dies(comm);
}

/* Heartbeats fill the socket of who is stopped: the last word needs room. */
static int full_socket(ddl_comm *comm)
{
    begin(comm, 3);
    if (rank == 0)
        stop(2);
    fail_once(comm);
    ddl_comm *next = shrink(comm);
    if (rank == 2)
        return end_in(next);
    OK(ddl_barrier(next, NULL, NULL));
    ddl_comm_destroy(comm);
    OK(ddl_barrier(next, NULL, NULL));
    if (rank == 0)
        go_on(2);
    return end_in(next);
}

/* 0 and 1 are cut off from 2 and 3: none of the minority waits for the creation's limit. */
static int minority(ddl_comm *comm)
{
    begin(comm, 4);
    if (rank >= 2) {
        cut(comm, 0);
        cut(comm, 1);
    }
    fail_once(comm);
    double start = seconds();
    ddl_comm *next = shrink(comm);
    CHECK(!next == (rank >= 2), "rank %d goes on or does not", rank);
    CHECK(seconds() - start < 10, "rank %d waited for %g s", rank, seconds() - start);
    return end_in(next);
}

typedef struct scene {
    const char *name;
    process_fn *fn;
    int size;
    unsigned dead; /* ranks, as bits */
    uint32_t links;
    const char *heartbeat, *silence; /* ms */
} scene;

static const scene scenes[] = {
    {"leave_later", leave_later, 3, 0, DDL_LINK_SHM, "100", "1000"},
    {"leave_later", leave_later, 3, 0, DDL_LINK_TCP, "100", "1000"},
    {"die_later", die_later, 3, 2, DDL_LINK_SHM, "100", "1000"},
    {"confirm_late", confirm_late, 3, 2, DDL_LINK_TCP, "100", "1000"},
    {"full_socket", full_socket, 3, 0, DDL_LINK_SHM, "10", "4000"},
    {"minority", minority, 4, 0, DDL_LINK_TCP, "100", "1000"},
};

static void run(const scene *s)
{
    int status[PROCESSES_MAX], world = -1;
    setenv("DDL_HEARTBEAT_MS", s->heartbeat, 1);
    setenv("DDL_SUSPECT_MS", s->silence, 1);
    setenv("DDL_DEAD_MS", s->silence, 1);
    memset(b, 0, sizeof *b);
    run_processes(s->size, s->links, s->fn, 60, status);
    for (int r = 0; r < s->size; r++) {
        bool killed = WIFSIGNALED(status[r]) && WTERMSIG(status[r]) == SIGKILL;
        CHECK(s->dead >> r & 1 ? killed : status[r] == 0, "%s: rank %d ended with %x", s->name, r,
              (unsigned)status[r]);
        printf("%s: rank %d: %d\n", s->name, r, b->world[r]);
        if (b->world[r] <= 0)
            continue;
        CHECK(world < 0 || world == b->world[r], "%s: ranks %d and %d go on apart", s->name,
              world - 1, r);
        world = b->world[r];
    }
}

int main(int argc, char **argv)
{
    setenv("DDL_LOG", "off", 0); /* the comms die on purpose */
    b = mmap(NULL, sizeof *b, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(b != MAP_FAILED, "no shared memory");
    for (size_t i = 0; i < sizeof scenes / sizeof *scenes; i++)
        if (argc < 2 || !strcmp(argv[1], scenes[i].name))
            run(&scenes[i]);
    return 0;
}
