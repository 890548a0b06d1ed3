/* SPDX-License-Identifier: Apache-2.0 */
/* processes.h - ranks as processes that connect by rendezvous; rank r's exit code is collected. */
#ifndef DDL_TESTS_PROCESSES_H
#define DDL_TESTS_PROCESSES_H

#include <netinet/in.h>

#include "check.h"
#include "ddl/ddl.h"
#include "tested_links.h"

enum { PROCESSES_MAX = 16 };

/* Return a port outside the range for outgoing connections, which might take it meanwhile. */
static inline int free_port(void)
{
    enum { FIRST = 10000, PORTS = 20000 };
    static unsigned next;
    for (;;) {
        int port = FIRST + (int)(((unsigned)getpid() * 101 + next++) % PORTS);
        struct sockaddr_in a = {.sin_family = AF_INET,
                                .sin_port = htons((uint16_t)port),
                                .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        CHECK(fd >= 0, "socket");
        bool is_free = !bind(fd, (struct sockaddr *)&a, sizeof a);
        close(fd);
        if (is_free)
            return port;
    }
}

/* Return zeroed memory that child processes share. */
static inline void *map_shared(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED, "no shared memory");
    return memory;
}

/* Return shared memory as of map_shared, which is zeroed again before each run of a test. */
static void *per_run;
static size_t per_run_bytes;
static inline void *map_per_run(size_t bytes)
{
    per_run_bytes = bytes;
    return per_run = map_shared(bytes);
}

typedef void process_fn(ddl_comm *comm);

static uint32_t process_links;         /* links of the processes that run, or ran last */
static int process_run;                /* number of the run of their test */
static ddl_endpoint *process_endpoint; /* of this process */

enum { STARTS = 16 };

/* Counts of the processes of a run; 0 at first. */
static struct process_counts {
    atomic_int created, ready;
    atomic_int together[STARTS]; /* by the use of start_together */
} * process_counts;

/* Return true if the count is reached in time. */
static inline bool await_count(atomic_int *count, int wanted)
{
    double end = seconds() + 20;
    while (atomic_load(count) < wanted && seconds() < end)
        usleep(200);
    return atomic_load(count) >= wanted;
}

/* Wait until all ranks have reached this point. */
static inline bool await_all(atomic_int *count, int size)
{
    atomic_fetch_add(count, 1);
    return await_count(count, size);
}

/* Start all ranks at this point: none is still in an operation that another rank's end would end.
 * Return the time. */
static inline double start_together(ddl_comm *comm)
{
    static int uses;
    CHECK(uses < STARTS, "used too often");
    OK(ddl_barrier(comm, NULL, NULL));
    CHECK(await_all(&process_counts->together[uses++], ddl_comm_size(comm)),
          "not all ranks have started");
    return seconds();
}

/* Signal that this rank has done what another one waits for. */
static inline void become_ready(void)
{
    atomic_fetch_add(&process_counts->ready, 1);
}

/* Wait until this many ranks are ready. */
static inline void await_ready(int ranks)
{
    CHECK(await_count(&process_counts->ready, ranks), "%d of %d ranks are ready",
          atomic_load(&process_counts->ready), ranks);
}

typedef struct process_test {
    const char *name;
    process_fn *fn;
    unsigned dead;           /* ranks that are killed, as bits; the others return */
    uint32_t links;          /* 0: both shared memory and TCP, in turn */
    int size;                /* 0: as many ranks as the program's other tests */
    int runs;                /* 0: one */
    const char *settings[4]; /* of the environment, "NAME=value" */
} process_test;

/* Run fn in `size` processes joined by the test's links, at most 60 seconds; status[r] is as from
 * waitpid. A process exits with 0 when fn returns; its comm is not destroyed. */
