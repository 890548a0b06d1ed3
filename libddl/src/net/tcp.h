/* SPDX-License-Identifier: Apache-2.0 */
/* tcp.h - links over one stream socket, or several. User memory is sent without a copy, and spans
 * that are taken are received straight into their place. */
#ifndef DDL_NET_TCP_H
#define DDL_NET_TCP_H

#include "net/link.h"
#include "net/seal.h"
#include "net/slots.h"

enum { DDL__LANES_MAX = 64 };

/* A link over a connected stream socket, which the link owns from here on, with the seal that
 * encrypts it, or NULL. The name is that of the connection in messages; copied. slots is borrowed
 * and outlives the link. NULL when out of memory (message set); fd and seal then stay with the
 * caller. */
ddl__link *ddl__tcp_link_create(ddl__slots *slots, int fd, const char *name, ddl__seal *seal);

/* The buffers of n unopened links. Those of many links take no memory until they are used, since
 * their pages are not touched. NULL without memory; free() them after the links. */
typedef struct ddl__tcp_buffers ddl__tcp_buffers;
ddl__tcp_buffers *ddl__tcp_buffers_create(size_t n);

/* A link without a connection, which it gets when one of the two ends first sends
 * (tcp_first_use.c). Its buffers are those of this number. It asks for it by `ask`, once, with a
 * lock of its own held. link->fd is -1 until the driver has found the connection. NULL when out of
 * memory (message set). */
ddl__link *ddl__tcp_link_create_unopened(ddl__slots *slots, ddl__tcp_buffers *buffers,
                                         size_t number, void (*ask)(void *context), void *context);

/* Give such a link its connection, as ddl__tcp_link_create. Or say that it will never get one,
 * since the peer has left (DDL__LINK_LEFT) or is lost. Any thread; one of the two, once. */
void ddl__tcp_link_connect(ddl__link *link, int fd, const char *name, ddl__seal *seal);
void ddl__tcp_link_lapse(ddl__link *link, ddl__link_state state);

/* Add a connection for the payload of long spans, likewise. Both ends add equally many, in any
 * order, before the first span and before link->fd is polled. False when out of memory or
 * descriptors (message set). */
bool ddl__tcp_link_add_lane(ddl__link *link, int fd, const char *name, ddl__seal *seal);

/* The first connection. With lanes, link->fd is a descriptor for all of them. */
int ddl__tcp_link_socket(const ddl__link *link);

/* The peer is on this machine: use a small send buffer (tcp.c). No effect with lanes. Before the
 * first long span. */
void ddl__tcp_link_shorten(ddl__link *link);

/* How many lanes there are. */
unsigned ddl__tcp_link_lanes(const ddl__link *link);

/* The names of the connections that carry long spans, each once. */
void ddl__tcp_link_describe(const ddl__link *link, char *text, size_t size);

#endif
