/* SPDX-License-Identifier: Apache-2.0 */
/* The functions for streams. The default streams have the handles NULL and 1 (legacy) and 2 (the
 * calling thread's). A thread's default stream is created when the thread first uses it, and
 * destroyed with the thread. */
#include "standin.h"

static pthread_key_t threads;
static pthread_once_t threads_once = PTHREAD_ONCE_INIT;
static _Thread_local stream *of_thread[STANDIN_DEVICES_MAX];

static void close_of_thread(void *argument)
{
    (void)argument;
    if (standin_is_forked())
        return;
    standin_lock();
    for (int i = 0; i < STANDIN_DEVICES_MAX; i++) {
        if (of_thread[i])
            standin_stream_close(of_thread[i]);
        of_thread[i] = NULL;
    }
    standin_unlock();
}

static void create_key(void)
{
    if (pthread_key_create(&threads, close_of_thread))
        standin_die("no thread key for the threads' default streams");
}

static stream *stream_of_thread(context *current)
{
    stream **s = &of_thread[current->device];
    if (!*s) {
        *s = standin_stream_create(current, true);
        pthread_once(&threads_once, create_key);
        pthread_setspecific(threads, of_thread);
    }
    return *s;
}

stream *standin_stream_of(CUstream handle, context *current)
{
    if (!handle || handle == CU_STREAM_LEGACY)
        return current->legacy;
    return handle == CU_STREAM_PER_THREAD ? stream_of_thread(current) : standin_stream_find(handle);
}

CUresult standin_enter_stream(const char *function, CUstream handle, stream **s)
{
    context *current;
    CUresult result = standin_enter_context(function, &current);
    if (result != CUDA_SUCCESS)
        return result;
    *s = standin_stream_of(handle, current);
    return *s ? CUDA_SUCCESS : standin_leave(CUDA_ERROR_INVALID_HANDLE);
}

CUresult cuStreamCreate(CUstream *handle, unsigned flags)
{
    context *current;
    STANDIN_ENTER_CONTEXT(&current);
    if (!handle || flags & ~(unsigned)CU_STREAM_NON_BLOCKING)
        return standin_leave(CUDA_ERROR_INVALID_VALUE);
    stream *s = standin_stream_create(current, !(flags & CU_STREAM_NON_BLOCKING));
    *handle = (CUstream)s;
    return standin_leave(s ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY);
}

/* Returns at once; queued items still run. */
CUresult cuStreamDestroy_v2(CUstream handle)
{
    context *current;
    STANDIN_ENTER_CONTEXT(&current);
    stream *s = standin_stream_find(handle);
    if (!s)
        return standin_leave(CUDA_ERROR_INVALID_HANDLE);
    standin_stream_close(s);
    return standin_leave(CUDA_SUCCESS);
}

/* Return the newest point of the stream, retained; NULL if there is none. For the legacy stream
 * this is a new item, which also comes after the blocking streams. */
static CUresult newest_point(stream *s, point **newest)
{
    *newest = NULL;
    if (s->legacy) {
        work *w = standin_work_create(NULL);
        return w ? standin_push(s, w, newest) : CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (s->last) {
        standin_point_retain(s->last);
        *newest = s->last;
    }
    return CUDA_SUCCESS;
}

CUresult cuStreamSynchronize(CUstream handle)
{
    stream *s;
    point *newest;
    STANDIN_ENTER_STREAM(handle, &s);
    CUresult result = newest_point(s, &newest);
    if (newest)
        standin_point_await(newest, true);
    standin_point_release(newest);
    return standin_leave(result);
}

CUresult cuStreamQuery(CUstream handle)
{
    stream *s;
    STANDIN_ENTER_STREAM(handle, &s);
    return standin_leave(standin_stream_test(s) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY);
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
