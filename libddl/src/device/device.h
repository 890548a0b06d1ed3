/* SPDX-License-Identifier: Apache-2.0 */
/* device.h - operations of one comm on buffers in the memory of a GPU. They pass through host
 * memory, where the engine runs them; copies and operations overlap. Long ones of ranks that have a
 * GPU each go by NCCL within a host. */
#ifndef DDL_DEVICE_DEVICE_H
#define DDL_DEVICE_DEVICE_H

#include "device/core/device_config.h"

/* ---- device_open.c ---- */

/* For the GPU that this address belongs to; NULL: the one of the stream, which of a default stream
 * is that of the calling thread's context. Opens the driver. */
ddl_status ddl__device_create(const ddl__device_config *config, const void *address, void *stream,
                              ddl__device **out);

/* Before the engine is destroyed: fail what is under way, and do not call it any more. NULL is
 * fine. */
void ddl__device_detach(ddl__device *device);

/* After the engine was destroyed: wait until the GPU has come to the copies that were queued, and
 * free. NULL is fine. */
void ddl__device_destroy(ddl__device *device);

/* ---- device.c ---- */

/* Check that the buffers, or the stream, are of the device. */
ddl_status ddl__device_check_call(const ddl__device *device, const ddl__call *call);
ddl_status ddl__device_check_stream(const ddl__device *device, void *stream);

/* Queue operations that were checked, to be waited for as `whole` says; they stay the caller's.
 * They start after what `stream` holds by now, and the stream goes on when the results are in the
 * buffers. Otherwise as ddl__engine_submit. */
ddl_status ddl__device_submit(ddl__device *device, const ddl__call *calls, uint32_t n,
                              const ddl__call *whole, void *stream, ddl_work **work);

#endif
