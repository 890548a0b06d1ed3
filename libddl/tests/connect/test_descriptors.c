/* SPDX-License-Identifier: Apache-2.0 */
/* A process runs out of descriptors: it warns once, does not keep a core busy meanwhile, and
 * accepts connections again when descriptors are free. */
#include "base/clock.h"
#include "connect/endpoint/endpoint.h"
#include "net/socket.h"
#include "processes.h"

enum { LIMIT = 64, CALLERS = 40, SHORT_MS = 1500, LIMIT_MS = 20000, TEXT = 1 << 16 };

static double cpu_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static unsigned take_all(int *fds)
{
    unsigned n = 0;
    while (n < LIMIT && (fds[n] = open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0)
        n++;
    return n;
}

/* The endpoint's process: no descriptor is free while clients connect; later some are. */
static int run_out(int told, int go)
{
    int fds[LIMIT];
    char byte;
    struct rlimit limit;
    ddl_endpoint *endpoint;
    CHECK(!getrlimit(RLIMIT_NOFILE, &limit), "getrlimit");
    limit.rlim_cur = LIMIT;
    CHECK(!setrlimit(RLIMIT_NOFILE, &limit), "setrlimit");
    OK(ddl_endpoint_create(NULL, &endpoint));
    unsigned char address[DDL_ADDRESS_MAX];
    size_t length;
    OK(ddl_endpoint_address(endpoint, address, sizeof address, &length));
    unsigned n = take_all(fds);
    CHECK(write(told, address, length) == (ssize_t)length, "write");
    CHECK(read(go, &byte, 1) == 1, "read");
    double before = cpu_seconds();
    usleep(SHORT_MS * 1000);
    double used = cpu_seconds() - before;
    CHECK(used < 0.3e-3 * SHORT_MS, "%g s of a core in %d ms", used, SHORT_MS);
    for (unsigned i = 0; i < n; i++)
        close(fds[i]);
    CHECK(read(go, &byte, 1) == 1, "read"); /* until the clients were answered */
    ddl_endpoint_destroy(endpoint);
    return 0;
}

/* Send a hello, and check that it is answered. */
static void check_answered(int fd, const ddl__address *address)
{
    ddl__job job = {.crypto = NULL};
    ddl__hello hello = ddl__hello_begin(&job, DDL__CONN_TCP, 1, 0, 2), answer;
    hello.endpoint = address->endpoint;
    CHECK(ddl__send_all(fd, &hello, sizeof hello, ddl__deadline(LIMIT_MS)) &&
              ddl__recv_all(fd, &answer, sizeof answer, ddl__deadline(LIMIT_MS)),
          "no answer: %s", strerror(errno));
    CHECK(answer.status == DDL_INPROGRESS, "refused: %s", answer.text);
}

int main(void)
{
    static char said[TEXT];
    int fds[CALLERS], told[2], go[2], err[2], status;
    unsigned char bytes[DDL_ADDRESS_MAX];
    ddl__interface ips[DDL__INTERFACES_MAX];
    ddl__address address;
    struct sockaddr_storage to;
    setenv("DDL_LOG", "warn", 1);
    CHECK(!pipe(told) && !pipe(go) && !pipe(err), "pipe");
    pid_t child = fork();
    if (!child) {
        dup2(err[1], STDERR_FILENO);
        _exit(run_out(told[1], go[0]));
    }
    close(err[1]);
    ssize_t length = read(told[0], bytes, sizeof bytes);
    OK(ddl__address_decode(&address, ips, bytes, length < 0 ? 0 : (size_t)length));
    for (int i = 0; i < CALLERS; i++) {
        socklen_t size =
            i % 2 ? ddl__address_unix(&address.endpoint, &to) : ddl__address_ip(&address, 0, &to);
        fds[i] = ddl__dial((struct sockaddr *)&to, size, ddl__deadline(LIMIT_MS));
        CHECK(fds[i] >= 0, "%s", strerror(errno));
    }
    CHECK(write(go[1], "x", 1) == 1, "write");
    check_answered(fds[0], &address);
    CHECK(write(go[1], "x", 1) == 1, "write");
    size_t n = 0;
    for (ssize_t k; n < TEXT - 1 && (k = read(err[0], said + n, TEXT - 1 - n)) > 0;)
        n += (size_t)k;
    CHECK(waitpid(child, &status, 0) == child && !status, "%x: %s", (unsigned)status, said);
    unsigned lines = 0;
    for (const char *at = said; (at = strchr(at, '\n')); at++)
        lines++;
    CHECK(lines == 1 && strstr(said, "ulimit -n"), "%u lines: %s", lines, said);
}
