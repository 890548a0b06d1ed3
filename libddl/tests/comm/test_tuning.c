/* SPDX-License-Identifier: Apache-2.0 */
/* The effects of DDL_OPTIONS and DDL_PLAN_FILE on operations: modes, exploring, reports, and what
 * is logged. Each case is a job of processes with its own environment. */
#include "check.h"
#include "ddl/ddl.h"
#include "processes.h"

enum { RANKS = 4, COUNT = 3000 };

static char folder[] = "/tmp/ddl-tuning-XXXXXX";

static const char *in_folder(const char *name)
{
    static char path[2][128];
    static int turn;
    turn = !turn;
    snprintf(path[turn], sizeof path[turn], "%s/%s", folder, name);
    return path[turn];
}

static const char *content(const char *name)
{
    static char text[1 << 16];
    int fd = open(in_folder(name), O_RDONLY);
    ssize_t n = fd < 0 ? 0 : read(fd, text, sizeof text - 1);
    text[n > 0 ? n : 0] = 0;
    close(fd);
    return text;
}

static void write_file(const char *name, const char *text)
{
    FILE *file = fopen(in_folder(name), "w");
    CHECK(file && fputs(text, file) >= 0 && fclose(file) == 0, "%s", name);
}

/* Return values whose sum depends on the order of the additions. */
static float odd(int rank, int i)
{
    return (float)(1 + (rank * 7919 + i * 31) % 10007) / (float)(3 + rank % 5);
}

/* Sum up. The order is ((0 + 1) + (2 + 3)) by halving, over 2 x 2, and by a tree of four. */
static void sum_up(ddl_comm *comm, int count)
{
    static float sum[COUNT], first[COUNT];
    int rank = ddl_comm_rank(comm), size = ddl_comm_size(comm);
    for (int i = 0; i < count; i++)
        sum[i] = odd(rank, i);
    CHECK(!ddl_allreduce(comm, NULL, sum, count, DDL_F32, DDL_SUM, NULL, NULL), "%s",
          ddl_last_error());
    memcpy(first, sum, sizeof sum);
    CHECK(!ddl_broadcast(comm, first, count, DDL_F32, 1, NULL, NULL), "%s", ddl_last_error());
    CHECK(!memcmp(first, sum, (size_t)count * sizeof *sum), "rank %d has other bits", rank);
    for (int i = 0; i < count; i++) {
        double want = 0;
        for (int r = 0; r < size; r++)
            want += (double)odd(r, i);
        CHECK(sum[i] > 0.99999 * want && sum[i] < 1.00001 * want, "element %d", i);
    }
}

typedef enum job_kind {
    CALLS,
    GROUPS,     /* each round submits a group again, and waits for it two rounds later */
    DEATH,      /* rank 1 dies halfway */
    EARLY_DEATH /* rank 1 dies while the comm is created */
} job_kind;

typedef struct job {
    const char *links, *options, *plan_file, *log;
    int rounds;
    const char *complaint; /* expected error of ddl_rendezvous on all ranks; NULL: none */
    job_kind kind;
} job;

/* One all-reduce, and a message from rank 0 to rank 1. */
static ddl_group *make_group(ddl_comm *comm, float *sum, int32_t *word)
{
    ddl_group *group;
    CHECK(!ddl_group_create(comm, &group), "%s", ddl_last_error());
    ddl_options options = {.struct_size = sizeof options, .group = group};
    CHECK(!ddl_allreduce(comm, NULL, sum, COUNT, DDL_F32, DDL_MAX, &options, NULL), "%s",
          ddl_last_error());
    if (ddl_comm_rank(comm) == 0)
        CHECK(!ddl_send(comm, word, 1, DDL_I32, 1, 0, &options, NULL), "%s", ddl_last_error());
    if (ddl_comm_rank(comm) == 1)
        CHECK(!ddl_recv(comm, word, 1, DDL_I32, 0, 0, NULL, &options, NULL), "%s",
              ddl_last_error());
    return group;
}

