/* seal.h - a stream socket's bytes encrypted and authenticated on their way, where that is asked
 * for, and as they are where not: NULL is no seal.
 *
 * What is sent goes in records: four bytes, low byte first, that say how much follows, then so many
 * encrypted bytes, and a tag. Each direction has a key of its own, and counts its records; the
 * number is the nonce, so that none can be altered, left out, repeated or moved. Having carried
 * very much, a key is replaced by one that is made of it.
 *
 * The two directions may be used by two threads. Nothing blocks. */
#ifndef DDL_NET_SEAL_H
#define DDL_NET_SEAL_H

#include <sys/socket.h>

#include "base/crypto.h"

typedef struct ddl__seal ddl__seal;

/* Room for a chunk of a long span with its header, that they need not be divided. */
enum { DDL__RECORD_MAX = (64 << 10) + 64 };

/* Keys for what is sent and what is received. crypto is borrowed. NULL with the message set. */
ddl__seal *ddl__seal_create(const ddl__crypto *crypto, const unsigned char out[DDL__KEY],
                            const unsigned char in[DDL__KEY]);
void ddl__seal_destroy(ddl__seal *seal);

/* As sendmsg without waiting. With a seal the bytes are taken once they are encrypted, part of
 * which may wait here for room in the socket. */
ssize_t ddl__seal_send(ddl__seal *seal, int fd, const struct msghdr *message);

/* Whether something that was taken waits; and send what can be sent of it: true when nothing does,
 * else with errno. */
bool ddl__seal_has_unsent(const ddl__seal *seal);
bool ddl__seal_flush(ddl__seal *seal, int fd);

/* Forget it: nothing more can be sent. */
void ddl__seal_drop(ddl__seal *seal);

/* As recvmsg without waiting; but fewer bytes than asked for mean, with a seal as well, that there
 * are no more now. EBADMSG: what came was altered, and nothing more is to be had. */
ssize_t ddl__seal_recv(ddl__seal *seal, int fd, const struct msghdr *message);

/* As send and recv without waiting. */
ssize_t ddl__seal_send_bytes(ddl__seal *seal, int fd, const void *bytes, size_t n);
ssize_t ddl__seal_recv_bytes(ddl__seal *seal, int fd, void *bytes, size_t n);

/* All of the bytes by the deadline, else false with errno; ECONNRESET when the peer closed. */
bool ddl__seal_send_all(ddl__seal *seal, int fd, const void *bytes, size_t n, int64_t deadline);
bool ddl__seal_recv_all(ddl__seal *seal, int fd, void *bytes, size_t n, int64_t deadline);

/* An errno of these in words. */
const char *ddl__seal_error(int error, char *text, size_t size);

#endif
