/* SPDX-License-Identifier: Apache-2.0 */
/* The settings of the stand-in for libcuda.so.1, and its messages. */
#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "standin.h"

enum { FAILURES_MAX = 8, NAME_MAX_BYTES = 64 };

typedef struct failure {
    char name[NAME_MAX_BYTES];
    unsigned long long at, calls;
} failure;

static settings values;
static bool are_read;
static failure failures[FAILURES_MAX];
static int n_failures;

static void print(const char *format, va_list arguments)
{
    char text[512];
    vsnprintf(text, sizeof text, format, arguments);
    fprintf(stderr, "CUDA stand-in: %s\n", text);
}

void standin_say(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    print(format, arguments);
    va_end(arguments);
}

void standin_die(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    print(format, arguments);
    va_end(arguments);
    abort();
}

/* ------------------------------------------------------------------------------ the environment */

/* Parse a number at the start of the text; `end` is set behind it. */
static bool parse_number(const char *text, const char **end, unsigned long long most,
                         unsigned long long *number)
{
    char *behind;
    if (*text < '0' || *text > '9')
        return false;
    errno = 0;
    *number = strtoull(text, &behind, 10);
    *end = behind;
    return !errno && *number <= most;
}

static unsigned long long read_number(const char *name, unsigned long long otherwise,
                                      unsigned long long most)
{
    const char *text = getenv(name), *end;
    unsigned long long number;
    if (!text)
        return otherwise;
    if (!parse_number(text, &end, most, &number) || *end) {
        standin_say("%s=%s is no number from 0 to %llu", name, text, most);
        values.valid = false;
        return otherwise;
    }
    return number;
}

/* Parse one or more of "function:call", separated by commas. */
static bool parse_failures(const char *text)
{
    while (n_failures < FAILURES_MAX) {
        failure *f = &failures[n_failures++];
        size_t length = strcspn(text, ":,");
        if (!length || length >= sizeof f->name || text[length] != ':')
            return false;
        memcpy(f->name, text, length);
        if (!parse_number(text + length + 1, &text, ULLONG_MAX, &f->at))
            return false;
        if (!*text)
            return true;
        if (*text++ != ',')
            return false;
    }
    return false;
}

const settings *standin_settings(void)
{
    if (are_read)
        return &values;
    are_read = true;
    values.valid = true;
    values.devices = (int)read_number("DDL_STANDIN_DEVICES", 1, STANDIN_DEVICES_MAX);
    values.delay_us = (unsigned)read_number("DDL_STANDIN_DELAY_US", 50, 10000000);
    values.seed = read_number("DDL_STANDIN_SEED", 1, ULLONG_MAX);
    values.one_queue = read_number("DDL_STANDIN_ONE_QUEUE", 0, 1) == 1;
    const char *text = getenv("DDL_STANDIN_FAIL");
    if (text && *text && !parse_failures(text)) {
        standin_say("DDL_STANDIN_FAIL=%s is no list of at most %d function:call", text,
                    FAILURES_MAX);
        values.valid = false;
    }
    return &values;
}

/* Return true if the function has this name, in which a suffix such as _v2 may be left out. */
static bool is_called(const char *function, const char *name)
{
    size_t length = strlen(name);
    return !strncmp(function, name, length) &&
           (!function[length] || !strcmp(function + length, "_v2"));
}

static unsigned long long n_failed;

bool standin_fails(const char *function)
{
    bool fails = false;
    for (int i = 0; i < n_failures; i++)
        if (is_called(function, failures[i].name) && ++failures[i].calls == failures[i].at)
            fails = true;
    n_failed += fails;
    return fails;
}

unsigned long long standin_failures(void)
{
    standin_lock();
    unsigned long long n = n_failed;
    standin_unlock();
    return n;
}
