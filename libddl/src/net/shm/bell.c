/* SPDX-License-Identifier: Apache-2.0 */
#include "net/shm/bell.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/crypto.h"
#include "base/status.h"

enum {
    ATTEMPTS = 8,
    READ_MOST = 1024 /* maximum number of messages to read, more than a queue holds; limited because
                        any process can send messages */
};

static const char KIND[] = "bell";

socklen_t ddl__bell_name(const char *kind, uint64_t number, struct sockaddr_un *name)
{
    static const char prefix[] = "libddl-", digits[] = "0123456789abcdef";
    char *at = name->sun_path;
    name->sun_family = AF_UNIX;
    *at++ = 0; /* the name is abstract */
    at = mempcpy(at, prefix, sizeof prefix - 1);
    at = mempcpy(at, kind, strlen(kind));
    *at++ = '-';
    for (unsigned shift = 0; shift < 64; shift += 4)
        *at++ = digits[number >> shift & 15];
    return (socklen_t)(at - (char *)name);
}

int ddl__bell_create(uint64_t *number)
{
    struct sockaddr_un name;
    int bell = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    for (int i = 0; bell >= 0 && i < ATTEMPTS; i++) {
        if (!ddl__random(number, sizeof *number)) {
            close(bell);
            return -1;
        }
        if (*number && !bind(bell, (struct sockaddr *)&name, ddl__bell_name(KIND, *number, &name)))
            return bell;
    }
    ddl__fail(DDL_ESYSTEM, "cannot create the unix socket for wakeups by peers: %s",
              strerror(errno));
    if (bell >= 0)
        close(bell);
    return -1;
}

static bool send_to(int from, uint64_t number)
{
    struct sockaddr_un name;
    socklen_t length = ddl__bell_name(KIND, number, &name);
    return sendto(from, "D", 1, MSG_DONTWAIT | MSG_NOSIGNAL, (struct sockaddr *)&name, length) ==
               1 ||
           (errno != EAGAIN && errno != EWOULDBLOCK);
}

/* If there is no room for a message, either the bell's queue is full, and the bell rings already,
 * or unread messages to stopped processes have filled the send buffer of the socket `own`. A new
 * socket has an empty send buffer. */
void ddl__bell_ring(int own, uint64_t number)
{
    if (send_to(own, number))
        return;
    int other = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (other < 0)
        return;
    send_to(other, number);
    close(other);
}

void ddl__bell_silence(int bell)
{
    char byte;
    for (int i = 0; i < READ_MOST; i++)
        if (recv(bell, &byte, 1, MSG_DONTWAIT) < 0 && errno != EINTR)
            return;
}

static bool can_connect(int fd, uint64_t number)
{
    struct sockaddr_un name;
    socklen_t length = ddl__bell_name(KIND, number, &name);
    return !connect(fd, (struct sockaddr *)&name, length);
}

bool ddl__bell_is_gone(uint64_t own, uint64_t number)
{
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    bool gone =
        fd >= 0 && can_connect(fd, own) && !can_connect(fd, number) && errno == ECONNREFUSED;
    if (fd >= 0)
        close(fd);
    return gone;
}
