/* SPDX-License-Identifier: Apache-2.0 */
/* reducer.h - the kernels that reduce on a GPU (reduce.cu), each compiled when it is first wanted.
 * One thread at a time, in the device's context. */
#ifndef DDL_DEVICE_REDUCER_H
#define DDL_DEVICE_REDUCER_H

#include "device/device_state.h"
#include "device/nvrtc.h"
#include "device/reduction.h"

typedef struct ddl__reducer ddl__reducer;

/* NULL, with the message set, where there is no compiler for them. */
ddl__reducer *ddl__reducer_create(const ddl__device *device);
void ddl__reducer_destroy(const ddl__device *device, ddl__reducer *reducer); /* NULL is fine */

/* Queue a reduction of `count` elements from addresses to addresses. The kernel's numbers of
 * elements are set here. */
bool ddl__reducer_run(const ddl__device *device, ddl__reducer *reducer, ddl_dtype dtype, ddl_op op,
                      int64_t count, ddl__reduction *reduction, ddl__cuda_stream stream);

#endif
