/* SPDX-License-Identifier: Apache-2.0 */
/* bell.h - the socket that wakes the driver of one rank. All peers that share memory with the rank
 * send to it, so a rank needs one descriptor for all of them. A message means that something in the
 * shared memory has changed.
 *
 * The socket has an abstract name, made from a random number. A peer therefore needs only the
 * number, no descriptor. If any other process sends a message, it only wakes the driver
 * needlessly. */
#ifndef DDL_NET_BELL_H
#define DDL_NET_BELL_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/un.h>

/* Create a bell, and choose its number. Return -1 if none can be created (message set). */
int ddl__bell_create(uint64_t *number);

/* Ring the bell with this number; `own` is the caller's bell. Does nothing if the bell's process
 * has exited. Any thread may call this. */
void ddl__bell_ring(int own, uint64_t number);

/* Read all messages. */
void ddl__bell_silence(int bell);

/* Return true if no process has the bell with this number any more. `own` is the number of a bell
 * that the caller has. If `own` is not found either, the caller has changed its network namespace,
 * and the result is false. */
bool ddl__bell_is_gone(uint64_t own, uint64_t number);

/* Build the abstract name of the socket of this kind and number. Return its length. */
socklen_t ddl__bell_name(const char *kind, uint64_t number, struct sockaddr_un *name);

#endif
