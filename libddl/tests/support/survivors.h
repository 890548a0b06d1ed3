/* SPDX-License-Identifier: Apache-2.0 */
/* survivors.h - helpers for the survivors of a death. */
#ifndef DDL_TESTS_SURVIVORS_H
#define DDL_TESTS_SURVIVORS_H

#include "check.h"
#include "ddl/ddl.h"

/* Run operations until one fails because a member has died. */
static inline void survivors_await_death(ddl_comm *comm)
{
    ddl_status status = DDL_OK;
    while (status == DDL_OK)
        status = ddl_barrier(comm, NULL, NULL);
    CHECK(status == DDL_EPEER, "%d %s", status, ddl_last_error());
}

/* Shrink the comm. Return NULL if this rank does not continue. */
static inline ddl_comm *survivors_shrink(ddl_comm *comm, const ddl_comm_config *config)
{
    ddl_comm *next = NULL;
    ddl_status status = ddl_comm_shrink(comm, config, &next);
    CHECK(status == DDL_OK || status == DDL_EMINORITY, "rank %d: %d %s", ddl_comm_rank(comm),
          status, ddl_last_error());
    return next;
}

#endif
