/* SPDX-License-Identifier: Apache-2.0 */
/* Invalid data from a broken or hostile peer is refused with a message and costs nothing. */
#include "clients.h"
#include "connect/addresses/address.h"
#include "connect/handshake/handshake.h"
#include "connect/rendezvous/rendezvous.h"
#include "entries.h"
#include "net/shm/shm.h"
#include "ranks.h"

/* ------------------------------------------------------------------------------------ addresses */

enum {
    FLAGS = 32,
    N_IPS = 33,
    HOST = 39,
    HOST_BYTES = 4,
    IP = HOST + HOST_BYTES,
    NAME = IP + 3
}; /* their offsets in the bytes */

static size_t make_address(unsigned char *bytes)
{
    ddl__interface ip = {.family = 4, .name = "lo", .bytes = {127, 0, 0, 1}};
    const ddl__address address = {
        .endpoint = {{1, 2}}, .port = 3, .n_ips = 1, .ips = &ip, .host = "host"};
    return ddl__address_encode(&address, bytes);
}

static void test_address(void)
{
    static const struct {
        size_t at;
        unsigned char value;
    } wrong[] = {{0, 0},
                 {4, 9},
                 {FLAGS, 4},
                 {N_IPS, 2},
                 {N_IPS + 1, 3},
                 {HOST + 1, 0},
                 {IP, 0},
                 {IP, 5},
                 {IP + 1, 33},
                 {IP + 2, 2},
                 {NAME, '\n'},
                 {NAME + 3, 'x'},
                 {NAME + DDL__INTERFACE_NAME - 1, 'x'}};
    unsigned char bytes[DDL_ADDRESS_MAX];
    ddl__address address;
    ddl__interface ips[DDL__INTERFACES_MAX];
    size_t n = make_address(bytes);
    CHECK(ddl__address_decode(&address, ips, bytes, n) == DDL_OK, "%s", ddl__message());
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        make_address(bytes);
        bytes[wrong[i].at] = wrong[i].value;
        ddl__message_clear();
        CHECK(ddl__address_decode(&address, ips, bytes, n) == DDL_EINVAL,
              "byte %zu as %u is accepted", wrong[i].at, wrong[i].value);
        CHECK(strstr(ddl__message(), "address"), "message \"%s\"", ddl__message());
    }
    for (size_t length = 0; length < n; length++) {
        make_address(bytes);
        CHECK(ddl__address_decode(&address, ips, bytes, length) == DDL_EINVAL, "%zu bytes", length);
    }
}

/* ---------------------------------------------------------------------------------- descriptors */

/* Send one byte with n copies of the same descriptor. */
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

/* Of ten descriptors as many are kept as there is room for, whether they arrive together or one by
 * one. */
static void test_descriptors(void)
{
    int fds[2];
    char bytes[4];
    CHECK(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), "%s", strerror(errno));
    int before = count_descriptors();
    for (unsigned room = 0; room <= DDL__PASSED_MAX; room++) {
        int passed[DDL__PASSED_MAX] = {-1, -1};
        for (unsigned n = 1; n <= 4; n++)
            pass_fds(fds[0], fds[0], n);
        CHECK(ddl__recv_with_fds(fds[1], bytes, 4, passed, room, 0), "%s", strerror(errno));
        CHECK(count_descriptors() == before + (int)room, "%d descriptors, and %d before",
              count_descriptors(), before);
        for (unsigned i = 0; i < DDL__PASSED_MAX; i++) {
            CHECK((passed[i] >= 0) == (i < room), "%d at %u of %u", passed[i], i, room);
            if (passed[i] >= 0)
                close(passed[i]);
        }
    }
    close(fds[0]);
    close(fds[1]);
}

/* -------------------------------------------------------------------------------- shared memory */

/* An arena with one reader: lanes and spans, then the private outlet with the same layout. */
enum {
    SPANS = 64 * 1024,
    PRIVATE = 32 * 1024,
    LANE = 128 + 384 + 64 * 640 + 1024 + 128,
    LANES = 45056, /* a header and one lane, in whole pages */
    BESIDE = LANES + SPANS,
    WHOLE = BESIDE + LANES + PRIVATE
};

enum { READERS = 8, BYTES = 16, PRIVATE_BYTES = 24, FIELDS = 32 }; /* offsets in the header */

