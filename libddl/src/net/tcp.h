/* tcp.h - links over one stream socket, or several. User memory goes to the socket without a copy,
 * and spans that are taken come from it straight into their place. */
#ifndef DDL_NET_TCP_H
#define DDL_NET_TCP_H

#include "net/link.h"
#include "net/seal.h"
#include "net/slots.h"

enum { DDL__LANES_MAX = 64 };

/* A link over a connected stream socket, which the link owns from here on. slots is borrowed and
 * outlives the link. NULL when out of memory (message set); fd then stays the caller's. */
ddl__link *ddl__tcp_link_create(ddl__slots *slots, int fd);

/* What a message about the connection calls it; the text is copied. Before the first span. */
void ddl__tcp_link_name(ddl__link *link, const char *name);

/* One more connection, for the payload of long spans; both ends add equally many, in any order,
 * before the first span and before link->fd is watched. False when out of memory or descriptors
 * (message set); fd then stays the caller's. */
bool ddl__tcp_link_add_lane(ddl__link *link, int fd, const char *name);

/* Encrypt one of its connections from here on: 0, the link's own, or a lane. Takes the seal over,
 * which may be NULL. */
void ddl__tcp_link_seal(ddl__link *link, unsigned lane, ddl__seal *seal);

/* The link's own connection; with lanes, link->fd is that of a set of all. */
int ddl__tcp_link_socket(const ddl__link *link);

/* The peer is on this machine: queue less (tcp.c). With lanes nothing changes. Before the first
 * long span. */
void ddl__tcp_link_shorten(ddl__link *link);

/* How many were added. */
unsigned ddl__tcp_link_lanes(const ddl__link *link);

/* The names of its connections that carry long spans, each once. */
void ddl__tcp_link_describe(const ddl__link *link, char *text, size_t size);

#endif
