/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that a broken or hostile peer offers is rejected with the reason, before it is read, and
 * without leaking a descriptor. Data that other processes send to the socket for offers is
 * ignored. */
#include "check.h"
#include "entries.h"
#include "net/shm/bell.h"
#include "net/shm/lending.h"
#include "net/shm/memory_file.h"
#include "net/shm/shm.h"

enum { ARENA = 1 << 20, BYTES = 1 << 18, FILES = 3 };

/* A link whose peer's data the test writes. */
typedef struct pair {
    ddl__arena *arenas[2];
    ddl__link *link;
} pair;

static pair pair_create(void)
{
    pair p;
    for (int i = 0; i < 2; i++)
        p.arenas[i] = ddl__arena_create(1, ARENA, ARENA);
    ddl__arena *peers = ddl__arena_open(ddl__arena_fd(p.arenas[1]), 0);
    CHECK(peers, "%s", ddl__message());
    p.link = ddl__shm_link_create(p.arenas[0], 0, peers, 0, false);
    return p;
}

static void pair_destroy(pair *p)
{
    p->link->ops->destroy(p->link);
    for (int i = 0; i < 2; i++)
        ddl__arena_drop(p->arenas[i]);
}

static int connect_to(const pair *p)
{
    struct sockaddr_un name;
    socklen_t length = ddl__bell_name("loan", p->arenas[0]->bell_number, &name);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    CHECK(fd >= 0 && !connect(fd, (struct sockaddr *)&name, length), "no connection");
    return fd;
}

static void send_offer(const pair *p, ddl__offer offer, const int *files, size_t n)
{
    memcpy(offer.secret, p->arenas[0]->secret, sizeof offer.secret);
    union {
        char bytes[CMSG_SPACE(FILES * sizeof(int))];
        struct cmsghdr aligned;
    } control = {{0}};
    struct iovec part = {&offer, sizeof offer};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    if (n) {
        message.msg_control = control.bytes;
        message.msg_controllen = CMSG_SPACE(n * sizeof *files);
        struct cmsghdr *along = CMSG_FIRSTHDR(&message);
        along->cmsg_level = SOL_SOCKET;
        along->cmsg_type = SCM_RIGHTS;
        along->cmsg_len = CMSG_LEN(n * sizeof *files);
        memcpy(CMSG_DATA(along), files, n * sizeof *files);
    }
    int fd = connect_to(p);
    CHECK(sendmsg(fd, &message, 0) == (ssize_t)sizeof offer, "not sent");
    close(fd);
}

/* Store the reason why the offer is rejected in `text`; empty if it is accepted. Closes the
 * files. */
static void offer(ddl__offer made, const int *files, size_t n, char text[256])
{
    int before = count_descriptors();
    pair p = pair_create();
    send_offer(&p, made, files, n);
    ddl__shm_take_offers(p.arenas[0]);
    strcpy(text, p.link->state == DDL__LINK_OPEN ? "" : p.link->reason);
    CHECK(!*text == (p.link->state == DDL__LINK_OPEN), "lost without a reason");
    pair_destroy(&p);
    CHECK(count_descriptors() == before, "%d descriptors, then %d", before, count_descriptors());
    for (size_t i = 0; i < n; i++)
        close(files[i]);
}

static void check_refused(ddl__offer made, int file, const char *why)
{
    char text[256];
    CHECK(file >= 0, "no file to offer");
    offer(made, &file, 1, text);
    CHECK(strstr(text, why), "not \"%s\" but \"%s\"", why, text);
}

static int unsealed(size_t bytes)
{
    int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    CHECK(fd >= 0 && !ftruncate(fd, (off_t)bytes), "no memory file");
    return fd;
}

/* Return a file that is sealed except against shrinking, and then shrunk. */
static int shrunk(void)
{
    int fd = unsealed(BYTES);
    CHECK(!fcntl(fd, F_ADD_SEALS, F_SEAL_GROW) && !ftruncate(fd, 4096), "not shrunk");
    return fd;
}

static int ordinary(void)
{
    char path[] = "/tmp/ddl-test-XXXXXX";
    int fd = mkstemp(path);
    CHECK(fd >= 0 && !unlink(path) && !ftruncate(fd, BYTES), "no file");
    return fd;
}

static int one_end(void)
{
    int fds[2];
    CHECK(!pipe(fds), "no pipe");
    close(fds[1]);
    return fds[0];
}

static void test_refused(void)
{
    ddl__offer good = {.number = 1, .serial = 1, .bytes = BYTES}, wrong = good;
    check_refused(good, unsealed(BYTES), "can shrink");
    check_refused(good, shrunk(), "can shrink");
    check_refused(good, ddl__memory_file_create(BYTES / 2), "is too short");
    check_refused(good, ordinary(), "is not a memory file");
    check_refused(good, one_end(), "is not a memory file");
    check_refused(good, open("/dev/zero", O_RDWR | O_CLOEXEC), "is not a memory file");
    check_refused(good, open("/tmp", O_RDONLY | O_CLOEXEC), "is not a memory file");
    wrong.bytes = UINT64_MAX;
    check_refused(wrong, ddl__memory_file_create(BYTES), "is too short");
    wrong.bytes = 0;
    check_refused(wrong, ddl__memory_file_create(BYTES), "wrong number");
    wrong = good;
    wrong.number = DDL__REGIONS;
    check_refused(wrong, ddl__memory_file_create(BYTES), "wrong number");
    wrong.number = UINT32_MAX;
    check_refused(wrong, ddl__memory_file_create(BYTES), "wrong number");
}

