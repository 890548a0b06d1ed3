/* SPDX-License-Identifier: Apache-2.0 */
#include "base/text.h"

#include <stdio.h>

void ddl__text_add(ddl__text *text, const char *format, ...)
{
    size_t room = text->length < text->capacity ? text->capacity - text->length : 0;
    va_list args;
    va_start(args, format);
    int n = vsnprintf(room ? text->to + text->length : NULL, room, format, args);
    va_end(args);
    text->length += n > 0 ? (size_t)n : 0;
}

void ddl__text_quote(ddl__text *text, const char *words)
{
    ddl__text_add(text, "\"");
    for (const unsigned char *c = (const unsigned char *)words; *c; c++)
        ddl__text_add(text, *c < ' ' ? "\\u%04x" : *c == '"' || *c == '\\' ? "\\%c" : "%c", *c);
    ddl__text_add(text, "\"");
}

void ddl__text_thousandths(ddl__text *text, int64_t value)
{
    uint64_t n = value < 0 ? -(uint64_t)value : (uint64_t)value;
    ddl__text_add(text, "%s%llu.%03llu", value < 0 ? "-" : "", (unsigned long long)(n / 1000),
                  (unsigned long long)(n % 1000));
}

void ddl__sanitize_text(char *text, size_t size)
{
    text[size - 1] = 0;
    for (unsigned char *at = (unsigned char *)text; *at; at++)
        if (*at < ' ' || *at == 0x7f)
            *at = '?';
}
