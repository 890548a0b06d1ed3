/* SPDX-License-Identifier: Apache-2.0 */
#include "net/socket.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/time_limits.h"

bool ddl__await(int fd, short events, int64_t deadline)
{
    for (;;) {
        int64_t left = deadline == DDL__NEVER ? 3600000 : (deadline - ddl__now()) / 1000000 + 1;
        struct pollfd p = {.fd = fd, .events = events};
        int n = left > 0 ? poll(&p, 1, left < 3600000 ? (int)left : 3600000) : 0;
        if (n > 0)
            return true;
        if (n < 0 && errno != EINTR)
            return false;
        if (ddl__now() >= deadline) {
            errno = ETIMEDOUT;
            return false;
        }
    }
}

bool ddl__await_until(int fd, short events, const ddl__until *until, ddl_status *status)
{
    *status = DDL_OK;
    for (;;) {
        int64_t now = ddl__now(), check_at = now + DDL__MEMBERS_POLL;
        if (ddl__await(fd, events, check_at < until->deadline ? check_at : until->deadline))
            return true;
        if (errno != ETIMEDOUT || ddl__now() >= until->deadline)
            return false;
        if ((*status = ddl__until_check(until)) != DDL_OK) {
            errno = ECANCELED;
            return false;
        }
    }
}

void ddl__await_awake(int fd, short events)
{
    struct pollfd p = {.fd = fd, .events = events};
    int64_t end = ddl__now() + DDL__AWAKE_LIMIT;
    while (poll(&p, 1, 0) == 0 && ddl__now() < end)
        sched_yield();
}

bool ddl__try_again(int fd, short events, int64_t deadline)
{
    if (errno == EAGAIN || errno == EWOULDBLOCK)
        return ddl__await(fd, events, deadline);
    return errno == EINTR;
}

int ddl__dial(const struct sockaddr *address, socklen_t length, int64_t deadline)
{
    return ddl__dial_from(NULL, address, length, deadline);
}

/* Connect, or start to connect. If the backlog of a unix listener is full, repeat the attempt until
 * the deadline, because no event reports that there is room again. */
static int start_connect(int fd, const struct sockaddr *address, socklen_t length, int64_t deadline)
{
    const struct timespec pause = {.tv_nsec = 1000 * 1000};
    while (connect(fd, address, length)) {
        if (errno != EAGAIN || address->sa_family != AF_UNIX)
            return errno;
        if (ddl__now() >= deadline)
            return ETIMEDOUT;
        nanosleep(&pause, NULL);
    }
    return 0;
}

/* Return true if the socket is connected to itself. The kernel may pick the dialed port as local
 * port while no process listens there; TCP then connects the socket to itself. */
static bool is_own_end(int fd)
{
    struct sockaddr_storage ends[2];
    socklen_t lengths[2] = {sizeof ends[0], sizeof ends[1]};
    memset(ends, 0, sizeof ends);
    return !getsockname(fd, (struct sockaddr *)&ends[0], &lengths[0]) &&
           !getpeername(fd, (struct sockaddr *)&ends[1], &lengths[1]) &&
           ends[0].ss_family != AF_UNIX && lengths[0] == lengths[1] &&
           !memcmp(&ends[0], &ends[1], lengths[0]);
}

/* Closing the socket then resets the connection, and TIME_WAIT, during which no process could
 * listen on the port, is skipped. */
void ddl__skip_time_wait(int fd)
{
    struct linger at_once = {.l_onoff = 1};
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
}

static void drop_connection(int fd)
{
    ddl__skip_time_wait(fd);
    close(fd);
}

int ddl__dial_error(int fd)
{
    int error = 0;
    socklen_t size = sizeof error;
    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size))
        return errno;
    return !error && is_own_end(fd) ? ECONNREFUSED : error;
}

bool ddl__dial_is_answer(int error)
{
    return error == 0 || error == ECONNREFUSED || error == ECONNRESET;
}

bool ddl__dial_is_own_error(int error)
{
    return error == EMFILE || error == ENFILE || error == ENOMEM || error == ENOBUFS;
}

/* Return a socket that is connected, or connecting (*error is EINPROGRESS); -1 with *error on
 * failure. */
