/* SPDX-License-Identifier: Apache-2.0 */
/* socket.h - sockets with deadlines, for connecting peers. Links do not use it. */
#ifndef DDL_NET_SOCKET_H
#define DDL_NET_SOCKET_H

#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include "base/until.h"

/* A connected stream socket, or -1 with errno; ETIMEDOUT at the deadline. From any local address,
 * or from one of the same family and length as that of the peer. */
int ddl__dial(const struct sockaddr *address, socklen_t length, int64_t deadline);
int ddl__dial_from(const struct sockaddr *from, const struct sockaddr *address, socklen_t length,
                   int64_t deadline);

/* As ddl__dial_from, for a TCP socket, until the deadline of `until` or while its check succeeds:
 * ECANCELED with its *status, else that is DDL_OK. */
int ddl__dial_until(const struct sockaddr *from, const struct sockaddr *address, socklen_t length,
                    const ddl__until *until, ddl_status *status);

/* Begin to connect a TCP socket. Returns it, or -1 with errno. An event POLLOUT tells the end;
 * ddl__dial_error then returns 0 or the error. */
int ddl__dial_begin(const struct sockaddr *from, const struct sockaddr *address, socklen_t length);
int ddl__dial_error(int fd);

/* Let close end the connection at once, without the wait of TCP that keeps its port in use. */
void ddl__skip_time_wait(int fd);

/* A listening TCP socket at host (an IP address, or NULL for all of both families) and port (0: any
 * free), the port stored in *port. -1 with the message set. */
int ddl__listen(const char *host, uint16_t *port);

/* The same at an address of the kernel's form. -1 with errno. */
int ddl__listen_at(const struct sockaddr *address, socklen_t length);

/* The local port of a TCP socket. */
uint16_t ddl__socket_port(int fd);

/* The local IP address of a TCP socket, or its peer's, such as "10.0.0.2"; "?" if it has none. */
void ddl__socket_ip(int fd, bool peer, char ip[INET6_ADDRSTRLEN]);

/* Wait for `events` of poll; false at the deadline. */
bool ddl__await(int fd, short events, int64_t deadline);

/* The same, with a check every DDL__MEMBERS_POLL: ECANCELED with its *status, else that is DDL_OK.
 */
bool ddl__await_until(int fd, short events, const ddl__until *until, ddl_status *status);

/* Wait a moment for `events` without sleeping: waking up takes longer than many a peer takes to
 * answer. For a thread that has a core. */
void ddl__await_awake(int fd, short events);

/* After a call that has failed: whether to try again. Waits if the call would have blocked. */
bool ddl__try_again(int fd, short events, int64_t deadline);

/* All of the bytes by the deadline, else false with errno; ECONNRESET when the peer closed. */
bool ddl__send_all(int fd, const void *bytes, size_t n, int64_t deadline);
bool ddl__recv_all(int fd, void *bytes, size_t n, int64_t deadline);

/* The same over a unix socket, with descriptors beside the bytes. The receiver's are -1 before;
 * more than it has room for are discarded. */
enum { DDL__PASSED_MAX = 2 };
bool ddl__send_with_fds(int fd, const void *bytes, size_t n, const int *passed, unsigned n_passed,
                        int64_t deadline);
bool ddl__recv_with_fds(int fd, void *bytes, size_t n, int *passed, unsigned n_passed,
                        int64_t deadline);

/* The same with one descriptor, or none (-1). */
bool ddl__send_with_fd(int fd, const void *bytes, size_t n, int passed, int64_t deadline);
bool ddl__recv_with_fd(int fd, void *bytes, size_t n, int *passed, int64_t deadline);

/* Peek without blocking: the number of bytes, 0 when the peer closed, -1 with errno. The bytes and
 * a descriptor stay in the socket. *along tells whether a descriptor came beside the last of these
 * bytes. Used to take nothing before the peer is known. */
ssize_t ddl__peek_some(int fd, void *bytes, size_t n, bool *along);

/* Whether the peer has closed its sending side. */
bool ddl__has_ended(int fd);

/* Whether, according to the kernel, the other end of a unix socket belongs to this user, or this
 * process. */
bool ddl__same_user(int fd);
bool ddl__same_process(int fd);

#endif
