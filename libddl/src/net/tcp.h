/* tcp.h - links over one stream socket each. Lent memory goes to the socket without a copy, and
 * spans that are taken come from it straight into their place. */
#ifndef DDL_NET_TCP_H
#define DDL_NET_TCP_H

#include "net/link.h"

/* Slots for reserved spans, shared by the TCP links of one comm. A span must fit into one slot.
 * NULL when out of memory (message set). */
typedef struct ddl__slots ddl__slots;
ddl__slots *ddl__slots_create(size_t slot_bytes, unsigned slots);
void ddl__slots_destroy(ddl__slots *slots);

/* A link over a connected stream socket, which the link owns from here on. slots is borrowed and
 * outlives the link. NULL when out of memory (message set); fd then stays the caller's. */
ddl__link *ddl__tcp_link_create(ddl__slots *slots, int fd);

#endif
