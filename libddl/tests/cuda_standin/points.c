/* SPDX-License-Identifier: Apache-2.0 */
/* A point is something that completes once: each item of a stream has one. Events and waits refer
 * to points. A point is an edge for ThreadSanitizer: the stream's thread releases it before it is
 * done, and a thread to which CUDA reports the completion acquires it. */
#include <stdlib.h>

#include "points.h"

static pthread_cond_t something_done = PTHREAD_COND_INITIALIZER;

point *standin_point_create(void)
{
    point *p = calloc(1, sizeof *p);
    if (p)
        p->references = 1;
    return p;
}

void standin_point_retain(point *p)
{
    p->references++;
}

void standin_point_release(point *p)
{
    if (p && !--p->references)
        free(p);
}

void standin_point_finish(point *p)
{
    p->done = true;
    pthread_cond_broadcast(&something_done);
}

bool standin_point_test(point *p)
{
    if (p->done)
        standin_acquire_edge(p);
    return p->done;
}

void standin_point_await(point *p, bool ordered)
{
    while (!p->done)
        pthread_cond_wait(&something_done, &standin_mutex);
    if (ordered)
        standin_acquire_edge(p);
}

bool standin_points_add(points *list, point *p)
{
    if (!p)
        return true;
    point **more = realloc(list->at, (list->count + 1) * sizeof *more);
    if (!more)
        return false;
    list->at = more;
    list->at[list->count++] = p;
    standin_point_retain(p);
    return true;
}

void standin_points_await(const points *list)
{
    for (size_t i = 0; i < list->count; i++)
        standin_point_await(list->at[i], false);
}

void standin_points_clear(points *list)
{
    for (size_t i = 0; i < list->count; i++)
        standin_point_release(list->at[i]);
    free(list->at);
    *list = (points){NULL, 0};
}
