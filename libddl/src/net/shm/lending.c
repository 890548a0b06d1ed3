/* SPDX-License-Identifier: Apache-2.0 */
#include "net/shm/lending.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/log.h"
#include "net/shm/bell.h"
#include "net/shm/memory_file.h"
#include "net/socket.h"

/* ---------------------------------------------------------------------------------- the owner */

/* Room for a descriptor, aligned as the kernel requires. */
typedef union control {
    char bytes[CMSG_SPACE(sizeof(int))];
    struct cmsghdr aligned;
} control;

static const char KIND[] = "loan";

/* Send an offer. Return false if the peer's socket has no room; the offer is then repeated with the
 * next span. */
static bool offer_send(int socket, const ddl__offer *offer, int file)
{
    control room = {{0}};
    struct iovec part = {(void *)offer, sizeof *offer};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = room.bytes,
                             .msg_controllen = sizeof room.bytes};
    struct cmsghdr *along = CMSG_FIRSTHDR(&message);
    along->cmsg_level = SOL_SOCKET;
    along->cmsg_type = SCM_RIGHTS;
    along->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(along), &file, sizeof file);
    return sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)sizeof *offer;
}

/* Connect to the peer, and send it the offer. Return true if no other attempt is needed. That
 * includes a peer of another user, and a peer whose socket does not exist: they never get an
 * offer. */
static bool offer_make(const ddl__arena *peer, unsigned from, const ddl__region *region)
{
    ddl__offer offer = {.secret = {peer->secret[0], peer->secret[1]},
                        .from = from,
                        .number = region->number,
                        .serial = region->serial,
                        .bytes = region->bytes};
    struct sockaddr_un name;
    socklen_t length = ddl__bell_name(KIND, peer->bell_number, &name);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    bool made = false;
    if (fd >= 0 && connect(fd, (struct sockaddr *)&name, length))
        made = errno == ECONNREFUSED;
    else if (fd >= 0)
        made = !ddl__same_user(fd) || offer_send(fd, &offer, region->fd);
    if (fd >= 0)
        close(fd);
    return made;
}

bool ddl__lending_may(ddl__lending *lending, const ddl__arena *peer, unsigned from,
                      ddl__arena_loans *reader, const ddl__region *region)
{
    uint32_t number = region->number, serial = region->serial;
    if (atomic_load_explicit(&reader->mapped[number], memory_order_acquire) == serial)
        return true;
    if (!lending->offered)
        lending->offered = calloc(DDL__REGIONS, sizeof *lending->offered);
    if (!lending->offered || lending->offered[number] == serial || !offer_make(peer, from, region))
        return false;
    lending->offered[number] = serial;
    atomic_fetch_add_explicit(&reader->offers, 1, memory_order_release);
    return false;
}

bool ddl__lending_await(ddl__lending *lending, uint64_t span, const ddl__region *region,
                        const void *memory, size_t bytes)
{
    if (!lending->awaited)
        lending->awaited = calloc(DDL__ARENA_QUEUE, sizeof *lending->awaited);
    if (lending->awaited)
        lending->awaited[span % DDL__ARENA_QUEUE] =
            (struct ddl__awaited){span, memory, bytes, *region};
    return lending->awaited;
}

bool ddl__lending_returned(const ddl__lending *lending, uint64_t span, void *memory, size_t bytes)
{
    const struct ddl__awaited *a =
        lending->awaited ? &lending->awaited[span % DDL__ARENA_QUEUE] : NULL;
    if (!a || a->span != span || a->memory != memory || a->bytes != bytes)
        return false;
    if (ddl__region_is_attached(&a->region))
        return true;
    off_t at = (off_t)((uintptr_t)memory - (uintptr_t)a->region.base);
    return pread(a->region.fd, memory, bytes, at) == (ssize_t)bytes;
}

/* --------------------------------------------------------------------------------- the reader */

const void *ddl__lending_find(ddl__lending *lending, ddl__loan loan, uint64_t span, size_t bytes)
{
    if (!lending->borrowed || loan.number >= DDL__REGIONS)
        return NULL;
    struct ddl__borrowed *b = &lending->borrowed[loan.number];
    if (!b->base || b->serial != loan.serial || loan.offset > b->bytes ||
        bytes > b->bytes - loan.offset)
        return NULL;
    b->last = span;
    return b->base + loan.offset;
}

void *ddl__lending_borrow(ddl__lending *lending, ddl__loan loan, uint64_t span, size_t bytes)
{
    if (!loan.returns || !ddl__lending_find(lending, loan, span, bytes))
        return NULL;
    struct ddl__borrowed *b = &lending->borrowed[loan.number];
    if (!b->writable && mprotect(b->base, b->bytes, PROT_READ | PROT_WRITE))
        return NULL;
    b->writable = true;
    return b->base + loan.offset;
}

