/* SPDX-License-Identifier: Apache-2.0 */
/* log.h - writes one line per event to stderr. $DDL_LOG sets the level: off, warn (default), info,
 * plan, debug. */
#ifndef DDL_BASE_LOG_H
#define DDL_BASE_LOG_H

#include <stdbool.h>

typedef enum ddl__log_level {
    DDL__WARN = 1,
    DDL__INFO,
    DDL__PLAN, /* the reason why an operation uses its algorithm */
    DDL__DEBUG
} ddl__log_level;

void ddl__log(ddl__log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Return true if lines of this level are written. */
bool ddl__logs(ddl__log_level level);

/* Raise the level to this one if it is lower. */
void ddl__log_more(ddl__log_level level);

#endif
