/* SPDX-License-Identifier: Apache-2.0 */
/* nccl_ranks.h - long operations of ranks that have a GPU each, by NCCL within a host.
 *
 * Design notes. On one host, an operation is one of NCCL's, in a stream of its own, between an
 * event of the caller's stream and one for `to`. Between hosts there are all-reduces only, in
 * chunks. NCCL reduce-scatters a chunk within each host. Each rank copies its part to a slot, the
 * engine all-reduces it among the ranks with the same place on their hosts, and the part is copied
 * back. Then NCCL all-gathers the parts within each host:
 *
 *   `stream`: reduce-scatter of chunk k to part k | ... | all-gather of part k - AHEAD
 *   `from`:   waits for the part, copies it to the slot; a host function opens the chunk's hold
 *   `to`:     waits for the word of the chunk, copies the slot to the part
 *
 * NCCL's operations run in the order of their calls, so those of later chunks are called before the
 * all-gather that waits for the network. That order is the same on all ranks. The elements that are
 * left, fewer than there are ranks on a host, pass through host memory.
 *
 * NCCL itself neither compares what the ranks call nor notices that one is gone: its kernels wait
 * forever. So each operation has a part of the engine's that compares the calls (only_agrees), for
 * which no stream waits. It starts when the rank's stream has come to the operation, so it tells
 * who is late. If it fails, by a difference, a death or the limit of the operation, the comm ends.
 * Then the watcher (device_open.c) aborts NCCL's communicator: its kernels end, and the streams go
 * on. The part may end after NCCL's work, so an operation is freed when both have ended.
 *
 * The communicator is of the kind whose calls do not block. A call may be under way when it
 * returns; the caller asks until it is done, or until the comm has ended. One thread at a time is
 * in NCCL with a communicator (`in_call`). The end of a communicator may wait for other ranks and
 * for the program's streams, so it has a thread of its own (nccl_end.c).
 *
 * The driver may hold a lock while NCCL frees memory and waits for all kernels, those of other
 * comms as well. So the watcher does not call the driver for a comm that uses NCCL, but asks NCCL.
 *
 * The bits of sums of floats are those of NCCL's order of additions, which depends on the machine.
 */
#ifndef DDL_DEVICE_NCCL_NCCL_RANKS_H
#define DDL_DEVICE_NCCL_NCCL_RANKS_H

#include "device/core/device_state.h"
#include "device/nccl/nccl.h"

enum { DDL__NCCL_SCRATCHES = 40 }; /* of which each has twice the bytes of the one before */

/* What a rank reports to the others, to see whether NCCL can work for them. */
typedef struct ddl__nccl_peer {
    ddl__cuda_uuid uuid; /* of its GPU */
    int64_t version;     /* of its NCCL; 0: none that it may use */
} ddl__nccl_peer;

/* Whether NCCL works for the comm. */
typedef enum ddl__nccl_use { DDL__NCCL_UNKNOWN, DDL__NCCL_UNUSED, DDL__NCCL_USED } ddl__nccl_use;

struct ddl__device_nccl {
    ddl__nccl_use use;
    ddl__nccl_peer *peers; /* by rank; NULL: they have not reported yet */
    ddl__nccl library;
    int *ranks, n, self; /* of this host; how many; which of them this one is */
    ddl__among between;  /* the ranks with this place on their hosts; n is 1 on one host */
    int *between_ranks;
    ddl__cuda_stream stream;
    ddl__cuda_event begun, done; /* what `from` had when an operation began, `stream` at its end */
    ddl__cuda_pointer parts;     /* for each slot, as long; 0 on one host */
    ddl__cuda_event reduced[DDL__SLOTS];
    ddl__cuda_pointer scratch[DDL__NCCL_SCRATCHES]; /* each is longer than those before */
    unsigned n_scratch;
    size_t scratch_bytes; /* of the last one */

    ddl__nccl_comm *created; /* what NCCL has made; not for use */
    ddl__nccl_comm *comm;    /* under the device's lock, as: NULL: none, or taken out to end it */
    bool in_call;            /* a thread is in NCCL with it */
};

/* ---- nccl_ranks.c ---- */

/* Find whether NCCL carries out this call, equally on all ranks. The first call that is long enough
 * waits until all ranks have called it, and starts NCCL. Under `order`, in the device's context.
 * Not DDL_OK: the ranks could not find it out, and the comm ends. */
ddl_status ddl__nccl_find_way(ddl__device *device, const ddl__call *call, bool *by_nccl);

/* Call NCCL between the two, with the communicator of the first; NULL: there is none any more. The
 * second takes the result, waits until the call is done, and says whether it has succeeded; else
 * the message is set. */
ddl__nccl_comm *ddl__nccl_enter(ddl__device *device);
bool ddl__nccl_leave(ddl__device *device, ddl__nccl_comm *comm, const char *symbol, int result);

/* Under `lock`, which is released meanwhile: whether NCCL works; else the message is set. */
bool ddl__nccl_look(ddl__device *device);

/* The comm has ended: end what NCCL does. Not under `lock`. */
void ddl__nccl_abort(ddl__device *device);

/* Free all; what is queued is done. NULL is fine. */
void ddl__nccl_destroy(ddl__device *device, ddl__device_nccl *nccl);

/* ---- nccl_operations.c; all under `order`, in the device's context ---- */

/* Whether NCCL can carry out this call, equally on all ranks. */
bool ddl__nccl_takes(const ddl__device *device, const ddl__call *call);

/* Cut such a call into chunks; `rest` is what is left of it for host memory, with a count of 0 if
 * that is nothing. `main` is the other part, and outlives the chunks. */
void ddl__nccl_cut(const ddl__device *device, const ddl__call *call, ddl__call *main,
                   ddl__call *rest, ddl__chunks *chunks);

/* Add the operations of chunk k to the operation's group, and place the chunk. */
ddl_status ddl__nccl_add(ddl__device *device, const ddl__chunks *chunks, int64_t k,
                         ddl__device_chunk *chunk);

/* Queue all chunks of a call; `first` is the first. */
bool ddl__nccl_queue(ddl__device *device, const ddl__chunks *chunks, ddl__device_chunk *first);

#endif
