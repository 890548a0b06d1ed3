/* SPDX-License-Identifier: Apache-2.0 */
/* seal.h - optional encryption and authentication of the bytes of a stream socket. A NULL seal
 * passes them unchanged.
 *
 * Bytes are sent in records: a length of four bytes, low byte first, the encrypted bytes, and a
 * tag. Each direction has its own key. The number of a record is its nonce, so records cannot be
 * altered, dropped, repeated or reordered. After many records, the key is replaced by one derived
 * from it.
 *
 * Two threads may use the two directions at the same time. No call blocks. */
#ifndef DDL_NET_SEAL_H
#define DDL_NET_SEAL_H

#include <sys/socket.h>

#include "base/crypto.h"

typedef struct ddl__seal ddl__seal;

/* Maximum bytes of a record: a chunk of a long span and its header fit into one. */
enum { DDL__RECORD_MAX = (64 << 10) + 64 };

/* Create a seal with keys for sending and receiving. crypto is borrowed. Return NULL with the
 * message set on failure. */
ddl__seal *ddl__seal_create(const ddl__crypto *crypto, const unsigned char out[DDL__KEY],
                            const unsigned char in[DDL__KEY]);
void ddl__seal_destroy(ddl__seal *seal);

/* Send like sendmsg, without waiting. With a seal, bytes count as sent once they are encrypted;
 * some may wait in the seal for room in the socket. */
ssize_t ddl__seal_send(ddl__seal *seal, int fd, const struct msghdr *message);

/* Return true if encrypted bytes wait to be sent. */
bool ddl__seal_has_unsent(const ddl__seal *seal);

/* Send as many waiting bytes as possible. Return true if none are left, else false with errno. */
bool ddl__seal_flush(ddl__seal *seal, int fd);

/* Drop the waiting bytes, because nothing more can be sent. */
void ddl__seal_drop(ddl__seal *seal);

/* Receive like recvmsg, without waiting. Fewer bytes than requested mean that no more have arrived,
 * even with a seal. EBADMSG: the data was altered, and nothing more can be received. */
ssize_t ddl__seal_recv(ddl__seal *seal, int fd, const struct msghdr *message);

/* Send or receive like send and recv, without waiting. */
ssize_t ddl__seal_send_bytes(ddl__seal *seal, int fd, const void *bytes, size_t n);
ssize_t ddl__seal_recv_bytes(ddl__seal *seal, int fd, void *bytes, size_t n);

/* Send or receive all bytes by the deadline, else return false with errno; ECONNRESET if the peer
 * closed. */
bool ddl__seal_send_all(ddl__seal *seal, int fd, const void *bytes, size_t n, int64_t deadline);
bool ddl__seal_recv_all(ddl__seal *seal, int fd, void *bytes, size_t n, int64_t deadline);

/* Return a text for an errno that one of these functions has set. */
const char *ddl__seal_error(int error, char *text, size_t size);

#endif
