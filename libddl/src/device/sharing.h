/* SPDX-License-Identifier: Apache-2.0 */
/* sharing.h - long operations from buffer to buffer, of ranks on one host: they share a GPU, or
 * their GPUs can access each other's memory.
 *
 * Design notes. The first rank of each GPU leads: its kernels read the operands of all ranks and
 * write the results of all, so the processes on a GPU do not take turns for it. It opens the
 * others' memory by CUDA IPC. Several leaders divide the work (leader.c).
 *
 * Each chunk is two operations of the engine. In the first the leaders gather where the buffers of
 * each rank lie (ddl__places); it starts when the rank's stream has come to the operation. The
 * second is a barrier, which a leader enters when its work is done; it sets the words for which the
 * ranks' streams wait. So a stream waits for words in host memory only, as in operations that pass
 * through the host, and fails as they do.
 *
 * A leader's call queues the kernel in a stream of its own, before the wait for the barrier's word:
 * streams may share a queue of the GPU, where a kernel behind that wait would never run. The
 * addresses are not known yet. They are in a table in host memory, which is copied to the GPU just
 * before the kernel runs. A thread (leader.c) fills it in when the places are gathered, and then
 * sets a word for which the copy waits. When the comm has failed it leaves the table empty, and the
 * kernel does nothing.
 *
 *   `from`:    ... a host function starts the gathering
 *   `compute`: waits for the word of the places, copies the table, runs the kernel; a host function
 *              starts the barrier
 *   `to`:      waits for `compute`, waits for the word of the barrier ...
 *
 * Kernels are compiled and loaded before a chunk is queued, and after earlier ones are done. Opened
 * memory is closed only with the comm: the driver waits for all streams of the process then, and
 * they may wait for this operation. Addresses must not be opened that overlap others. So a rank
 * exports few allocations, and no further ones once it is seen to have freed one. Other memory,
 * also what cannot be exported, is copied to and from memory of the library on the same GPU; so is
 * what an all-to-all replaces, several parts of an ordered sum, and blocks that are not aligned as
 * elements. Each rank decides that for itself.
 *
 * When an operation fails, a kernel that runs then may write to the buffers for a moment after the
 * other ranks' streams have gone on. Leaders wait for theirs before they agree to a comm of the
 * survivors: their next operations may have the same buffers. */
#ifndef DDL_DEVICE_SHARING_H
#define DDL_DEVICE_SHARING_H

#include <semaphore.h>

#include "device/peers.h"
#include "device/reducer.h"

enum {
    DDL__SHARED_CHUNK = 64 << 20, /* bytes of a chunk, on each rank */
    DDL__SCRATCHES = 2,
    DDL__EXPORTS = 64,                                /* allocations of a rank that leaders open */
    DDL__OWN_EXPORTS = 24,                            /* of these, the library's */
    DDL__KEPT = DDL__OWN_EXPORTS - DDL__SCRATCHES - 2 /* scratches that were replaced */
};

/* Where the blocks of a buffer begin, for other processes. */
typedef struct ddl__place {
    ddl__cuda_ipc handle; /* of the allocation */
    uint64_t base;        /* its address, ... */
    uint64_t address;     /* ... and that of the blocks, in the process; 0: no buffer */
    uint64_t number;      /* of the allocation, among those that the rank exports */
} ddl__place;

/* What a rank tells the leaders of a chunk. */
typedef struct ddl__places {
    ddl__signature signature; /* of the whole call */
    double prescale, postscale;
    ddl__place send, recv;
    ddl__share
        blocks[]; /* in elements from there: what goes to each rank, and what comes from it */
} ddl__places;

struct ddl__shared_chunk {
    ddl__shared_chunk *next; /* of a leader's that wait for their places */
    ddl__device_chunk *chunk;
    ddl__hold barrier;
    ddl__call call;
    ddl__places *own;
    size_t bytes; /* of it */
    atomic_uint gathered;
    unsigned char *all; /* places by rank, of a leader; of all ranks if there are several GPUs */

    /* A leader's. */
    const ddl__kernel *kernel;
    unsigned parts; /* of the table, which is the chunk's memory in host memory */
};

