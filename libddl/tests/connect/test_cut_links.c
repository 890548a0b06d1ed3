/* SPDX-License-Identifier: Apache-2.0 */
/* Creations and shrinks while hosts lose each other: the network drops packets silently. Survivors
 * that reach each other continue soon, whatever they waited for. Hosts are network namespaces on
 * one switch. Needs root and ip; skipped without. `test_cut_links all` runs all scenes,
 * `test_cut_links SCENE [TIMES]` the scenes with this name. */
#include <stdarg.h>

#include "processes.h"

enum { HOSTS = 4, RANKS_MAX = 40, SKIPPED = 77 };

/* The work of the ranks until the comm fails. */
typedef enum work { REDUCE, DUPLICATE, SPLIT } work;

/* An event, besides the cut, that ends the comm at once. */
typedef enum end { NOTHING, KILL, ABORT } end;

typedef struct scene {
    const char *name;
    bool slow;
    int ranks_each;      /* ranks on each host */
    work work;           /* in progress when packets are dropped */
    unsigned cut[HOSTS]; /* by host: the hosts that its packets do not reach, as bits */
    /* drop only large packets of the last host: connections open and heartbeats arrive, but no
     * hello does */
    bool large_only;
    end end;
    int ender;     /* the rank that is killed, or that aborts */
    int survivors; /* least size of the next comm */
    /* seconds from the first rank's notice to the last survivor's next comm; includes dead_ms if a
     * cut is noticed late */
    double limit;
} scene;

typedef struct outcome {
    double failed, shrunk;
    int size; /* size of the next comm; 0: none */
    ddl_status status, shrink_status;
    char why[200], shrink_why[200];
} outcome;

typedef struct board {
    atomic_int ready, created, pids[RANKS_MAX];
    atomic_bool go, abort;
    double cut_at;
    outcome outcomes[RANKS_MAX];
} board;

static board *b;

__attribute__((format(printf, 1, 2))) static void run_command(const char *format, ...)
{
    char command[300];
    va_list args;
    va_start(args, format);
    vsnprintf(command, sizeof command, format, args);
    va_end(args);
    CHECK(!system(command), "%s", command);
}

/* ---------------------------------------------------------------------------------------- ranks */

/* Run one round. Return the status of the first call that fails. */
static ddl_status work_once(ddl_comm *comm, work kind)
{
    int32_t one = 1;
    ddl_comm *child = NULL;
    if (kind == REDUCE)
        return ddl_allreduce(comm, &one, &one, 1, DDL_I32, DDL_SUM, NULL, NULL);
    ddl_status status = kind == DUPLICATE
                            ? ddl_comm_duplicate(comm, NULL, &child)
                            : ddl_comm_split(comm, ddl_comm_rank(comm) % 2, 0, NULL, &child);
    if (status == DDL_OK)
        status = ddl_barrier(child, NULL, NULL);
    ddl_comm_destroy(child);
    return status;
}

static void work_until_failure(ddl_comm *comm, const scene *s, outcome *o)
{
    bool aborts = s->end == ABORT && ddl_comm_rank(comm) == s->ender;
    while (aborts && !atomic_load(&b->abort))
        usleep(200);
    if (aborts)
        OK(ddl_comm_abort(comm, "enough"));
    while ((o->status = work_once(comm, s->work)) == DDL_OK)
        ;
    snprintf(o->why, sizeof o->why, "%s", ddl_last_error());
    while (ddl_comm_status(comm) == DDL_OK && seconds() < b->cut_at + 20)
        usleep(500);
    o->failed = seconds();
}

static int be_rank(const scene *s, int rank)
{
    outcome *o = &b->outcomes[rank];
    ddl_comm_config config = {.struct_size = sizeof config,
                              .timeout_ms = 60000,
                              .heartbeat_ms = 50,
                              .suspect_ms = 200,
                              .dead_ms = 600};
    ddl_endpoint *endpoint;
    ddl_comm *comm, *next = NULL;
    OK(ddl_endpoint_create(NULL, &endpoint));
    OK(ddl_rendezvous(endpoint, "tcp://10.77.0.1:7000", rank, HOSTS * s->ranks_each, &config,
                      &comm));
    OK(ddl_barrier(comm, NULL, NULL));
    atomic_store(&b->pids[rank], getpid());
    atomic_fetch_add(&b->created, 1);
    while (!atomic_load(&b->go))
        usleep(200);
    work_until_failure(comm, s, o);
    o->shrink_status = ddl_comm_shrink(comm, NULL, &next);
    snprintf(o->shrink_why, sizeof o->shrink_why, "%s", ddl_last_error());
    if (o->shrink_status == DDL_OK)
        OK(ddl_barrier(next, NULL, NULL));
    o->shrunk = seconds();
    o->size = next ? ddl_comm_size(next) : 0;
    ddl_comm_destroy(next);
    ddl_comm_destroy(comm);
    ddl_endpoint_destroy(endpoint);
    return 0;
}