/* Run two groups in turn, so that a report is submitted while the previous operation is pending. */
static void run_groups(ddl_comm *comm, int rounds)
{
    static float sum[2][COUNT];
    int32_t words[2] = {0, 0};
    ddl_work *works[2] = {NULL, NULL};
    ddl_group *groups[2] = {make_group(comm, sum[0], &words[0]),
                            make_group(comm, sum[1], &words[1])};
    for (int i = 0; i < rounds + 2; i++) {
        if (works[i % 2])
            CHECK(!ddl_work_wait(works[i % 2], -1), "%s", ddl_last_error());
        ddl_work_destroy(works[i % 2]);
        works[i % 2] = NULL;
        if (i < rounds)
            CHECK(!ddl_group_submit(groups[i % 2], NULL, &works[i % 2]), "%s", ddl_last_error());
    }
    ddl_group_destroy(groups[0]);
    ddl_group_destroy(groups[1]);
}

static void run_rank(const job *j, int rank, const char *url)
{
    ddl_endpoint *endpoint;
    ddl_comm *comm = NULL;
    ddl_comm_config config = {.struct_size = sizeof config, .timeout_ms = 20000};
    setenv("DDL_LINKS", j->links, 1);
    setenv("DDL_OPTIONS", j->options, 1);
    setenv("DDL_LOG", j->log, 1);
    if (j->plan_file)
        setenv("DDL_PLAN_FILE", in_folder(j->plan_file), 1);
    if (rank == 0)
        CHECK(freopen(in_folder("log"), "w", stderr), "no log");
    CHECK(!ddl_endpoint_create(NULL, &endpoint), "%s", ddl_last_error());
    ddl_status status = ddl_rendezvous(endpoint, url, rank, RANKS, &config, &comm);
    if (j->complaint) {
        CHECK(status && (rank || strstr(ddl_last_error(), j->complaint)), "%s", ddl_last_error());
        _exit(0);
    }
    for (int32_t one = 1; j->kind == EARLY_DEATH && !status;)
        status = ddl_allreduce(comm, NULL, &one, 1, DDL_I32, DDL_MAX, NULL, NULL);
    CHECK(status == (j->kind == EARLY_DEATH ? DDL_EPEER : DDL_OK), "%d %s", status,
          ddl_last_error());
    if (j->kind == GROUPS)
        run_groups(comm, j->rounds);
    for (int i = 0; j->kind != GROUPS && i < j->rounds; i++) {
        if (j->kind == DEATH && rank == 1 && 2 * i > j->rounds)
            _exit(0);
        int32_t one = 1;
        status =
            j->kind == DEATH ? ddl_allreduce(comm, NULL, &one, 1, DDL_I32, DDL_SUM, NULL, NULL) : 0;
        if (status) {
            CHECK(status == DDL_EPEER, "%d %s", status, ddl_last_error());
            break;
        }
        if (j->kind == DEATH)
            continue;
        sum_up(comm, COUNT);
        sum_up(comm, 5);
        CHECK(!ddl_barrier(comm, NULL, NULL), "%s", ddl_last_error());
    }
    ddl_comm_destroy(comm);
    ddl_endpoint_destroy(endpoint);
    _exit(0);
}

static void start(const job *j, pid_t pids[RANKS])
{
    char url[64];
    snprintf(url, sizeof url, "tcp://127.0.0.1:%d", free_port());
    unlink(in_folder("log"));
    fflush(NULL);
    for (int rank = 0; rank < RANKS; rank++) {
        pids[rank] = fork();
        CHECK(pids[rank] >= 0, "fork");
        if (pids[rank] == 0)
            run_rank(j, rank, url);
    }
}

/* Run a job and return what rank 0 has logged. */
static const char *run(job j)
{
    pid_t pids[RANKS];
    start(&j, pids);
    bool good = true;
    for (int rank = 0; rank < RANKS; rank++) {
        int status;
        good = waitpid(pids[rank], &status, 0) == pids[rank] && status == 0 && good;
    }
    CHECK(good, "%s with %s: %s", j.options, j.links, content("log"));
    return content("log");
}

