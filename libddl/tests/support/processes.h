/* SPDX-License-Identifier: Apache-2.0 */
/* processes.h - ranks as processes that connect by rendezvous; rank r's exit code is collected. */
#ifndef DDL_TESTS_PROCESSES_H
#define DDL_TESTS_PROCESSES_H

#include <netinet/in.h>

#include "check.h"
#include "ddl/ddl.h"

enum { PROCESSES_MAX = 16 };

static inline double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

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

typedef int process_fn(ddl_comm *comm);

static uint32_t process_links; /* links of the processes that run, or ran last */

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

/* Run fn in `size` processes joined by `links`, at most `limit` seconds; status[r] is as from
 * waitpid. fn's return value is the exit code; the comm is not destroyed afterwards. */
static inline void run_processes(int size, uint32_t links, process_fn *fn, double limit,
                                 int status[PROCESSES_MAX])
{
    char url[64];
    snprintf(url, sizeof url, "tcp://127.0.0.1:%d", free_port());
    process_links = links;
    pid_t pids[PROCESSES_MAX];
    process_counts = map_shared(sizeof *process_counts);
    fflush(NULL);
    for (int rank = 0; rank < size; rank++) {
        pids[rank] = fork();
        CHECK(pids[rank] >= 0, "fork");
        if (pids[rank])
            continue;
        ddl_comm_config config = {
            .struct_size = sizeof config, .links = links, .timeout_ms = 30000};
        ddl_endpoint *endpoint;
        ddl_comm *comm;
        OK(ddl_endpoint_create(NULL, &endpoint));
        OK(ddl_rendezvous(endpoint, url, rank, size, &config, &comm));
        /* A creation in progress fails when one of them ends its comm. */
        await_all(&process_counts->created, size);
        _exit(fn(comm));
    }
    double end = seconds() + limit;
    for (int rank = 0; rank < size; rank++) {
        pid_t done;
        while (!(done = waitpid(pids[rank], &status[rank], WNOHANG)) && seconds() < end)
            usleep(2000);
        if (done == pids[rank])
            continue;
        for (int r = rank; r < size; r++)
            kill(pids[r], SIGKILL);
        CHECK(false, "rank %d hangs after %g s", rank, limit);
    }
    munmap(process_counts, sizeof *process_counts);
}

typedef struct process_test {
    const char *name;
    process_fn *fn;
    unsigned dead; /* ranks that are killed, as bits; the others return 0 */
    bool tcp_only; /* slow, and the same over shared memory */
} process_test;

static inline void run_process_test(const process_test *test, int size, uint32_t links)
{
    int status[PROCESSES_MAX];
    double start = seconds();
    run_processes(size, links, test->fn, 60, status);
    printf("%-22s %s %.2f s\n", test->name, links == DDL_LINK_SHM ? "shm" : "tcp",
           seconds() - start);
    fflush(stdout);
    for (int rank = 0; rank < size; rank++) {
        bool killed = WIFSIGNALED(status[rank]) && WTERMSIG(status[rank]) == SIGKILL;
        CHECK(test->dead >> rank & 1 ? killed : status[rank] == 0, "%s: rank %d ended with %x",
              test->name, rank, (unsigned)status[rank]);
    }
}

/* Return true if the command line selects this test: it names it, or none. */
static inline bool is_asked_for(const process_test *test, int argc, char **argv)
{
    return argc < 2 || !strcmp(argv[1], test->name);
}

/* Run all tests, or the named one, over both kinds of links. */
static inline void run_process_tests(const process_test *tests, size_t n, int size, int argc,
                                     char **argv)
{
    setenv("DDL_LOG", "off", 0); /* the comms die on purpose */
    for (size_t t = 0; t < n; t++)
        for (uint32_t links = DDL_LINK_SHM; links <= DDL_LINK_TCP; links *= 2)
            if (is_asked_for(&tests[t], argc, argv) &&
                !(tests[t].tcp_only && links == DDL_LINK_SHM))
                run_process_test(&tests[t], size, links);
}

#endif
