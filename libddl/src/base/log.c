/* SPDX-License-Identifier: Apache-2.0 */
#include "base/log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The log level, a process global. -1 means that $DDL_LOG has not been read. */
static atomic_int threshold = -1;

static int threshold_from_environment(void)
{
    static const char *const names[] = {"off", "warn", "info", "plan", "debug"};
    const char *value = getenv("DDL_LOG");
    for (int i = 0; value && i <= DDL__DEBUG; i++)
        if (!strcmp(value, names[i]))
            return i;
    return DDL__WARN;
}

static int limit_now(void)
{
    int limit = atomic_load_explicit(&threshold, memory_order_relaxed);
    if (limit < 0) {
        limit = threshold_from_environment();
        atomic_store_explicit(&threshold, limit, memory_order_relaxed);
    }
    return limit;
}

bool ddl__logs(ddl__log_level level)
{
    return (int)level <= limit_now();
}

void ddl__log_more(ddl__log_level level)
{
    if (!ddl__logs(level))
        atomic_store_explicit(&threshold, (int)level, memory_order_relaxed);
}

void ddl__log(ddl__log_level level, const char *format, ...)
{
    if (!ddl__logs(level))
        return;
    char line[640];
    int n = snprintf(line, sizeof line, "libddl[%d]: ", (int)getpid());
    va_list args;
    va_start(args, format);
    int m = vsnprintf(line + n, sizeof line - (size_t)n - 1, format, args);
    va_end(args);
    n = m < 0 ? n : n + m > (int)sizeof line - 2 ? (int)sizeof line - 2 : n + m;
    line[n] = '\n';
    /* Write a whole line at once, so that the lines of several ranks do not mix. */
    ssize_t written = write(STDERR_FILENO, line, (size_t)n + 1);
    (void)written;
}
