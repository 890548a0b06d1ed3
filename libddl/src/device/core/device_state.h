/* SPDX-License-Identifier: Apache-2.0 */
/* device_state.h - the internals of a device, for the files that make it up: device.c (operations),
 * device_open.c (creation and end, and how a failure of the GPU is found), core/pinned.c (host
 * memory that the device copies to and from), nccl/nccl_ranks.c and nccl/nccl_operations.c (ranks
 * with a GPU each; nccl_ranks.h).
 *
 * Design notes.
 *
 * An operation on device buffers is cut into chunks (chunks.h). Each chunk is an operation of the
 * engine on pinned host memory, and all chunks are one group. The call queues everything at once,
 * for all chunks: copies from the device in the stream `from`, operations in the engine, copies to
 * the device in the stream `to`. The caller's stream then waits for an event. So no thread of the
 * library handles the data between the copies, and the host is not blocked.
 *
 * Who waits for whom, for one chunk:
 *
 *   the caller's stream --event--> `from` ... copies to the memory, then a host function opens the
 *   chunk's hold --> the engine runs the chunk, then sets the chunk's word --> `to` ... which waits
 *   for that, copies from the memory, and records an event --> `from`, before the memory is used
 *   again. After the last chunk, `to` records an event --> the caller's stream; and a host function
 *   completes the group.
 *
 * `to` also waits for an event of `from` behind the chunk's host function. The driver does not see
 * what leads from a host function to a word, and may put both streams into one queue of the GPU: a
 * wait for the word must not come before the copies that lead to it. It also keeps `to` from
 * running ahead of `from` when the comm fails.
 *
 * Both streams and the engine run in the order of the calls, so none waits for a later one. `order`
 * is held from the choice of the memory until all is queued, to keep the three orders equal. Named
 * operations run in an order that rank 0 decides, so they are refused: they would need streams of
 * their own.
 *
 * A call of the driver may block until a stream has room, and the stream may have to run a host
 * function before. So host functions never take `order`. They take `lock`, which guards the list of
 * operations, the flags, and the pointer to the engine; the engine's locks come after it. A host
 * function must not call the driver, so operations are freed later, by the next call.
 *
 * When the comm fails, the engine completes all chunks with the failure, and so sets all words: the
 * streams go on, with undefined contents of the buffers. If the GPU itself fails, its host
 * functions are never called. A thread asks for that as long as operations are under way, and ends
 * the comm with the driver's error. What the driver may still use at the end is left to it. */
#ifndef DDL_DEVICE_CORE_DEVICE_STATE_H
#define DDL_DEVICE_CORE_DEVICE_STATE_H

#include <pthread.h>

#include "device/core/chunks.h"
#include "device/core/cuda_driver.h"
#include "device/core/device_config.h"

enum {
    DDL__SLOTS = 8,
    DDL__SLOT_BYTES = 2 << 20,
    DDL__WORD_BYTES = 64 /* a cache line each */
};

/* Host memory that the device knows, with words and events for chunks: those of the slots, or those
 * of one operation, for chunks that cannot use the slots. */
typedef struct ddl__pinned {
    struct ddl__pinned *next;
    unsigned char *memory;
    size_t bytes, words; /* the words follow the memory */
    ddl__cuda_pointer device_words;
    ddl__cuda_event *filled; /* for each word: the chunk's hold is opened */
    uint32_t uses;           /* of the words of an operation: their value */
} ddl__pinned;

typedef struct ddl__device_nccl ddl__device_nccl; /* nccl_ranks.h */

typedef struct ddl__device_chunk {
    ddl__hold hold;
    struct ddl__device_operation *operation;
    unsigned char *memory;  /* to which it is copied; NULL: NCCL carries it out on one host */
    ddl__cuda_pointer word; /* that tells when the results can be copied back, ... */
    uint32_t value;         /* ... with at least this */
    ddl__bundle *bundle;    /* of packed calls; or NULL */
    ddl__cuda_event filled;
    ddl__cuda_event freed; /* the last copies from this memory are made; NULL: used once */
    ddl__hold agreement;   /* of an operation that no stream waits for, ... */
    atomic_uint agreed;    /* ... and its word */
} ddl__device_chunk;

