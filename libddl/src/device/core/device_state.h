/* SPDX-License-Identifier: Apache-2.0 */
/* device_state.h - the internals of a device, for the files that implement it: device.c
 * (operations), device_open.c (creation, end, and detection of GPU failures), core/pinned.c (host
 * memory that the device copies to and from), nccl/nccl_ranks.c and nccl/nccl_operations.c (NCCL,
 * for ranks with one GPU each; see nccl_ranks.h).
 *
 * Design notes.
 *
 * An operation on device buffers is divided into chunks (chunks.h). Each chunk is an operation of
 * the engine on pinned host memory, and all chunks are one group. The call queues everything at
 * once, for all chunks: copies from the device in the stream `from`, operations in the engine,
 * copies to the device in the stream `to`. The caller's stream then waits for an event. So no
 * thread of the library handles the data between the copies, and the host is not blocked.
 *
 * The waits of one chunk, in order:
 *
 *   the caller's stream --event--> `from` ... copies to the memory, then a host function opens the
 *   chunk's hold --> the engine runs the chunk, then sets the chunk's word --> `to` ... waits for
 *   the word, copies from the memory, and records an event --> `from`, before the memory is used
 *   again. After the last chunk, `to` records an event --> the caller's stream; and a host function
 *   completes the group.
 *
 * `to` also waits for an event of `from` behind the chunk's host function. The driver does not know
 * that a word depends on a host function, and may put both streams into one queue of the GPU: a
 * wait for the word must not come before the copies that it depends on. The event also keeps `to`
 * from running ahead of `from` when the comm fails.
 *
 * Both streams and the engine run in the order of the calls, so none waits for a later one. `order`
 * is held from the choice of the memory until everything is queued, to keep the three orders equal.
 * Named operations run in an order that rank 0 decides, so they are rejected: they would need
 * separate streams.
 *
 * A call of the driver may block until a stream has room, for which the stream may first have to
 * run a host function. So host functions never take `order`. They take `lock`, which guards the
 * list of operations, the flags, and the pointer to the engine; the engine's locks are taken after
 * it. A host function must not call the driver, so operations are freed later, by the next call.
 *
 * When the comm fails, the engine completes all chunks with the failure, which sets all words: the
 * streams continue, with undefined contents of the buffers. If the GPU itself fails, its host
 * functions are never called. A thread polls for that while operations are pending, and ends the
 * comm with the driver's error. Memory that the driver may still use at the end is not freed. */
#ifndef DDL_DEVICE_CORE_DEVICE_STATE_H
#define DDL_DEVICE_CORE_DEVICE_STATE_H

#include <pthread.h>

#include "device/core/chunks.h"
#include "device/core/cuda_driver.h"
#include "device/core/device_config.h"

enum {
    DDL__SLOTS = 8,
    DDL__SLOT_BYTES = 2 << 20,
    DDL__WORD_BYTES = 64 /* one cache line for each word */
};

/* Pinned host memory that the device can access, with words and events for chunks. It serves the
 * slots, or those chunks of one operation that cannot use the slots. */
typedef struct ddl__pinned {
    struct ddl__pinned *next;
    unsigned char *memory;
    size_t bytes, words; /* the words follow the memory */
    ddl__cuda_pointer device_words;
    ddl__cuda_event *filled; /* for each word: an event when the chunk's hold is opened */
    /* number of uses so far; a word is set to this value when the operation of its current use has
     * ended */
    uint32_t uses;
} ddl__pinned;

typedef struct ddl__device_nccl ddl__device_nccl; /* defined in nccl_ranks.h */

typedef struct ddl__device_chunk {
    ddl__hold hold;
    struct ddl__device_operation *operation;
    unsigned char *memory;  /* the chunk's memory; NULL: NCCL runs the chunk, on one host */
    ddl__cuda_pointer word; /* set when the results can be copied back */
    uint32_t value;         /* the minimum value of `word` at that time */
    ddl__bundle *bundle;    /* bundle of packed calls; or NULL */
    ddl__cuda_event filled;
    ddl__cuda_event freed; /* recorded when the last copies from the memory are done; NULL: the
                              memory is used only once */
    ddl__hold agreement;   /* gate of the chunk's agreement, an operation for which no stream waits
                              (nccl_ranks.h) */
    atomic_uint agreed;    /* the word of `agreement` */
} ddl__device_chunk;

