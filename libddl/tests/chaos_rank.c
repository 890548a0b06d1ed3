/* SPDX-License-Identifier: Apache-2.0 */
/* One rank for tests/chaos/run.py: it repeats an operation until that fails, reports when and how,
 * and continues with the survivors.
 *
 *     chaos_rank URL RANK SIZE LINKS OPERATION [SETTING=NUMBER...]
 *
 * Settings: pause_ms before the rendezvous; workers, forked processes that stay; linger_ms of work
 * after a failure; count_ms, the interval at which rank 0 reports its progress; step, the
 * operation's step at which to die; times, after which the rank leaves without a leave message;
 * cycles in which a member is killed and replaced.
 *
 * Lines on stdout: NANOSECONDS WORD [MORE], by the monotonic clock, which all processes share. */
#include <stdarg.h>

#include "comm/comm.h"
#include "entries.h"
#include "processes.h"

enum {
    SMALL = 2,
    LARGE = 1 << 20,
    VAST =
        6
        << 20, /* two ranks that share memory do its steps in turn, engine/executor/interleave.c */
    MOST_RANKS = 8
};

static const char *url;
static int rank, size;
static uint32_t links;
static int32_t ones[VAST], sums[VAST];
static int32_t *lent[2]; /* buffers of ddl_alloc */

static void say(const char *format, ...)
{
    struct timespec t;
    va_list args;
    clock_gettime(CLOCK_MONOTONIC, &t);
    printf("%lld ", (long long)t.tv_sec * 1000000000 + t.tv_nsec);
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    putchar('\n');
    fflush(stdout);
}

/* ----------------------------------------------------------------------------------- operations */

static void check_all(const int32_t *values, int64_t n, int32_t want)
{
    for (int64_t i = 0; i < n; i++)
        CHECK(values[i] == want, "element %lld is %d, not %d", (long long)i, values[i], want);
}

static ddl_status right(ddl_status status, int64_t n, int32_t want)
{
    if (status == DDL_OK)
        for (int64_t i = 0; i < n; i += n - 1)
            CHECK(sums[i] == want, "element %lld is %d, not %d", (long long)i, sums[i], want);
    return status;
}

static ddl_status all_reduce(ddl_comm *comm, int64_t n)
{
    return right(ddl_allreduce(comm, ones, sums, n, DDL_I32, DDL_SUM, NULL, NULL), n,
                 ddl_comm_size(comm));
}

static ddl_status small(ddl_comm *comm)
{
    return all_reduce(comm, SMALL);
}

static ddl_status large(ddl_comm *comm)
{
    return all_reduce(comm, LARGE);
}

static ddl_status vast(ddl_comm *comm)
{
    return all_reduce(comm, VAST);
}

static void fill(int32_t *values)
{
    for (int64_t i = 0; i < LARGE; i++)
        values[i] = 1;
}

/* Use buffers that peers read: they are only read, whichever rank dies. */
static ddl_status lent_apart(ddl_comm *comm)
{
    fill(lent[0]);
    ddl_status status = ddl_allreduce(comm, lent[0], lent[1], LARGE, DDL_I32, DDL_SUM, NULL, NULL);
    check_all(lent[0], LARGE, 1);
    if (status == DDL_OK)
        check_all(lent[1], LARGE, ddl_comm_size(comm));
    return status;
}

/* Use a buffer that peers read and in which they store the result. */
static ddl_status lent_in_place(ddl_comm *comm)
{
    fill(lent[0]);
    ddl_status status = ddl_allreduce(comm, lent[0], lent[0], LARGE, DDL_I32, DDL_SUM, NULL, NULL);
    if (status == DDL_OK)
        check_all(lent[0], LARGE, ddl_comm_size(comm));
    return status;
}

enum { WORKERS = 6, ORDERED = LARGE / 16 };