/* Send several descriptors with a message: the kernel passes as many as there is room for. */
static void test_several(void)
{
    for (size_t n = 2; n <= FILES; n++) {
        int files[FILES];
        char text[256];
        for (size_t i = 0; i < n; i++)
            files[i] = ddl__memory_file_create(BYTES);
        offer((ddl__offer){.number = 1, .serial = 1, .bytes = BYTES}, files, n, text);
        CHECK(strstr(text, "several"), "%zu files: \"%s\"", n, text);
    }
}

/* The kernel drops an honest peer's descriptor if this process has too many. */
static void test_accepted(void)
{
    char text[256];
    int file = ddl__memory_file_create(BYTES);
    ddl__offer good = {.number = DDL__REGIONS - 1, .serial = 1, .bytes = BYTES};
    offer(good, &file, 1, text);
    CHECK(!*text, "refused: %s", text);
    offer(good, NULL, 0, text);
    CHECK(!*text, "refused without a descriptor: %s", text);
}

/* A process that does not know the secret, or that sends something else or nothing, or the number
 * of a nonexistent peer, changes nothing. */
static void test_ignored(void)
{
    pair p = pair_create();
    int before = count_descriptors();
    ddl__offer unknown = {.number = 1, .serial = 1, .bytes = UINT64_MAX};
    for (size_t bytes = 0; bytes <= sizeof unknown; bytes++) {
        int fd = connect_to(&p);
        CHECK(!bytes || send(fd, &unknown, bytes, 0) == (ssize_t)bytes, "not sent");
        ddl__shm_take_offers(p.arenas[0]);
        CHECK(send(fd, &unknown, sizeof unknown, MSG_NOSIGNAL) < 0, "still connected");
        close(fd);
    }
    unknown.from = UINT32_MAX;
    send_offer(&p, unknown, NULL, 0);
    unknown.from = 1;
    send_offer(&p, unknown, NULL, 0);
    ddl__shm_take_offers(p.arenas[0]);
    CHECK(p.link->state == DDL__LINK_OPEN, "%s", p.link->reason);
    CHECK(count_descriptors() == before, "%d descriptors, then %d", before, count_descriptors());
    pair_destroy(&p);
}

/* Send descriptors without an offer, and a flood of offers. */
static void test_flood(void)
{
    enum { ROUNDS = 2000 };
    pair p = pair_create();
    int before = count_descriptors(), file = ddl__memory_file_create(BYTES);
    for (uint32_t i = 1; i <= ROUNDS; i++) {
        ddl__offer made = {.number = i % DDL__REGIONS, .serial = i, .bytes = BYTES};
        send_offer(&p, made, &file, 1);
        ddl__shm_take_offers(p.arenas[0]);
    }
    CHECK(p.link->state == DDL__LINK_OPEN, "%s", p.link->reason);
    CHECK(count_descriptors() == before + 1, "%d descriptors, then %d", before,
          count_descriptors());
    close(file);
    pair_destroy(&p);
}

/* The peer lends two spans of a region, and offers another file for the region's number before the
 * first span is released, or after it. */
static void test_replaced(bool released)
{
    const ddl__signature signature = {{1, 2}};
    int other = ddl__memory_file_create(BYTES);
    pair p = pair_create();
    ddl__arena *ours = ddl__arena_open(ddl__arena_fd(p.arenas[0]), 0);
    ddl__link *peers = ddl__shm_link_create(p.arenas[1], 0, ours, 0, false);
    ddl__regions *regions = ddl__regions_create();
    char *memory = ddl__memory_alloc(regions, BYTES);
    ddl__region region = ddl__regions_find(regions, memory);
    memset(memory, 7, BYTES);
    CHECK(!peers->ops->lend(peers, &region, memory, BYTES, &signature, false), "not mapped yet");
    ddl__shm_take_offers(p.arenas[0]);
    for (int i = 0; i < 2; i++)
        CHECK(peers->ops->lend(peers, &region, memory, BYTES, &signature, false), "span %d", i);
    const char *first = p.link->ops->peek(p.link, 0, NULL, BYTES, &signature);
    CHECK(first, "no span");
    for (int i = 0; released && i < 2; i++)
        CHECK(p.link->ops->release(p.link), "not released");
    ddl__offer made = {.number = region.number, .serial = region.serial + 1, .bytes = BYTES};
    send_offer(&p, made, &other, 1);
    ddl__shm_take_offers(p.arenas[0]);
    CHECK((p.link->state == DDL__LINK_OPEN) == released, "state %d", p.link->state);
    CHECK(released || strstr(p.link->reason, "being read"), "%s", p.link->reason);
    CHECK(released || (first[0] == 7 && first[BYTES - 1] == 7), "other bytes");
    peers->ops->destroy(peers);
    pair_destroy(&p);
    close(other);
    ddl__memory_free(memory);
    ddl__regions_release(regions);
}

int main(void)
{
    test_refused();
    test_several();
    test_accepted();
    test_ignored();
    test_flood();
    test_replaced(true);
    test_replaced(false);
}
