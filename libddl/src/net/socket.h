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

/* Return a connected stream socket, or -1 with errno; ETIMEDOUT at the deadline. The kernel chooses
 * the local address, or it is `from`, which must have the family and length of the peer's
 * address. */
int ddl__dial(const struct sockaddr *address, socklen_t length, int64_t deadline);
int ddl__dial_from(const struct sockaddr *from, const struct sockaddr *address, socklen_t length,
                   int64_t deadline);

/* Dial like ddl__dial_from, over TCP, until the deadline of `until`. If its check fails, errno is
 * ECANCELED and *status is the check's status. Otherwise *status is DDL_OK. */
int ddl__dial_until(const struct sockaddr *from, const struct sockaddr *address, socklen_t length,
                    const ddl__until *until, ddl_status *status);

/* Start to connect a TCP socket. Return it, or -1 with errno. A POLLOUT event reports the end;
 * ddl__dial_error then returns 0 or the error. */
int ddl__dial_begin(const struct sockaddr *from, const struct sockaddr *address, socklen_t length);
int ddl__dial_error(int fd);

/* Return true if this result of connect, an errno or 0, means that the peer's host has answered. */
bool ddl__dial_is_answer(int error);
/* Return true if this host caused the error of connect, so that the error says nothing about the
 * peer. */
bool ddl__dial_is_own_error(int error);

/* Let close end the connection at once, without TCP's wait that keeps its port in use. */
void ddl__skip_time_wait(int fd);

/* Return a listening TCP socket at host (an IP address, or NULL for all addresses of both
 * families) and port (0: any free port); *port is set to the port. Return -1 with the message set
 * on failure. */
int ddl__listen(const char *host, uint16_t *port);

/* Listen like ddl__listen, at a socket address. Return -1 with errno on failure. */
int ddl__listen_at(const struct sockaddr *address, socklen_t length);

/* Return the local port of a TCP socket. */
uint16_t ddl__socket_port(int fd);

/* Store the IP address of a TCP socket's local end or peer, such as "10.0.0.2"; "?" if it has
 * none. */
void ddl__socket_ip(int fd, bool peer, char ip[INET6_ADDRSTRLEN]);

/* Wait for `events` of poll. Return false at the deadline. */
bool ddl__await(int fd, short events, int64_t deadline);

/* Wait like ddl__await, with a check every DDL__MEMBERS_POLL. If the check fails, errno is
 * ECANCELED and *status is its status. Otherwise *status is DDL_OK. */
bool ddl__await_until(int fd, short events, const ddl__until *until, ddl_status *status);

/* Wait for `events` for a moment without sleeping, because waking up takes longer than many peers
 * take to answer. Only for threads with their own core. */
void ddl__await_awake(int fd, short events);

/* After a failed call: return true if it may be tried again. Waits if the call would have
 * blocked. */
bool ddl__try_again(int fd, short events, int64_t deadline);

/* Send or receive all bytes by the deadline, else return false with errno; ECONNRESET if the peer
 * closed. */
bool ddl__send_all(int fd, const void *bytes, size_t n, int64_t deadline);
bool ddl__recv_all(int fd, void *bytes, size_t n, int64_t deadline);

/* Send or receive all bytes over a unix socket, with descriptors attached to them. The receiver
 * initialises the entries of its array to -1; descriptors for which the array has no room are
 * closed. */
enum { DDL__PASSED_MAX = 2 };
bool ddl__send_with_fds(int fd, const void *bytes, size_t n, const int *passed, unsigned n_passed,
                        int64_t deadline);
bool ddl__recv_with_fds(int fd, void *bytes, size_t n, int *passed, unsigned n_passed,
                        int64_t deadline);

/* Send or receive all bytes over a unix socket with one descriptor, or without one (-1). */
bool ddl__send_with_fd(int fd, const void *bytes, size_t n, int passed, int64_t deadline);
bool ddl__recv_with_fd(int fd, void *bytes, size_t n, int *passed, int64_t deadline);

/* Peek without blocking. Return the number of bytes, 0 if the peer closed, -1 with errno. Bytes and
 * descriptor stay in the socket, so the caller can leave them there until the peer is
 * authenticated. *along is true if a descriptor is attached to the last of these bytes. */
ssize_t ddl__peek_some(int fd, void *bytes, size_t n, bool *along);

/* Return true if the peer has closed its sending side. */
bool ddl__has_ended(int fd);

/* Return true if, according to the kernel, the other end of a unix socket belongs to this user, or
 * to this process. */
bool ddl__same_user(int fd);
bool ddl__same_process(int fd);

#endif
