/* SPDX-License-Identifier: Apache-2.0 */
/* tcp.h - links over one or more stream sockets. User memory is sent without a copy, and the spans
 * of a TAKE step are received directly into their destination. */
#ifndef DDL_NET_TCP_H
#define DDL_NET_TCP_H

#include "net/link.h"
#include "net/seal.h"
#include "net/tcp/slots.h"

enum { DDL__LANES_MAX = 64 };

/* Create a link over a connected stream socket, which the link then owns, with the seal that
 * encrypts it, or NULL. `name` is the connection's name in messages; it is copied. slots is
 * borrowed and outlives the link. Return NULL if out of memory (message set); the caller then keeps
 * fd and seal. */
ddl__link *ddl__tcp_link_create(ddl__slots *slots, int fd, const char *name, ddl__seal *seal);

/* Create the buffers of n unopened links. Unused buffers take no memory, because their pages are
 * not touched. Return NULL if out of memory. Free them with free() after the links. */
typedef struct ddl__tcp_buffers ddl__tcp_buffers;
ddl__tcp_buffers *ddl__tcp_buffers_create(size_t n);

/* Create a link without a connection, which it gets when one of the two ends first sends
 * (tcp_first_use.c). It uses entry `number` of `buffers`. It calls `ask` once, with its own lock
 * held, to request the connection. link->fd is -1 until the driver has adopted the connection.
 * Return NULL if out of memory (message set). */
ddl__link *ddl__tcp_link_create_unopened(ddl__slots *slots, ddl__tcp_buffers *buffers,
                                         size_t number, void (*ask)(void *context), void *context);

/* Give an unopened link its connection, with arguments as in ddl__tcp_link_create; or close the
 * link unopened, because the peer has left (DDL__LINK_LEFT) or is lost. Call one of the two
 * functions, once, from any thread. */
void ddl__tcp_link_connect(ddl__link *link, int fd, const char *name, ddl__seal *seal);
void ddl__tcp_link_lapse(ddl__link *link, ddl__link_state state);

/* Add a connection for the payload of long spans; arguments as in ddl__tcp_link_create. Both ends
 * add the same number of lanes, in any order, before the first span and before link->fd is polled.
 * Return false if out of memory or descriptors (message set). */
bool ddl__tcp_link_add_lane(ddl__link *link, int fd, const char *name, ddl__seal *seal);

/* Return the first connection. With lanes, link->fd is a descriptor for all of them. */
int ddl__tcp_link_socket(const ddl__link *link);

/* Use a small send buffer, because the peer is on this machine (tcp.c). No effect with lanes. Call
 * this before the first long span. */
void ddl__tcp_link_shorten(ddl__link *link);

/* Return the number of lanes. */
unsigned ddl__tcp_link_lanes(const ddl__link *link);

/* Write the names of the connections that carry long spans, each once. */
void ddl__tcp_link_describe(const ddl__link *link, char *text, size_t size);

#endif
