/* control_conn.h - a connection for messages about a comm. They are short, rare, and apart from its
 * data, so that they pass although the data stands still and the comm is dead. Never blocks. */
#ifndef DDL_HEALTH_CONTROL_CONN_H
#define DDL_HEALTH_CONTROL_CONN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "net/seal.h"

enum { DDL__CONTROL_MSG_MAX = 32 * 1024 /* bytes of one message's content */ };

/* The values are the protocol's. */
typedef enum ddl__control_msg {
    DDL__HEARTBEAT = 1, /* alive, and what it does */
    DDL__LEAVE,         /* goodbye: it has destroyed the comm */
    DDL__DEAD,          /* the comm is dead: status and why */
    DDL__EXPEL,         /* you are no longer one of us, and why */
    DDL__ASK,           /* what was your operation of this sequence? */
    DDL__ANSWER,        /* this */
    DDL__JOIN,          /* to shrink: whom it leaves out */
    DDL__VERDICT,       /* who goes on */
    DDL__DONE,          /* it has joined the comm of the verdict */
    DDL__ASK_NAME,      /* to rank 0: who has not called this name? */
    DDL__ANSWER_NAME,
    DDL__CONFIRM /* the process of this rank has ended: I have it from the kernel that ran it */
} ddl__control_msg;

typedef enum ddl__control_conn_state {
    DDL__CONTROL_CONN_OPEN,
    DDL__CONTROL_CONN_ENDED, /* end of file or reset: the peer's kernel said so, or what lies
                                between */
    DDL__CONTROL_CONN_BROKEN /* no way to it any more, or what received is no message; it may be
                              * alive
                              */
} ddl__control_conn_state;

typedef struct ddl__buffer {
    unsigned char *bytes;
    size_t have, capacity;
} ddl__buffer;

typedef struct ddl__control_conn {
    int fd;
    bool local;      /* a unix socket: its end comes from the kernel that runs the peer */
    ddl__seal *seal; /* NULL: not encrypted */
    ddl__control_conn_state state;
    int error; /* an errno; 0: end of file */
    ddl__buffer in, out;
} ddl__control_conn;

/* Over a connected socket, which it takes over, with its seal or NULL. */
void ddl__control_conn_open(ddl__control_conn *conn, int fd, ddl__seal *seal);
void ddl__control_conn_close(ddl__control_conn *conn);

/* Send a message, or keep it until there is room. False when it cannot be sent any more, or too
 * many wait. */
bool ddl__control_conn_send(ddl__control_conn *conn, ddl__control_msg message, const void *content,
                            size_t bytes);

/* Whether nothing waits to be sent; sends what can be sent. */
bool ddl__control_conn_flush(ddl__control_conn *conn);

/* Take in what has come; each message goes to `handle`. True when anything received. */
typedef void ddl__control_msg_handler(void *context, ddl__control_msg message,
                                      const unsigned char *content, size_t bytes);
bool ddl__control_conn_receive(ddl__control_conn *conn, ddl__control_msg_handler *handle,
                               void *context);

#endif
