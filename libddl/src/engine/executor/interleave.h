/* SPDX-License-Identifier: Apache-2.0 */
/* interleave.h - runs several steps of a wave at once, a few cache lines of each in turn. */
#ifndef DDL_ENGINE_EXECUTOR_INTERLEAVE_H
#define DDL_ENGINE_EXECUTOR_INTERLEAVE_H

#include "engine/executor/run.h"

/* Run as many steps of the current wave as can run together, beginning with the current step, which
 * must not have begun. Returns how many ran, with the last of them as the current step. Returns 0,
 * with nothing done, if the steps have to run one after the other. The first call decides, in
 * work->interleaving, whether the work is ever interleaved. */
unsigned ddl__interleave_run(ddl__runner *runner, ddl_work *work);

#endif
