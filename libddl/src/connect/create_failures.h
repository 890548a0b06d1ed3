/* SPDX-License-Identifier: Apache-2.0 */
/* create_failures.h - create-failure notices: messages of members that cannot create a comm.
 *
 * An endpoint keeps the notices until a creation asks for them. A notice of one attempt counts
 * once. It may arrive after its receiver has started the next attempt, and it fails that attempt
 * too: nothing tells which attempts belong together, and failing once too often is better than
 * waiting in vain. */
#ifndef DDL_CONNECT_CREATE_FAILURES_H
#define DDL_CONNECT_CREATE_FAILURES_H

#include <stdbool.h>

#include "connect/hello.h"

/* A notice. */
typedef struct ddl__create_failure {
    ddl__digest comm;
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

/* Add a notice, unless it is known. With status DDL_OK it does not count: another member has
 * relayed it, and the direct one is ignored when it comes. */
void ddl__create_failures_add(ddl__create_failures *failures, ddl__digest comm, int from,
                              uint32_t attempt, ddl_status status, const char *text);

/* Discard the notices of a member that tries again, or of all members (from = -1). */
void ddl__create_failures_forget(ddl__create_failures *failures, ddl__digest comm, int from);

/* Find a notice about this comm; false if there is none. */
bool ddl__create_failures_find(const ddl__create_failures *failures, ddl__digest comm,
                               ddl__create_failure *failure);

#endif
