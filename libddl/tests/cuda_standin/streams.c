/* SPDX-License-Identifier: Apache-2.0 */
/* Streams: queues, each with a thread that starts with the first item; and events.
 *
 * Design notes. The thread runs one item after the other: it sleeps for a random time, waits for
 * the points that the item waits for, runs the item without the lock, and marks its point done. The
 * item stays at the head of the queue meanwhile. Threads are detached. They block all signals,
 * which are for the program's threads. A stream that the program destroys runs its queue to the
 * end; then its thread removes it.
 *
 * A point is something that completes once: each item of a stream has one. Events and waits refer
 * to points. A point is an edge for ThreadSanitizer: the stream's thread releases it before it is
 * done, and a thread to which CUDA reports the completion acquires it. */
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <time.h>

#include "standin.h"

static stream *streams;
static unsigned n_created;
static pthread_cond_t something_done = PTHREAD_COND_INITIALIZER;

/* --------------------------------------------------------------------------------------- points */

point *standin_point_retain(point *p)
{
    if (p)
        p->references++;
    return p;
}

void standin_point_release(point *p)
{
    if (p && !--p->references)
        free(p);
}

static void wait_for(const point *p)
{
    while (p && !p->done)
        pthread_cond_wait(&something_done, &standin_mutex);
}

void standin_point_await(point *p, bool ordered)
{
    wait_for(p);
    if (p && ordered)
        standin_acquire_edge(p);
    standin_point_release(p);
}

/* Return whether it is done or NULL; the caller then sees what was done before it. */
static CUresult query(point *p)
{
    if (p && !p->done)
        return CUDA_ERROR_NOT_READY;
    if (p)
        standin_acquire_edge(p);
    return CUDA_SUCCESS;
}

/* --------------------------------------------------------------------------------------- items */

/* Sleep mostly for less than the mean, and 1 of 8 times for up to 9 times as much: their average is
 * the mean. */
static void delay(stream *s)
{
    uint64_t mean = standin_settings()->delay_us * 1000ull;
    if (!mean)
        return;
    /* xorshift64* */
    s->random ^= s->random >> 12;
    s->random ^= s->random << 25;
    s->random ^= s->random >> 27;
    uint64_t random = s->random * 0x2545f4914f6cdd1du;
    uint64_t ns = (random >> 1) % (random % 8 ? mean : 9 * mean);
    struct timespec time = {(time_t)(ns / 1000000000), (long)(ns % 1000000000)};
    nanosleep(&time, NULL);
}

work *standin_work_create(void (*run)(work *w))
{
    work *w = standin_new(sizeof *w);
    w->run = run;
    return w;
}

static void run(work *w)
{
    standin_acquire_edge(w);
    for (int i = 0; i < 2; i++) {
        wait_for(w->waits[i]);
        if (w->waits[i])
            standin_acquire_edge(w->waits[i]);
    }
    if (w->run) {
        standin_unlock();
        w->run(w);
        standin_lock();
    }
    standin_release_edge(w->done);
    w->done->done = true;
    pthread_cond_broadcast(&something_done);
}

static void *run_stream(void *argument)
{
    stream *s = argument, **link = &streams;
    prctl(PR_SET_TIMERSLACK, 1); /* do not lengthen short delays */
    standin_lock();
    for (;;) {
        while (!s->head && !s->closing)
            pthread_cond_wait(&s->changed, &standin_mutex);
        work *w = s->head;
        if (!w)
            break;
        pthread_mutex_unlock(&standin_mutex);
        delay(s);
        pthread_mutex_lock(&standin_mutex);
        run(w);
        s->head = w->next;
        if (!s->head)
            s->tail = &s->head;
        standin_point_release(w->waits[0]);
        standin_point_release(w->waits[1]);
        standin_point_release(w->done);
        free(w->owned);
        free(w);
    }
    while (*link != s)
        link = &(*link)->next;
    *link = s->next;
    standin_point_release(s->last);
    pthread_cond_destroy(&s->changed);
    free(s);
    standin_unlock();
    return NULL;
}

