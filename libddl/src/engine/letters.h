/* letters.h - short words from rank to rank about operations by name, kept until somebody reads
 * them. */
#ifndef DDL_ENGINE_LETTERS_H
#define DDL_ENGINE_LETTERS_H

#include <stdbool.h>
#include <stddef.h>

typedef struct ddl__letter {
    struct ddl__letter *next;
    int from;      /* rank */
    unsigned kind; /* ddl__frame_kind */
    size_t bytes;
    unsigned char payload[];
} ddl__letter;

/* In the order in which they were added. */
typedef struct ddl__mail {
    ddl__letter *first, *last;
} ddl__mail;

/* Add a copy; false when out of memory. */
bool ddl__mail_add(ddl__mail *mail, int from, unsigned kind, const void *payload, size_t bytes);

/* Take the first one, or NULL; it is freed by free. */
ddl__letter *ddl__mail_take(ddl__mail *mail);
void ddl__mail_clear(ddl__mail *mail);

#endif
