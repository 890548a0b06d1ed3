/* log.h - one line per event to stderr, by $DDL_LOG: off, warn (default), info, debug. */
#ifndef DDL_BASE_LOG_H
#define DDL_BASE_LOG_H

typedef enum ddl__log_level { DDL__WARN = 1, DDL__INFO = 2, DDL__DEBUG = 3 } ddl__log_level;

void ddl__log(ddl__log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
