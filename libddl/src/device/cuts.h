/* SPDX-License-Identifier: Apache-2.0 */
/* cuts.h - how the calls of a submission are cut into chunks. */
#ifndef DDL_DEVICE_CUTS_H
#define DDL_DEVICE_CUTS_H

#include "device/core/device_state.h"

typedef struct ddl__cuts {
    ddl__chunks *chunks; /* of each call that is carried out: those of the submission, ... */
    ddl__call *made;     /* ... or made of them */
    const ddl__call **packed;
    uint32_t n, n_packed; /* of these */
    int64_t n_chunks;     /* of all calls */
} ddl__cuts;

/* Cut them; the calls outlive the cuts. Under `order`, in the device's context: ranks may wait for
 * each other to start NCCL. Free the cuts in any case. */
ddl_status ddl__cuts_make(ddl__device *device, const ddl__call *calls, uint32_t n, ddl__cuts *cuts);
void ddl__cuts_free(ddl__cuts *cuts);

#endif