/* Return element i of the sum over `n` logical workers from `first` on, in the order of ddl.h. */
static float tree_sum(int first, int n, int64_t i)
{
    int half = 1;
    if (n == 1)
        return 1 / (float)(1 + first + i % 1000);
    while (2 * half < n)
        half *= 2;
    return tree_sum(first, half, i) + tree_sum(first + half, n - half, i);
}

/* Fail unless these are the sums over the workers. */
static void check_sums(const float *values, int first, int n, const char *what)
{
    for (int64_t i = 0; i < ORDERED; i += 97)
        CHECK(values[i] == tree_sum(first, n, i), "%s: element %lld is %a", what, (long long)i,
              (double)values[i]);
}

/* The bits are the same before and after deaths, and the parts are only read. */
static ddl_status ordered(ddl_comm *comm)
{
    static float parts[WORKERS][ORDERED], result[ORDERED];
    static int made_for[2];
    const void *given[WORKERS];
    int owners[WORKERS], firsts[WORKERS], sizes[WORKERS], count = 0;
    int n = ddl_comm_size(comm), own = ddl_comm_rank(comm);
    ddl_order *order;
    for (int v = 0; v < WORKERS; v++)
        owners[v] = v * n / WORKERS;
    CHECK(!ddl_order_create(owners, WORKERS, n, &order), "%s", ddl_last_error());
    CHECK(!ddl_order_parts(order, own, firsts, sizes, WORKERS, &count), "%s", ddl_last_error());
    for (int k = 0; k < count; k++) {
        given[k] = parts[k];
        for (int64_t i = 0; i < ORDERED && (made_for[0] != n || made_for[1] != own); i++)
            parts[k][i] = tree_sum(firsts[k], sizes[k], i);
    }
    made_for[0] = n;
    made_for[1] = own;
    ddl_status status =
        ddl_allreduce_ordered(comm, order, given, result, ORDERED, DDL_F32, DDL_SUM, NULL, NULL);
    for (int k = 0; k < count; k++)
        check_sums(parts[k], firsts[k], sizes[k], "a part was written");
    if (status == DDL_OK)
        check_sums(result, 0, WORKERS, "a wrong sum");
    ddl_order_destroy(order);
    return status;
}

static ddl_status broadcast(ddl_comm *comm)
{
    return ddl_broadcast(comm, sums, LARGE, DDL_I32, 0, NULL, NULL);
}

static ddl_status reduce(ddl_comm *comm)
{
    return ddl_reduce(comm, ones, sums, LARGE / 4, DDL_I32, DDL_SUM, 0, NULL, NULL);
}

static ddl_status reduce_scatter(ddl_comm *comm)
{
    return ddl_reduce_scatter(comm, ones, sums, LARGE / MOST_RANKS, DDL_I32, DDL_SUM, NULL, NULL);
}

static ddl_status all_gather(ddl_comm *comm)
{
    return right(ddl_allgather(comm, ones, sums, LARGE / MOST_RANKS, DDL_I32, NULL, NULL),
                 LARGE / MOST_RANKS, 1);
}

static ddl_status all_to_all(ddl_comm *comm)
{
    return ddl_alltoall(comm, ones, sums, LARGE / MOST_RANKS, DDL_I32, NULL, NULL);
}

static ddl_status barrier(ddl_comm *comm)
{
    return ddl_barrier(comm, NULL, NULL);
}

static ddl_status messages(ddl_comm *comm)
{
    int n = ddl_comm_size(comm), own = ddl_comm_rank(comm);
    return ddl_sendrecv(comm, ones, LARGE / 4, (own + 1) % n, 1, sums, LARGE / 4, (own + n - 1) % n,
                        1, DDL_I32, NULL, NULL);
}

static ddl_status named(ddl_comm *comm)
{
    ddl_options options = {.struct_size = sizeof options, .name = "gradient"};
    return ddl_allreduce(comm, ones, sums, SMALL, DDL_I32, DDL_SUM, &options, NULL);
}

