/* SPDX-License-Identifier: Apache-2.0 */
/* trace.h - the flight record in words and as a timeline. */
#ifndef DDL_ENGINE_RECORDER_TRACE_H
#define DDL_ENGINE_RECORDER_TRACE_H

#include "base/text.h"
#include "engine/recorder/recorder.h"

/* "all-reduce(f32, 10, sum)", "send(f32, 10, to rank 3, tag 7)" */
void ddl__describe_record(char *text, size_t size, const ddl__record *record);

/* All records as Chrome trace events, with times in microseconds of the system clock, so that the
 * files of several ranks can be shown together. Any thread. */
void ddl__trace(const ddl__recorder *recorder, int rank, const char *name, ddl__text *to);

#endif
