/* SPDX-License-Identifier: Apache-2.0 */
#include "event_queue.h"

#include <stdlib.h>

static bool event_before(const event *a, const event *b)
{
    return a->time < b->time || (a->time == b->time && a->number < b->number);
}

bool event_queue_push(event_queue *queue, event e)
{
    if (queue->n == queue->capacity) {
        uint32_t capacity = queue->capacity ? 2 * queue->capacity : 64;
        event *heap = realloc(queue->heap, capacity * sizeof *heap);
        if (!heap)
            return false;
        queue->heap = heap;
        queue->capacity = capacity;
    }
    event *heap = queue->heap;
    e.number = queue->number++;
    uint32_t at = queue->n++;
    for (; at && event_before(&e, &heap[(at - 1) / 2]); at = (at - 1) / 2)
        heap[at] = heap[(at - 1) / 2];
    heap[at] = e;
    return true;
}

event event_queue_pop(event_queue *queue)
{
    event *heap = queue->heap, top = heap[0], last = heap[--queue->n];
    uint32_t at = 0;
    for (uint32_t child; (child = 2 * at + 1) < queue->n; at = child) {
        if (child + 1 < queue->n && event_before(&heap[child + 1], &heap[child]))
            child++;
        if (!event_before(&heap[child], &last))
            break;
        heap[at] = heap[child];
    }
    heap[at] = last;
    return top;
}