/* ---------------------------------------------------------------------------------------- hosts */

/* A namespace with a wire to the switch; its ranks are its child processes. */
static int be_host(const scene *s, int host, int wire)
{
    char byte;
    if (unshare(CLONE_NEWNET))
        return SKIPPED;
    atomic_fetch_add(&b->ready, 1);
    CHECK(read(wire, &byte, 1) == 1, "host %d has no wire", host);
    run_command("ip link set lo up && ip link set eth0 up && ip addr add 10.77.0.%d/24 dev eth0",
                host + 1);
    int status, worst = 0;
    for (int i = 0; i < s->ranks_each; i++)
        if (!fork())
            _exit(be_rank(s, host * s->ranks_each + i));
    while (wait(&status) > 0)
        if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL)
            worst |= status;
    return worst ? 1 : 0;
}

static void cut(const scene *s, const pid_t *hosts, int last_wire)
{
    if (s->large_only)
        run_command("ip link set w%d mtu 300", last_wire);
    for (int from = 0; from < HOSTS; from++)
        for (int to = 0; to < HOSTS; to++)
            if (s->cut[from] >> to & 1)
                run_command("nsenter -t %d -n ip neigh replace 10.77.0.%d lladdr "
                            "02:00:00:00:00:99 dev eth0 nud permanent",
                            (int)hosts[from], to + 1);
}

/* Start the hosts and their wires. Return the number of the last wire. */
static int start_hosts(const scene *s, pid_t *hosts)
{
    static int n_wires; /* counts on, because wires of earlier hosts may still exist */
    int wires[HOSTS][2];
    for (int h = 0; h < HOSTS; h++) {
        CHECK(!pipe(wires[h]) && (hosts[h] = fork()) >= 0, "no process");
        if (!hosts[h])
            _exit(be_host(s, h, wires[h][0]));
        close(wires[h][0]);
    }
    CHECK(await_count(&b->ready, HOSTS), "%d hosts", atomic_load(&b->ready));
    for (int h = 0; h < HOSTS; h++, n_wires++) {
        run_command("ip link add w%d type veth peer name eth0 netns %d && "
                    "ip link set w%d master sw up",
                    n_wires, (int)hosts[h], n_wires);
        CHECK(write(wires[h][1], "", 1) == 1, "host %d", h);
        close(wires[h][1]);
    }
    CHECK(await_count(&b->created, HOSTS * s->ranks_each), "%d ranks", atomic_load(&b->created));
    return n_wires - 1;
}

/* Check that all survivors are in one comm of the expected size, in time. */
static void check_outcomes(const scene *s)
{
    int size = HOSTS * s->ranks_each, next = 0, n = 0;
    double last = 0, first = 1e300, last_notice = 0;
    for (int rank = 0; rank < size; rank++) {
        const outcome *o = &b->outcomes[rank];
        if (s->end == KILL && rank == s->ender)
            continue;
        printf("   rank %d: %.2f s: %d %.90s; shrink: %.2f s: %d %.90s\n", rank,
               o->failed - b->cut_at, o->status, o->why, o->shrunk - o->failed, o->shrink_status,
               o->shrink_status ? o->shrink_why : "");
        first = o->failed < first ? o->failed : first;
        last_notice = o->failed > last_notice ? o->failed : last_notice;
        if (!o->size)
            continue;
        CHECK(!next || next == o->size, "two next comms: of %d and %d ranks", next, o->size);
        last = o->shrunk > last ? o->shrunk : last;
        next = o->size;
        n++;
    }
    printf("%-26s noticed after %.2f s, %d of %d continue after %.2f s\n", s->name,
           first - b->cut_at, n, size, last - first);
    fflush(stdout);
    CHECK(n == next && next >= s->survivors, "%s: %d ranks have a next comm of %d, of %d", s->name,
          n, next, s->survivors);
    CHECK(last_notice - first < 2, "%s: a rank noticed %g s after another one", s->name,
          last_notice - first);
    CHECK(last - first < s->limit, "%s: they continued after %g s", s->name, last - first);
}

