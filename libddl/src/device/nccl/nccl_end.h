/* SPDX-License-Identifier: Apache-2.0 */
/* nccl_end.h - ends a communicator of NCCL in a thread of its own: NCCL may wait there without a
 * limit, for the other ranks of the host and for the streams of the program. An abort lets kernels
 * end at once all the same. */
#ifndef DDL_DEVICE_NCCL_NCCL_END_H
#define DDL_DEVICE_NCCL_NCCL_END_H

#include "device/nccl/nccl.h"

typedef enum ddl__nccl_ending { DDL__NCCL_ABORTS, DDL__NCCL_DESTROYS } ddl__nccl_ending;

/* Nobody uses the communicator any more. Returns whether it has ended by the time `limit`, which
 * may be past. */
bool ddl__nccl_end(const ddl__nccl *library, ddl__nccl_comm *comm, ddl__nccl_ending how,
                   int64_t limit);

#endif
