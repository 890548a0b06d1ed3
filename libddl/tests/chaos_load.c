/* SPDX-License-Identifier: Apache-2.0 */
/* Loads for tests/chaos/run.py.
 *
 *     chaos_load probe                          measure how late this machine wakes a sleeper
 *     chaos_load garbage SECONDS HOST PORT...   send garbage over 50 connections
 *     chaos_load discard                        read and drop everything at a port
 *
 * Lines on stdout: probe: NANOSECONDS DELAY, if it was late; discard: PORT; garbage: BYTES. */
#include "processes.h"

enum { CONNECTIONS = 50, PIECE = 4096, LATE_NS = 2000000 };

static int64_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void probe(void)
{
    for (;;) {
        int64_t before = now();
        usleep(2000);
        int64_t after = now(), late = after - before - 2000000;
        if (late > LATE_NS) {
            printf("%lld %lld\n", (long long)after, (long long)late);
            fflush(stdout);
        }
    }
}

/* -------------------------------------------------------------------------------------- garbage */

static uint64_t state = 88172645463325252u;

static uint64_t draw(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

/* Fill a piece with one of several kinds: noise, zeros, another protocol, or the start of a
 * hello. */
static void fill(unsigned char *piece, unsigned kind)
{
    static const char request[] = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
    memset(piece, 0, PIECE);
    switch (kind % 4) {
    case 0:
        for (int i = 0; i < PIECE; i += 8)
            memcpy(piece + i, &(uint64_t){draw()}, 8);
        break;
    case 1: break;
    case 2: memcpy(piece, request, sizeof request); break;
    case 3:
        memcpy(piece, "hddl\3\0\0\0", 8);
        memcpy(piece + 8, &(uint64_t){draw()}, 8);
        break;
    }
}

static int open_to(const struct sockaddr_in *to)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    if (fd >= 0 && connect(fd, (const struct sockaddr *)to, sizeof *to) && errno != EINPROGRESS) {
        close(fd);
        fd = -1;
    }
    return fd;
}

/* Send garbage. Each connection sends a piece every hundredth of a second, and is replaced after
 * ten pieces however they are received: so the load is the same for peers that hang up and peers
 * that read. */
static int garbage(double limit, const char *host, char **ports, int n_ports)
{
    enum { PIECES = 10 };
    static unsigned char piece[PIECE];
    struct sockaddr_in to[16];
    int fds[CONNECTIONS], next = 0;
    uint64_t bytes = 0;
    for (int i = 0; i < n_ports && i < 16; i++) {
        to[i] = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(atoi(ports[i]))};
        CHECK(inet_pton(AF_INET, host, &to[i].sin_addr) == 1, "%s", host);
    }
    for (int i = 0; i < CONNECTIONS; i++)
        fds[i] = -1;
    double end = seconds() + limit;
    for (int tick = 0; seconds() < end; tick++, usleep(10000))
        for (int i = 0; i < CONNECTIONS; i++) {
            if ((tick + i) % PIECES == 0) {
                close(fds[i]);
                fds[i] = open_to(&to[next++ % n_ports]);
            }
            fill(piece, (unsigned)draw());
            ssize_t sent = send(fds[i], piece, PIECE, MSG_NOSIGNAL | MSG_DONTWAIT);
            bytes += sent > 0 ? (uint64_t)sent : 0;
        }
    printf("%llu\n", (unsigned long long)bytes);
    return 0;
}

static void discard(void)
{
    static char rest[1 << 16];
    struct pollfd fds[2 * CONNECTIONS] = {{.events = POLLIN}};
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof a;
    nfds_t n = 1;
    fds[0].fd = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(!bind(fds[0].fd, (struct sockaddr *)&a, sizeof a) && !listen(fds[0].fd, 128), "bind");
    CHECK(!getsockname(fds[0].fd, (struct sockaddr *)&a, &length), "getsockname");
    printf("%d\n", ntohs(a.sin_port));
    fflush(stdout);
    for (;;) {
        poll(fds, n, -1);
        for (nfds_t i = n - 1; i > 0; i--)
            if (fds[i].revents && recv(fds[i].fd, rest, sizeof rest, MSG_DONTWAIT) <= 0) {
                close(fds[i].fd);
                fds[i] = fds[--n];
            }
        if (fds[0].revents && n < 2 * CONNECTIONS)
            fds[n++] = (struct pollfd){.fd = accept(fds[0].fd, NULL, NULL), .events = POLLIN};
    }
}

int main(int argc, char **argv)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (argc == 2 && !strcmp(argv[1], "probe"))
        probe();
    if (argc == 2 && !strcmp(argv[1], "discard"))
        discard();
    CHECK(argc > 4 && !strcmp(argv[1], "garbage"), "see the top of %s", __FILE__);
    return garbage(atof(argv[2]), argv[3], argv + 4, argc - 4);
}