static void unmap(struct ddl__borrowed *b)
{
    if (b->base)
        munmap(b->base, b->bytes);
    b->base = NULL;
}

static void *map_offered(int fd, size_t bytes)
{
    void *base = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
    if (base == MAP_FAILED)
        return NULL;
    madvise(base, bytes, MADV_DONTFORK);
    return base;
}

int ddl__lending_listen(uint64_t bell)
{
    enum { BACKLOG = 1024 };
    struct sockaddr_un name;
    socklen_t length = ddl__bell_name(KIND, bell, &name);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd >= 0 && !bind(fd, (struct sockaddr *)&name, length) && !listen(fd, BACKLOG))
        return fd;
    ddl__fail(DDL_ESYSTEM, "cannot create a unix socket for offers of memory: %s", strerror(errno));
    if (fd >= 0)
        close(fd);
    return -1;
}

/* Store the received descriptors. Because of its alignment, the buffer may have room for more than
 * one. */
static void take_files(struct msghdr *message, int *file, bool *several)
{
    for (struct cmsghdr *c = CMSG_FIRSTHDR(message); c; c = CMSG_NXTHDR(message, c)) {
        size_t n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; c->cmsg_type == SCM_RIGHTS && i < n; i++) {
            if (*file >= 0)
                close(*file);
            memcpy(file, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
            *several = *several || i;
        }
    }
}

static ssize_t receive_some(int fd, ddl__offer *offer, int *file, bool *several)
{
    control room;
    struct iovec part = {offer, sizeof *offer};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = room.bytes,
                             .msg_controllen = sizeof room.bytes};
    ssize_t n = recvmsg(fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (n > 0 && message.msg_controllen)
        take_files(&message, file, several);
    return n;
}

/* Receive the offer of a peer that has connected. A peer that has sent nothing by then can no
 * longer send, and offers again. */
static bool offer_receive(int fd, const ddl__arena *own, ddl__offer *offer, int *file,
                          bool *several)
{
    *file = -1;
    *several = false;
    ssize_t n = receive_some(fd, offer, file, several);
    if (n < 0 && !shutdown(fd, SHUT_RD))
        n = receive_some(fd, offer, file, several);
    if (n == (ssize_t)sizeof *offer && !memcmp(offer->secret, own->secret, sizeof own->secret))
        return true;
    if (*file >= 0)
        close(*file);
    return false;
}

bool ddl__lending_receive(const ddl__arena *own, ddl__offer *offer, int *file, bool *several)
{
    for (int fd; (fd = accept4(own->offers, NULL, NULL, SOCK_CLOEXEC)) >= 0;) {
        bool received = offer_receive(fd, own, offer, file, several);
        close(fd);
        if (received)
            return true;
    }
    return false;
}

/* Check an offer. A missing descriptor was dropped by the kernel, since this process has too many.
 * A region that replaces another one is valid only if all spans of the old one are released. */
static const char *offer_fault(const ddl__lending *lending, const ddl__offer *offer, int file,
                               bool several, uint64_t released)
{
    if (several)
        return "came with several others";
    if (offer->number >= DDL__REGIONS || !offer->serial || !offer->bytes)
        return "has a wrong number";
    if (lending->borrowed && lending->borrowed[offer->number].last > released)
        return "replaces one that is being read";
    return file < 0 ? NULL : ddl__memory_file_fault(file, offer->bytes);
}

bool ddl__lending_take(ddl__lending *lending, const ddl__offer *offer, int file, bool several,
                       ddl__arena_loans *ours, uint64_t released, char *reason)
{
    const char *fault = offer_fault(lending, offer, file, several, released);
    if (fault) {
        snprintf(reason, DDL__LINK_REASON, "it offered %llu bytes of memory in a file that %s",
                 (unsigned long long)offer->bytes, fault);
        return false;
    }
    if (!lending->borrowed)
        lending->borrowed = calloc(DDL__REGIONS, sizeof *lending->borrowed);
    if (!lending->borrowed)
        return true; /* without a mapping, the peer's spans are copied */
    struct ddl__borrowed *b = &lending->borrowed[offer->number];
    unmap(b);
    void *base = file < 0 ? NULL : map_offered(file, offer->bytes);
    if (!base) {
        ddl__log(DDL__INFO, "cannot map a peer's region of %llu bytes: its data is copied",
                 (unsigned long long)offer->bytes);
        return true;
    }
    *b = (struct ddl__borrowed){.serial = offer->serial, .base = base, .bytes = offer->bytes};
    atomic_store_explicit(&ours->mapped[offer->number], offer->serial, memory_order_release);
    return true;
}

void ddl__lending_end(ddl__lending *lending)
{
    for (unsigned i = 0; lending->borrowed && i < DDL__REGIONS; i++)
        unmap(&lending->borrowed[i]);
    free(lending->borrowed);
    free(lending->offered);
    free(lending->awaited);
}
