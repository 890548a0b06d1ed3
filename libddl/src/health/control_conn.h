/* SPDX-License-Identifier: Apache-2.0 */
/* control_conn.h - a connection for messages about a comm. The messages are short and rare. They
 * have their own connection, so they arrive even if the data path is blocked or the comm is dead.
 * No call blocks. */
#ifndef DDL_HEALTH_CONTROL_CONN_H
#define DDL_HEALTH_CONTROL_CONN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "membership/membership.h"
#include "net/seal.h"

enum { DDL__CONTROL_MSG_MAX = 32 * 1024 /* bytes of one message's content */ };

typedef enum ddl__control_conn_state {
    DDL__CONTROL_CONN_OPEN,
    DDL__CONTROL_CONN_ENDED, /* end of file or reset, by the peer's kernel or by the network */
    DDL__CONTROL_CONN_BROKEN /* unreachable, or sent an invalid message; the peer may be alive */
} ddl__control_conn_state;

typedef struct ddl__buffer {
    unsigned char *bytes;
    size_t have, capacity;
} ddl__buffer;

typedef struct ddl__control_conn {
    int fd;
    bool local;      /* a unix socket: its end proves that the peer closed it */
    ddl__seal *seal; /* NULL: not encrypted */
    ddl__control_conn_state state;
    int error; /* if not open: the reason, an errno; 0: end of file */
    ddl__buffer in, out;
} ddl__control_conn;

/* Open a control connection over a connected socket. Takes over fd and the seal, which may be NULL.
 */
void ddl__control_conn_open(ddl__control_conn *conn, int fd, ddl__seal *seal);
void ddl__control_conn_close(ddl__control_conn *conn);

/* Send a message, or queue it until there is room. Returns false if the connection has ended, or if
 * too many bytes are queued. */
bool ddl__control_conn_send(ddl__control_conn *conn, ddl__control_msg message, const void *content,
                            size_t bytes);

/* Send as much of the queue as possible. Returns true if the queue is empty. */
bool ddl__control_conn_flush(ddl__control_conn *conn);

/* Receive the data that has arrived, and pass each message to `handle`. Returns true if data has
 * arrived. */
typedef void ddl__control_msg_handler(void *context, ddl__control_msg message,
                                      const unsigned char *content, size_t bytes);
bool ddl__control_conn_receive(ddl__control_conn *conn, ddl__control_msg_handler *handle,
                               void *context);

#endif
