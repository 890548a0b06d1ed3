/* SPDX-License-Identifier: Apache-2.0 */
/* A member whose backlog of unix connections is full is still on this host: a rank that dials it
 * waits for room, and then shares memory with it. Runs in a network namespace with short
 * backlogs. */
#include <net/if.h>
#include <sys/ioctl.h>

#include "comm/comm.h"
#include "net/socket.h"
#include "processes.h"

enum { RANKS = 2, LIMIT_MS = 30000, BLOCKED_MS = 300, BACKLOG = 2 };

typedef struct shared {
    unsigned char addresses[RANKS][DDL_ADDRESS_MAX];
    size_t lengths[RANKS];
    atomic_int ready, full;
} shared;

static bool write_file(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY);
    bool ok = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);
    if (fd >= 0)
        close(fd);
    return ok;
}

static bool make_namespace(void)
{
    struct ifreq lo = {.ifr_name = "lo", .ifr_flags = IFF_UP | IFF_RUNNING};
    char backlog[16];
    snprintf(backlog, sizeof backlog, "%d", BACKLOG);
    if (unshare(CLONE_NEWNET) && unshare(CLONE_NEWUSER | CLONE_NEWNET))
        return false;
    int fd = socket(AF_INET, SOCK_DGRAM, 0);
    bool up = fd >= 0 && !ioctl(fd, SIOCSIFFLAGS, &lo);
    close(fd);
    return up && write_file("/proc/sys/net/core/somaxconn", backlog);
}

static void await(const atomic_int *what, int value)
{
    for (double end = seconds() + 30; atomic_load(what) < value; usleep(200))
        CHECK(seconds() < end, "the other side does not come");
}

static int member(shared *s, int rank)
{
    ddl_endpoint *endpoint;
    ddl_comm *comm;
    const void *addresses[RANKS] = {s->addresses[0], s->addresses[1]};
    ddl_comm_config config = {.struct_size = sizeof config, .timeout_ms = LIMIT_MS};
    OK(ddl_endpoint_create(NULL, &endpoint));
    OK(ddl_endpoint_address(endpoint, s->addresses[rank], DDL_ADDRESS_MAX, &s->lengths[rank]));
    atomic_fetch_add(&s->ready, 1);
    await(rank ? &s->full : &s->ready, rank ? 1 : RANKS);
    OK(ddl_comm_create(endpoint, addresses, s->lengths, rank, RANKS, &config, &comm));
    bool shares = ddl__engine_links(comm->engine)[!rank]->shared;
    OK(ddl_barrier(comm, NULL, NULL));
    ddl_comm_destroy(comm);
    ddl_endpoint_destroy(endpoint);
    return shares ? 0 : 2;
}

/* Open connections until there is no room for another one. Return their number. */
static int fill(const ddl__address *address, int *fds, int most)
{
    struct sockaddr_storage to;
    socklen_t length = ddl__address_unix(&address->endpoint, &to);
    int n = 0;
    while (n < most && (fds[n] = ddl__dial((struct sockaddr *)&to, length, 0)) >= 0)
        n++;
    CHECK(n < most && errno == ETIMEDOUT, "%d connections, then %s", n, strerror(errno));
    return n;
}

int main(void)
{
    int fds[16 * BACKLOG], status;
    pid_t pids[RANKS];
    ddl__address address;
    ddl__interface ips[DDL__INTERFACES_MAX];
    if (!make_namespace())
        return 77;
    shared *s = map_shared(sizeof *s);
    for (int rank = 0; rank < RANKS; rank++)
        if (!(pids[rank] = fork()))
            _exit(member(s, rank));
    await(&s->ready, RANKS);
    kill(pids[0], SIGSTOP);
    CHECK(waitpid(pids[0], &status, WUNTRACED) == pids[0] && WIFSTOPPED(status), "not stopped");
    OK(ddl__address_decode(&address, ips, s->addresses[0], s->lengths[0]));
    int n = fill(&address, fds, sizeof fds / sizeof *fds);
    atomic_store(&s->full, 1);
    usleep(BLOCKED_MS * 1000);
    kill(pids[0], SIGCONT);
    for (int rank = 0; rank < RANKS; rank++) {
        CHECK(waitpid(pids[rank], &status, 0) == pids[rank], "waitpid");
        CHECK(status == 0, "rank %d ended with %x: 200 means no shared memory", rank,
              (unsigned)status);
    }
    for (int i = 0; i < n; i++)
        close(fds[i]);
}
