/* SPDX-License-Identifier: Apache-2.0 */
/* loans.h - the end of what a work lends to its peers, which run.c does (net/lending.h). */
#ifndef DDL_ENGINE_EXECUTOR_LOANS_H
#define DDL_ENGINE_EXECUTOR_LOANS_H

#include "engine/executor/run.h"

/* Whether peers have read all that was lent to them. */
bool ddl__loans_flush(const ddl__runner *runner);

/* The caller gets its buffers back although peers may still use them. */
void ddl__loans_abandon(const ddl__runner *runner, const ddl_work *work);

#endif
