/* SPDX-License-Identifier: Apache-2.0 */
#include "net/lending.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/log.h"
#include "net/memory_file.h"

/* ---------------------------------------------------------------------------------- the owner */

/* Not sent while the socket is full: the next span tries again. */
static bool offer_send(int socket, const ddl__region *region)
{
    ddl__offer offer = {region->number, region->serial, region->bytes};
    unsigned char bytes[1 + sizeof offer] = {DDL__OFFER_LETTER};
    memcpy(bytes + 1, &offer, sizeof offer);
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr aligned;
    } control = {{0}};
    struct iovec part = {bytes, sizeof bytes};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof control.bytes};
    struct cmsghdr *along = CMSG_FIRSTHDR(&message);
    along->cmsg_level = SOL_SOCKET;
    along->cmsg_type = SCM_RIGHTS;
    along->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(along), &region->fd, sizeof region->fd);
    return sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)sizeof bytes;
}

bool ddl__lending_may(ddl__lending *lending, int socket, ddl__arena_loans *reader,
                      const ddl__region *region)
{
    uint32_t number = region->number, serial = region->serial;
    if (atomic_load_explicit(&reader->mapped[number], memory_order_acquire) == serial)
        return true;
    if (!lending->offered)
        lending->offered = calloc(DDL__REGIONS, sizeof *lending->offered);
    if (!lending->offered || lending->offered[number] == serial || !offer_send(socket, region))
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

/* A descriptor that is missing was dropped by the kernel: this process has too many. What takes the
 * place of another region was freed by its owner, after its spans were released. */
static const char *offer_fault(const ddl__lending *lending, const ddl__offer *offer,
                               uint64_t released)
{
    if (lending->several)
        return "came with several";
    if (offer->number >= DDL__REGIONS || !offer->serial || !offer->bytes)
        return "has a wrong number";
    if (lending->borrowed && lending->borrowed[offer->number].last > released)
        return "replaces one that is being read";
    return lending->fd < 0 ? NULL : ddl__memory_file_fault(lending->fd, offer->bytes);
}

/* Without a mapping the peer's spans are copied. */
static void offer_accept(ddl__lending *lending, const ddl__offer *offer, ddl__arena_loans *ours)
{
    if (!lending->borrowed)
        lending->borrowed = calloc(DDL__REGIONS, sizeof *lending->borrowed);
    if (!lending->borrowed)
        return;
    struct ddl__borrowed *b = &lending->borrowed[offer->number];
    unmap(b);
    void *base = lending->fd < 0 ? NULL : map_offered(lending->fd, offer->bytes);
    if (!base) {
        ddl__log(DDL__INFO, "a peer's region of %llu bytes cannot be mapped: it is copied",
                 (unsigned long long)offer->bytes);
        return;
    }
    *b = (struct ddl__borrowed){.serial = offer->serial, .base = base, .bytes = offer->bytes};
    atomic_store_explicit(&ours->mapped[offer->number], offer->serial, memory_order_release);
}

static void drop_fd(ddl__lending *lending)
{
    if (lending->fd >= 0)
        close(lending->fd);
    lending->fd = -1;
}

bool ddl__lending_receive(ddl__lending *lending, unsigned char byte, ddl__arena_loans *ours,
                          uint64_t released, char *reason)
{
    lending->offer[lending->received++] = byte;
    if (lending->received < sizeof lending->offer)
        return true;
    ddl__offer offer;
    memcpy(&offer, lending->offer, sizeof offer);
    const char *fault = offer_fault(lending, &offer, released);
    if (fault)
        snprintf(reason, DDL__LINK_REASON, "it offered %llu bytes of memory in a file that %s",
                 (unsigned long long)offer.bytes, fault);
    else
        offer_accept(lending, &offer, ours);
    drop_fd(lending);
    lending->received = 0;
    lending->receiving = false;
    return !fault;
}

void ddl__lending_take_fds(ddl__lending *lending, struct msghdr *message)
{
    for (struct cmsghdr *c = CMSG_FIRSTHDR(message); c; c = CMSG_NXTHDR(message, c)) {
        size_t n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; c->cmsg_type == SCM_RIGHTS && i < n; i++) {
            drop_fd(lending);
            memcpy(&lending->fd, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
            lending->several = lending->several || i;
        }
    }
}

void ddl__lending_end(ddl__lending *lending)
{
    for (unsigned i = 0; lending->borrowed && i < DDL__REGIONS; i++)
        unmap(&lending->borrowed[i]);
    drop_fd(lending);
    free(lending->borrowed);
    free(lending->offered);
    free(lending->awaited);
}
