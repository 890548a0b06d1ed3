/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzes an encrypted stream that is modified on its way: altered, truncated, repeated, with bytes
 * inserted. The output must be what was sent, in order, up to the first altered byte. */
#include <errno.h>
#include <sys/socket.h>
#include <unistd.h>

#include "input.h"
#include "net/seal.h"

enum { BYTES = 4000, WIRE = BYTES + 600, MORE = 64, RECORDS_MAX = 12 };

static ddl__crypto *the_crypto(void)
{
    static ddl__crypto *crypto;
    if (!crypto)
        crypto = ddl__crypto_open();
    REQUIRE(crypto, "%s", ddl__message());
    return crypto;
}

static ddl__seal *make(int out, int in)
{
    unsigned char keys[2][DDL__KEY];
    memset(keys[0], out, DDL__KEY);
    memset(keys[1], in, DDL__KEY);
    ddl__seal *seal = ddl__seal_create(the_crypto(), keys[0], keys[1]);
    REQUIRE(seal, "%s", ddl__message());
    return seal;
}

/* Write records of some of the bytes as they are on the wire. Return their length. */
static size_t record(ddl__seal *from, const int fds[2], const unsigned char *bytes, size_t *sent,
                     unsigned char wire[WIRE], input *in)
{
    size_t n = 0;
    for (unsigned i = 1 + input_byte(in) % RECORDS_MAX; i && *sent < BYTES; i--) {
        size_t some = 1 + input_length(in, 600);
        some = some < BYTES - *sent ? some : BYTES - *sent;
        REQUIRE(ddl__seal_send_bytes(from, fds[0], bytes + *sent, some) == (ssize_t)some, "%s",
                strerror(errno));
        *sent += some;
    }
    for (ssize_t k; (k = recv(fds[1], wire + n, WIRE - n, MSG_DONTWAIT)) > 0;)
        n += (size_t)k;
    return n;
}

int LLVMFuzzerTestOneInput(const uint8_t *input_bytes, size_t n_input)
{
    input in = {input_bytes, n_input};
    unsigned char bytes[BYTES], wire[WIRE + MORE], right[WIRE + MORE], got[BYTES + MORE];
    ddl__seal *from = make(1, 2), *to = make(2, 1);
    int fds[2];
    size_t sent = 0, came = 0;
    REQUIRE(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), "%s", strerror(errno));
    for (size_t i = 0; i < BYTES; i++)
        bytes[i] = (unsigned char)(i % 251);
    memset(wire, 0, sizeof wire);
    size_t whole = record(from, fds, bytes, &sent, wire, &in), n = whole, same = 0;
    memcpy(right, wire, sizeof right);
    input_alter(&in, wire, n);
    if (input_byte(&in) % 4 == 3)
        n -= input_length(&in, n + 1);
    if (input_byte(&in) % 4 == 3)
        n += input_run(&in, wire + n, MORE);
    while (same < n && same < whole && wire[same] == right[same])
        same++;

    ssize_t k = 0;
    for (size_t at = 0; at < n || k > 0;) {
        size_t some = at == n ? 0 : in.left ? 1 + input_length(&in, n - at) : n - at;
        size_t want = in.left ? 1 + input_length(&in, 700) : sizeof got;
        REQUIRE(send(fds[1], wire + at, some, 0) == (ssize_t)some, "%s", strerror(errno));
        at += some;
        want = want < sizeof got - came ? want : sizeof got - came;
        k = ddl__seal_recv_bytes(to, fds[0], got + came, want);
        REQUIRE(k >= 0 || errno == EAGAIN || errno == EBADMSG, "%s", strerror(errno));
        came += k > 0 ? (size_t)k : 0;
    }
    REQUIRE(came <= sent && came <= same && !memcmp(bytes, got, came), "other bytes came");
    REQUIRE(same < whole || came == sent, "of %zu right bytes %zu came", sent, came);
    ddl__seal_destroy(from);
    ddl__seal_destroy(to);
    close(fds[0]);
    close(fds[1]);
    return 0;
}
