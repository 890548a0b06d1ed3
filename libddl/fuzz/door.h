/* door.h - coming to an endpoint as a stranger: raw connections, right hellos, descriptors beside
 * the bytes, and a count of what is left open. */
#ifndef DDL_FUZZ_DOOR_H
#define DDL_FUZZ_DOOR_H

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "base/clock.h"
#include "comm/endpoint.h"
#include "input.h"
#include "net/socket.h"

enum { FDS = 128, PASSED_MAX = 3 };

static const int64_t PATIENCE_NS = 5 * 1000000000ll;

static inline unsigned count_fds(void)
{
    unsigned n = 0;
    for (int fd = 0; fd < FDS; fd++)
        n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

/* The fuzzer opens files of its own between two inputs. */
static inline void check_clean(unsigned before)
{
    int64_t deadline = ddl__now() + PATIENCE_NS;
    for (; count_fds() != before; usleep(20))
        REQUIRE(ddl__now() < deadline, "%u descriptors, and %u before", count_fds(), before);
}

/* Rank 1 of 2 comes to rank 0. */
static inline ddl__hello right_hello(const ddl_endpoint *endpoint, ddl__digest comm, uint8_t door)
{
    ddl__hello hello;
    memset(&hello, 0, sizeof hello);
    hello.magic = DDL__HELLO_MAGIC;
    hello.protocol = DDL__PROTOCOL;
    hello.door = door;
    hello.from = 1;
    hello.size = 2;
    hello.job = ddl__endpoint_job(endpoint);
    hello.endpoint = ddl__endpoint_address(endpoint)->endpoint;
    hello.comm = comm;
    return hello;
}

/* The endpoint listens at one IP address. */
static inline int dial(const ddl_endpoint *endpoint, bool local)
{
    const ddl__address *address = ddl__endpoint_address(endpoint);
    struct sockaddr_storage to;
    socklen_t length =
        local ? ddl__address_unix(&address->endpoint, &to) : ddl__address_ip(address, 0, &to);
    int fd = ddl__dial((struct sockaddr *)&to, length, ddl__now() + PATIENCE_NS);
    REQUIRE(fd >= 0, "the endpoint does not answer: %s", strerror(errno));
    return fd;
}

/* Send bytes with descriptors beside them; false when the endpoint has hung up. */
static inline bool send_piece(int fd, const void *bytes, size_t n, int passed, unsigned times)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(PASSED_MAX * sizeof(int))];
    } room = {0};
    struct iovec iov = {.iov_base = (void *)(uintptr_t)bytes, .iov_len = n};
    struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1};
    if (times) {
        message.msg_control = room.bytes;
        message.msg_controllen = CMSG_SPACE(times * sizeof(int));
        struct cmsghdr *c = CMSG_FIRSTHDR(&message);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(times * sizeof(int));
        for (unsigned i = 0; i < times; i++)
            memcpy(CMSG_DATA(c) + i * sizeof(int), &passed, sizeof(int));
    }
    ssize_t k = sendmsg(fd, &message, MSG_NOSIGNAL);
    REQUIRE(k == (ssize_t)n || (k < 0 && (errno == EPIPE || errno == ECONNRESET)), "%s",
            strerror(errno));
    return k >= 0;
}

#endif
