/* SPDX-License-Identifier: Apache-2.0 */
/* create_failures.h - create-failure notices: messages of members that cannot create a comm.
 *
 * An endpoint keeps the notices until a creation reads them. A notice counts for the creation that
 * it names and for all earlier creations of the family: the sender will not take part in any of
 * them. */
#ifndef DDL_CONNECT_CREATE_FAILURES_H
#define DDL_CONNECT_CREATE_FAILURES_H

#include <stddef.h>

#include "connect/handshake/hello.h"

typedef struct ddl__create_failure {
    ddl__digest family;
    uint32_t creation; /* the number of the creation in its family */
    int from;
    uint32_t attempt;  /* the sender's attempt that failed */
    ddl_status status; /* the reason; DDL_OK: the entry is unused or no longer counts */
    char text[96];
} ddl__create_failure;

enum { DDL__CREATE_FAILURES_MAX = 64 };

/* The notices that an endpoint has received; the oldest is replaced. The caller locks. */
typedef struct ddl__create_failures {
    ddl__create_failure list[DDL__CREATE_FAILURES_MAX];
    unsigned next;
} ddl__create_failures;

/* Add a notice, unless it is known. A notice with status DDL_OK does not count. It is added if
 * another member has relayed the content of a notice, so that the direct notice is ignored when it
 * arrives. */
void ddl__create_failures_add(ddl__create_failures *failures, const ddl__create_failure *notice);

/* Discard the notices about creations of the family up to this number, from a member that tries
 * again, or from all members (from = -1). */
void ddl__create_failures_forget(ddl__create_failures *failures, ddl__digest family,
                                 uint32_t creation, int from);

/* Find a notice that counts for this creation. Returns NULL if there is none. */
const ddl__create_failure *ddl__create_failures_find(const ddl__create_failures *failures,
                                                     ddl__digest family, uint32_t creation);

#endif