static ddl__arena *make_arena(void)
{
    ddl__arena *arena = ddl__arena_create(1, SPANS, PRIVATE);
    CHECK(arena, "%s", ddl__message());
    return arena;
}

/* A memory file with an arena's header. */
static int make_file(const ddl__arena *arena, size_t size, bool sealed)
{
    unsigned char header[128];
    int fd = memfd_create("hostile", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    CHECK(fd >= 0 && !ftruncate(fd, (off_t)size), "%s", strerror(errno));
    ssize_t n = pread(ddl__arena_fd(arena), header, sizeof header, 0);
    CHECK(n == sizeof header && pwrite(fd, header, sizeof header, 0) == n, "%s", strerror(errno));
    CHECK(!sealed || !fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK), "%s", strerror(errno));
    return fd;
}

static void put(int fd, const void *bytes, size_t n, off_t at)
{
    CHECK(pwrite(fd, bytes, n, at) == (ssize_t)n, "%s", strerror(errno));
}

static void check_refused(int fd, const char *why)
{
    ddl__message_clear();
    ddl__arena *opened = ddl__arena_open(fd, 0);
    CHECK(!opened && strstr(ddl__message(), "shared memory"), "%s: opened, or \"%s\"", why,
          ddl__message());
    close(fd);
}

/* Test numbers of readers and bytes for which a sum or product of sizes wraps to the file's
 * size. */
static void test_arena_sizes_that_wrap(const ddl__arena *arena)
{
    int fd = make_file(arena, WHOLE, true); /* lanes end behind the file */
    uint32_t readers = 1000;
    uint64_t lanes = (256 + readers * LANE + 4095) & ~4095u,
             bytes = WHOLE - lanes - readers * (uint64_t)(LANES + PRIVATE);
    put(fd, &readers, sizeof readers, READERS);
    put(fd, &bytes, sizeof bytes, BYTES);
    check_refused(fd, "bytes that wrap");

    enum { TOTAL = 3 * WHOLE + 4096, LANES_OF_TWO = 86016 };
    fd = make_file(arena, TOTAL, true); /* two readers; twice the stride wraps by 2^64 */
    readers = 2;
    uint64_t private_bytes = ((uint64_t)1 << 63) + (TOTAL - LANES_OF_TWO - SPANS) / 2 - LANES;
    put(fd, &readers, sizeof readers, READERS);
    put(fd, &private_bytes, sizeof private_bytes, PRIVATE_BYTES);
    check_refused(fd, "strides that wrap");

    fd = make_file(arena, BESIDE + LANES, true); /* rounded up, they wrap to zero */
    private_bytes = UINT64_MAX;
    put(fd, &private_bytes, sizeof private_bytes, PRIVATE_BYTES);
    check_refused(fd, "a stride that wraps");
}

/* Test a header that contradicts its file, a file that its owner can shrink, and a file that is not
 * in memory. */
static void test_arena_headers(void)
{
    ddl__arena *arena = make_arena();
    for (unsigned field = 0; field < FIELDS; field += 4) {
        int fd = make_file(arena, WHOLE, true);
        put(fd, "\5\5\5\5", 4, field);
        check_refused(fd, "a damaged header");
    }
    test_arena_sizes_that_wrap(arena);
    check_refused(make_file(arena, WHOLE - 4096, true), "a short file");
    check_refused(make_file(arena, WHOLE, false), "a file without seals");
    check_refused(open("/dev/null", O_RDWR | O_CLOEXEC), "a device");

    int fd = make_file(arena, WHOLE, true);
    CHECK(!ddl__arena_open(fd, 1) && strstr(ddl__message(), "has no reader 1"), "%s",
          ddl__message());
    ddl__arena *opened = ddl__arena_open(fd, 0);
    CHECK(opened, "%s", ddl__message());
    ddl__arena_drop(opened);
    close(fd);
    ddl__arena_drop(arena);
}