static int dial_begin(const struct sockaddr *from, const struct sockaddr *address, socklen_t length,
                      int64_t deadline, int *error)
{
    int fd = socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    int late = 1;
    *error = errno;
    if (fd < 0)
        return -1;
    /* Bind the address only: the kernel picks the port when the peer is known. */
    if (from)
        setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &late, sizeof late);
    *error = from && bind(fd, from, length) ? errno : start_connect(fd, address, length, deadline);
    if (*error == EINTR)
        *error = EINPROGRESS;
    if (*error == 0 || *error == EINPROGRESS)
        return fd;
    drop_connection(fd);
    return -1;
}

int ddl__dial_begin(const struct sockaddr *from, const struct sockaddr *address, socklen_t length)
{
    int error, fd = dial_begin(from, address, length, 0, &error);
    if (fd < 0)
        errno = error;
    return fd;
}

int ddl__dial_from(const struct sockaddr *from, const struct sockaddr *address, socklen_t length,
                   int64_t deadline)
{
    ddl__until until = {.deadline = deadline};
    ddl_status status;
    return ddl__dial_until(from, address, length, &until, &status);
}

int ddl__dial_until(const struct sockaddr *from, const struct sockaddr *address, socklen_t length,
                    const ddl__until *until, ddl_status *status)
{
    int error, fd = dial_begin(from, address, length, until->deadline, &error);
    *status = DDL_OK;
    if (error == EINPROGRESS)
        error = ddl__await_until(fd, POLLOUT, until, status) ? 0 : errno;
    if (error == 0)
        error = ddl__dial_error(fd);
    if (error == 0)
        return fd;
    if (fd >= 0)
        drop_connection(fd);
    errno = error;
    return -1;
}

int ddl__listen_at(const struct sockaddr *address, socklen_t length)
{
    int fd = socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -1;
    int on = 1, off = 0;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (address->sa_family == AF_INET6)
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    if (!bind(fd, address, length) && !listen(fd, SOMAXCONN))
        return fd;
    int error = errno;
    close(fd);
    errno = error;
    return -1;
}

uint16_t ddl__socket_port(int fd)
{
    struct sockaddr_storage bound = {0};
    socklen_t length = sizeof bound;
    getsockname(fd, (struct sockaddr *)&bound, &length);
    return ntohs(bound.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&bound)->sin6_port
                                             : ((struct sockaddr_in *)&bound)->sin_port);
}

void ddl__socket_ip(int fd, bool peer, char ip[INET6_ADDRSTRLEN])
{
    struct sockaddr_storage end = {0};
    socklen_t length = sizeof end;
    if (peer)
        getpeername(fd, (struct sockaddr *)&end, &length);
    else
        getsockname(fd, (struct sockaddr *)&end, &length);
    const void *bytes = end.ss_family == AF_INET6
                            ? (const void *)&((struct sockaddr_in6 *)&end)->sin6_addr
                            : (const void *)&((struct sockaddr_in *)&end)->sin_addr;
    if (!inet_ntop(end.ss_family, bytes, ip, INET6_ADDRSTRLEN))
        strcpy(ip, "?");
}

int ddl__listen(const char *host, uint16_t *port)
{
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons(*port)};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = htons(*port)};
    int fd = -1;
    if (host && inet_pton(AF_INET, host, &v4.sin_addr) != 1 &&
        inet_pton(AF_INET6, host, &v6.sin6_addr) != 1) {
        ddl__fail(DDL_EINVAL, "host \"%s\" is not an IP address", host);
        return -1;
    }
    if (!host || strchr(host, ':'))
        fd = ddl__listen_at((struct sockaddr *)&v6, sizeof v6);
    /* IPv4 was requested, or the host does not support IPv6 */
    if (fd < 0 && (!host || !strchr(host, ':')))
        fd = ddl__listen_at((struct sockaddr *)&v4, sizeof v4);
    if (fd < 0)
        ddl__fail(DDL_ESYSTEM, "cannot listen on port %u of %s: %s", *port,
                  host ? host : "all addresses", strerror(errno));
    else
        *port = ddl__socket_port(fd);
    return fd;
}

bool ddl__send_all(int fd, const void *bytes, size_t n, int64_t deadline)
{
    return ddl__send_with_fds(fd, bytes, n, NULL, 0, deadline);
}

bool ddl__send_with_fd(int fd, const void *bytes, size_t n, int passed, int64_t deadline)
{
    return ddl__send_with_fds(fd, bytes, n, &passed, passed >= 0, deadline);
}

/* Room for descriptors, aligned as the kernel requires. */
typedef union control {
    struct cmsghdr align;
    char bytes[CMSG_SPACE(DDL__PASSED_MAX * sizeof(int))];
} control;

