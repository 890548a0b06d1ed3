/* tcp.h - links over one stream socket, or several. User memory is sent without a copy, and spans
 * that are taken are received straight into their place. */
#ifndef DDL_NET_TCP_H
#define DDL_NET_TCP_H

#include "net/link.h"
#include "net/seal.h"
#include "net/slots.h"

enum { DDL__LANES_MAX = 64 };

/* A link over a connected stream socket, which the link owns from here on. slots is borrowed and
 * outlives the link. NULL when out of memory (message set); fd then stays with the caller. */
ddl__link *ddl__tcp_link_create(ddl__slots *slots, int fd);

/* The name of the connection in messages; copied. Before the first span. */
void ddl__tcp_link_name(ddl__link *link, const char *name);

/* Add a connection for the payload of long spans. Both ends add equally many, in any order, before
 * the first span and before link->fd is polled. False when out of memory or descriptors (message
 * set); fd then stays with the caller. */
bool ddl__tcp_link_add_lane(ddl__link *link, int fd, const char *name);

/* Encrypt one of its connections from here on: 0, the first one, or a lane. Takes ownership of the
 * seal, which may be NULL. */
void ddl__tcp_link_seal(ddl__link *link, unsigned lane, ddl__seal *seal);

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