/* Claimed memory that was never filled costs its owner nothing, and so must not cost us memory. */
static void test_arena_holes(void)
{
    static const off_t fields[] = {BYTES, PRIVATE_BYTES};
    static const uint64_t claimed = (uint64_t)1 << 28, sizes[] = {SPANS, PRIVATE};
    ddl__arena *arena = make_arena();
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        int fd = make_file(arena, WHOLE - sizes[i] + claimed, true);
        put(fd, &claimed, sizeof claimed, fields[i]);
        ddl__arena *opened = ddl__arena_open(fd, 0);
        struct stat status;
        CHECK(opened && !fstat(fd, &status), "%s", ddl__message());
        CHECK((uint64_t)status.st_blocks * 512 < claimed / 2, "%ju blocks",
              (uintmax_t)status.st_blocks);
        ddl__arena_drop(opened);
        close(fd);
    }
    ddl__arena_drop(arena);
}

/* A link whose peer's memory is `theirs` in a separate mapping, and the peer's link. */
typedef struct two {
    ddl__arena *own, *theirs;
    ddl__link *link, *other;
} two;

static two make_two(void)
{
    two t = {.own = make_arena(), .theirs = make_arena()};
    ddl__arena *peer = ddl__arena_open(ddl__arena_fd(t.theirs), 0);
    CHECK(peer, "%s", ddl__message());
    t.link = ddl__shm_link_create(t.own, 0, peer, 0, false);
    t.other = ddl__shm_link_create(t.theirs, 0, ddl__arena_share(t.own), 0, false);
    CHECK(t.link && t.other, "%s", ddl__message());
    return t;
}

static void drop_two(two *t)
{
    t->link->ops->destroy(t->link);
    t->other->ops->destroy(t->other);
    ddl__arena_drop(t->theirs);
    ddl__arena_drop(t->own);
}

/* The number of readers may be altered after an arena was opened, even the owner's. */
static void test_arena_readers(void)
{
    static const off_t headers[] = {0, BESIDE};
    two t = make_two();
    ddl__arena *peer = ddl__arena_open(ddl__arena_fd(t.theirs), 0);
    uint32_t many = 1000000;
    CHECK(peer, "%s", ddl__message());
    for (size_t i = 0; i < sizeof headers / sizeof *headers; i++) {
        put(ddl__arena_fd(t.theirs), &many, sizeof many, headers[i] + READERS);
        put(ddl__arena_fd(t.own), &many, sizeof many, headers[i] + READERS);
    }
    CHECK(!ddl__shm_link_create(t.own, 0, peer, 1000, false), "a lane that is not there");
    CHECK(!ddl__shm_link_create(t.own, 1000, peer, 0, false), "a lane that is not there");
    ddl__arena_drop(peer);
    ddl__link *links[] = {t.link, ddl__shm_link_beside(t.link)};
    for (size_t i = 0; i < 2; i++) {
        ddl__signature signature = {{1, 2}};
        for (void *span; (span = links[i]->ops->reserve(&links[i], 1, PRIVATE / 4));)
            links[i]->ops->publish(&links[i], 1, span, PRIVATE / 4, &signature);
    }
    drop_two(&t);
}

/* Check that an entry of the first or second link that points outside its outlet, or where no span
 * starts, is rejected. */
static void check_entry(bool beside, uint32_t offset)
{
    enum { ENTRY = 256 + 128 + 384, OFFSET = 24, BYTES_APART = 1000 };
    two t = make_two();
    ddl__link *link = beside ? ddl__shm_link_beside(t.link) : t.link;
    ddl__link *other = beside ? ddl__shm_link_beside(t.other) : t.other;
    ddl__signature signature = {{1, 2}};
    void *span = other->ops->reserve(&other, 1, BYTES_APART);
    memset(span, 1, BYTES_APART);
    other->ops->publish(&other, 1, span, BYTES_APART, &signature);
    put(ddl__arena_fd(t.theirs), &offset, sizeof offset, (beside ? BESIDE : 0) + ENTRY + OFFSET);
    CHECK(!ddl__link_peek(link, BYTES_APART, &signature) && link->state == DDL__LINK_LOST &&
              strstr(link->reason, "corrupt"),
          "offset %u: state %d: %s", offset, link->state, link->reason);
    drop_two(&t);
}

static void test_arena_entries(void)
{
    static const uint32_t sizes[] = {SPANS, PRIVATE};
    for (unsigned beside = 0; beside < 2; beside++) {
        check_entry(beside, sizes[beside]);
        check_entry(beside, sizes[beside] - 64);
        check_entry(beside, UINT32_MAX & ~63u);
        check_entry(beside, 4);
        check_entry(beside, 65);
    }
}

/* --------------------------------------------------------------------------------------- hellos */

