/* SPDX-License-Identifier: Apache-2.0 */
/* An encrypted stream: the received data is what was sent, or there is an error, whatever happens
 * to it on the way, and however little the sockets take at a time. */
#include "check.h"
#include "net/seal.h"
#include "net/tcp/tcp.h"

enum { HEAD = 4, PIECE = 100, RECORD = HEAD + PIECE + DDL__TAG };

static ddl__crypto *crypto;

/* Both ends, whose bytes the test moves between the sockets. */
typedef struct line {
    ddl__seal *from, *to;
    int out[2], in[2]; /* [0] is the seal's end, [1] the test's */
} line;

static line open_line(void)
{
    line l;
    unsigned char keys[2][DDL__KEY];
    memset(keys[0], 1, DDL__KEY);
    memset(keys[1], 2, DDL__KEY);
    CHECK((l.from = ddl__seal_create(crypto, keys[0], keys[1])) &&
              (l.to = ddl__seal_create(crypto, keys[1], keys[0])),
          "%s", ddl__message());
    CHECK(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, l.out) &&
              !socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, l.in),
          "%s", strerror(errno));
    return l;
}

static void close_line(line *l)
{
    ddl__seal_destroy(l->from);
    ddl__seal_destroy(l->to);
    for (int i = 0; i < 2; i++) {
        close(l->out[i]);
        close(l->in[i]);
    }
}

static void fill(unsigned char *bytes, size_t n, unsigned seed)
{
    for (size_t i = 0; i < n; i++)
        bytes[i] = (unsigned char)(i * 7 + seed);
}

/* Make the next record of PIECE bytes, as it is on the wire. */
static void make_record(line *l, unsigned seed, unsigned char record[RECORD])
{
    unsigned char piece[PIECE];
    fill(piece, sizeof piece, seed);
    CHECK(ddl__seal_send_bytes(l->from, l->out[0], piece, sizeof piece) == PIECE, "not taken");
    CHECK(recv(l->out[1], record, RECORD, 0) == RECORD, "another length");
    CHECK(recv(l->out[1], piece, 1, MSG_DONTWAIT) < 0, "more than a record");
    CHECK(!memmem(record, RECORD, piece + 10, 8), "the wire has it in clear");
}

static void put(const line *l, const void *bytes, size_t n)
{
    CHECK(send(l->in[1], bytes, n, 0) == (ssize_t)n, "%s", strerror(errno));
}

static void expect(line *l, unsigned seed)
{
    unsigned char want[PIECE], got[PIECE];
    fill(want, sizeof want, seed);
    CHECK(ddl__seal_recv_bytes(l->to, l->in[0], got, sizeof got) == PIECE &&
              !memcmp(want, got, sizeof want),
          "what came is not what was sent");
}

static void expect_altered(line *l, const char *what)
{
    unsigned char got[PIECE];
    for (int i = 0; i < 2; i++) { /* now and in every later call */
        errno = 0;
        CHECK(ddl__seal_recv_bytes(l->to, l->in[0], got, sizeof got) < 0 && errno == EBADMSG,
              "%s: %s", what, strerror(errno));
    }
    close_line(l);
}

/* Alter each byte of a record, including its length. */
static void test_altered(void)
{
    unsigned char record[RECORD], more[4 * RECORD] = {0};
    for (size_t at = 0; at < RECORD; at++) {
        line l = open_line();
        make_record(&l, 1, record);
        put(&l, record, sizeof record);
        expect(&l, 1);
        make_record(&l, 2, record);
        record[at] ^= 1;
        put(&l, record, sizeof record);
        put(&l, more, sizeof more); /* in case it seems to be longer */
        char what[32];
        snprintf(what, sizeof what, "byte %zu", at);
        expect_altered(&l, what);
    }
}

static void test_moved(void)
{
    unsigned char first[RECORD], second[RECORD];
    line l = open_line();
    make_record(&l, 1, first);
    make_record(&l, 2, second);
    put(&l, second, sizeof second);
    expect_altered(&l, "a record left out");

    l = open_line();
    make_record(&l, 1, first);
    put(&l, first, sizeof first);
    expect(&l, 1);
    put(&l, first, sizeof first);
    expect_altered(&l, "a record again");

    l = open_line(); /* back to its sender */
    make_record(&l, 1, first);
    CHECK(send(l.out[1], first, sizeof first, 0) == RECORD, "%s", strerror(errno));
    CHECK(ddl__seal_recv_bytes(l.from, l.out[0], second, PIECE) < 0 && errno == EBADMSG,
          "a record reflected");
    close_line(&l);

    l = open_line();
    static const unsigned char none[HEAD + DDL__TAG] = {0}, huge[HEAD] = {0xff, 0xff, 0xff, 0xff};
    put(&l, none, sizeof none);
    expect_altered(&l, "an empty record");
    l = open_line();
    put(&l, huge, sizeof huge);
    expect_altered(&l, "a record without bound");
    l = open_line();
    put(&l, "GET / HTTP/1.1\r\n\r\n", 18);
    expect_altered(&l, "what is not encrypted");
}

