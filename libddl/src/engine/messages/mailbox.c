/* SPDX-License-Identifier: Apache-2.0 */
/* Each source has a list of messages and a queue of receives. Receives from any rank have a
 * separate queue. `order` numbers all messages and receives, so that the oldest of several matches
 * in different lists can be found. */
#include "engine/messages/mailbox.h"

#include <stdlib.h>
#include <string.h>

typedef struct box {
    ddl__queue receives;
    ddl__arrival *first, *last;
} box;

struct ddl__mailbox {
    int size;
    uint64_t order;
    ddl__queue anywhere;
    box boxes[];
};

ddl__mailbox *ddl__mailbox_create(int size)
{
    ddl__mailbox *m = calloc(1, sizeof *m + (size_t)size * sizeof *m->boxes);
    if (m)
        m->size = size;
    return m;
}

void ddl__mailbox_destroy(ddl__mailbox *m)
{
    for (int i = 0; m && i < m->size; i++)
        for (ddl__arrival *a = m->boxes[i].first, *next; a; a = next) {
            next = a->next;
            free(a);
        }
    free(m);
}

/* ------------------------------------------------------------------------------------- receives */

static ddl_work *find_receive(const ddl__queue *q, uint32_t tag)
{
    ddl_work *work = q->head;
    while (work && (uint32_t)work->call.tag != tag)
        work = work->next;
    return work;
}

ddl_work *ddl__mailbox_take_receive(ddl__mailbox *m, int source, uint32_t tag)
{
    ddl__queue *q = &m->boxes[source].receives;
    ddl_work *work = find_receive(q, tag), *other = find_receive(&m->anywhere, tag);
    if (other && (!work || other->transfer.order < work->transfer.order)) {
        q = &m->anywhere;
        work = other;
    }
    if (work)
        ddl__queue_remove(q, work);
    return work;
}

void ddl__mailbox_wait(ddl__mailbox *m, ddl_work *receive)
{
    int source = receive->call.root;
    receive->transfer.order = m->order++;
    ddl__queue_push(source == DDL_ANY_SOURCE ? &m->anywhere : &m->boxes[source].receives, receive);
}

void ddl__mailbox_drop_receives(ddl__mailbox *m)
{
    m->anywhere = (ddl__queue){NULL, NULL};
    for (int i = 0; i < m->size; i++)
        m->boxes[i].receives = (ddl__queue){NULL, NULL};
}

/* ------------------------------------------------------------------------------------- messages */

bool ddl__mailbox_keep(ddl__mailbox *m, int source, const ddl__frame *frame, const void *payload,
                       size_t bytes)
{
    box *b = &m->boxes[source];
    ddl__arrival *a = malloc(sizeof *a + bytes);
    if (!a)
        return false;
    *a = (ddl__arrival){.order = m->order++, .source = source, .frame = *frame};
    if (bytes)
        memcpy(a->payload, payload, bytes);
    if (b->last)
        b->last->next = a;
    else
        b->first = a;
    b->last = a;
    return true;
}

static ddl__arrival *find_message(const box *b, uint32_t tag)
{
    ddl__arrival *a = b->first;
    while (a && a->frame.tag != tag)
        a = a->next;
    return a;
}

static void remove_message(box *b, const ddl__arrival *a)
{
    ddl__arrival *before = NULL;
    for (ddl__arrival *other = b->first; other != a; other = other->next)
        before = other;
    if (before)
        before->next = a->next;
    else
        b->first = a->next;
    if (b->last == a)
        b->last = before;
}

ddl__arrival *ddl__mailbox_take_message(ddl__mailbox *m, const ddl_work *receive)
{
    ddl__arrival *oldest = NULL;
    bool any = receive->call.root == DDL_ANY_SOURCE;
    int from = any ? 0 : receive->call.root, to = any ? m->size : from + 1;
    for (int i = from; i < to; i++) {
        ddl__arrival *a = find_message(&m->boxes[i], (uint32_t)receive->call.tag);
        if (a && (!oldest || a->order < oldest->order))
            oldest = a;
    }
    if (oldest)
        remove_message(&m->boxes[oldest->source], oldest);
    return oldest;
}