typedef struct ddl__device_operation {
    struct ddl__device_operation *next;
    ddl__device *device;
    ddl_group *group;
    ddl__pinned *pinned; /* or NULL */
    int64_t deadline;
    ddl__cuda_event start, end; /* in the caller's stream; after the last copy */
    bool ended;                 /* the last copy was made */
    int64_t n_chunks;
    ddl__device_chunk chunks[];
} ddl__device_operation;

struct ddl__device {
    ddl__device_config config;
    ddl__cuda cuda;
    ddl__cuda_device number;
    ddl__cuda_context context;
    ddl__cuda_stream from, to;
    unsigned char *slots;    /* of ddl_alloc's kind: members of this host read it in place */
    ddl__pinned *slot_words; /* one word for each */
    ddl__cuda_event freed[DDL__SLOTS]; /* the last copies from the slot are made */

    pthread_mutex_t order; /* and what follows, up to `lock` */
    uint64_t n_uses;       /* of slots, ever */
    ddl__pinned *unused;
    ddl__device_nccl *nccl; /* NULL before the first long operation */

    pthread_mutex_t lock; /* and all that follows */
    pthread_cond_t changed;
    ddl__engine *engine;                       /* NULL: detached */
    ddl__device_operation *operations, **last; /* oldest first */
    unsigned under_way;                        /* operations that have not ended */
    bool stop, started;
    bool failed; /* the comm was ended */
    bool broken; /* some host functions will never be called */
    pthread_t watcher;
};

/* Whether the driver's call has succeeded; else the message is set. */
bool ddl__device_is_good(const ddl__device *device, const char *call, ddl__cuda_result result);

#define DDL__GOOD(device, function, ...)                                                           \
    ddl__device_is_good(device, #function, (device)->cuda.function(__VA_ARGS__))

/* Make the device's context the thread's, and give the thread its own back. */
bool ddl__device_enter(const ddl__device *device);
void ddl__device_leave(const ddl__device *device);

static inline ddl__cuda_pointer ddl__cuda_address(const void *pointer)
{
    return (ddl__cuda_pointer)(uintptr_t)pointer;
}

/* The GPU of this address. */
ddl_status ddl__device_find_gpu(const ddl__cuda *cuda, const void *address, int *number);

/* Check that this is an address of the GPU; NULL is fine. */
ddl_status ddl__device_check(const ddl__device *device, const void *address);

/* Under `lock`: whether the comm goes on. The engine ends it a little after a failure of the
 * device.
 */
bool ddl__device_is_alive(const ddl__device *device);

/* Under `lock`: the GPU does not copy, or not in time. End the comm, once. */
void ddl__device_fail(ddl__device *device, ddl_status status, const char *why);

/* Free all that the operation has, when it was not submitted or has ended. */
void ddl__device_operation_free(ddl__device_operation *operation);

/* Under `order`: free the operations that have ended. */
void ddl__device_free_ended(ddl__device *device);

/* Of a host function: let the engine start the operation of this hold, unless it is detached. */
void ddl__device_open(ddl__device *device, ddl__hold *hold);

/* Under `order`: give the chunk the next slot. */
void ddl__device_place_in_slot(ddl__device *device, ddl__device_chunk *chunk);

/* Under `order`, in the device's context: behind the copies in `from`, let the engine start the
 * chunk's operation, and let `to` wait for them. */
bool ddl__device_queue_start(ddl__device *device, ddl__device_chunk *chunk);

/* ---- pinned.c; all under `order`, in the device's context ---- */

/* Memory of so many bytes with so many words; NULL with the message set. */
ddl__pinned *ddl__pinned_take(ddl__device *device, size_t bytes, size_t words);

/* Keep it for the next operation; NULL is fine. */
void ddl__pinned_give_back(ddl__device *device, ddl__pinned *pinned);
void ddl__pinned_free(const ddl__device *device, ddl__pinned *pinned);

/* Word number i, for the host and for the device. */
atomic_uint *ddl__pinned_word(const ddl__pinned *pinned, size_t i);
ddl__cuda_pointer ddl__pinned_device_word(const ddl__pinned *pinned, size_t i);

#endif
