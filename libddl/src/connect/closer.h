/* closer.h - closes connections of strangers on threads of its own.
 *
 * A stranger can send descriptors over a unix socket. Whoever closes the socket, or reads past
 * them, drops the last reference of what they name, and waits until that has been closed: of a TCP
 * socket with SO_LINGER and unsent data as long as the stranger likes, of a file in FUSE for ever.
 * So a connection whose peer has proven nothing is closed here. */
#ifndef DDL_CONNECT_CLOSER_H
#define DDL_CONNECT_CLOSER_H

#include <stdbool.h>

typedef struct ddl__closer ddl__closer;

/* NULL: no memory. Releasing does not wait: connections that are not closed yet keep it alive. */
ddl__closer *ddl__closer_create(void);
void ddl__closer_release(ddl__closer *closer);

/* Close fd, now or later. */
void ddl__closer_add(ddl__closer *closer, int fd);

/* Whether so many wait that no more should be accepted. */
bool ddl__closer_is_full(ddl__closer *closer);

#endif
