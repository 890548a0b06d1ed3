/* SPDX-License-Identifier: Apache-2.0 */
/* mailbox.h - stores messages that have no receive yet, and receives that have no message yet, by
 * source and tag. If several match, the oldest is taken. */
#ifndef DDL_ENGINE_MESSAGES_MAILBOX_H
#define DDL_ENGINE_MESSAGES_MAILBOX_H

#include "engine/calls/frames.h"
#include "engine/calls/work.h"

/* A queue of works, linked by `next`. A work is in at most one queue. */
typedef struct ddl__queue {
    ddl_work *head, *tail;
} ddl__queue;

static inline void ddl__queue_push(ddl__queue *q, ddl_work *work)
{
    work->next = NULL;
    if (q->tail)
        q->tail->next = work;
    else
        q->head = work;
    q->tail = work;
}

/* Remove a work that is in the queue. */
static inline void ddl__queue_remove(ddl__queue *q, ddl_work *work)
{
    ddl_work *before = NULL;
    for (ddl_work *w = q->head; w != work; w = w->next)
        before = w;
    if (before)
        before->next = work->next;
    else
        q->head = work->next;
    if (q->tail == work)
        q->tail = before;
}

/* Remove and return the first work, or NULL. */
static inline ddl_work *ddl__queue_pop(ddl__queue *q)
{
    ddl_work *work = q->head;
    if (work)
        ddl__queue_remove(q, work);
    return work;
}

typedef struct ddl__mailbox ddl__mailbox;

/* A message that arrived before its receive. */
typedef struct ddl__arrival {
    struct ddl__arrival *next;
    uint64_t order; /* position among all messages and receives of the mailbox */
    int source;
    ddl__frame frame;
    unsigned char payload[];
} ddl__arrival;

/* Create a mailbox for sources 0 to size - 1. Return NULL if out of memory. */
ddl__mailbox *ddl__mailbox_create(int size);
void ddl__mailbox_destroy(ddl__mailbox *mailbox);

/* Remove and return the receive that matches this message, or NULL. */
ddl_work *ddl__mailbox_take_receive(ddl__mailbox *mailbox, int source, uint32_t tag);

/* Keep a copy of a message that has no receive. Return false if out of memory. */
bool ddl__mailbox_keep(ddl__mailbox *mailbox, int source, const ddl__frame *frame,
                       const void *payload, size_t bytes);

/* Remove and return the message that matches this receive, or NULL. The caller frees it. */
ddl__arrival *ddl__mailbox_take_message(ddl__mailbox *mailbox, const ddl_work *receive);

/* Keep a receive that has no message. */
void ddl__mailbox_wait(ddl__mailbox *mailbox, ddl_work *receive);

/* Drop all receives. */
void ddl__mailbox_drop_receives(ddl__mailbox *mailbox);

#endif
