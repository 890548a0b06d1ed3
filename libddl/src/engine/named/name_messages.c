/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/named/name_messages.h"

#include <stdlib.h>
#include <string.h>

bool ddl__name_messages_add(ddl__name_messages *queue, int from, unsigned kind, const void *payload,
                            size_t bytes)
{
    ddl__name_message *message = malloc(sizeof *message + bytes);
    if (!message)
        return false;
    message->next = NULL;
    message->from = from;
    message->kind = kind;
    message->bytes = bytes;
    memcpy(message->payload, payload, bytes);
    if (queue->last)
        queue->last->next = message;
    else
        queue->first = message;
    queue->last = message;
    return true;
}

ddl__name_message *ddl__name_messages_take(ddl__name_messages *queue)
{
    ddl__name_message *message = queue->first;
    if (message) {
        queue->first = message->next;
        if (!queue->first)
            queue->last = NULL;
    }
    return message;
}

void ddl__name_messages_clear(ddl__name_messages *queue)
{
    for (ddl__name_message *message; (message = ddl__name_messages_take(queue));)
        free(message);
}
