/* hello.h - what two endpoints say when they meet over a new connection, in either direction: the
 * messages. handshake.h has the order in which they come and how they are proven. */
#ifndef DDL_CONNECT_HELLO_H
#define DDL_CONNECT_HELLO_H

#include "base/crypto.h"
#include "base/digest.h"

enum { DDL__HELLO_MAGIC = 0x6c646468, DDL__PROTOCOL = 5 };

/* How the connection is to be used. Over TCP the link's own connection is followed by its lanes, if
 * it has any, and these by the connection for messages and as many lanes of that. By the next kind
 * members monitor each other, over TCP or a unix socket; by the last one they come to a
 * rendezvous.
 */
enum {
    DDL__CONN_TCP = 1,
    DDL__CONN_SHM = 2,
    DDL__CONN_INPROC = 3,
    DDL__CONN_MESSAGES = 4,
    DDL__CONN_CONTROL = 5,
    DDL__CONN_RENDEZVOUS = 6,
    DDL__CONN_CREATE_FAILURE =
        7 /* no connection: the dialer cannot create the comm, and says why */
};

/* What the sender was told about its job. */
enum { DDL__HELLO_SECRET = 1, DDL__HELLO_ENCRYPT = 2 };

typedef struct ddl__hello {
    uint32_t magic;
    uint16_t protocol; /* magic and protocol keep their places in every version */
    uint8_t kind;
    uint8_t lane; /* 0: the link itself; else which of its lanes, counted from 1 */
    /* Of an answer: DDL_INPROGRESS from the endpoint, DDL_OK accepted, else refused; of a failure.
     */
    int32_t status;
    uint32_t from, to, size; /* ranks */
    uint32_t flags;
    uint32_t attempt;     /* of a create-failure notice: which of the endpoint's attempts failed */
    ddl__digest endpoint; /* that is meant */
    ddl__digest dialer;   /* whose hello it is, and ... */
    uint64_t number;      /* ... which of its hellos without a challenge, from 1 on; 0: with one */
    ddl__digest comm;
    uint64_t arena; /* inproc: the sender's arena, one reference of which goes with it */
    unsigned char nonce[DDL__KEY];
    char text[96]; /* of a refusal or a create-failure notice: why */
    unsigned char proof[DDL__KEY];
} ddl__hello;

/* Enough of a hello to tell whether the rest is one. */
enum { DDL__HELLO_HEAD = 8 };

/* An answer to `hello`. */
ddl__hello ddl__hello_answer(const ddl__hello *hello, ddl_status status, const char *text);

/* Whether it can be read by us at all; sets the message, naming both versions. Looks at the head
 * only. */
ddl_status ddl__hello_check(const ddl__hello *hello);

/* Make a text that has come one that can be shown: it ends, and commands no terminal. */
void ddl__sanitize_text(char *text, size_t size);

/* The same of an answer's. */
void ddl__hello_sanitize(ddl__hello *answer);

#endif
