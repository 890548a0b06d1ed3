/* SPDX-License-Identifier: Apache-2.0 */
/* hello.h - the message that starts a new connection between two endpoints, and the answer to it.
 * handshake.h describes the sequence of messages and their authentication. */
#ifndef DDL_CONNECT_HELLO_H
#define DDL_CONNECT_HELLO_H

#include "base/crypto.h"
#include "base/digest.h"

#define DDL__PROTOCOL 13 /* a macro, for the text in api_comm.c */
enum { DDL__HELLO_MAGIC = 0x6c646468 };

/* The purpose of the connection. Over TCP a pair of ranks first opens the link's own connection,
 * then its lanes, if it has any, then the connection for messages and as many lanes of that. In a
 * large comm it first opens its control connection alone.
 * Members monitor each other over control connections, which use TCP or a unix socket. */
enum {
    DDL__CONN_TCP = 1,
    DDL__CONN_SHM = 2,
    DDL__CONN_INPROC = 3,
    DDL__CONN_MESSAGES = 4,
    DDL__CONN_CONTROL = 5,
    DDL__CONN_RENDEZVOUS = 6,
    DDL__CONN_CREATE_FAILURE = 7, /* a notice only: the dialer cannot create the comm */
    DDL__CONN_PAIR = 8, /* the control connection of members whose links are opened when used: the
                           only one of the wireup; answered as a link */
    DDL__CONN_FIRST_USE = 9, /* one of these links; `lane` 0: of operations, 1: of messages */
    DDL__CONN_LIST =
        10, /* asks for the list of a rendezvous, whose id takes the place of a comm's */
    DDL__CONN_LATE_CONTROL = 11, /* the control connection of members that had none, to the one that
                                    leads an agreement */
    DDL__CONN_FIRST_MEMORY = 12  /* both links of a pair that shares memory, when used */
};

/* What identifies a comm to its members. */
typedef struct ddl__comm_id {
    ddl__digest comm;   /* unique: the digest of the other two */
    ddl__digest family; /* of its parent, its members in their order, tag and epoch; all 0: none */
    uint32_t number;    /* of its creation in the family, from 1; 0: its tag makes it unique */
} ddl__comm_id;

/* The sender's settings that have to be equal in the whole job. */
enum { DDL__HELLO_SECRET = 1, DDL__HELLO_ENCRYPT = 2 };

typedef struct ddl__hello {
    uint32_t magic;
    uint16_t protocol; /* magic and protocol have the same offsets in every version */
    uint8_t kind;
    uint8_t lane; /* 0: the link's own connection; else the number of a lane, from 1 */
    /* In an answer: DDL_INPROGRESS from the endpoint, DDL_OK: accepted, else refused. In a
     * create-failure notice: the reason. */
    int32_t status;
    uint32_t from, to, size; /* ranks */
    uint32_t flags;
    uint32_t attempt;     /* in a create-failure notice: the sender's attempt that failed */
    ddl__digest endpoint; /* the endpoint that is dialed */
    ddl__digest dialer;   /* the endpoint that dials */
    uint64_t number; /* counts the dialer's hellos without a challenge, from 1; 0: challenged */
    ddl__digest comm;
    ddl__digest family; /* of the comm, while it is created, and in a create-failure notice */
    uint32_t creation;  /* likewise its number; in an answer, the number of the answering rank */
    uint32_t reserved;
    uint64_t arena; /* inproc: a pointer to the sender's arena; carries one reference */
    unsigned char nonce[DDL__KEY];
    char text[96]; /* the reason, in a refusal or a create-failure notice */
    unsigned char proof[DDL__KEY];
} ddl__hello;

/* A host of the other byte order shows in the magic numbers of its messages and addresses. */
#define DDL__OTHER_ENDIAN "its byte order is not ours: all hosts of a job must be little-endian"

/* The bytes that tell whether a message is a hello that we can read. */
enum { DDL__HELLO_HEAD = 8 };

/* An answer to `hello`. */
ddl__hello ddl__hello_answer(const ddl__hello *hello, ddl_status status, const char *text);

/* Check that we can read a hello, from its head only. Sets the message, naming both versions. */
ddl_status ddl__hello_check(const ddl__hello *hello);

/* Make a received text safe to print: terminate it, and replace control characters. */
void ddl__sanitize_text(char *text, size_t size);

#endif
