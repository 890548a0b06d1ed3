/* SPDX-License-Identifier: Apache-2.0 */
/* names.h - operations matched by name: the pending ones of this rank, and rank 0's table of
 * announcements. It uses no links: the engine sends the messages. */
#ifndef DDL_ENGINE_NAMED_NAMES_H
#define DDL_ENGINE_NAMED_NAMES_H

#include "engine/calls/work.h"

/* ---- this rank's named works, from submission to completion; under the engine's lock ---- */

enum { DDL__NAME_LISTS = 64 };

typedef struct ddl__names {
    ddl_work *lists[DDL__NAME_LISTS]; /* by a hash of the name, linked by work->next_named */
    atomic_uint n;                    /* readable without the lock */
} ddl__names;

/* Return the work of this name, or NULL. */
ddl_work *ddl__names_find(const ddl__names *names, const char *name, size_t length);
void ddl__names_add(ddl__names *names, ddl_work *work);
void ddl__names_remove(ddl__names *names, ddl_work *work);

/* ---- rank 0's table. The driver writes it under the engine's lock; other threads may read it
 * under the lock. ---- */

typedef struct ddl__entry ddl__entry;

typedef struct ddl__announcements {
    int size;
    ddl__entry *entries[DDL__NAME_LISTS];
    char (*last)[DDL_NAME_MAX]; /* the last announced name, by rank */
} ddl__announcements;

/* Create the table. Return false if out of memory. */
bool ddl__announcements_open(ddl__announcements *announcements, int size);

typedef enum ddl__announce_result {
    DDL__ANNOUNCED, /* some ranks have not announced it */
    DDL__COMPLETE,  /* announced by all ranks: next in the order, and removed from the table */
    DDL__DIFFERENT, /* rank *first has announced the different operation *theirs under this name */
    DDL__NO_MEMORY
} ddl__announce_result;

/* Enter the announcement of `rank`. */
ddl__announce_result ddl__announcements_add(ddl__announcements *announcements, int rank,
                                            const char *name, size_t length,
                                            const ddl__signature *signature, int *first,
                                            ddl__signature *theirs);

/* Return true if `rank` has announced the name; false if the name is not in the table. */
bool ddl__announcements_has(const ddl__announcements *announcements, const char *name, int rank);

/* Return true if another rank has announced the name, and `rank` has not. */
bool ddl__announcements_lacks(const ddl__announcements *announcements, const char *name, int rank);

void ddl__announcements_close(ddl__announcements *announcements);

#endif