/* An allocation that leaders open. */
typedef struct ddl__export {
    unsigned long long id; /* no other of this process ever has it */
    ddl__cuda_pointer base;
    size_t bytes;
    ddl__cuda_ipc handle;
} ddl__export;

struct ddl__device_sharing {
    bool *is_own_process; /* by rank */
    int *gpus, n_gpus;    /* by rank: which GPU, in the order of their first ranks; how many */
    int own_gpu;
    bool leads;          /* this rank is the first of its GPU */
    bool exports_memory; /* leaders take only what can be exported; else it is in their process */
    bool flushes;        /* the GPU can make sure that it sees what others have written */
    ddl__export exports[DDL__EXPORTS]; /* the first is the library's: sharing_start.c, with: */
    ddl__pinned *numbers;
    ddl__cuda_stream probing;
    unsigned n_exports;
    bool has_freed;                                /* an allocation that was exported */
    ddl__cuda_pointer scratch[DDL__SCRATCHES + 1]; /* 0: not wanted yet. The last one is for longer
                                                      chunks, and grows. */
    size_t scratch_bytes[DDL__SCRATCHES + 1];
    ddl__cuda_event freed[DDL__SCRATCHES + 1];
    uint64_t n_scratch;                /* uses of the others */
    ddl__cuda_pointer kept[DDL__KEPT]; /* scratches that were too small, or cannot be used */
    unsigned n_kept;

    /* A leader's. */
    ddl__reducer *reducer;                     /* or NULL */
    ddl__cuda_pointer (*opened)[DDL__EXPORTS]; /* by rank and number; 0: not opened */
    ddl__cuda_stream compute;
    ddl__cuda_event done;    /* what `compute` had when a chunk was queued */
    ddl__cuda_pointer table; /* for one chunk after the other */
    sem_t told;
    ddl__shared_chunk *first, **last; /* under the device's lock, as: */
    unsigned busy;                    /* chunks that were taken and whose kernel has not ended */
    bool started;
    pthread_t thread;
};

/* ---- sharing_start.c; all under `order`, in the device's context ---- */

/* Make the device's part, which is empty. False: no memory. */
bool ddl__sharing_create(ddl__device *device);

/* Export a small allocation, to see whether that is possible. */
bool ddl__sharing_export_probe(const ddl__device *device, ddl__peer *own);

/* The ranks have told each other: find which GPU each has, and who leads. */
void ddl__sharing_find_gpus(const ddl__device *device);

/* Find out, in operations of all ranks, whether leaders can do the work of these. If not, `why`
 * says it, on rank 0. */
ddl_status ddl__sharing_start(ddl__device *device, int64_t timeout_ms, bool *is_possible,
                              char *why);

/* At the end: wait until the GPU has come to what was tried at the start, if it was late. False: it
 * has not. */
bool ddl__sharing_settle_probes(ddl__device *device);

/* Free all; what is queued is done. NULL is fine. */
void ddl__sharing_destroy(ddl__device *device, ddl__device_sharing *sharing);

/* ---- sharing.c; all under `order`, in the device's context ---- */

/* What a rank has told. */
const ddl__places *ddl__sharing_places(const ddl__shared_chunk *chunk, int rank);

/* Add the operations of chunk k to the operation's group, and place the chunk. */
ddl_status ddl__sharing_add(ddl__device *device, const ddl__chunks *chunks, int64_t k,
                            ddl__device_chunk *chunk);

/* ---- leader.c ---- */

/* What the table of such an operation takes; 0: this rank does not lead. */
size_t ddl__leader_table_bytes(const ddl__device *device, ddl__kind kind);

/* Start the leader's thread. */
ddl_status ddl__leader_start(ddl__device *device);

/* Under `order`: find the chunk's kernel; queue it between the chunk's copies. */
bool ddl__leader_prepare(ddl__device *device, ddl__shared_chunk *chunk);
bool ddl__leader_queue(ddl__device *device, ddl__shared_chunk *chunk);

/* Under the device's lock: the chunk is submitted. */
void ddl__leader_take(ddl__device *device, ddl__shared_chunk *chunk);

/* Let the thread end. No places are gathered any more. If the GPU has not come to all that is
 * queued, the thread may be kept in the driver, and is not waited for; the device stays. */
void ddl__leader_stop(ddl__device *device, bool drained);

#endif