static void stream_start(stream *s)
{
    pthread_t thread;
    sigset_t all, before;
    if (s->started)
        return;
    s->started = true;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    if (pthread_create(&thread, NULL, run_stream, s) || pthread_detach(thread))
        standin_die("no thread for a stream");
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

static void keep(point **kept, point *p)
{
    standin_point_release(*kept);
    *kept = standin_point_retain(p);
}

point *standin_push(stream *s, work *w)
{
    w->done = standin_new(sizeof *w->done);
    w->done->references = 1;
    w->context = s->context;
    stream_start(s);
    if (standin_settings()->one_queue) {
        w->waits[1] = standin_point_retain(s->context->newest);
        keep(&s->context->newest, w->done);
    }
    standin_release_edge(w);
    keep(&s->last, w->done);
    *s->tail = w;
    s->tail = &w->next;
    pthread_cond_signal(&s->changed);
    return standin_point_retain(w->done);
}

CUresult standin_queue(stream *s, work *w)
{
    standin_point_release(standin_push(s, w));
    return standin_leave(CUDA_SUCCESS);
}

void standin_drain(const context *owner)
{
    size_t n = 0;
    point **newest = standin_new((n_created + 1) * sizeof *newest);
    for (const stream *s = streams; s; s = s->next)
        if (s->context == owner)
            newest[n++] = standin_point_retain(s->last);
    while (n)
        standin_point_await(newest[--n], false);
    free(newest);
}

/* -------------------------------------------------------------------------------------- streams */

stream *standin_stream_create(context *owner)
{
    stream *s = standin_new(sizeof *s);
    *s = (stream){.next = streams, .context = owner};
    s->tail = &s->head;
    s->random = (standin_settings()->seed + ++n_created) * 0x9e3779b97f4a7c15u | 1;
    pthread_cond_init(&s->changed, NULL);
    return streams = s;
}

stream *standin_stream_of(CUstream handle, context *current)
{
    if ((uintptr_t)handle <= (uintptr_t)CU_STREAM_PER_THREAD)
        return current->own;
    stream *s = streams;
    while (s && ((CUstream)s != handle || s->closing))
        s = s->next;
    return s;
}

CUresult cuStreamCreate(CUstream *handle, unsigned flags)
{
    context *current;
    STANDIN_ENTER_CONTEXT(&current);
    if (!handle || flags != CU_STREAM_NON_BLOCKING) /* the real driver has others */
        return standin_leave(CUDA_ERROR_INVALID_VALUE);
    *handle = (CUstream)standin_stream_create(current);
    return standin_leave(CUDA_SUCCESS);
}

/* Returns at once; queued items still run. */
CUresult cuStreamDestroy_v2(CUstream handle)
{
    stream *s;
    STANDIN_ENTER_STREAM(handle, &s);
    if (s == s->context->own)
        return standin_leave(CUDA_ERROR_INVALID_HANDLE);
    stream_start(s);
    s->closing = true;
    pthread_cond_signal(&s->changed);
    return standin_leave(CUDA_SUCCESS);
}

CUresult cuStreamSynchronize(CUstream handle)
{
    stream *s;
    STANDIN_ENTER_STREAM(handle, &s);
    standin_point_await(standin_point_retain(s->last), true);
    return standin_leave(CUDA_SUCCESS);
}

CUresult cuStreamQuery(CUstream handle)
{
    stream *s;
    STANDIN_ENTER_STREAM(handle, &s);
    return standin_leave(query(s->last));
}

/* No effect, because nothing is captured. */
CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
    static _Thread_local CUstreamCaptureMode current = CU_STREAM_CAPTURE_MODE_GLOBAL;
    STANDIN_ENTER();
    if (!mode || *mode > CU_STREAM_CAPTURE_MODE_RELAXED)
        return standin_leave(CUDA_ERROR_INVALID_VALUE);
    CUstreamCaptureMode before = current;
    current = *mode;
    *mode = before;
    return standin_leave(CUDA_SUCCESS);
}

CUresult cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus *status)
{
    stream *s;
    STANDIN_ENTER_STREAM(handle, &s);
    *status = CU_STREAM_CAPTURE_STATUS_NONE;
    return standin_leave(CUDA_SUCCESS);
}

CUresult cuStreamGetCtx(CUstream handle, CUcontext *owner)
{
    stream *s;
    STANDIN_ENTER_STREAM(handle, &s);
    *owner = (CUcontext)s->context;
    return standin_leave(CUDA_SUCCESS);
}

/* --------------------------------------------------------------------------------------- events */

/* A wait refers to the event's point at the time of the call, so a later record does not change
 * it. */
typedef struct event {
    struct event *next;
    context *context;
    point *recorded; /* NULL: never */
} event;

static event *events;

static event **event_of(CUevent handle)
{
    event **e = &events;
    while (*e && (CUevent)*e != handle)
        e = &(*e)->next;
    return e;
}

CUresult cuEventCreate(CUevent *handle, unsigned flags)
{
    context *current;
    STANDIN_ENTER_CONTEXT(&current);
    if (!handle || flags & ~(unsigned)(CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING))
        return standin_leave(CUDA_ERROR_INVALID_VALUE);
    event *e = standin_new(sizeof *e);
    *e = (event){.next = events, .context = current};
    events = e;
    *handle = (CUevent)e;
    return standin_leave(CUDA_SUCCESS);
}

CUresult cuEventDestroy_v2(CUevent handle)
{
    context *current;
    STANDIN_ENTER_CONTEXT(&current);
    event **link = event_of(handle), *e = *link;
    if (!e)
        return standin_leave(CUDA_ERROR_INVALID_HANDLE);
    *link = e->next;
    standin_point_release(e->recorded);
    free(e);
    return standin_leave(CUDA_SUCCESS);
}

CUresult cuEventRecord(CUevent handle, CUstream stream_handle)
{
    stream *s;
    STANDIN_ENTER_STREAM(stream_handle, &s);
    event *e = *event_of(handle);
    if (!e || e->context != s->context)
        return standin_leave(CUDA_ERROR_INVALID_HANDLE);
    standin_point_release(e->recorded);
    e->recorded = standin_push(s, standin_work_create(NULL));
    return standin_leave(CUDA_SUCCESS);
}

/* Needs no current context. An event that was never recorded is complete. */
CUresult cuEventQuery(CUevent handle)
{
    STANDIN_ENTER();
    event *e = *event_of(handle);
    return standin_leave(e ? query(e->recorded) : CUDA_ERROR_INVALID_HANDLE);
}

CUresult cuEventSynchronize(CUevent handle)
{
    context *current;
    STANDIN_ENTER_CONTEXT(&current);
    event *e = *event_of(handle);
    if (!e)
        return standin_leave(CUDA_ERROR_INVALID_HANDLE);
    standin_point_await(standin_point_retain(e->recorded), true);
    return standin_leave(CUDA_SUCCESS);
}

CUresult cuStreamWaitEvent(CUstream stream_handle, CUevent handle, unsigned flags)
{
    stream *s;
    STANDIN_ENTER_STREAM(stream_handle, &s);
    const event *e = *event_of(handle);
    if (!e)
        return standin_leave(CUDA_ERROR_INVALID_HANDLE);
    if (flags > 1) /* 1 matters to captures only */
        return standin_leave(CUDA_ERROR_INVALID_VALUE);
    work *w = standin_work_create(NULL);
    w->waits[0] = standin_point_retain(e->recorded);
    return standin_queue(s, w);
}
