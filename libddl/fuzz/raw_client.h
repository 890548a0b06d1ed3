/* SPDX-License-Identifier: Apache-2.0 */
/* raw_client.h - a client of an endpoint: raw connections, valid hellos and proofs, descriptors
 * sent with the bytes, and a check that no descriptor is left open. */
#ifndef DDL_FUZZ_RAW_CLIENT_H
#define DDL_FUZZ_RAW_CLIENT_H

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "base/clock.h"
#include "connect/endpoint/endpoint.h"
#include "input.h"
#include "net/shm/shm.h"
#include "net/socket.h"

enum { FDS = 128, PASSED_MAX = 3 };

static const int64_t LIMIT_NS = 5 * 1000000000ll;

static inline unsigned count_fds(void)
{
    unsigned n = 0;
    for (int fd = 0; fd < FDS; fd++)
        n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

/* Check that no descriptor is left open. The fuzzer itself opens files between two inputs. */
static inline void check_clean(unsigned before)
{
    int64_t deadline = ddl__now() + LIMIT_NS;
    for (; count_fds() != before; usleep(20))
        REQUIRE(ddl__now() < deadline, "%u descriptors, and %u before", count_fds(), before);
}

static inline void await_accepted(ddl_endpoint *endpoint, ddl__comm_slot *slot, int64_t deadline)
{
    ddl__accepted accepted;
    if (!ddl__endpoint_accept(endpoint, slot, true, deadline, &accepted))
        return;
    if (accepted.hello.kind == DDL__CONN_INPROC)
        ddl__arena_drop((ddl__arena *)(uintptr_t)accepted.hello.arena);
    close(accepted.fd);
    if (accepted.passed >= 0)
        close(accepted.passed);
}

static inline void take_accepted(ddl_endpoint *endpoint, ddl__comm_slot *slot)
{
    await_accepted(endpoint, slot, ddl__now());
}

/* Take the admitted connections: an endpoint keeps a control connection even if its peer has closed
 * it, because its last message may be in it. */
static inline void take_parked(ddl_endpoint *endpoint, ddl__comm_slot *slot, unsigned before)
{
    for (int64_t end = ddl__now() + LIMIT_NS; count_fds() > before; usleep(20)) {
        take_accepted(endpoint, slot);
        REQUIRE(ddl__now() < end, "%u descriptors, and %u before", count_fds(), before);
    }
}

/* Return a valid hello of rank 1 to rank 0, in a comm of two. */
static inline ddl__hello right_hello(const ddl_endpoint *endpoint, ddl__digest comm, uint8_t kind)
{
    ddl__hello hello = ddl__hello_begin(ddl__endpoint_job(endpoint), kind, 1, 0, 2);
    hello.endpoint = ddl__endpoint_address(endpoint)->endpoint;
    hello.comm = comm;
    return hello;
}

/* Connect to the endpoint, which listens at one IP address. */
static inline int dial(const ddl_endpoint *endpoint, bool local)
{
    const ddl__address *address = ddl__endpoint_address(endpoint);
    struct sockaddr_storage to;
    socklen_t length =
        local ? ddl__address_unix(&address->endpoint, &to) : ddl__address_ip(address, 0, &to);
    int fd = ddl__dial((struct sockaddr *)&to, length, ddl__now() + LIMIT_NS);
    REQUIRE(fd >= 0, "the endpoint does not answer: %s", strerror(errno));
    return fd;
}

/* Send bytes with descriptors. Return false if the endpoint has closed the connection. */
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

/* Receive the next answer. */
static inline ddl__hello receive_answer(int fd)
{
    ddl__hello answer;
    REQUIRE(ddl__recv_all(fd, &answer, sizeof answer, ddl__now() + LIMIT_NS), "no answer: %s",
            strerror(errno));
    REQUIRE(ddl__hello_check(&answer) == DDL_OK, "%s", ddl__message());
    REQUIRE(answer.status == DDL_INPROGRESS || answer.status == DDL_EREFUSED, "status %d",
            answer.status);
    REQUIRE(memchr(answer.text, 0, sizeof answer.text), "a text without an end");
    REQUIRE((answer.status == DDL_INPROGRESS) == !answer.text[0], "admitted and refused: \"%s\"",
            answer.text);
    return answer;
}

/* Send a hello and its proof, with memory. Return true if the client is admitted. A numbered hello
 * is not challenged, and may have been sent before. */
static inline bool initiate(const ddl_endpoint *endpoint, int fd, const ddl__hello *hello,
                            int memory)
{
    const ddl__job *job = ddl__endpoint_job(endpoint);
    ddl__session session;
    unsigned char proof[DDL__KEY];
    REQUIRE(send_piece(fd, hello, sizeof *hello, -1, 0), "the endpoint closed the connection");
    ddl__hello challenge = {0};
    if (!hello->number)
        challenge = receive_answer(fd);
    if (!hello->number && challenge.status != DDL_INPROGRESS)
        return false;
    REQUIRE(ddl__session_begin(job, hello, &challenge, &session, proof), "%s", ddl__message());
    bool sent = send_piece(fd, proof, sizeof proof, memory, memory >= 0);
    REQUIRE(sent || hello->number, "the endpoint closed the connection");
    ddl__hello answer = receive_answer(fd);
    if (hello->number && answer.status != DDL_INPROGRESS)
        return false;
    REQUIRE(answer.status == DDL_INPROGRESS, "a right proof is refused: %s", answer.text);
    REQUIRE(ddl__answer_is_proven(job, &session, DDL__AUTH_ADMISSION, &answer),
            "the endpoint proves nothing");
    return true;
}

#endif
