/* log.h - one line per event to stderr, by $DDL_LOG: off, warn (default), info, plan, debug. */
#ifndef DDL_BASE_LOG_H
#define DDL_BASE_LOG_H

#include <stdbool.h>

typedef enum ddl__log_level {
    DDL__WARN = 1,
    DDL__INFO,
    DDL__PLAN, /* why an operation is carried out as it is */
    DDL__DEBUG
} ddl__log_level;

void ddl__log(ddl__log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Whether such a line would be written. */
bool ddl__logs(ddl__log_level level);

/* From now on write lines up to this level, if not more are written already. */
void ddl__log_more(ddl__log_level level);

#endif