static ddl_status asynchronous(ddl_comm *comm)
{
    enum { WORKS = 8, EACH = LARGE / WORKS };
    ddl_work *works[WORKS];
    ddl_status status = DDL_OK;
    int n = 0;
    while (n < WORKS && status == DDL_OK) {
        status = ddl_allreduce(comm, ones + n * EACH, sums + n * EACH, EACH, DDL_I32, DDL_SUM, NULL,
                               &works[n]);
        n += status == DDL_OK;
    }
    for (int i = 0; i < n; i++) {
        ddl_status got = ddl_work_wait(works[i], -1);
        status = status == DDL_OK ? got : status;
        ddl_work_destroy(works[i]);
    }
    return status == DDL_OK ? DDL_OK : ddl_comm_status(comm);
}

/* Wait without a pending operation. */
static ddl_status idle(ddl_comm *comm)
{
    usleep(1000);
    return ddl_comm_status(comm);
}

/* Let two ranks wait for each other, and the others for nothing: no rank waits for the one that
 * dies. */
static ddl_status elsewhere(ddl_comm *comm)
{
    int own = ddl_comm_rank(comm);
    if (own > 1)
        return idle(comm);
    return ddl_recv(comm, sums, SMALL, DDL_I32, 1 - own, 7, NULL, NULL, NULL);
}

typedef struct operation {
    const char *name;
    ddl_status (*run)(ddl_comm *comm);
} operation;

static const operation operations[] = {{"small", small},
                                       {"large", large},
                                       {"vast", vast},
                                       {"lent", lent_apart},
                                       {"lent-in-place", lent_in_place},
                                       {"ordered", ordered},
                                       {"broadcast", broadcast},
                                       {"reduce", reduce},
                                       {"reduce-scatter", reduce_scatter},
                                       {"all-gather", all_gather},
                                       {"all-to-all", all_to_all},
                                       {"barrier", barrier},
                                       {"messages", messages},
                                       {"named", named},
                                       {"asynchronous", asynchronous},
                                       {"idle", idle},
                                       {"elsewhere", elsewhere}};

/* -------------------------------------------------------------------- dying within an operation */

/* The original functions of the victim's links, and the number of steps before its death. */
static const ddl__link_ops *real;
static ddl__link_ops counted;
static int steps_left, steps_made;

static void step(void)
{
    steps_made++;
    if (--steps_left == 0) {
        say("dies");
        kill(getpid(), SIGKILL);
    }
}

static void *reserve(ddl__link *const *to, unsigned n, size_t bytes)
{
    void *span = real->reserve(to, n, bytes);
    if (span)
        step();
    return span;
}

static void publish(ddl__link *const *to, unsigned n, void *span, size_t bytes,
                    const ddl__signature *signature)
{
    real->publish(to, n, span, bytes, signature);
    step();
}

static bool send_user(ddl__link *const *to, unsigned n, const void *memory, size_t bytes,
                      const ddl__signature *signature)
{
    bool sent = real->send_user(to, n, memory, bytes, signature);
    if (sent)
        step();
    return sent;
}

static bool release(ddl__link *link)
{
    bool held = real->release(link);
    step();
    return held;
}

static bool lend(ddl__link *to, const ddl__region *region, const void *memory, size_t bytes,
                 const ddl__signature *signature, bool returns)
{
    bool is_lent = real->lend(to, region, memory, bytes, signature, returns);
    if (is_lent)
        step();
    return is_lent;
}

static bool give_back(ddl__link *link, size_t bytes, const ddl__signature *signature)
{
    bool is_given = real->give_back(link, bytes, signature);
    if (is_given)
        step();
    return is_given;
}

static void die_at(ddl_comm *comm, int number)
{
    ddl__link *const *all = ddl__engine_links(comm->engine);
    real = all[rank ? 0 : 1]->ops;
    counted = *real;
    counted.reserve = reserve;
    counted.publish = publish;
    counted.send_user = send_user;
    counted.release = release;
    counted.lend = real->lend ? lend : NULL;
    counted.give_back = real->give_back ? give_back : NULL;
    steps_left = number;
    for (int peer = 0; peer < size; peer++)
        if (all[peer])
            all[peer]->ops = &counted;
}

