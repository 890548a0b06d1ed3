/* SPDX-License-Identifier: Apache-2.0 */
/* text.h - builds a text in a buffer of fixed size, and counts the bytes that do not fit. */
#ifndef DDL_BASE_TEXT_H
#define DDL_BASE_TEXT_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

typedef struct ddl__text {
    char *to; /* NUL-terminated if there is room for at least one byte */
    size_t capacity;
    size_t length; /* length of the whole text without the NUL, even if it does not fit */
} ddl__text;

void ddl__text_add(ddl__text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Add `value` / 1000 as a decimal fraction, whatever the locale. */
void ddl__text_thousandths(ddl__text *text, int64_t value);

/* Add a JSON string, with its quotes. */
void ddl__text_quote(ddl__text *text, const char *words);

/* Make a received text safe to print: terminate it, and replace control characters. */
void ddl__sanitize_text(char *text, size_t size);

#endif
