/* SPDX-License-Identifier: Apache-2.0 */
/* reducer.h - the kernels that reduce and copy on a GPU (reduce.cu), each compiled when it is first
 * wanted. One thread at a time, in the device's context. */
#ifndef DDL_DEVICE_REDUCER_H
#define DDL_DEVICE_REDUCER_H

#include "device/device_state.h"
#include "device/nvrtc.h"
#include "device/reduction.h"

typedef struct ddl__reducer ddl__reducer;
typedef struct ddl__kernel ddl__kernel;

/* NULL, with the message set, where kernels cannot be compiled and loaded: one is tried. */
ddl__reducer *ddl__reducer_create(const ddl__device *device);
void ddl__reducer_destroy(const ddl__device *device, ddl__reducer *reducer); /* NULL is fine */

/* The kernel of this reduction, if it was wanted before; or NULL. */
const ddl__kernel *ddl__reducer_known(const ddl__reducer *reducer, ddl_dtype dtype, ddl_op op,
                                      bool ordered);

/* The same; a new one is compiled and loaded. It may take a part of a second, and the driver may
 * wait for the GPU: so before anything is queued that waits for it. NULL with the message set. */
const ddl__kernel *ddl__reducer_find(const ddl__device *device, ddl__reducer *reducer,
                                     ddl_dtype dtype, ddl_op op, bool ordered);

/* Queue it for the parts of a table on the device. Each has up to `count` elements; -1: any number.
 */
bool ddl__reducer_launch(const ddl__device *device, const ddl__reducer *reducer,
                         const ddl__kernel *kernel, int64_t count, unsigned parts,
                         ddl__cuda_pointer table, ddl__cuda_stream stream);

/* Set the part's numbers of elements for the kernel of this dtype. Its addresses are set. Those of
 * ordered sums are not in packs. */
void ddl__reduction_count(ddl__reduction *part, ddl_dtype dtype, int64_t count, bool ordered);

#endif