bool ddl__send_with_fds(int fd, const void *bytes, size_t n, const int *passed, unsigned n_passed,
                        int64_t deadline)
{
    const char *at = bytes;
    while (n) {
        struct iovec iov = {.iov_base = (void *)at, .iov_len = n};
        control room = {0};
        struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1};
        if (n_passed) {
            message.msg_control = room.bytes;
            message.msg_controllen = CMSG_SPACE(n_passed * sizeof *passed);
            struct cmsghdr *c = CMSG_FIRSTHDR(&message);
            c->cmsg_level = SOL_SOCKET;
            c->cmsg_type = SCM_RIGHTS;
            c->cmsg_len = CMSG_LEN(n_passed * sizeof *passed);
            memcpy(CMSG_DATA(c), passed, n_passed * sizeof *passed);
        }
        ssize_t k = sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (k > 0) {
            at += k;
            n -= (size_t)k;
            n_passed = 0;
        } else if (!ddl__try_again(fd, POLLOUT, deadline)) {
            return false;
        }
    }
    return true;
}

/* Keep a received descriptor, if there is room. */
static void keep_passed(int received, int *passed, unsigned n_passed)
{
    unsigned i = 0;
    while (i < n_passed && passed[i] >= 0)
        i++;
    if (i < n_passed)
        passed[i] = received;
    else
        close(received);
}

/* Receive without blocking. */
static ssize_t recv_some(int fd, void *bytes, size_t n, int *passed, unsigned n_passed)
{
    struct iovec iov = {.iov_base = bytes, .iov_len = n};
    control room = {0};
    /* Leave out the padding, in which the kernel would store one more descriptor. */
    struct msghdr message = {.msg_iov = &iov,
                             .msg_iovlen = 1,
                             .msg_control = n_passed ? room.bytes : NULL,
                             .msg_controllen = n_passed ? CMSG_LEN(n_passed * sizeof(int)) : 0};
    ssize_t k = recvmsg(fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (k <= 0)
        return k;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(&message); c; c = CMSG_NXTHDR(&message, c))
        for (size_t at = 0; c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS &&
                            c->cmsg_len >= CMSG_LEN(at + sizeof(int));
             at += sizeof(int)) {
            int received;
            memcpy(&received, CMSG_DATA(c) + at, sizeof received);
            keep_passed(received, passed, n_passed);
        }
    return k;
}

bool ddl__recv_with_fds(int fd, void *bytes, size_t n, int *passed, unsigned n_passed,
                        int64_t deadline)
{
    char *at = bytes;
    while (n) {
        ssize_t k = recv_some(fd, at, n, passed, n_passed);
        if (k > 0) {
            at += k;
            n -= (size_t)k;
        } else if (k == 0) {
            errno = ECONNRESET;
            return false;
        } else if (!ddl__try_again(fd, POLLIN, deadline)) {
            return false;
        }
    }
    return true;
}

bool ddl__recv_all(int fd, void *bytes, size_t n, int64_t deadline)
{
    return ddl__recv_with_fds(fd, bytes, n, NULL, 0, deadline);
}

bool ddl__recv_with_fd(int fd, void *bytes, size_t n, int *passed, int64_t deadline)
{
    return ddl__recv_with_fds(fd, bytes, n, passed, 1, deadline);
}

ssize_t ddl__peek_some(int fd, void *bytes, size_t n, bool *along)
{
    struct iovec iov = {.iov_base = bytes, .iov_len = n};
    struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1};
    ssize_t k = recvmsg(fd, &message, MSG_DONTWAIT | MSG_PEEK);
    *along = k > 0 && message.msg_flags & MSG_CTRUNC; /* a descriptor is attached */
    return k;
}

bool ddl__has_ended(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLRDHUP};
    return poll(&p, 1, 0) > 0 && p.revents & (POLLRDHUP | POLLHUP | POLLERR);
}

static bool other_end(int fd, struct ucred *who)
{
    socklen_t length = sizeof *who;
    return !getsockopt(fd, SOL_SOCKET, SO_PEERCRED, who, &length);
}

bool ddl__same_user(int fd)
{
    struct ucred who;
    return other_end(fd, &who) && who.uid == geteuid();
}

bool ddl__same_process(int fd)
{
    struct ucred who;
    return other_end(fd, &who) && who.pid == getpid();
}
