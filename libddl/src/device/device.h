/* SPDX-License-Identifier: Apache-2.0 */
/* device.h - operations of one comm on buffers in GPU memory. The engine runs them in host memory,
 * so data is copied to and from the GPU; copies and operations overlap. If each rank has its own
 * GPU, long operations use NCCL within a host. */
#ifndef DDL_DEVICE_DEVICE_H
#define DDL_DEVICE_DEVICE_H

#include "device/core/device_config.h"

/* ---- device_open.c ---- */

/* Create a device for the GPU of `address`, or, if that is NULL, for the GPU of `stream`. A default
 * stream belongs to the calling thread's context. Opens the driver. */
ddl_status ddl__device_create(const ddl__device_config *config, const void *address, void *stream,
                              ddl__device **out);

/* Fail pending operations and stop calling the engine. Call this before the engine is destroyed.
 * NULL is allowed. */
void ddl__device_detach(ddl__device *device);

/* Wait until the GPU has executed the queued copies, and free the device. Call this after the
 * engine was destroyed. NULL is allowed. */
void ddl__device_destroy(ddl__device *device);

/* ---- device.c ---- */

/* Check that the buffers, or the stream, belong to the device. */
ddl_status ddl__device_check_call(const ddl__device *device, const ddl__call *call);
ddl_status ddl__device_check_stream(const ddl__device *device, void *stream);

/* Queue checked operations, which the caller keeps. `whole` describes how to wait for them. They
 * start after the work that `stream` holds at the call, and the stream continues when the results
 * are in the buffers. Otherwise as ddl__engine_submit. */
ddl_status ddl__device_submit(ddl__device *device, const ddl__call *calls, uint32_t n,
                              const ddl__call *whole, void *stream, ddl_work **work);

#endif
