/* text.h - words put together in memory of a given size; what does not fit is counted. */
#ifndef DDL_BASE_TEXT_H
#define DDL_BASE_TEXT_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

typedef struct ddl__text {
    char *to; /* always ends with NUL, if there is room for one */
    size_t capacity;
    size_t length; /* of all that was added, without the NUL */
} ddl__text;

void ddl__text_add(ddl__text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* So many thousandths as a decimal fraction, in any locale. */
void ddl__text_thousandths(ddl__text *text, int64_t value);

/* As a JSON string, with its quotes. */
void ddl__text_quote(ddl__text *text, const char *words);

#endif