/* An end within a record is reported as an end, and none of the record's bytes are returned. */
static void test_truncated(void)
{
    unsigned char record[RECORD], got[PIECE];
    for (size_t n = 1; n < RECORD; n++) {
        line l = open_line();
        make_record(&l, 1, record);
        put(&l, record, n);
        CHECK(ddl__seal_recv_bytes(l.to, l.in[0], got, 1) < 0 && errno == EAGAIN, "%zu bytes", n);
        CHECK(!shutdown(l.in[1], SHUT_WR), "%s", strerror(errno));
        CHECK(ddl__seal_recv_bytes(l.to, l.in[0], got, 1) == 0, "%zu bytes", n);
        close_line(&l);
    }
}

/* Many bytes in pieces of any length through a narrow socket, some at a time. */
static void test_narrow(void)
{
    enum { BYTES = 3 << 20, NARROW = 4096 };
    static unsigned char sent[BYTES], got[BYTES];
    static const size_t pieces[] = {1,     24, 65536, 65560, DDL__RECORD_MAX, DDL__RECORD_MAX + 1,
                                    300000};
    line l = open_line();
    int narrow = NARROW, n = 0;
    setsockopt(l.out[0], SOL_SOCKET, SO_SNDBUF, &narrow, sizeof narrow);
    fill(sent, sizeof sent, 3);
    size_t out = 0, in = 0;
    while (in < BYTES) {
        size_t want = pieces[n++ % (sizeof pieces / sizeof *pieces)];
        size_t some = want < BYTES - out ? want : BYTES - out;
        struct iovec parts[3] = {{sent + out, some / 3}, {NULL, 0}, {sent + out + some / 3, 0}};
        parts[2].iov_len = some - some / 3;
        struct msghdr message = {.msg_iov = parts, .msg_iovlen = 3};
        ssize_t k = ddl__seal_send(l.from, l.out[0], &message);
        CHECK(k >= 0 || errno == EAGAIN, "%s", strerror(errno));
        out += k > 0 ? (size_t)k : 0;
        if (out == BYTES)
            ddl__seal_flush(l.from, l.out[0]);
        some = want < BYTES - in ? want : BYTES - in;
        parts[0] = (struct iovec){got + in, some / 2};
        parts[1] = (struct iovec){got + in + some / 2, some - some / 2};
        message.msg_iovlen = 2;
        k = ddl__seal_recv(l.to, l.out[1], &message);
        CHECK(k >= 0 || errno == EAGAIN, "%s", strerror(errno));
        in += k > 0 ? (size_t)k : 0;
    }
    CHECK(!ddl__seal_has_unsent(l.from) && !memcmp(sent, got, sizeof sent), "other bytes came");
    close_line(&l);
}

/* Send enough records that keys are replaced twice. */
static void test_renewed(void)
{
    enum { RECORDS = (2 << 16) + 10, AT_ONCE = 64 };
    unsigned char got[AT_ONCE];
    line l = open_line();
    for (unsigned i = 0; i < RECORDS; i += AT_ONCE) {
        for (unsigned j = 0; j < AT_ONCE; j++) {
            unsigned char byte = (unsigned char)(i + j);
            CHECK(ddl__seal_send_bytes(l.from, l.out[0], &byte, 1) == 1, "%s", strerror(errno));
        }
        CHECK(ddl__seal_recv_bytes(l.to, l.out[1], got, AT_ONCE) == AT_ONCE, "record %u: %s", i,
              strerror(errno));
        for (unsigned j = 0; j < AT_ONCE; j++)
            CHECK(got[j] == (unsigned char)(i + j), "record %u", i + j);
    }
    close_line(&l);
}

/* A link reports what has happened. */
static void test_link(void)
{
    unsigned char record[RECORD];
    line l = open_line();
    ddl__slots *slots = ddl__slots_create(4096, 1);
    ddl__link *link = slots ? ddl__tcp_link_create(slots, dup(l.in[0]), "eth0", l.to) : NULL;
    CHECK(link, "%s", ddl__message());
    l.to = NULL;
    make_record(&l, 1, record);
    record[RECORD - 1] ^= 1;
    put(&l, record, sizeof record);
    link->ops->poll(link);
    CHECK(link->state == DDL__LINK_LOST && strstr(link->reason, "eth0: received data was altered"),
          "state %d \"%s\"", link->state, link->reason);
    link->ops->destroy(link);
    ddl__slots_destroy(slots);
    close_line(&l);
}

int main(void)
{
    CHECK((crypto = ddl__crypto_open()), "%s", ddl__message());
    test_altered();
    test_moved();
    test_truncated();
    test_narrow();
    test_renewed();
    test_link();
    ddl__crypto_close(crypto);
}
