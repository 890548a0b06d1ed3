/* SPDX-License-Identifier: Apache-2.0 */
/* peers.h - what the ranks tell each other of their GPUs, and which way operations go.
 *
 * The first operation that is long enough waits, in the call, until all ranks have called it. */
#ifndef DDL_DEVICE_PEERS_H
#define DDL_DEVICE_PEERS_H

#include "device/device_state.h"
#include "device/nccl.h"

/* What a rank tells the others. */
struct ddl__peer {
    ddl__cuda_uuid uuid;
    ddl__cuda_ipc handle; /* of a small allocation, ... */
    uint64_t probe;       /* ... and its address */
    uint64_t namespace, process;
    uint64_t can_export;
    int64_t nccl; /* the version of its NCCL; 0: none */
};

/* Which way this call goes. All ranks find the same. Under `order`, in the device's context. Not
 * DDL_OK: the ranks could not tell each other. */
ddl_status ddl__way_of(ddl__device *device, const ddl__call *call, ddl__way *way);

/* An operation of the library on host memory, in the order of the calls. */
ddl_status ddl__device_exchange(const ddl__device *device, ddl__kind kind, const void *send,
                                void *recv, size_t bytes, int64_t timeout_ms);

/* Whether it is so on all ranks; they go on together. */
ddl_status ddl__device_find_all(const ddl__device *device, bool is_so, int64_t timeout_ms,
                                bool *all);

/* Give way to what is waited for, after so many tries: it is soon there, or late. */
void ddl__device_pause(int tries);

#endif
