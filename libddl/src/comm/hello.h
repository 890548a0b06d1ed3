/* hello.h - what two endpoints say when they meet over a new connection, in either direction. The
 * one who dials says whom it wants and for which comm; the endpoint's thread answers at once
 * whether it is the right door, and the comm's creator, when it is ready, accepts. */
#ifndef DDL_COMM_HELLO_H
#define DDL_COMM_HELLO_H

#include "base/digest.h"
#include "base/status.h"

enum { DDL__HELLO_MAGIC = 0x6c646468, DDL__PROTOCOL = 3 };

/* How the connection is to be used. Over TCP the link's own connection is followed by its lanes, if
 * it has any, and these by the connection for messages and as many lanes of that. By the last kind
 * members watch each other, over TCP or a unix socket. */
enum {
    DDL__DOOR_TCP = 1,
    DDL__DOOR_SHM = 2,
    DDL__DOOR_INPROC = 3,
    DDL__DOOR_MESSAGES = 4,
    DDL__DOOR_CONTROL = 5
};

typedef struct ddl__hello {
    uint32_t magic;
    uint16_t protocol; /* magic and protocol keep their places in every version */
    uint8_t door;
    uint8_t lane;   /* 0: the link itself; else which of its lanes, counted from 1 */
    int32_t status; /* answers: DDL_INPROGRESS at the door, DDL_OK accepted, else refused */
    uint32_t from, to, size; /* ranks */
    ddl__digest job;         /* of the secret */
    ddl__digest endpoint;    /* that is meant */
    ddl__digest comm;
    uint64_t arena; /* inproc: the sender's arena, one reference of which goes with it */
    char text[96];  /* refused: why */
} ddl__hello;

/* An answer to `hello`. */
ddl__hello ddl__hello_answer(const ddl__hello *hello, ddl_status status, const char *text);

/* Whether it can be read by us at all; sets the message, naming both versions. */
ddl_status ddl__hello_check(const ddl__hello *hello);

#endif
