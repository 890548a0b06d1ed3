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
