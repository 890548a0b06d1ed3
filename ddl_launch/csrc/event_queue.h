/* SPDX-License-Identifier: Apache-2.0 */
/* event_queue.h - the events of a simulation, by time. */
#ifndef DDL_LAUNCH_EVENT_QUEUE_H
#define DDL_LAUNCH_EVENT_QUEUE_H

#include <stdbool.h>
#include <stdint.h>

typedef enum event_kind { RANK_CONTINUES, STEP_ENDS, HEAD_AT_PORT, SPAN_ARRIVES } event_kind;

typedef struct event {
    double time;
    uint64_t number; /* set by event_queue_push: equal times keep the order of creation */
    event_kind kind;
    uint32_t target, span; /* rank or link */
    int hop;
    double tail; /* the earliest time of the span's end */
} event;

typedef struct event_queue {
    event *heap;
    uint32_t n, capacity;
    uint64_t number;
} event_queue;

/* False when out of memory. */
bool event_queue_push(event_queue *queue, event e);

/* The earliest event; there is one. */
event event_queue_pop(event_queue *queue);

#endif