static void run_scene(const scene *s)
{
    pid_t hosts[HOSTS];
    memset(b, 0, sizeof *b);
    fflush(NULL);
    int last_wire = start_hosts(s, hosts);
    atomic_store(&b->go, true);
    usleep(100000 + (unsigned)rand() % 20000);
    cut(s, hosts, last_wire);
    if (s->large_only)
        usleep(300000); /* the ranks wait for answers to their hellos */
    b->cut_at = seconds();
    atomic_store(&b->abort, true);
    if (s->end == KILL)
        kill(b->pids[s->ender], SIGKILL);
    for (int h = 0; h < HOSTS; h++) {
        int status;
        while (!waitpid(hosts[h], &status, WNOHANG) && seconds() < b->cut_at + 80)
            usleep(2000);
        CHECK(seconds() < b->cut_at + 80, "%s: host %d hangs", s->name, h);
        CHECK(!status, "%s: host %d ended with %x", s->name, h, (unsigned)status);
    }
    check_outcomes(s);
}

#define PAIR_CUT                                                                                   \
    {                                                                                              \
        0, 1 << 2, 1 << 1, 0                                                                       \
    }
#define HOST_CUT                                                                                   \
    {                                                                                              \
        1 << 3, 1 << 3, 1 << 3, 7                                                                  \
    }
#define FIRST_CUT                                                                                  \
    {                                                                                              \
        14, 1, 1, 1                                                                                \
    }
/* Host 1 still reaches host 0, which leads the agreement. */
#define SECOND_CUT                                                                                 \
    {                                                                                              \
        0, 12, 2, 2                                                                                \
    }
#define HALF_CUT                                                                                   \
    {                                                                                              \
        12, 12, 3, 3                                                                               \
    }
#define NO_CUT                                                                                     \
    {                                                                                              \
        0, 0, 0, 0                                                                                 \
    }

static const scene SCENES[] = {
    {"pair, duplicate", false, 1, DUPLICATE, PAIR_CUT, false, NOTHING, 0, 3, 3},
    {"first, kill, duplicate", false, 2, DUPLICATE, FIRST_CUT, false, KILL, 3, 5, 3},
    {"second", false, 1, REDUCE, SECOND_CUT, false, NOTHING, 0, 3, 3},
    {"large, abort", false, 1, DUPLICATE, NO_CUT, true, ABORT, 1, 3, 20},
    {"large, kill", true, 1, REDUCE, NO_CUT, true, KILL, 1, 2, 20},
    {"pair", true, 1, REDUCE, PAIR_CUT, false, NOTHING, 0, 3, 3},
    {"pair, split", true, 2, SPLIT, PAIR_CUT, false, NOTHING, 0, 6, 3},
    {"pair, kill", true, 2, REDUCE, PAIR_CUT, false, KILL, 7, 5, 3},
    {"pair, kill, split", true, 2, SPLIT, PAIR_CUT, false, KILL, 7, 5, 3},
    {"host", true, 1, REDUCE, HOST_CUT, false, NOTHING, 0, 3, 3},
    {"host, duplicate", true, 1, DUPLICATE, HOST_CUT, false, NOTHING, 0, 3, 3},
    {"host, split", true, 2, SPLIT, HOST_CUT, false, NOTHING, 0, 6, 3},
    {"host, kill", true, 2, REDUCE, HOST_CUT, false, KILL, 1, 5, 3},
    {"first, split", true, 2, SPLIT, FIRST_CUT, false, NOTHING, 0, 6, 3},
    {"second, split", true, 2, SPLIT, SECOND_CUT, false, NOTHING, 0, 6, 3},
    {"halves, split", true, 2, SPLIT, HALF_CUT, false, NOTHING, 0, 4, 3},
    {"pair, sparse", true, 9, REDUCE, PAIR_CUT, false, NOTHING, 0, 20, 5},
    {"host, sparse", true, 9, REDUCE, HOST_CUT, false, NOTHING, 0, 20, 5},
};

int main(int argc, char **argv)
{
    if (geteuid() || unshare(CLONE_NEWNET) || system("ip -V >/dev/null 2>&1")) {
        printf("not root, or no ip or network namespaces\n");
        return SKIPPED;
    }
    run_command("ip link set lo up && ip link add sw type bridge && ip link set sw up");
    setenv("DDL_LOG", "off", 0);
    srand((unsigned)getpid());
    b = map_shared(sizeof *b);
    for (size_t i = 0; i < sizeof SCENES / sizeof *SCENES; i++) {
        const scene *s = &SCENES[i];
        bool runs = argc < 2                  ? !s->slow
                    : !strcmp(argv[1], "all") ? true
                                              : !strcmp(argv[1], s->name);
        for (int times = argc > 2 ? atoi(argv[2]) : 1; runs && times--;)
            run_scene(s);
    }
}
