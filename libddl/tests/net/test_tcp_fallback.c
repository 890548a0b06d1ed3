/* SPDX-License-Identifier: Apache-2.0 */
/* If the system allows no memory files, no large files or no unix sockets, ranks on one host use
 * TCP, and one line of the log has the reason. */
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/syscall.h>

#include "processes.h"

enum { RANKS = 3, LIMIT_S = 60, TEXT = 8192 };

static bool filter(int call, bool by_argument, unsigned argument, unsigned error)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)call, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[0])),
        BPF_JUMP(BPF_JMP | (by_argument ? BPF_JEQ : BPF_JGE) | BPF_K, by_argument ? argument : 0, 0,
                 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof code / sizeof *code, code};
    return !prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) &&
           !prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

static bool no_memfd(void)
{
    return filter(SYS_memfd_create, false, 0, ENOSYS);
}

static bool no_unix_sockets(void)
{
    return filter(SYS_socket, true, AF_UNIX, EAFNOSUPPORT);
}

static bool small_files(void)
{
    struct rlimit limit = {1 << 20, RLIM_INFINITY};
    return !setrlimit(RLIMIT_FSIZE, &limit);
}

typedef bool restrict_fn(void);

static int run(restrict_fn *restrict_process, const char *url, int rank, uint32_t links)
{
    int32_t value = 1;
    ddl_endpoint *endpoint;
    ddl_comm *comm;
    ddl_comm_config config = {
        .struct_size = sizeof config, .links = links, .timeout_ms = LIMIT_S * 1000};
    if (!restrict_process())
        return 77;
    OK(ddl_endpoint_create(NULL, &endpoint));
    ddl_status status = ddl_rendezvous(endpoint, url, rank, RANKS, &config, &comm);
    if (links == DDL_LINK_SHM) { /* some ranks get the error from others, in a shorter form */
        CHECK(status == DDL_ESYSTEM, "rank %d: %d %s", rank, status, ddl_last_error());
        return 0;
    }
    CHECK(status == DDL_OK, "rank %d: %s", rank, ddl_last_error());
    CHECK(ddl_comm_local_size(comm) == 1, "memory is shared");
    OK(ddl_allreduce(comm, &value, &value, 1, DDL_I32, DDL_SUM, NULL, NULL));
    CHECK(value == RANKS, "%d", value);
    ddl_comm_destroy(comm);
    ddl_endpoint_destroy(endpoint);
    return 0;
}

static bool no_limit(void)
{
    return true;
}

/* Run ranks of which the first `restricted` ones are restricted, and collect their stderr. Return
 * false if a process cannot be restricted here. */
static bool run_ranks(restrict_fn *restrict_process, int restricted, uint32_t links, char *said)
{
    char url[64];
    int out[2], status;
    pid_t pids[RANKS];
    bool ran = true;
    snprintf(url, sizeof url, "tcp://127.0.0.1:%d", free_port());
    CHECK(!pipe(out), "pipe");
    fflush(NULL);
    for (int rank = 0; rank < RANKS; rank++)
        if (!(pids[rank] = fork())) {
            dup2(out[1], STDERR_FILENO);
            _exit(run(rank < restricted ? restrict_process : no_limit, url, rank, links));
        }
    close(out[1]);
    size_t n = 0;
    for (ssize_t k; n < TEXT - 1 && (k = read(out[0], said + n, TEXT - 1 - n)) > 0;)
        n += (size_t)k;
    said[n] = 0;
    close(out[0]);
    for (int rank = 0; rank < RANKS; rank++) {
        CHECK(waitpid(pids[rank], &status, 0) == pids[rank], "waitpid");
        ran = ran && !(WIFEXITED(status) && WEXITSTATUS(status) == 77);
        CHECK(!ran || !status, "rank %d ended with %x: %s", rank, (unsigned)status, said);
    }
    return ran;
}

static unsigned count(const char *text, const char *words)
{
    unsigned n = 0;
    for (const char *at = text; (at = strstr(at, words)); at++)
        n++;
    return n;
}

int main(void)
{
    static const struct {
        const char *name;
        restrict_fn *fn;
        const char *words;
    } cases[] = {{"ulimit -f", small_files, "ulimit -f"},
                 {"no memfd", no_memfd, "memfd_create"},
                 {"no unix sockets", no_unix_sockets, "unix socket"}};
    static char said[TEXT];
    unsigned ran = 0;
    setenv("DDL_LOG", "warn", 1);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        for (int restricted = RANKS - 1; restricted <= RANKS; restricted++) {
            if (!run_ranks(cases[i].fn, restricted, 0, said))
                continue;
            unsigned lines = count(said, cases[i].words), all = count(said, "\n");
            printf("%s, %d of %d ranks: %u lines say so, of %u\n", cases[i].name, restricted, RANKS,
                   lines, all);
            CHECK(lines == (unsigned)restricted, "%s", said);
            ran++;
        }
        run_ranks(cases[i].fn, RANKS, DDL_LINK_SHM, said);
    }
    return ran ? 0 : 77;
}