/* The answer is readable for the peer whatever protocol it speaks, so that it learns our
 * version. */
static void test_answer(void)
{
    ddl__hello hello;
    memset(&hello, 0xa5, sizeof hello);
    CHECK(ddl__hello_check(&hello) == DDL_EREFUSED, "garbage is a hello");
    ddl__hello answer = ddl__hello_answer(&hello, DDL_EREFUSED, ddl__message());
    CHECK(ddl__hello_check(&answer) == DDL_OK, "%s", ddl__message());
    CHECK(answer.status == DDL_EREFUSED && !answer.arena && strstr(answer.text, "protocol"), "%s",
          answer.text);
}

/* ----------------------------------------------------------------------------------- rendezvous */

static ddl__rendezvous_record make_record(int rank, int size)
{
    ddl__rendezvous_record record;
    memset(&record, 0, sizeof record);
    record.magic = DDL__RECORD_MAGIC;
    record.protocol = DDL__PROTOCOL;
    record.rank = rank;
    record.size = size;
    record.length = (uint16_t)make_address(record.address);
    return record;
}

/* Bytes that a client has written in the fields for answers do not reach other ranks. */
static void test_record_fields(void)
{
    ddl__rendezvous_record record = make_record(1, 2);
    record.status = DDL_EABORTED;
    memset(record.text, 'x', sizeof record.text);
    CHECK(ddl__rendezvous_record_check(&record, 2), "%s", record.text);
    CHECK(ddl__rendezvous_record_accept(&record, 1, 2) == DDL_OK && !record.text[0], "%s",
          ddl__message());
    record.length = DDL_ADDRESS_MAX + 1;
    CHECK(ddl__rendezvous_record_accept(&record, 1, 2) == DDL_EREFUSED &&
              strstr(ddl__message(), "an address of"),
          "%s", ddl__message());
}

typedef struct caller {
    int rank;
    char url[URL_MAX];
} caller;

static void *rendezvous(void *argument)
{
    const caller *me = argument;
    ddl_endpoint *endpoint;
    ddl_comm *comm;
    ddl_comm_config config = {.struct_size = sizeof config, .timeout_ms = 20000};
    ddl_endpoint_config plain = {.struct_size = sizeof plain, .secret = ""};
    OK(ddl_endpoint_create(&plain, &endpoint));
    OK(ddl_rendezvous(endpoint, me->url, me->rank, 2, &config, &comm));
    ddl_comm_destroy(comm);
    ddl_endpoint_destroy(endpoint);
    return NULL;
}

/* A client with a damaged address gets the reason, and its rank stays free for the valid client. */
static void test_damaged_record(void)
{
    caller callers[2] = {{.rank = 0}, {.rank = 1}};
    uint16_t port = choose_url(callers[0].url);
    memcpy(callers[1].url, callers[0].url, URL_MAX);
    pthread_t threads[2];
    CHECK(!pthread_create(&threads[0], NULL, rendezvous, &callers[0]), "no thread");

    int64_t deadline = ddl__deadline(10000);
    int fd = dial(port);
    const ddl__job none = {0};
    ddl__hello hello = ddl__hello_begin(&none, DDL__CONN_RENDEZVOUS, 1, 0, 2);
    ddl__session session;
    CHECK(ddl__handshake_initiate(&none, fd, &hello, deadline, &session) == DDL_OK, "%s",
          ddl__message());
    unsigned char proof[DDL__KEY] = {0};
    ddl__rendezvous_record record = make_record(1, 2), answer;
    record.address[HOST + 1] = 0;
    CHECK(ddl__send_all(fd, &record, sizeof record, deadline) &&
              ddl__send_all(fd, proof, sizeof proof, deadline) &&
              ddl__recv_all(fd, &answer, sizeof answer, deadline),
          "%s", strerror(errno));
    CHECK(answer.status == DDL_EREFUSED && strstr(answer.text, "damaged"), "%d %s", answer.status,
          answer.text);
    close(fd);
    CHECK(!pthread_create(&threads[1], NULL, rendezvous, &callers[1]), "no thread");
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
}

int main(void)
{
    test_answer();
    test_record_fields();
    test_damaged_record();
    test_address();
    test_descriptors();
    test_arena_headers();
    test_arena_holes();
    test_arena_readers();
    test_arena_entries();
}
