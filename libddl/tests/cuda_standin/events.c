/* SPDX-License-Identifier: Apache-2.0 */
/* Events: each refers to the point of the item that recorded it last. A wait refers to the event's
 * point at the time of the call, so a later record does not change it. */
#include <stdlib.h>

#include "standin.h"

typedef struct event {
    struct event *next;
    context *context;
    point *recorded; /* NULL: never */
} event;

static event *events;

static event *event_of(CUevent handle)
{
    event *e = events;
    while (e && (CUevent)e != handle)
        e = e->next;
    return e;
}

CUresult cuEventCreate(CUevent *handle, unsigned flags)
{
    const unsigned known = CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;
    context *current;
    STANDIN_ENTER_CONTEXT(&current);
    if (!handle || flags & ~known)
        return standin_leave(CUDA_ERROR_INVALID_VALUE);
    if (flags & CU_EVENT_INTERPROCESS)
        return standin_leave(CUDA_ERROR_NOT_SUPPORTED);
    event *e = calloc(1, sizeof *e);
    if (!e)
        return standin_leave(CUDA_ERROR_OUT_OF_MEMORY);
    *e = (event){.next = events, .context = current};
    events = e;
    *handle = (CUevent)e;
    return standin_leave(CUDA_SUCCESS);
}

CUresult cuEventDestroy_v2(CUevent handle)
{
    context *current;
    STANDIN_ENTER_CONTEXT(&current);
    event **link = &events;
    while (*link && (CUevent)*link != handle)
        link = &(*link)->next;
    event *e = *link;
    if (!e)
        return standin_leave(CUDA_ERROR_INVALID_HANDLE);
    *link = e->next;
    standin_point_release(e->recorded);
    free(e);
    return standin_leave(CUDA_SUCCESS);
}

CUresult cuEventRecord(CUevent handle, CUstream stream_handle)
{
    context *current;
    point *recorded;
    STANDIN_ENTER_CONTEXT(&current);
    event *e = event_of(handle);
    stream *s = standin_stream_of(stream_handle, current);
    if (!e || !s || e->context != s->context)
        return standin_leave(CUDA_ERROR_INVALID_HANDLE);
    work *w = standin_work_create(NULL);
    if (!w)
        return standin_leave(CUDA_ERROR_OUT_OF_MEMORY);
    CUresult result = standin_push(s, w, &recorded);
    if (result != CUDA_SUCCESS)
        return standin_leave(result);
    standin_point_release(e->recorded);
    e->recorded = recorded;
    return standin_leave(CUDA_SUCCESS);
}

/* Needs no current context. An event that was never recorded is complete. */
CUresult cuEventQuery(CUevent handle)
{
    STANDIN_ENTER();
    event *e = event_of(handle);
    if (!e)
        return standin_leave(CUDA_ERROR_INVALID_HANDLE);
    bool ready = !e->recorded || standin_point_test(e->recorded);
    return standin_leave(ready ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY);
}

CUresult cuEventSynchronize(CUevent handle)
{
    context *current;
    STANDIN_ENTER_CONTEXT(&current);
    event *e = event_of(handle);
    if (!e)
        return standin_leave(CUDA_ERROR_INVALID_HANDLE);
    point *recorded = e->recorded;
    if (recorded) {
        standin_point_retain(recorded); /* the event may be recorded again meanwhile */
        standin_point_await(recorded, true);
        standin_point_release(recorded);
    }
    return standin_leave(CUDA_SUCCESS);
}

CUresult cuStreamWaitEvent(CUstream stream_handle, CUevent handle, unsigned flags)
{
    context *current;
    STANDIN_ENTER_CONTEXT(&current);
    event *e = event_of(handle);
    stream *s = standin_stream_of(stream_handle, current);
    if (!e || !s)
        return standin_leave(CUDA_ERROR_INVALID_HANDLE);
    if (flags > 1) /* 1 matters to captures only */
        return standin_leave(CUDA_ERROR_INVALID_VALUE);
    if (!e->recorded)
        return standin_leave(CUDA_SUCCESS);
    work *w = standin_work_create(NULL);
    if (!w)
        return standin_leave(CUDA_ERROR_OUT_OF_MEMORY);
    if (!standin_work_wait_for(w, e->recorded)) {
        standin_work_drop(w);
        return standin_leave(CUDA_ERROR_OUT_OF_MEMORY);
    }
    return standin_leave(standin_push(s, w, NULL));
}
