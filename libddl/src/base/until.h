/* SPDX-License-Identifier: Apache-2.0 */
/* until.h - how long the creation of a comm waits for others. */
#ifndef DDL_BASE_UNTIL_H
#define DDL_BASE_UNTIL_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef struct ddl__until {
    int64_t deadline;
    /* Fails, with the message set, once waiting is in vain. NULL: only the deadline counts. */
    ddl_status (*check)(void *context);
    void *context;
    /* Called when no address of this member of the comm answers in time. Or NULL. */
    void (*unreachable)(void *context, int rank);
} ddl__until;

static inline ddl_status ddl__until_check(const ddl__until *until)
{
    return until && until->check ? until->check(until->context) : DDL_OK;
}

#endif