static inline void run_processes(const process_test *test, int size, int status[PROCESSES_MAX])
{
    enum { LIMIT = 60 };
    char url[64];
    snprintf(url, sizeof url, "tcp://127.0.0.1:%d", free_port());
    process_links = test->links;
    pid_t pids[PROCESSES_MAX];
    process_counts = map_shared(sizeof *process_counts);
    if (per_run)
        memset(per_run, 0, per_run_bytes);
    fflush(NULL);
    for (int rank = 0; rank < size; rank++) {
        pids[rank] = fork();
        CHECK(pids[rank] >= 0, "fork");
        if (pids[rank])
            continue;
        for (int i = 0; i < 4 && test->settings[i]; i++)
            putenv((char *)(uintptr_t)test->settings[i]);
        ddl_comm_config config = {
            .struct_size = sizeof config, .links = tested_links(test->links), .timeout_ms = 30000};
        ddl_comm *comm;
        OK(ddl_endpoint_create(NULL, &process_endpoint));
        OK(ddl_rendezvous(process_endpoint, url, rank, size, &config, &comm));
        /* A creation in progress fails when one of them ends its comm. */
        await_all(&process_counts->created, size);
        test->fn(comm);
        _exit(0);
    }
    double end = seconds() + LIMIT;
    for (int rank = 0; rank < size; rank++) {
        pid_t done;
        while (!(done = waitpid(pids[rank], &status[rank], WNOHANG)) && seconds() < end)
            usleep(2000);
        if (done == pids[rank])
            continue;
        for (int r = rank; r < size; r++)
            kill(pids[r], SIGKILL);
        CHECK(false, "%s: rank %d hangs after %d s", test->name, rank, LIMIT);
    }
    munmap(process_counts, sizeof *process_counts);
}

/* Wait until these processes have exited, each with 0. */
static inline void await_exits(const pid_t *pids, int n)
{
    for (int i = 0, status; i < n; i++)
        CHECK(waitpid(pids[i], &status, 0) == pids[i] && !status, "%d: %x", i, (unsigned)status);
}

static inline bool is_killed_by(int status, int number)
{
    return WIFSIGNALED(status) && WTERMSIG(status) == number;
}

/* Run the test, and check that the ranks end as they must. Return the seconds. */
static inline double run_silent_test(const process_test *test, int size)
{
    int status[PROCESSES_MAX];
    double start = seconds();
    run_processes(test, size, status);
    for (int rank = 0; rank < size; rank++)
        CHECK(test->dead >> rank & 1 ? is_killed_by(status[rank], SIGKILL) : status[rank] == 0,
              "%s: rank %d ended with %x", test->name, rank, (unsigned)status[rank]);
    return seconds() - start;
}

static inline void run_process_test(const process_test *test, int size)
{
    printf("%-22s %s %.2f s\n", test->name,
           test->links == DDL_LINK_SHM ? "shm"
           : getenv("DDL_TEST_UCX")    ? "ucx"
                                       : "tcp",
           run_silent_test(test, size));
    fflush(stdout);
}

/* Return true if the command line selects this test: it names it, or none. */
static inline bool is_asked_for(const process_test *test, int argc, char **argv)
{
    return argc < 2 || !strcmp(argv[1], test->name);
}

/* Run all tests, or the named one, over their kinds of links. */
static inline void run_process_tests(const process_test *tests, size_t n, int size, int argc,
                                     char **argv)
{
    setenv("DDL_LOG", "off", 0); /* the comms die on purpose */
    for (size_t t = 0; t < n; t++)
        for (uint32_t links = DDL_LINK_SHM; links <= DDL_LINK_TCP; links *= 2) {
            process_test test = tests[t];
            if (!is_asked_for(&test, argc, argv) || (test.links && test.links != links) ||
                (links == DDL_LINK_SHM && getenv("DDL_TEST_UCX")))
                continue;
            test.links = links;
            for (process_run = 0; !process_run || process_run < test.runs; process_run++)
                run_process_test(&test, test.size ? test.size : size);
        }
}

#endif
