/* SPDX-License-Identifier: Apache-2.0 */
/* standin.h - declarations that the files of the stand-in for libcuda.so.1 share.
 *
 * Design notes. One lock, standin_mutex, guards all bookkeeping. Every exported function holds it
 * from standin_enter to standin_leave, and releases it while it waits. A stream's thread holds it
 * only between two items of its queue. No other lock is taken while it is held. The lock of host
 * functions (stream_items.c) is taken without it. Unless noted, a function below is called with the
 * lock held, and therefore hidden from ThreadSanitizer (edges.h). */
#ifndef CUDA_STANDIN_STANDIN_H
#define CUDA_STANDIN_STANDIN_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cuda_functions.h"
#include "edges.h"

enum {
    STANDIN_DEVICES_MAX = 16,
    STANDIN_PAGE = 4096,
    STANDIN_GRANULARITY = 2 << 20 /* of virtual memory */
};

/* ------------------------------------------------------------------------- settings, settings.c */

typedef struct settings {
    bool valid;
    int devices;
    unsigned delay_us;
    uint64_t seed;
    bool one_queue;
} settings;

/* Return the settings. Reads the environment in the first call. */
const settings *standin_settings(void);

/* True if DDL_STANDIN_FAIL requests a failure of this call of the function. Counts the call. */
bool standin_fails(const char *function);

/* Print a line to stderr that names the stand-in; standin_die also aborts. The lock may be held. */
void standin_say(const char *format, ...) __attribute__((format(printf, 1, 2)));
_Noreturn void standin_die(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* ------------------------------------------------------------------ contexts and calls, calls.c */

typedef struct stream stream;
struct point;

/* A device's primary context. There are no others. */
typedef struct context {
    int device;
    unsigned retained;
    stream *legacy;
    struct point *newest;           /* item of all streams, if they have one queue */
    pthread_mutex_t host_functions; /* held while one of them runs */
    char ended_blocking;            /* an edge of the streams that were destroyed */
} context;

extern context standin_contexts[STANDIN_DEVICES_MAX];
extern pthread_mutex_t standin_mutex;

/* Without the lock: hide, and lock. standin_unlock undoes it. */
void standin_lock(void);
void standin_unlock(void);

/* Begin an exported function: lock, and check that it may be called now. On any result but
 * CUDA_SUCCESS nothing is locked, and the caller returns it. */
CUresult standin_enter(const char *function);
/* As standin_enter, for a function that may be called before cuInit. */
CUresult standin_enter_early(const char *function);
/* As standin_enter, for a function that the real driver rejects without a current context. */
CUresult standin_enter_context(const char *function, context **current);
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

/* Return the calling thread's context, or NULL. */
context *standin_current(void);
/* Return the retained context of this handle, or NULL with the reason. */
context *standin_context_of(CUcontext handle, CUresult *reason);
/* Without the lock: return true if this process is a forked child, in which the stand-in does not
 * work. */
bool standin_is_forked(void);
/* Without the lock: set whether this thread runs a host function, which must not call CUDA. */
void standin_in_host_function(bool runs);

/* ----------------------------------------------------------------------------- memory, memory.c */

/* Memory, with the addresses at which the stand-in accesses it. Each of the program's ranges holds
 * a reference, and so does each access by a stream. */
typedef struct memory {
    struct memory *next;
    unsigned char *base;
    size_t bytes;
    int device;
    unsigned references;
    bool has_handle; /* allocated by cuMemCreate */
    void *owned;     /* memory to free */
} memory;

/* Return NULL if out of memory. The result has one reference. */
memory *standin_memory_create(int device, size_t bytes);
/* Return an object for memory of the program; `owned` is freed with it. */
memory *standin_memory_host(void *base, size_t bytes, int device, void *owned);
memory *standin_memory_of_handle(CUmemGenericAllocationHandle handle);
void standin_memory_retain(memory *m);
void standin_memory_release(memory *m);

/* --------------------------------------------------------------------- address ranges, ranges.c */

typedef enum range_kind { DEVICE_ALLOCATED, HOST_ALLOCATED, HOST_REGISTERED, MAPPED } range_kind;

/* Addresses that the program has got, or registered. */
typedef struct range {
    struct range *next;
    range_kind kind;
    uintptr_t start;
    size_t bytes;
    memory *memory;   /* its offset 0 is at start */
    context *context; /* NULL if MAPPED */
    int device;
    unsigned long long id;
    unsigned char access[STANDIN_DEVICES_MAX]; /* CUmemAccess_flags, if MAPPED */
} range;

/* Addresses whose pages nobody can touch, and that hold nothing yet; 0 if there are none. */
uintptr_t standin_reserve(size_t bytes, size_t alignment);

/* Add a range; it takes one reference to the memory, even on failure. NULL if out of memory. */
range *standin_range_add(range_kind kind, uintptr_t start, size_t bytes, memory *m, context *owner);
/* Remove the range. The addresses of device memory are released, except those of MAPPED. */
void standin_range_remove(range *r);
/* Return the range that contains the address, or NULL. */
range *standin_range_at(uintptr_t address);
/* Return the range of this kind that starts here, or NULL. */
range *standin_range_of(uintptr_t start, range_kind kind);
/* Return the first range with any of these addresses, or NULL. */
range *standin_range_within(uintptr_t address, size_t bytes);

/* Wait for the streams of the range's context, as the real driver does when memory is freed, and
 * remove the range. Return `otherwise` if there is none. Programs must not rely on this wait, so it
 * is not an edge. */
CUresult standin_range_free(uintptr_t start, range_kind kind, CUresult otherwise);

/* Return true if any of these addresses is reserved for mappings: virtual_memory.c. */
bool standin_is_reserved(uintptr_t address, size_t bytes);

typedef enum place { PLACE_DEVICE, PLACE_PINNED, PLACE_PAGEABLE, PLACE_INVALID } place;

/* Return the kind of memory at these addresses. PLACE_INVALID: the memory ends before, or it is a
 * mapping that the device may not access in this way. */
place standin_place(uintptr_t address, size_t bytes, int device, CUmemAccess_flags wanted);

/* Bytes that the stand-in can access. */
typedef struct span {
    unsigned char *at;
    size_t bytes;
    memory *memory;
} span;

/* Without the lock: return the first span of these bytes, valid until standin_span_drop. Aborts if
 * the device must not access them, which a real device reports as an illegal address. */
span standin_span_take(uintptr_t address, size_t bytes, int device, CUmemAccess_flags wanted,
                       const char *user);
void standin_span_drop(span *s);

/* --------------------------------------------------------------------------- streams, streams.c */

/* Something that completes once: an item of a stream. */
typedef struct point {
    unsigned references;
    bool done;
} point;

typedef struct points {
    point **at;
    size_t count;
} points;

typedef struct work work;

/* An item of a stream's queue. */
struct work {
    work *next;
    point *done;
    points waits;
    bool after_ended; /* runs after the blocking streams that were destroyed */
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
            uintptr_t to;
            size_t count;
            unsigned value;
        } set;
        struct {
            uintptr_t at;
            unsigned value;
        } word;
        struct {
            CUhostFn function;
            void *data;
        } host;
        struct {
            void (*run)(void *argument, int device);
            void *argument;
        } function;
    } with;
};

