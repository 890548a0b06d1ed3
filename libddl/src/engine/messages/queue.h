/* SPDX-License-Identifier: Apache-2.0 */
/* queue.h - a queue of works, linked by `next`: a work is in one queue at most. */
#ifndef DDL_ENGINE_MESSAGES_QUEUE_H
#define DDL_ENGINE_MESSAGES_QUEUE_H

#include "engine/calls/work.h"

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

/* A work that is in it. */
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

/* The first, or NULL. */
static inline ddl_work *ddl__queue_pop(ddl__queue *q)
{
    ddl_work *work = q->head;
    if (work)
        ddl__queue_remove(q, work);
    return work;
}

#endif
