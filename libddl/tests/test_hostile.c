/* What a broken or hostile peer may hand us is refused with a message, and costs nothing. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "check.h"
#include "comm/address.h"
#include "net/socket.h"

/* -------------------------------------------------------------------------------------- addresses
 */

enum { HOST = 26, HOST_BYTES = 4, IP = HOST + HOST_BYTES }; /* where they lie in the bytes */

static size_t make_address(unsigned char *bytes)
{
    ddl__address address = {.endpoint = {{1, 2}}, .port = 3, .n_ips = 1, .host = "host"};
    address.ips[0] = (ddl__ip){.family = 4, .bytes = {127, 0, 0, 1}};
    return ddl__address_encode(&address, bytes);
}

static void test_address(void)
{
    static const struct {
        size_t at;
        unsigned char value;
    } wrong[] = {{0, 0}, {4, 9}, {24, 2}, {25, 3}, {HOST + 1, 0}, {IP, 0}, {IP, 5}};
    unsigned char bytes[DDL_ADDRESS_MAX];
    ddl__address address;
    size_t n = make_address(bytes);
    CHECK(ddl__address_decode(&address, bytes, n) == DDL_OK, "%s", ddl__message());
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        make_address(bytes);
        bytes[wrong[i].at] = wrong[i].value;
        ddl__message_clear();
        CHECK(ddl__address_decode(&address, bytes, n) == DDL_EINVAL, "byte %zu as %u is accepted",
              wrong[i].at, wrong[i].value);
        CHECK(strstr(ddl__message(), "address"), "message \"%s\"", ddl__message());
    }
    for (size_t length = 0; length < n; length++) {
        make_address(bytes);
        CHECK(ddl__address_decode(&address, bytes, length) == DDL_EINVAL, "%zu bytes", length);
    }
}

/* ------------------------------------------------------------------------------------ descriptors
 */

static unsigned count_fds(void)
{
    unsigned n = 0;
    for (int fd = 0; fd < 256; fd++)
        n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

/* One byte with the same descriptor n times beside it. */
static void pass_fds(int to, int fd, unsigned n)
{
    enum { MOST = 4 };
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(MOST * sizeof(int))];
    } room = {0};
    char byte = 1;
    struct iovec iov = {&byte, 1};
    struct msghdr message = {.msg_iov = &iov,
                             .msg_iovlen = 1,
                             .msg_control = room.bytes,
                             .msg_controllen = CMSG_SPACE(n * sizeof(int))};
    struct cmsghdr *c = CMSG_FIRSTHDR(&message);
    *c = (struct cmsghdr){CMSG_LEN(n * sizeof(int)), SOL_SOCKET, SCM_RIGHTS};
    for (unsigned i = 0; i < n; i++)
        memcpy(CMSG_DATA(c) + i * sizeof fd, &fd, sizeof fd);
    CHECK(sendmsg(to, &message, 0) == 1, "%s", strerror(errno));
}

/* Of several descriptors one is kept, whether they come together or one by one. */
static void test_descriptors(void)
{
    int fds[2], passed = -1;
    char bytes[4];
    CHECK(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), "%s", strerror(errno));
    unsigned before = count_fds();
    for (unsigned n = 1; n <= 4; n++)
        pass_fds(fds[0], fds[0], n);
    CHECK(ddl__recv_with_fd(fds[1], bytes, 4, &passed, 0) && passed >= 0, "%s", strerror(errno));
    CHECK(count_fds() == before + 1, "%u descriptors, and %u before", count_fds(), before);
    close(passed);
    for (unsigned n = 1; n <= 4; n++)
        pass_fds(fds[0], fds[0], n);
    CHECK(ddl__recv_all(fds[1], bytes, 4, 0), "%s", strerror(errno));
    CHECK(count_fds() == before, "%u descriptors, and %u before", count_fds(), before);
    close(fds[0]);
    close(fds[1]);
}

int main(void)
{
    test_address();
    test_descriptors();
    return 0;
}
