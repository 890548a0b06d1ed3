/* SPDX-License-Identifier: Apache-2.0 */
/* until.h - the conditions that end a rank's waits while a comm is created. */
#ifndef DDL_BASE_UNTIL_H
#define DDL_BASE_UNTIL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef struct ddl__until {
    int64_t deadline;
    /* Return DDL_OK while waiting makes sense, else an error with the message set. If NULL, only
     * the deadline applies. */
    ddl_status (*check)(void *context);
    void *context;
    /* Called if no address of this member answers in time. `was_accepted` is true if its host has
     * accepted a connection on which the member has not answered. May be NULL. */
    void (*unreachable)(void *context, int rank, bool was_accepted);
} ddl__until;

static inline ddl_status ddl__until_check(const ddl__until *until)
{
    return until && until->check ? until->check(until->context) : DDL_OK;
}

#endif
