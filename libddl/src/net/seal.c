/* SPDX-License-Identifier: Apache-2.0 */
#include "net/seal.h"

#include <endian.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "net/socket.h"

enum {
    HEAD = 4,
    WHOLE = HEAD + DDL__RECORD_MAX + DDL__TAG,
    INCOMING = 2 * WHOLE, /* maximum number of bytes read at a time */
    PIECES = 64           /* maximum number of iovecs whose bytes form one record */
};

/* The number of records encrypted with one key: at most 4 GiB of data, far below the limit of
 * AES-GCM. */
static const uint64_t RENEW = 1 << 16;

/* The state of one direction. */
typedef struct way {
    ddl__cipher *cipher;
    unsigned char key[DDL__KEY];
    uint64_t number; /* number of the next record under this key */
    size_t from, to; /* range of `bytes` that is unsent, or not yet decrypted */
    unsigned char *bytes;
} way;

struct ddl__seal {
    const ddl__crypto *crypto;
    way out, in;
    size_t clear; /* number of decrypted bytes from in.from on that the caller has not received */
    int error;    /* the errno that ended receiving */
};

/* ----------------------------------------------------------------------------------------- keys */

static bool way_open(const ddl__crypto *crypto, way *w, const unsigned char key[DDL__KEY], bool out)
{
    memcpy(w->key, key, sizeof w->key);
    w->bytes = malloc(out ? WHOLE : INCOMING);
    w->cipher = ddl__cipher_create(crypto, key, out);
    if (!w->bytes)
        ddl__fail(DDL_ENOMEM, "out of memory: cannot encrypt a connection");
    return w->bytes && w->cipher;
}

static void way_close(way *w)
{
    ddl__cipher_destroy(w->cipher);
    ddl__erase_secret(w->key, sizeof w->key);
    free(w->bytes);
}

ddl__seal *ddl__seal_create(const ddl__crypto *crypto, const unsigned char out[DDL__KEY],
                            const unsigned char in[DDL__KEY])
{
    ddl__seal *seal = calloc(1, sizeof *seal);
    if (!seal) {
        ddl__fail(DDL_ENOMEM, "out of memory: cannot encrypt a connection");
        return NULL;
    }
    seal->crypto = crypto;
    if (way_open(crypto, &seal->out, out, true) && way_open(crypto, &seal->in, in, false))
        return seal;
    ddl__seal_destroy(seal);
    return NULL;
}

void ddl__seal_destroy(ddl__seal *seal)
{
    if (!seal)
        return;
    way_close(&seal->out);
    way_close(&seal->in);
    free(seal);
}

/* Set the nonce of the next record. Return false if a new key is due and cannot be made. */
static bool next_record(const ddl__crypto *crypto, way *w, bool out, unsigned char iv[DDL__IV])
{
    static const char label[] = "libddl renew";
    if (w->number == RENEW) {
        unsigned char key[DDL__KEY];
        ddl__cipher *cipher = NULL;
        if (ddl__hmac(crypto, w->key, sizeof w->key, label, sizeof label, key))
            cipher = ddl__cipher_create(crypto, key, out);
        if (cipher)
            memcpy(w->key, key, sizeof w->key);
        ddl__erase_secret(key, sizeof key);
        if (!cipher)
            return false;
        ddl__cipher_destroy(w->cipher);
        w->cipher = cipher;
        w->number = 0;
    }
    uint64_t nonce = htole64(w->number++);
    memset(iv, 0, DDL__IV);
    memcpy(iv, &nonce, sizeof nonce);
    return true;
}

/* -------------------------------------------------------------------------------------- sending */

bool ddl__seal_has_unsent(const ddl__seal *seal)
{
    return seal && seal->out.from < seal->out.to;
}

