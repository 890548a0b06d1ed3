/* SPDX-License-Identifier: Apache-2.0 */
/* Streams: queues, each with a thread that starts with the first item.
 *
 * Design notes. The thread runs one item after the other: it sleeps for a random time, waits for
 * the points that the item waits for, runs the item without the lock, and marks its point done. The
 * item stays at the head of the queue meanwhile. Threads are detached. They block all signals,
 * which are for the program's threads.
 *
 * Order. An item comes after all earlier ones of its stream. An item of the legacy stream also
 * waits for the newest items of the context's blocking streams, and an item of a blocking stream
 * waits for the newest one of the legacy stream. These are known when the item is queued, so no two
 * items wait for each other. A stream that the program destroys runs its queue to the end; then its
 * thread removes it. Its last point is gone then, so the context keeps an edge instead for the
 * legacy stream: `ended_blocking`. */
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <time.h>

#include "points.h"

static stream *streams;
static unsigned n_created;

/* ---------------------------------------------------------------------------------------- delay */

static uint64_t random_next(stream *s)
{
    /* xorshift64* */
    s->random ^= s->random >> 12;
    s->random ^= s->random << 25;
    s->random ^= s->random >> 27;
    return s->random * 0x2545f4914f6cdd1du;
}

/* Sleep mostly for less than the mean, and 1 of 8 times for up to 9 times as much: their average is
 * the mean. */
static void delay(stream *s)
{
    uint64_t mean = standin_settings()->delay_us * 1000ull;
    if (!mean)
        return;
    uint64_t most = random_next(s) >> 61 ? mean : 9 * mean, ns = (random_next(s) >> 1) % most;
    struct timespec time = {(time_t)(ns / 1000000000), (long)(ns % 1000000000)};
    nanosleep(&time, NULL);
}

/* --------------------------------------------------------------------------------------- items */

work *standin_work_create(void (*run)(work *w))
{
    work *w = calloc(1, sizeof *w);
    if (w)
        w->run = run;
    return w;
}

bool standin_work_wait_for(work *w, point *p)
{
    return standin_points_add(&w->waits, p);
}

void standin_work_drop(work *w)
{
    standin_points_clear(&w->waits);
    standin_point_release(w->done);
    free(w->owned);
    free(w);
}

static void run(work *w)
{
    standin_acquire_edge(w);
    for (size_t i = 0; i < w->waits.count; i++)
        standin_acquire_edge(w->waits.at[i]);
    if (w->after_ended)
        standin_acquire_edge(&w->context->ended_blocking);
    if (w->run) {
        standin_unlock();
        w->run(w);
        standin_lock();
    }
    standin_release_edge(w->done);
    standin_point_finish(w->done);
}

/* Add waits for the items that come before a new one of this stream. */
static bool add_waits(const stream *s, work *w)
{
    if (!s->blocking)
        return true;
    if (!s->legacy)
        return standin_points_add(&w->waits, s->context->legacy->last);
    w->after_ended = true;
    for (const stream *other = streams; other; other = other->next)
        if (other->context == s->context && other->blocking && other != s &&
            !standin_points_add(&w->waits, other->last))
            return false;
    return true;
}

/* -------------------------------------------------------------------------------------- streams */

static void stream_free(stream *s)
{
    stream **link = &streams;
    while (*link != s)
        link = &(*link)->next;
    *link = s->next;
    standin_point_release(s->last);
    pthread_cond_destroy(&s->changed);
    free(s);
}

static void *run_stream(void *argument)
{
    stream *s = argument;
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
        standin_points_await(&w->waits);
        run(w);
        s->head = w->next;
        if (!s->head)
            s->tail = &s->head;
        standin_work_drop(w);
    }
    if (s->blocking)
        standin_release_edge(&s->context->ended_blocking);
    stream_free(s);
    standin_unlock();
    return NULL;
}

static bool stream_start(stream *s)
{
    pthread_t thread;
    sigset_t all, before;
    if (s->started)
        return true;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    s->started = !pthread_create(&thread, NULL, run_stream, s);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (s->started)
        pthread_detach(thread);
    return s->started;
}

stream *standin_stream_create(context *owner, bool blocking)
{
    stream *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    *s = (stream){.next = streams, .context = owner, .blocking = blocking};
    s->tail = &s->head;
    s->random = (standin_settings()->seed + ++n_created) * 0x9e3779b97f4a7c15u;
    s->random |= !s->random;
    pthread_cond_init(&s->changed, NULL);
    return streams = s;
}

void standin_stream_close(stream *s)
{
    s->closing = true;
    if (s->started)
        pthread_cond_signal(&s->changed);
    else
        stream_free(s);
}

stream *standin_stream_find(CUstream handle)
{
    stream *s = streams;
    while (s && ((CUstream)s != handle || s->closing))
        s = s->next;
    return s;
}

bool standin_stream_test(stream *s)
{
    if (s->last && !standin_point_test(s->last))
        return false;
    for (const stream *other = streams; s->legacy && other; other = other->next)
        if (other->context == s->context && other->blocking && other->last &&
            !standin_point_test(other->last))
            return false;
    if (s->legacy)
        standin_acquire_edge(&s->context->ended_blocking);
    return true;
}

CUresult standin_push(stream *s, work *w, point **done)
{
    w->done = standin_point_create();
    w->context = s->context;
    bool in_queue = standin_settings()->one_queue;
    if (!w->done || !add_waits(s, w) ||
        (in_queue && !standin_points_add(&w->waits, s->context->newest))) {
        standin_work_drop(w);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (!stream_start(s)) {
        standin_work_drop(w);
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    standin_release_edge(w);
    standin_point_release(s->last);
    s->last = w->done;
    standin_point_retain(w->done);
    if (done) {
        *done = w->done;
        standin_point_retain(w->done);
    }
    if (in_queue) {
        standin_point_release(s->context->newest);
        s->context->newest = w->done;
        standin_point_retain(w->done);
    }
    *s->tail = w;
    s->tail = &w->next;
    pthread_cond_signal(&s->changed);
    return CUDA_SUCCESS;
}

bool standin_drain(const context *owner)
{
    points newest = {NULL, 0};
    bool all = true;
    for (const stream *s = streams; s && all; s = s->next)
        if (s->context == owner)
            all = standin_points_add(&newest, s->last);
    if (all)
        standin_points_await(&newest);
    standin_points_clear(&newest);
    return all;
}
