/* SPDX-License-Identifier: Apache-2.0 */
/* standin.h - declarations that the files of the stand-in for libcuda.so.1 share.
 *
 * Design notes. One lock, standin_mutex, guards all bookkeeping. Every exported function holds it
 * from standin_enter to standin_leave, and releases it while it waits. A stream's thread holds it
 * only between two items of its queue. No other lock is taken while it is held. The lock of host
 * functions (items.c) is taken without it. Unless noted, a function below is called with the lock
 * held, and therefore hidden from ThreadSanitizer (edges.h). */
#ifndef CUDA_STANDIN_STANDIN_H
#define CUDA_STANDIN_STANDIN_H

#include <pthread.h>
#include <stdbool.h>

#include "cuda_functions.h"
#include "edges.h"
#include "extensions.h"

enum { STANDIN_DEVICES_MAX = 16, STANDIN_PAGE = 4096 };

/* ----------------------------------------------------------- settings, calls, contexts: driver.c
 */

typedef struct settings {
    int devices;
    unsigned delay_us;
    uint64_t seed;
    bool one_queue;
} settings;

/* Return the settings. Reads the environment in the first call. */
const settings *standin_settings(void);

/* Print a line to stderr that names the stand-in, and abort. The lock may be held. */
_Noreturn void standin_die(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Return zeroed memory, or abort. The lock may be held. */
void *standin_new(size_t bytes);

typedef struct stream stream;
typedef struct work work;

/* Something that completes once: an item of a stream. */
typedef struct point {
    unsigned references;
    bool done;
} point;

/* A device's primary context. There are no others. */
typedef struct context {
    int device;
    unsigned retained;
    stream *own;                    /* its default stream */
    point *newest;                  /* item of all streams, if they have one queue */
    pthread_mutex_t host_functions; /* held while one of them runs */
} context;

extern pthread_mutex_t standin_mutex;

/* Without the lock: hide, and lock. standin_unlock undoes it. */
void standin_lock(void);
void standin_unlock(void);

/* Begin an exported function: lock, and check that it may be called now. On any result but
 * CUDA_SUCCESS nothing is locked, and the caller returns it. */
CUresult standin_enter(const char *function);
/* As standin_enter, for a function that the real driver rejects without a current context. */
CUresult standin_enter_context(const char *function, context **current);
/* As standin_enter_context, for a function of a stream. */
CUresult standin_enter_stream(const char *function, CUstream handle, stream **s);
/* Enter in this way, or return the reason why not. */
#define STANDIN_ENTER_BY(entered)                                                                  \
    do {                                                                                           \
        CUresult entered_ = (entered);                                                             \
        if (entered_ != CUDA_SUCCESS)                                                              \
            return entered_;                                                                       \
    } while (0)
#define STANDIN_ENTER()                 STANDIN_ENTER_BY(standin_enter(__func__))
#define STANDIN_ENTER_CONTEXT(current)  STANDIN_ENTER_BY(standin_enter_context(__func__, current))
#define STANDIN_ENTER_STREAM(handle, s) STANDIN_ENTER_BY(standin_enter_stream(__func__, handle, s))
/* End it: unlock, and return the result. */
CUresult standin_leave(CUresult result);

/* Without the lock: set whether this thread runs a host function, which must not call CUDA. */
void standin_in_host_function(bool runs);

/* ----------------------------------------------------------------------------- memory: memory.c */

typedef enum place { PLACE_DEVICE, PLACE_PINNED, PLACE_PAGEABLE, PLACE_INVALID } place;

/* Return the kind of memory at these addresses. PLACE_INVALID: the memory ends before, or the
 * device may not access it in this way. */
place standin_place(uintptr_t address, size_t bytes, int device, bool writes);

/* --------------------------------------------------------------------------- streams: streams.c */

/* An item of a stream's queue. */
struct work {
    work *next;
    point *done;
    point *waits[2]; /* an event's, and the newest of one queue; or NULL */
    context *context;
    void *owned;          /* freed with it */
    void (*run)(work *w); /* called without the lock, and shown; NULL: nothing to do */
    union {
        struct {
            uintptr_t to, from;
            bool to_pageable, from_pageable;
            size_t bytes;
        } copy;
        struct {
            uintptr_t at;
            size_t count;
            unsigned value;
        } words;
        struct {
            CUhostFn function;
            void *data;
        } host;
        struct {
            void (*run)(void *argument, int device);
            void *argument;
        } kernel;
    } with;
};

struct stream {
    stream *next;
    context *context;
    bool started, closing;
    work *head, **tail;
    point *last; /* point of the newest item */
    pthread_cond_t changed;
    uint64_t random;
};

/* Return a new stream, whose thread starts with the first item. */
stream *standin_stream_create(context *owner);
/* Return the stream of a handle, or NULL. NULL, 1 and 2 mean the context's default stream. */
stream *standin_stream_of(CUstream handle, context *current);

work *standin_work_create(void (*run)(work *w));
/* Queue the item, which the stream then owns, and return its point with a reference. */
point *standin_push(stream *s, work *w);
/* Queue the item, and end the exported function. */
CUresult standin_queue(stream *s, work *w);

point *standin_point_retain(point *p); /* NULL is allowed */
void standin_point_release(point *p);  /* NULL is allowed */
/* Wait until it is done, and release it; NULL is allowed. The caller sees what was done before it
 * only if `ordered`. */
void standin_point_await(point *p, bool ordered);
/* Wait for all streams of the context as they are now, without an edge. */
void standin_drain(const context *owner);

#endif
