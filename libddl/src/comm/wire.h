/* wire.h - a connection for words about a comm: short, seldom, and apart from its data, so that
 * they pass although the data stands still and the comm is dead. Never blocks. */
#ifndef DDL_COMM_WIRE_H
#define DDL_COMM_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "net/seal.h"

enum { DDL__WORD_MAX = 32 * 1024 /* bytes of one word's content */ };

/* The values are the protocol's. */
typedef enum ddl__word {
    DDL__BEAT = 1, /* alive, and what it does */
    DDL__LEAVE,    /* goodbye: it has destroyed the comm */
    DDL__DEAD,     /* the comm is dead: status and why */
    DDL__EXPEL,    /* you are no longer one of us, and why */
    DDL__ASK,      /* what was your operation of this sequence? */
    DDL__ANSWER,   /* this */
    DDL__JOIN,     /* to shrink: whom it leaves out */
    DDL__VERDICT,  /* who goes on */
    DDL__DONE,     /* it has joined the comm of the verdict */
    DDL__ASK_NAME, /* to rank 0: who has not called this name? */
    DDL__ANSWER_NAME,
    DDL__CONFIRM /* the process of this rank has ended: I have it from the kernel that ran it */
} ddl__word;

typedef enum ddl__wire_state {
    DDL__WIRE_OPEN,
    DDL__WIRE_ENDED, /* end of file or reset: the peer's kernel said so, or what lies between */
    DDL__WIRE_BROKEN /* no way to it any more, or what came is no word; it may be alive */
} ddl__wire_state;

typedef struct ddl__buffer {
    unsigned char *bytes;
    size_t have, capacity;
} ddl__buffer;

typedef struct ddl__wire {
    int fd;
    bool local;      /* a unix socket: its end comes from the kernel that runs the peer */
    ddl__seal *seal; /* NULL: not encrypted */
    ddl__wire_state state;
    int error; /* an errno; 0: end of file */
    ddl__buffer in, out;
} ddl__wire;

/* Over a connected socket, which it takes over, with its seal or NULL. */
void ddl__wire_open(ddl__wire *wire, int fd, ddl__seal *seal);
void ddl__wire_close(ddl__wire *wire);

/* Send a word, or keep it until there is room. False when it cannot be sent any more, or too many
 * wait. */
bool ddl__wire_send(ddl__wire *wire, ddl__word word, const void *content, size_t bytes);

/* Whether nothing waits to be sent; sends what can be sent. */
bool ddl__wire_flush(ddl__wire *wire);

/* Take in what has come; each word goes to `hear`. True when anything came. */
typedef void ddl__hear(void *context, ddl__word word, const unsigned char *content, size_t bytes);
bool ddl__wire_receive(ddl__wire *wire, ddl__hear *hear, void *context);

#endif
