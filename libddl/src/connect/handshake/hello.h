/* SPDX-License-Identifier: Apache-2.0 */
/* hello.h - the message that starts a new connection between two endpoints, and the answer to it.
 * handshake.h describes the sequence of messages and their authentication. */
#ifndef DDL_CONNECT_HELLO_H
#define DDL_CONNECT_HELLO_H

#include "base/crypto.h"
#include "base/digest.h"

#define DDL__PROTOCOL 18 /* a macro, so that api_comm.c can include it in a string */
enum { DDL__HELLO_MAGIC = 0x6c646468 };

/* The purpose of the connection. Over TCP, a pair of ranks first opens the link's own connection,
 * then its lanes, if it has any. The connection for messages and its lanes follow. In a large comm,
 * the pair first opens only its control connection. Members monitor each other over control
 * connections, which use TCP or a unix socket. */
enum {
    DDL__CONN_TCP = 1,
    DDL__CONN_SHM = 2,
    DDL__CONN_INPROC = 3,
    DDL__CONN_MESSAGES = 4,
    DDL__CONN_CONTROL = 5,
    DDL__CONN_RENDEZVOUS = 6,
    DDL__CONN_CREATE_FAILURE = 7, /* a notice only: the dialer cannot create the comm */
    DDL__CONN_PAIR = 8,      /* the control connection of members whose links open on first use: the
                                pair's only one in the wireup; answered like a link */
    DDL__CONN_FIRST_USE = 9, /* a link that opens on first use; `lane` is 0 for operations, 1 for
                              * messages */
    DDL__CONN_LIST =
        10, /* requests the list of a rendezvous; carries the rendezvous's id as the comm's id */
    DDL__CONN_LATE_CONTROL = 11, /* a late control connection, from a member without one to the
                                    member that leads an agreement */
    DDL__CONN_FIRST_MEMORY = 12  /* both links of a pair that shares memory, on first use */
};

/* The identification of a comm among its members. */
typedef struct ddl__comm_id {
    ddl__digest comm;   /* unique: the digest of the other two */
    ddl__digest family; /* digest of parent, ordered members, tag and epoch; all 0: none */
    uint32_t number; /* number of the creation in the family, from 1; 0: the tag makes it unique */
} ddl__comm_id;

/* The sender's settings that have to be equal in the whole job. */
enum { DDL__HELLO_SECRET = 1, DDL__HELLO_ENCRYPT = 2 };

typedef struct ddl__hello {
    uint32_t magic;
    uint16_t protocol; /* magic and protocol have the same offsets in every version */
    uint8_t kind;
    uint8_t lane; /* 0: the link's own connection; else the number of a lane, from 1 */
    /* In an answer: DDL_INPROGRESS from the endpoint, DDL_OK if accepted, else the reason for the
     * refusal. In a create-failure notice: the reason. */
    int32_t status;
    uint32_t from, to, size; /* ranks */
    uint32_t flags;
    uint32_t attempt;     /* number of the sender's failed attempt, in a create-failure notice */
    ddl__digest endpoint; /* the endpoint that is dialed */
    ddl__digest dialer;   /* the endpoint that dials */
    uint64_t number; /* counts the dialer's hellos without a challenge, from 1; 0: challenged */
    ddl__digest comm;
    ddl__digest family; /* the comm's id, during its creation and in a create-failure notice */
    uint32_t creation;  /* the creation's number; in an answer, the answering rank's number */
    uint32_t reserved;
    uint64_t arena; /* inproc: a pointer to the sender's arena; carries one reference */
    unsigned char nonce[DDL__KEY];
    char text[96]; /* the reason, in a refusal or a create-failure notice */
    unsigned char proof[DDL__KEY];
} ddl__hello;

/* The error for a message or an address whose magic number has its bytes swapped. */
#define DDL__OTHER_ENDIAN "its byte order is not ours: all hosts of a job must be little-endian"

/* The length of the part that shows if a message is a readable hello. */
enum { DDL__HELLO_HEAD = 8 };

/* Return an answer to `hello`. */
ddl__hello ddl__hello_answer(const ddl__hello *hello, ddl_status status, const char *text);

/* Check, from the head of a hello only, that this libddl can read it. On failure, the message names
 * both versions. */
ddl_status ddl__hello_check(const ddl__hello *hello);

#endif