/* ----------------------------------------------------------------------------- what a rank does */

static ddl_comm *connect_ranks(ddl_endpoint *endpoint, int own)
{
    ddl_comm_config config = {.struct_size = sizeof config, .links = links, .timeout_ms = 10000};
    ddl_comm *comm;
    ddl_status status = ddl_rendezvous(endpoint, url, own, size, &config, &comm);
    if (status == DDL_OK)
        return comm;
    say("uncreated %d %s", status, ddl_last_error());
    exit(0);
}

/* Shrink the comm. Return NULL if this rank is not a survivor. */
static ddl_comm *go_on(ddl_comm *comm)
{
    ddl_comm_config config = {.struct_size = sizeof config, .timeout_ms = 20000};
    ddl_comm *next = NULL;
    ddl_status status = ddl_comm_shrink(comm, &config, &next);
    if (status == DDL_OK)
        say("shrunk %d", ddl_comm_size(next));
    else
        say("%s %d %s", status == DDL_EMINORITY ? "minority" : "unshrunk", status,
            ddl_last_error());
    ddl_comm_destroy(comm);
    return next;
}

static int fail_and_go_on(ddl_comm *comm, const operation *op, int linger_ms, int count_ms)
{
    ddl_status status = barrier(comm);
    if (status == DDL_OK)
        say("ready");
    double next_word = seconds() + count_ms * 1e-3;
    int done = 0;
    for (; status == DDL_OK && (status = op->run(comm)) == DDL_OK; done++)
        if (count_ms && rank == 0 && seconds() > next_word) {
            say("did %d", done);
            next_word = seconds() + count_ms * 1e-3;
            done = 0;
        }
    say("failed %d %s", status, ddl_last_error());
    ddl_comm *next = go_on(comm);
    if (!next)
        return 0;
    for (int i = 0; i <= linger_ms / 10; i++) {
        OK(small(next));
        usleep(linger_ms ? 10000 : 0);
    }
    ddl_comm_destroy(next);
    say("over");
    return 0;
}

/* The victim dies at one of the operation's steps; if it has fewer steps, no rank dies. */
static int die_within(ddl_comm *comm, const operation *op, int number)
{
    ddl_status status = op->run(comm); /* peers map zero-copy buffers at their first use */
    if (status == DDL_OK)
        status = barrier(comm);
    bool victim = rank == size - 1;
    if (victim)
        die_at(comm, number);
    say("began"); /* it may still be in the barrier when the victim has left it and died */
    if (status == DDL_OK)
        status = op->run(comm);
    if (status == DDL_OK && victim && steps_left > 0) {
        say("complete %d", steps_made);
        steps_left = 0;
    }
    if (status == DDL_OK)
        status = barrier(comm);
    if (status != DDL_OK) {
        say("failed %d %s", status, ddl_last_error());
        comm = go_on(comm);
        OK(small(comm));
    }
    ddl_comm_destroy(comm);
    say("over");
    return 0;
}

/* Let the last rank leave right after its last operation, alternately without and with a leave
 * message. */
static int leave_after(ddl_comm *comm, const operation *op, int times)
{
    for (int i = 0; i < 3; i++)
        OK(op->run(comm));
    if (rank == size - 1 && times % 2)
        return 0;
    ddl_comm_destroy(comm);
    return 0;
}

/* -------------------------------------------------------------------------------- many failures */

/* Return the memory use in KiB. */
static long memory(void)
{
    long all, resident;
    FILE *file = fopen("/proc/self/statm", "r");
    CHECK(file && fscanf(file, "%ld %ld", &all, &resident) == 2, "/proc/self/statm");
    fclose(file);
    return resident * (sysconf(_SC_PAGESIZE) / 1024);
}

