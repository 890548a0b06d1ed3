/* SPDX-License-Identifier: Apache-2.0 */
/* name_messages.h - short messages between ranks about named operations, queued until they are sent
 * or handled. */
#ifndef DDL_ENGINE_NAMED_NAME_MESSAGES_H
#define DDL_ENGINE_NAMED_NAME_MESSAGES_H

#include <stdbool.h>
#include <stddef.h>

typedef struct ddl__name_message {
    struct ddl__name_message *next;
    int from;      /* rank */
    unsigned kind; /* a ddl__frame_kind */
    size_t bytes;
    unsigned char payload[];
} ddl__name_message;

/* A queue in the order of additions. */
typedef struct ddl__name_messages {
    ddl__name_message *first, *last;
} ddl__name_messages;

/* Append a copy of this message. Return false if out of memory. */
bool ddl__name_messages_add(ddl__name_messages *queue, int from, unsigned kind, const void *payload,
                            size_t bytes);

/* Remove and return the first message, or NULL. The caller frees it with free. */
ddl__name_message *ddl__name_messages_take(ddl__name_messages *queue);
void ddl__name_messages_clear(ddl__name_messages *queue);

#endif
