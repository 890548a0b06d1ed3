/* SPDX-License-Identifier: Apache-2.0 */
/* The evidence that a process has exited, for survivors that may continue only if it has: a member
 * on its host that saw it exit, or the launcher, which this program plays. Without evidence the
 * network may have closed the connection, and the vote decides. Ranks are processes over TCP. */
#include <sys/un.h>

#include "processes.h"

static const ddl_comm_config config = {.struct_size = sizeof config, .timeout_ms = 30000};

/* --------------------------------------------------------------------------------- the launcher */

typedef struct record {
    char what[8];
    unsigned char endpoint[16];
} record;

typedef struct launcher {
    int listener, n, ended; /* n: connections; ended: processes whose exit was reported */
    int fds[PROCESSES_MAX];
    record known[PROCESSES_MAX], continued[PROCESSES_MAX];
} launcher;

static void listen_as_witness(launcher *l)
{
    char name[40];
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    snprintf(name, sizeof name, "test-evidence-%d-%d", getpid(), l->ended);
    memcpy(at.sun_path + 1, name, strlen(name));
    l->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    socklen_t length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(name));
    CHECK(l->listener >= 0 && !bind(l->listener, (struct sockaddr *)&at, length) &&
              !listen(l->listener, PROCESSES_MAX),
          "no listener");
    setenv("DDL_WITNESS", name, 1);
}

static void drop_connection(launcher *l, int i)
{
    close(l->fds[i]);
    l->fds[i] = l->fds[--l->n];
    l->known[i] = l->known[l->n];
    l->continued[i] = l->continued[l->n];
}

/* Report that the process has exited: the kernel has closed its connection without a last
 * message. */
static void report_end(launcher *l, int i)
{
    record reports[] = {l->continued[i], l->known[i]};
    size_t first = reports[0].what[0] ? 0 : 1, bytes = (2 - first) * sizeof *reports;
    memcpy(reports[1].what, "ddlended", sizeof reports[1].what);
    drop_connection(l, i);
    l->ended++;
    for (int other = 0; other < l->n; other++)
        CHECK(send(l->fds[other], &reports[first], bytes, MSG_NOSIGNAL) == (ssize_t)bytes, "send");
}

static void serve_one(launcher *l, int i)
{
    record said;
    ssize_t n = recv(l->fds[i], &said, sizeof said, MSG_WAITALL);
    if (n <= 0)
        report_end(l, i);
    else if (n == sizeof said && !memcmp(said.what, "ddlwitn1", sizeof said.what))
        l->known[i] = said;
    else if (n == sizeof said && !memcmp(said.what, "ddlcontn", sizeof said.what))
        l->continued[i] = said;
    else if (n == sizeof said && !memcmp(said.what, "ddlleave", sizeof said.what))
        drop_connection(l, i);
    else
        CHECK(false, "%zd bytes: %.8s", n, said.what);
}

static void serve(launcher *l)
{
    struct pollfd polls[PROCESSES_MAX + 1] = {{.fd = l->listener, .events = POLLIN}};
    for (int i = 0; i < l->n; i++)
        polls[i + 1] = (struct pollfd){.fd = l->fds[i], .events = POLLIN};
    if (poll(polls, (nfds_t)l->n + 1, 10) <= 0)
        return;
    for (int i = l->n;
         i-- > 0;) /* backwards, because a closed connection is replaced by the last one */
        if (polls[i + 1].revents)
            serve_one(l, i);
    if (polls[0].revents) {
        l->continued[l->n] = (record){.what = ""};
        l->fds[l->n++] = accept(l->listener, NULL, NULL);
    }
}

/* ------------------------------------------------------------------------------------ the ranks */

typedef struct scene {
    const char *name;
    int size;
    unsigned dies;   /* ranks that die, as bits */
    unsigned remote; /* ranks that share memory with no other */
    bool witness;
    ddl_status want; /* status of the survivors' shrink */
} scene;

static int run_rank(const scene *s, const char *url, int rank)
{
    ddl_comm_config own = config;
    ddl_endpoint *endpoint;
    ddl_comm *comm, *next = NULL;
    setenv("DDL_LINKS", s->remote >> rank & 1 ? "tcp" : "shm,tcp", 1);
    OK(ddl_endpoint_create(NULL, &endpoint));
    OK(ddl_rendezvous(endpoint, url, rank, s->size, &own, &comm));
    OK(ddl_barrier(comm, NULL, NULL));
    ddl_status status = ddl_barrier(comm, NULL, NULL); /* all ranks have passed the first barrier */
    if (s->dies >> rank & 1)
        kill(getpid(), SIGKILL);
    double start = seconds();
    while (status == DDL_OK)
        status = ddl_barrier(comm, NULL, NULL);
    CHECK(status == DDL_EPEER, "%d %s", status, ddl_last_error());
    status = ddl_comm_shrink(comm, &config, &next);
    printf("    %s: rank %d: %d %s after %.3f s\n", s->name, rank, status,
           status ? ddl_last_error() : "", seconds() - start);
    CHECK(status == s->want, "rank %d got %d %s", rank, status, ddl_last_error());
    int left = s->size - __builtin_popcount(s->dies);
    CHECK(!next || ddl_comm_size(next) == left, "%d are left", ddl_comm_size(next));
    if (next)
        OK(ddl_barrier(next, NULL, NULL));
    ddl_comm_destroy(next);
    ddl_comm_destroy(comm);
    ddl_endpoint_destroy(endpoint);
    fflush(stdout);
    return 0;
}

static void run_scene(const scene *s)
{
    char url[64];
    pid_t pids[PROCESSES_MAX];
    launcher l = {.listener = -1};
    unsetenv("DDL_WITNESS");
    if (s->witness)
        listen_as_witness(&l);
    snprintf(url, sizeof url, "tcp://127.0.0.1:%d", free_port());
    fflush(NULL);
    for (int rank = 0; rank < s->size; rank++) {
        pids[rank] = fork();
        CHECK(pids[rank] >= 0, "fork");
        if (!pids[rank])
            exit(run_rank(s, url, rank));
    }
    for (int left = s->size; left;) {
        int status;
        serve(&l);
        for (int rank = 0; rank < s->size; rank++) {
            if (!pids[rank] || waitpid(pids[rank], &status, WNOHANG) != pids[rank])
                continue;
            bool killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
            CHECK(s->dies >> rank & 1 ? killed : status == 0, "%s: rank %d ended with %x", s->name,
                  rank, (unsigned)status);
            pids[rank] = 0;
            left--;
        }
    }
    while (l.n)
        serve(&l);
    CHECK(!s->witness || l.ended == __builtin_popcount(s->dies), "%d ends were told, not %d",
          l.ended, __builtin_popcount(s->dies));
    close(l.listener);
}

/* In each scene half of the members die, including the lowest rank. */
static const scene scenes[] = {
    {"no witness", 2, 1, 3, false, DDL_EMINORITY},
    {"the launcher saw it", 2, 1, 3, true, DDL_OK},
    {"a member on its host saw it", 4, 3, 4, false, DDL_OK},
};

int main(void)
{
    setenv("DDL_LOG", "off", 0); /* the comms die on purpose */
    alarm(120);
    for (size_t i = 0; i < sizeof scenes / sizeof *scenes; i++)
        run_scene(&scenes[i]);
}