static int times(const char *text, const char *what)
{
    int n = 0;
    for (; (text = strstr(text, what)); text += strlen(what))
        n++;
    return n;
}

static void expect(const char *log, const char *what, int n)
{
    CHECK(times(log, what) == n, "\"%s\" is there %d times, not %d: %s", what, times(log, what), n,
          log);
}

/* ---------------------------------------------------------------------------------------- tests */

static void test_modes(void)
{
    static const struct {
        const char *mode, *by;
        const char *links;
    } cases[] = {{"r:4", "ring, requested", "tcp"},       {"r:4", "ring, requested", "shm"},
                 {"t:4", "tree, requested", "tcp"},       {"h:1x4", "halving, requested", "tcp"},
                 {"h:2x2", "halving, requested", "tcp"},  {"d:2x2", "hierarchical, chosen", "tcp"},
                 {"d:2x2", "hierarchical, chosen", "shm"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char options[32];
        snprintf(options, sizeof options, "-mode %s", cases[i].mode);
        const char *log = run((job){cases[i].links, options, NULL, "plan", 2, NULL, CALLS});
        CHECK(strstr(log, cases[i].by), "%s: %s", options, log);
    }
}

/* Rank 0 explains the choice once for each size class and kind, with the alternatives. */
static void test_explanation(void)
{
    const char *log = run((job){"tcp", "", NULL, "plan", 3, NULL, CALLS});
    expect(log, "all-reduce of 12000 bytes in a comm of 4 ranks: ", 1);
    expect(log, "all-reduce of 20 bytes in a comm of 4 ranks: ", 1);
    expect(log, "broadcast of 12000 bytes in a comm of 4 ranks: ", 1);
    const char *line = strstr(log, "all-reduce of 12000 bytes");
    static const char *const names[] = {"one-shot", "hierarchical", "halving", "tree", "ring"};
    for (int i = 0; i < 5; i++)
        CHECK(strstr(line, names[i]), "%s is not there: %s", names[i], log);
    expect(run((job){"tcp", "", NULL, "info", 1, NULL, CALLS}), "predicted", 0);
    expect(run((job){"tcp", "-dbg_level 1", NULL, "warn", 1, NULL, CALLS}), "plan for kind", 0);
    expect(run((job){"tcp", "-dbg_level 1", NULL, "warn", 1, NULL, CALLS}), "predicted", 6);
    CHECK(strstr(run((job){"tcp", "-dbg_level 2", NULL, "warn", 1, NULL, CALLS}), "plan for kind"),
          "no more detail");
}

/* The comm uses the fastest candidates, which are stored; a second job uses the first job's
 * choices. */
static void test_exploring(void)
{
    const char *log = run((job){"tcp", "-mode p:1x4", "plans", "plan", 2, NULL, CALLS});
    expect(log, " operations and sizes in a comm of 4 ranks in ", 1);
    expect(log, "explored all-reduce of 4 bytes and more in a comm of 4 ranks: ", 1);
    expect(log, "explored broadcast of 4 bytes and more in a comm of 4 ranks: ", 1);
    CHECK(strstr(strstr(log, "all-reduce of 12000 bytes"), ", requested"), "not as found: %s", log);
    const char *kept = content("plans");
    expect(kept, "4 all-reduce 1 ", 1);
    expect(kept, "4 all-reduce 8192 ", 1);
    expect(kept, "4 all-reduce 140737488355328 ", 1);
    expect(kept, "4 broadcast 16 ", 1);
    log = run((job){"tcp", "-mode p:1x4", "plans", "warn", 2, NULL, CALLS});
    expect(log, "explored", 0);
}

/* The choices in the file are used, and choices for other comms stay in it. */
static void test_plan_file(void)
{
    write_file("given", "# by hand\n4 all-reduce 8192 ring\n4 all-reduce 16 tree\n"
                        "2 broadcast 16 chain\n4 broadcast 16 hosts\n");
    const char *log = run((job){"tcp", "", "given", "plan", 2, NULL, CALLS});
    expect(log, "all-reduce of 12000 bytes in a comm of 4 ranks: ring, requested", 1);
    expect(log, "all-reduce of 20 bytes in a comm of 4 ranks: tree, requested", 1);
    expect(log, "hosts, requested", 0); /* hosts cannot do it */
    write_file("given", "4 all-reduce 8192 hierarchical\n");
    log = run((job){"tcp", "-mode d:2x2", "given", "plan", 1, NULL, CALLS});
    expect(log, "all-reduce of 12000 bytes in a comm of 4 ranks: hierarchical, requested", 1);
    write_file("given", "2 broadcast 16 chain\n");
    run((job){"tcp", "-mode p:4", "given", "warn", 2, NULL, CALLS});
    expect(content("given"), "2 broadcast 16 chain\n", 1);
    expect(content("given"), "4 all-reduce 8192 ", 1);
    static const char *const wrong[] = {"4 all-reduce 8192\n",        "4 all-reduce 8192 hope\n",
                                        "4 hope 8192 ring\n",         "x all-reduce 8192 ring\n",
                                        "4 all-reduce 0 ring\n",      "4 all-reduce 8192 ring 7\n",
                                        "4 barrier 1 ring and more\n"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char text[128];
        snprintf(text, sizeof text, "# right\n%s", wrong[i]);
        write_file("wrong", text);
        run((job){"tcp", "", "wrong", "off", 0, "wrong\", line 2: \"", CALLS});
    }
    CHECK(!mkdir(in_folder("dir"), 0700), "mkdir");
    log = run((job){"tcp", "-mode p:4", "dir", "warn", 2, NULL, CALLS});
    CHECK(strstr(log, "DDL_PLAN_FILE=\"") && strstr(log, "explored"), "%s", log);
}

static void test_reports(void)
{
    const char *log = run((job){"tcp", "-dump_iter 10", NULL, "warn", 5, NULL, CALLS});
    expect(log, "10 operations: on average ", 2); /* 25, the last five not reported */
    expect(log, "between hosts", 2);
    expect(log, "the slowest is rank ", 2);
    log = run((job){"shm", "-mode p:4 -dump_iter 10", NULL, "warn", 5, NULL, CALLS});
    expect(log, "within hosts", 2);
    log = run((job){"shm", "-dump_iter 10", NULL, "warn", 25, NULL, GROUPS});
    expect(log, " operations: on average ", 2);
    log = run((job){"tcp", "-rebind_iter 5 -dev_sync 1", NULL, "warn", 1, NULL, CALLS});
    expect(log, "-rebind_iter is ignored: ", 1);
    expect(log, "-dev_sync is ignored: ", 1);
}

/* Rank 1 is killed once the first comparison is logged: the creation fails on the others, or the
 * next operation does. */
static void test_death_while_exploring(void)
{
    pid_t pids[RANKS];
    start(&(job){"tcp", "-mode p:4", NULL, "plan", 0, NULL, EARLY_DEATH}, pids);
    while (!strstr(content("log"), "explored all-reduce of "))
        sched_yield();
    CHECK(!kill(pids[1], SIGKILL), "kill");
    for (int rank = 0; rank < RANKS; rank++) {
        int status;
        CHECK(waitpid(pids[rank], &status, 0) == pids[rank], "wait");
        CHECK(rank == 1 ? WIFSIGNALED(status) : status == 0, "rank %d: %x", rank, status);
    }
}

/* A rank that dies while others report is detected as usual. */
static void test_death(void)
{
    run((job){"tcp", "-mode p:4 -dump_iter 3", NULL, "off", 31, NULL, DEATH});
    run((job){"shm", "-mode p:4 -dump_iter 1", NULL, "off", 31, NULL, DEATH});
}

static void clean(void)
{
    static const char *const names[] = {"log", "plans", "given", "wrong"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        unlink(in_folder(names[i]));
    rmdir(in_folder("dir"));
    rmdir(folder);
}

int main(void)
{
    CHECK(mkdtemp(folder), "no folder");
    test_modes();
    test_explanation();
    test_exploring();
    test_plan_file();
    test_reports();
    test_death_while_exploring();
    test_death();
    clean();
}
