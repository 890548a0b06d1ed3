/* processes.h - ranks as processes that meet by rendezvous; rank r's exit code is collected. */
#ifndef DDL_TESTS_PROCESSES_H
#define DDL_TESTS_PROCESSES_H

#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "check.h"
#include "ddl/ddl.h"

enum { PROCESSES_MAX = 16 };

#define OK(call)                                                                                   \
    do {                                                                                           \
        ddl_status status_ = (call);                                                               \
        CHECK(status_ == DDL_OK, "%d %s: %s", status_, ddl_strerror(status_), ddl_last_error());   \
    } while (0)

static inline double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static inline int free_port(void)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(!bind(fd, (struct sockaddr *)&a, sizeof a), "bind");
    CHECK(!getsockname(fd, (struct sockaddr *)&a, &length), "getsockname");
    close(fd);
    return ntohs(a.sin_port);
}

typedef int process_fn(ddl_comm *comm);

/* All have created their comm before one of them may end it: a creation that is under way then
 * fails as well. */
static inline void await_all(atomic_int *created, int size)
{
    double end = seconds() + 20;
    atomic_fetch_add(created, 1);
    while (atomic_load(created) < size && seconds() < end)
        usleep(200);
}

/* Run fn in `size` processes joined by `links`, at most `limit` seconds; status[r] is as waitpid
 * gives it. fn's return value is the exit code; the comm is not destroyed behind it. */
static inline void run_processes(int size, uint32_t links, process_fn *fn, double limit,
                                 int status[PROCESSES_MAX])
{
    char url[64];
    snprintf(url, sizeof url, "tcp://127.0.0.1:%d", free_port());
    pid_t pids[PROCESSES_MAX];
    atomic_int *created =
        mmap(NULL, sizeof *created, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(created != MAP_FAILED, "no shared memory");
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
        await_all(created, size);
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
    munmap(created, sizeof *created);
}

#endif