typedef struct ddl__device_operation {
    struct ddl__device_operation *next;
    ddl__device *device;
    ddl_group *group;
    ddl__pinned *pinned; /* or NULL */
    int64_t deadline;
    ddl__cuda_event start, end; /* start: in the caller's stream; end: after the last copy */
    bool ended;                 /* the last copy is done */
    int64_t n_chunks;
    ddl__device_chunk chunks[];
} ddl__device_operation;

struct ddl__device {
    ddl__device_config config;
    ddl__cuda cuda;
    ddl__cuda_device number;
    ddl__cuda_context context;
    ddl__cuda_stream from, to;
    unsigned char *slots;    /* memory like that of ddl_alloc: members of this host read it in
                              * place */
    ddl__pinned *slot_words; /* one word for each slot */
    ddl__cuda_event freed[DDL__SLOTS]; /* recorded after the last copies from the slot */

    pthread_mutex_t order; /* guards the fields down to `lock` */
    uint64_t n_uses;       /* number of uses of slots so far */
    ddl__pinned *unused;
    ddl__device_nccl *nccl; /* NULL before the first long operation */

    pthread_mutex_t lock; /* guards all fields below */
    pthread_cond_t changed;
    ddl__engine *engine;                       /* NULL: detached */
    ddl__device_operation *operations, **last; /* oldest first */
    unsigned under_way;                        /* operations that have not ended */
    bool stop, started;
    bool failed; /* the device has ended the comm */
    bool broken; /* the GPU has failed: some host functions will never be called */
    pthread_t watcher;
};

/* Return true if the driver's call has succeeded; otherwise set the message. */
bool ddl__device_is_good(const ddl__device *device, const char *call, ddl__cuda_result result);

#define DDL__GOOD(device, function, ...)                                                           \
    ddl__device_is_good(device, #function, (device)->cuda.function(__VA_ARGS__))

/* ddl__device_enter makes the device's context current in this thread. ddl__device_leave restores
 * the thread's previous context. */
bool ddl__device_enter(const ddl__device *device);
void ddl__device_leave(const ddl__device *device);

static inline ddl__cuda_pointer ddl__cuda_address(const void *pointer)
{
    return (ddl__cuda_pointer)(uintptr_t)pointer;
}

/* Find the GPU of this address. */
ddl_status ddl__device_find_gpu(const ddl__cuda *cuda, const void *address, int *number);

/* Check that this is an address of the GPU; NULL is allowed. */
ddl_status ddl__device_check(const ddl__device *device, const void *address);

/* Under `lock`: return true if neither the device nor the comm has failed. After a failure of the
 * device, the engine ends the comm a little later. */
bool ddl__device_is_alive(const ddl__device *device);

/* Under `lock`: end the comm, once, because the GPU's copies fail or take too long. */
void ddl__device_fail(ddl__device *device, ddl_status status, const char *why);

/* Free everything of an operation that was not submitted or has ended. */
void ddl__device_operation_free(ddl__device_operation *operation);

/* Under `order`: free the operations that have ended. */
void ddl__device_free_ended(ddl__device *device);

/* For host functions: let the engine start the operation of this hold, unless the engine is
 * detached. */
void ddl__device_open(ddl__device *device, ddl__hold *hold);

/* Under `order`: give the chunk the next slot. */
void ddl__device_place_in_slot(ddl__device *device, ddl__device_chunk *chunk);

/* Under `order`, in the device's context: after the copies in `from`, let the engine start the
 * chunk's operation, and let `to` wait for the copies. */
bool ddl__device_queue_start(ddl__device *device, ddl__device_chunk *chunk);

/* ---- pinned.c; all under `order`, in the device's context ---- */

/* Return pinned memory of at least `bytes` bytes with at least `words` words. Return NULL with the
 * message set on failure. */
ddl__pinned *ddl__pinned_take(ddl__device *device, size_t bytes, size_t words);

/* Keep the pinned memory for later operations. NULL is allowed. */
void ddl__pinned_give_back(ddl__device *device, ddl__pinned *pinned);
void ddl__pinned_free(const ddl__device *device, ddl__pinned *pinned);

/* ddl__pinned_word returns the host address of word i, ddl__pinned_device_word its device
 * address. */
atomic_uint *ddl__pinned_word(const ddl__pinned *pinned, size_t i);
ddl__cuda_pointer ddl__pinned_device_word(const ddl__pinned *pinned, size_t i);

#endif
