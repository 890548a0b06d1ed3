/* SPDX-License-Identifier: Apache-2.0 */
/* closer.h - closes the connections of unauthenticated clients on separate threads.
 *
 * A client can send descriptors over a unix socket. Closing the socket, or reading the data to
 * which they are attached, may drop the last references to their files, and then blocks until the
 * files are closed. For a TCP socket with SO_LINGER and unsent data, this takes as long as the
 * client chooses. For a file in FUSE, it may take forever. So unix connections whose peers have not
 * proven the secret are closed here. */
#ifndef DDL_CONNECT_CLOSER_H
#define DDL_CONNECT_CLOSER_H

#include <stdbool.h>

typedef struct ddl__closer ddl__closer;

/* ddl__closer_create returns NULL if out of memory. ddl__closer_release does not wait: connections
 * that are not closed yet keep the closer alive. */
ddl__closer *ddl__closer_create(void);
void ddl__closer_release(ddl__closer *closer);

/* Close fd without blocking the caller. */
void ddl__closer_add(ddl__closer *closer, int fd);

/* Return true if too many connections wait to be closed: no more should be accepted. */
bool ddl__closer_is_full(ddl__closer *closer);

#endif
