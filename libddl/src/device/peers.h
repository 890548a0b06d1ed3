/* SPDX-License-Identifier: Apache-2.0 */
/* peers.h - what the ranks tell each other of their GPUs, and which way operations go.
 *
 * The first operation that is long enough waits, in the call, until all ranks have called it. */
#ifndef DDL_DEVICE_PEERS_H
#define DDL_DEVICE_PEERS_H

#include "device/device_state.h"
#include "device/nccl.h"

/* What a rank tells the others. */
typedef struct ddl__peer {
    ddl__cuda_uuid uuid;
    ddl__cuda_ipc handle; /* of a small allocation */
    uint64_t namespace, process;
    uint64_t can_export;
    int64_t nccl; /* the version of its NCCL; 0: none */
} ddl__peer;

/* Which way this call goes. All ranks find the same. `status` is not DDL_OK when the ranks could
 * not tell each other. Under `order`, in the device's context. */
ddl__way ddl__way_of(ddl__device *device, const ddl__call *call, ddl_status *status);

/* An operation of the library on host memory, in the order of the calls. */
ddl_status ddl__device_exchange(const ddl__device *device, ddl__kind kind, const void *send,
                                void *recv, size_t bytes, int64_t timeout_ms);

#endif
