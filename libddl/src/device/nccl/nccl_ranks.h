/* SPDX-License-Identifier: Apache-2.0 */
/* nccl_ranks.h - runs long operations of ranks with one GPU each, with NCCL within a host.
 *
 * Design notes. On one host, an operation is one NCCL operation, in a separate stream, between an
 * event of the caller's stream and an event for `to`. Between hosts there are only all-reduces, in
 * chunks. NCCL reduce-scatters a chunk within each host. Each rank copies its part to a slot, the
 * engine all-reduces it among the ranks with the same index on their hosts, and the part is copied
 * back. Then NCCL all-gathers the parts within each host:
 *
 *   `stream`: reduce-scatter of chunk k to part k | ... | all-gather of part k - AHEAD
 *   `from`:   waits for the part, copies it to the slot; a host function opens the chunk's hold
 *   `to`:     waits for the word of the chunk, copies the slot to the part
 *
 * NCCL's operations run in the order of their calls, so the operations of later chunks are called
 * before the all-gather that waits for the network. That order is the same on all ranks. The
 * remaining elements, fewer than a host has ranks, use host memory.
 *
 * NCCL itself neither compares the ranks' calls nor detects a dead rank: its kernels wait forever.
 * So each operation has a part in the engine that compares the calls (only_agrees), for which no
 * stream waits. It starts when the rank's stream has reached the operation, so it shows which rank
 * is late. If it fails, because calls differ, a rank has died or the operation's limit has passed,
 * the comm ends. Then the watcher (device_open.c) aborts NCCL's communicator: its kernels end, and
 * the streams continue. The engine's part may end after NCCL's work, so an operation is freed when
 * both have ended.
 *
 * Calls with the communicator do not block. A call may be in progress when it returns; the caller
 * polls until it is done, or until the comm has ended. One thread at a time calls NCCL with a
 * communicator (`in_call`). The end of a communicator may wait for other ranks and for the
 * program's streams, so it has its own thread (nccl_end.c).
 *
 * The driver may hold a lock while NCCL frees memory and waits for all kernels, including those of
 * other comms. So the watcher does not call the driver for a comm that uses NCCL, but polls NCCL.
 *
 * The bits of float sums follow from NCCL's order of additions, which depends on the machine. */
#ifndef DDL_DEVICE_NCCL_NCCL_RANKS_H
#define DDL_DEVICE_NCCL_NCCL_RANKS_H

#include "device/core/device_state.h"
#include "device/nccl/nccl.h"

enum { DDL__NCCL_SCRATCHES = 40 }; /* each has twice the bytes of the previous one */

/* The record that a rank sends to the others, to decide whether NCCL can be used. */
typedef struct ddl__nccl_peer {
    ddl__cuda_uuid uuid; /* UUID of the GPU of this rank */
    int64_t version;     /* version of the rank's NCCL; 0: the rank may not use NCCL */
} ddl__nccl_peer;

/* The decision whether the comm uses NCCL. */
typedef enum ddl__nccl_use { DDL__NCCL_UNKNOWN, DDL__NCCL_UNUSED, DDL__NCCL_USED } ddl__nccl_use;

struct ddl__device_nccl {
    ddl__nccl_use use;
    ddl__nccl_peer *peers; /* by rank; NULL: not reported yet */
    ddl__nccl library;
    int *ranks, n, self; /* the ranks of this host; their number; this rank's index */
    ddl__among between;  /* the ranks with this index on their hosts; n is 1 on one host */
    int *between_ranks;
    ddl__cuda_stream stream;
    /* begun: recorded in the device's stream `from` when an operation begins; done: recorded in
     * `stream` when it ends */
    ddl__cuda_event begun, done;
    ddl__cuda_pointer parts; /* a part for each slot, as long as the slot; 0 on one host */
    ddl__cuda_event reduced[DDL__SLOTS];
    ddl__cuda_pointer scratch[DDL__NCCL_SCRATCHES]; /* each is longer than the previous one */
    unsigned n_scratch;
    size_t scratch_bytes; /* bytes of the last scratch buffer */

    ddl__nccl_comm *created; /* written by NCCL; use `comm` instead */
    /* guarded by the device's lock, like in_call; NULL: none, or being ended */
    ddl__nccl_comm *comm;
    bool in_call; /* a thread is calling NCCL with `comm` */
};

/* ---- nccl_ranks.c ---- */

/* Decide whether NCCL runs this call. All ranks get the same result. The first call that is long
 * enough waits until all ranks have made it, and starts NCCL. Called under `order`, in the device's
 * context. If the status is not DDL_OK, the ranks could not decide, and the comm ends. */
ddl_status ddl__nccl_find_way(ddl__device *device, const ddl__call *call, bool *by_nccl);

/* NCCL may be called only between these two functions, with the communicator that ddl__nccl_enter
 * returns (NULL if it was removed). ddl__nccl_leave takes the call's result, waits until the call
 * is done, and returns true if it has succeeded; otherwise the message is set. */
ddl__nccl_comm *ddl__nccl_enter(ddl__device *device);
bool ddl__nccl_leave(ddl__device *device, ddl__nccl_comm *comm, const char *symbol, int result);

/* Under `lock`, which is released meanwhile: return true if NCCL works; otherwise the message is
 * set. */
bool ddl__nccl_look(ddl__device *device);

/* Abort NCCL's operations because the comm has ended. Not called under `lock`. */
void ddl__nccl_abort(ddl__device *device);

/* Free everything, after all queued work is done. NULL is allowed. */
void ddl__nccl_destroy(ddl__device *device, ddl__device_nccl *nccl);

/* ---- nccl_operations.c; all under `order`, in the device's context ---- */

/* Return true if NCCL can run this call. All ranks get the same result. */
bool ddl__nccl_takes(const ddl__device *device, const ddl__call *call);

/* Divide a call for NCCL into chunks. `rest` is the remainder of the call, for host memory; its
 * count may be 0. `main` is the other part, and must outlive the chunks. */
void ddl__nccl_cut(const ddl__device *device, const ddl__call *call, ddl__call *main,
                   ddl__call *rest, ddl__chunks *chunks);

/* Add the operations of chunk k to the operation's group, and place the chunk. */
ddl_status ddl__nccl_add(ddl__device *device, const ddl__chunks *chunks, int64_t k,
                         ddl__device_chunk *chunk);

/* Queue all chunks of a call, of which `first` is the first. */
bool ddl__nccl_queue(ddl__device *device, const ddl__chunks *chunks, ddl__device_chunk *first);

#endif