bool ddl__seal_flush(ddl__seal *seal, int fd)
{
    while (ddl__seal_has_unsent(seal)) {
        way *w = &seal->out;
        ssize_t k = send(fd, w->bytes + w->from, w->to - w->from, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (k >= 0)
            w->from += (size_t)k;
        else if (errno != EINTR)
            return false;
    }
    return true;
}

void ddl__seal_drop(ddl__seal *seal)
{
    if (seal)
        seal->out.from = seal->out.to = 0;
}

/* Encrypt as many bytes as fit into one record, starting `skip` bytes into the message. Return
 * their number; 0 on failure. */
static size_t record_seal(ddl__seal *seal, const struct msghdr *message, size_t skip)
{
    struct iovec pieces[PIECES];
    unsigned char iv[DDL__IV];
    size_t n = 0, bytes = 0;
    for (size_t i = 0; i < message->msg_iovlen && n < PIECES && bytes < DDL__RECORD_MAX; i++) {
        const struct iovec *piece = &message->msg_iov[i];
        size_t skipped = skip < piece->iov_len ? skip : piece->iov_len;
        size_t left = piece->iov_len - skipped, room = DDL__RECORD_MAX - bytes;
        skip -= skipped;
        if (!left)
            continue;
        pieces[n].iov_base = (char *)piece->iov_base + skipped;
        pieces[n].iov_len = left < room ? left : room;
        bytes += pieces[n++].iov_len;
    }
    way *w = &seal->out;
    uint32_t length = htole32((uint32_t)bytes);
    memcpy(w->bytes, &length, HEAD);
    if (!next_record(seal->crypto, w, true, iv) ||
        !ddl__cipher_seal(w->cipher, iv, w->bytes, HEAD, pieces, n, w->bytes + HEAD)) {
        errno = ENOMEM;
        return 0;
    }
    w->from = 0;
    w->to = HEAD + bytes + DDL__TAG;
    return bytes;
}

static size_t length_of(const struct msghdr *message)
{
    size_t bytes = 0;
    for (size_t i = 0; i < message->msg_iovlen; i++)
        bytes += message->msg_iov[i].iov_len;
    return bytes;
}

ssize_t ddl__seal_send(ddl__seal *seal, int fd, const struct msghdr *message)
{
    if (!seal)
        return sendmsg(fd, message, MSG_DONTWAIT | MSG_NOSIGNAL);
    size_t whole = length_of(message), taken = 0;
    while (ddl__seal_flush(seal, fd) && taken < whole) {
        size_t n = record_seal(seal, message, taken);
        if (!n)
            break;
        taken += n;
    }
    return taken || !whole ? (ssize_t)taken : -1;
}

/* ------------------------------------------------------------------------------------ receiving */

/* Read more bytes, as recv does. */
static ssize_t seal_fill(ddl__seal *seal, int fd)
{
    way *w = &seal->in;
    if (w->from == w->to) {
        w->from = w->to = 0;
    } else if (w->from && w->to + WHOLE > INCOMING) {
        memmove(w->bytes, w->bytes + w->from, w->to - w->from);
        w->to -= w->from;
        w->from = 0;
    }
    ssize_t k;
    do
        k = recv(fd, w->bytes + w->to, INCOMING - w->to, MSG_DONTWAIT);
    while (k < 0 && errno == EINTR);
    w->to += k > 0 ? (size_t)k : 0;
    return k;
}

/* Decrypt the next record if it has arrived completely. Return false if it was altered. */
static bool record_open(ddl__seal *seal)
{
    way *w = &seal->in;
    unsigned char iv[DDL__IV], *record = w->bytes + w->from;
    size_t have = w->to - w->from, n;
    uint32_t length;
    if (have < HEAD)
        return true;
    memcpy(&length, record, HEAD);
    n = le32toh(length);
    if (!n || n > DDL__RECORD_MAX)
        return false;
    if (have < HEAD + n + DDL__TAG)
        return true;
    if (!next_record(seal->crypto, w, false, iv) ||
        !ddl__cipher_open(w->cipher, iv, record, HEAD, record + HEAD, n))
        return false;
    w->from += HEAD;
    seal->clear = n;
    return true;
}

/* Copy decrypted bytes to the message, from offset `place` on. */
static size_t seal_take(ddl__seal *seal, const struct msghdr *message, size_t place)
{
    way *w = &seal->in;
    size_t taken = 0;
    for (size_t i = 0; i < message->msg_iovlen && seal->clear; i++) {
        const struct iovec *piece = &message->msg_iov[i];
        size_t skip = place < piece->iov_len ? place : piece->iov_len;
        size_t n = piece->iov_len - skip < seal->clear ? piece->iov_len - skip : seal->clear;
        place -= skip;
        if (n)
            memcpy((char *)piece->iov_base + skip, w->bytes + w->from, n);
        w->from += n;
        seal->clear -= n;
        taken += n;
        if (!seal->clear)
            w->from += DDL__TAG;
    }
    return taken;
}

ssize_t ddl__seal_recv(ddl__seal *seal, int fd, const struct msghdr *message)
{
    if (!seal)
        return recvmsg(fd, (struct msghdr *)(uintptr_t)message, MSG_DONTWAIT);
    size_t want = length_of(message), got = 0;
    ssize_t k = 1;
    while (got < want && k > 0 && !seal->error) {
        if (!seal->clear && !record_open(seal))
            seal->error = EBADMSG;
        else if (seal->clear)
            got += seal_take(seal, message, got);
        else if ((k = seal_fill(seal, fd)) < 0 && errno != EAGAIN && errno != EWOULDBLOCK)
            seal->error = errno;
    }
    if (got || !want)
        return (ssize_t)got;
    if (seal->error) {
        errno = seal->error;
        return -1;
    }
    return k;
}

/* ----------------------------------------------------------------------------------------- both */

ssize_t ddl__seal_send_bytes(ddl__seal *seal, int fd, const void *bytes, size_t n)
{
    struct iovec piece = {(void *)(uintptr_t)bytes, n};
    return ddl__seal_send(seal, fd, &(struct msghdr){.msg_iov = &piece, .msg_iovlen = 1});
}

ssize_t ddl__seal_recv_bytes(ddl__seal *seal, int fd, void *bytes, size_t n)
{
    struct iovec piece = {bytes, n};
    return ddl__seal_recv(seal, fd, &(struct msghdr){.msg_iov = &piece, .msg_iovlen = 1});
}

bool ddl__seal_send_all(ddl__seal *seal, int fd, const void *bytes, size_t n, int64_t deadline)
{
    const char *at = bytes;
    while (n) {
        ssize_t k = ddl__seal_send_bytes(seal, fd, at, n);
        if (k < 0 && !ddl__try_again(fd, POLLOUT, deadline))
            return false;
        at += k > 0 ? k : 0;
        n -= k > 0 ? (size_t)k : 0;
    }
    while (!ddl__seal_flush(seal, fd))
        if (!ddl__try_again(fd, POLLOUT, deadline))
            return false;
    return true;
}

bool ddl__seal_recv_all(ddl__seal *seal, int fd, void *bytes, size_t n, int64_t deadline)
{
    char *at = bytes;
    while (n) {
        ssize_t k = ddl__seal_recv_bytes(seal, fd, at, n);
        if (k == 0)
            errno = ECONNRESET;
        if (k == 0 || (k < 0 && !ddl__try_again(fd, POLLIN, deadline)))
            return false;
        at += k > 0 ? k : 0;
        n -= k > 0 ? (size_t)k : 0;
    }
    return true;
}

const char *ddl__seal_error(int error, char *text, size_t size)
{
    errno = error;
    if (error == EBADMSG)
        snprintf(text, size, "received data was altered on its way: it cannot be decrypted");
    else
        snprintf(text, size, "%m");
    return text;
}