static pid_t start_victim(char **argv)
{
    char number[16];
    snprintf(number, sizeof number, "%d", size - 1);
    char *arguments[] = {argv[0], argv[1], number, argv[3], argv[4], argv[5], NULL};
    pid_t pid = fork();
    if (pid)
        return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    dup2(open("/dev/null", O_WRONLY), STDOUT_FILENO);
    execv("/proc/self/exe", arguments);
    _exit(1);
}

/* Kill and replace the last rank again and again. */
static int cycle(ddl_endpoint *endpoint, const operation *op, int cycles, char **argv)
{
    for (int i = 0; i < cycles; i++) {
        pid_t victim = rank ? 0 : start_victim(argv);
        ddl_comm *comm = connect_ranks(endpoint, rank);
        ddl_status status = barrier(comm);
        if (rank == 0)
            kill(victim, SIGKILL);
        while (status == DDL_OK)
            status = op->run(comm);
        REFUSED(status, DDL_EPEER, "rank 2 on ");
        comm = go_on(comm);
        CHECK(ddl_comm_size(comm) == size - 1, "%d are left", ddl_comm_size(comm));
        OK(small(comm));
        ddl_comm_destroy(comm);
        if (rank == 0)
            waitpid(victim, NULL, 0);
        say("cycle %d files %d memory %ld", i, count_entries("/proc/self/fd"), memory());
    }
    say("over");
    return 0;
}

/* ----------------------------------------------------------------------------------------- main */

static int setting(int argc, char **argv, const char *name)
{
    size_t n = strlen(name);
    for (int i = 6; i < argc; i++)
        if (!strncmp(argv[i], name, n) && argv[i][n] == '=')
            return atoi(argv[i] + n + 1);
    return 0;
}

/* Start processes that, like data loader workers, outlive the process that started them and inherit
 * its files. */
static void start_workers(int n)
{
    for (int i = 0; i < n; i++) {
        pid_t pid = fork();
        if (pid == 0) {
            close(STDOUT_FILENO);
            prctl(PR_SET_PDEATHSIG, 0);
            alarm(20);
            pause();
            _exit(0);
        }
        say("worker %d", (int)pid);
    }
}

static void leave(int number)
{
    _exit(0);
}

int main(int argc, char **argv)
{
    CHECK(argc >= 6, "usage: %s URL RANK SIZE LINKS OPERATION [SETTING=NUMBER...]", argv[0]);
    const operation *op = NULL;
    ddl_endpoint *endpoint;
    setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    signal(SIGUSR1, leave); /* exit without a leave message, at any point */
    url = argv[1];
    rank = atoi(argv[2]);
    size = atoi(argv[3]);
    links = !strcmp(argv[4], "shm") ? DDL_LINK_SHM : DDL_LINK_TCP;
    for (size_t i = 0; i < sizeof operations / sizeof *operations; i++)
        if (!strcmp(argv[5], operations[i].name))
            op = &operations[i];
    CHECK(op, "no operation %s", argv[5]);
    for (int i = 0; i < (op->run == vast ? VAST : LARGE); i++)
        ones[i] = 1;

    usleep((useconds_t)setting(argc, argv, "pause_ms") * 1000);
    OK(ddl_endpoint_create(NULL, &endpoint));
    for (int i = 0; i < 2; i++)
        OK(ddl_alloc(endpoint, LARGE * sizeof *lent[i], (void **)&lent[i]));
    int cycles = setting(argc, argv, "cycles"), times = setting(argc, argv, "times");
    if (cycles)
        return cycle(endpoint, op, cycles, argv);
    say("meets");
    ddl_comm *comm = connect_ranks(endpoint, rank);
    start_workers(setting(argc, argv, "workers"));
    int number = setting(argc, argv, "step");
    if (times)
        return leave_after(comm, op, times);
    if (number)
        return die_within(comm, op, number);
    return fail_and_go_on(comm, op, setting(argc, argv, "linger_ms"),
                          setting(argc, argv, "count_ms"));
}