struct stream {
    stream *next;
    context *context;
    bool blocking, legacy;
    bool started, closing;
    work *head, **tail;
    point *last; /* point of the newest item */
    pthread_cond_t changed;
    uint64_t random;
};

/* A new stream, whose thread starts with the first item; NULL without memory. */
stream *standin_stream_create(context *owner, bool blocking);
/* No handle finds it any more. What is queued is still done; then it is freed. */
void standin_stream_close(stream *s);
/* Begin an exported function of a stream, as standin_enter_context. */
CUresult standin_enter_stream(const char *function, CUstream handle, stream **s);

/* Return the stream of a handle; NULL and 2 mean streams of the current context. Return NULL if
 * there is none. */
stream *standin_stream_of(CUstream handle, context *current);

/* Return the stream of a handle of cuStreamCreate, or NULL. */
stream *standin_stream_find(CUstream handle);
/* Return true if all items of the stream are done; for the legacy stream, also the items for which
 * it would wait. The caller then sees their effects. */
bool standin_stream_test(stream *s);

/* Return an item that waits for nothing yet, or NULL. */
work *standin_work_create(void (*run)(work *w));
void standin_work_drop(work *w);
/* Queue the item; the stream owns it from now on, even on failure. `done`, unless NULL, gets a
 * reference. */
CUresult standin_push(stream *s, work *w, point **done);

void standin_point_retain(point *p);
void standin_point_release(point *p); /* NULL is allowed */
/* Return true if it is done; the caller then sees what was done before it. */
bool standin_point_test(point *p);
/* Wait until it is done. The caller sees what was done before it only if `ordered`. */
void standin_point_await(point *p, bool ordered);
/* Let the item wait for the point, which may be NULL. Return false if out of memory. */
bool standin_work_wait_for(work *w, point *p);
/* Wait for all streams of the context as they are now, without an edge; false without memory. */
bool standin_drain(const context *owner);

#endif
