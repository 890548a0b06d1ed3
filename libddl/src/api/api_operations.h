/* SPDX-License-Identifier: Apache-2.0 */
/* api_operations.h - the checks common to all operations, and the submission of operations to the
 * engine. */
#ifndef DDL_API_OPERATIONS_H
#define DDL_API_OPERATIONS_H

#include "comm/comm.h"
#include "engine/calls/ordered.h"

/* The caller's buffers. A buffer without elements is ignored. If send is NULL and there are
 * elements to send, they are in recv. */
typedef struct ddl__buffers {
    const void *send;
    void *recv;
    int64_t send_blocks, recv_blocks; /* blocks of count elements each; ignored with call.blocks */
} ddl__buffers;

/* The largest count that fits a signature, and the largest buffer in bytes. With these limits, sums
 * of offsets stay within 64 bits. */
static const int64_t DDL__COUNT_MAX = ((int64_t)1 << 48) - 1, DDL__BYTES_MAX = (int64_t)1 << 60;

/* Set the root's send buffer of a scatter. If the caller's recv is NULL, the root's block stays in
 * the send buffer. */
static inline void ddl__scatter_from(ddl__buffers *buffers, const void *send)
{
    buffers->send = send;
    if (!buffers->recv || !send) /* in a scatter, NULL does not mean that send is in recv */
        buffers->recv = (void *)(uintptr_t)send;
}

/* Check the call, its buffers and its options, then submit it. Takes ownership of call->blocks in
 * any case; the caller has checked them. */
ddl_status ddl__submit(ddl_comm *comm, ddl__call *call, const ddl__buffers *buffers,
                       const ddl_options *options, ddl_work **work);

/* Check the element type and the count, as a step of ddl__submit. */
ddl_status ddl__check_elements(const ddl_comm *comm, const ddl__call *call);

/* Copy the caller's options and check them. */
ddl_status ddl__take_options(ddl_options *own, const ddl_options *options, ddl_work *const *work);
void ddl__apply_options(ddl__call *call, const ddl_options *own, int64_t limit_ms);

/* Submit a checked call to the engine, or add it to the group in its options. Takes ownership of
 * call->blocks in any case. */
ddl_status ddl__submit_call(ddl_comm *comm, ddl__call *call, const ddl_options *own,
                            ddl_work **work);

/* ---- api_uneven.c ---- */

/* Make the blocks of a reduce-scatter with these counts. On success the caller owns *blocks. */
ddl_status ddl__read_scatter_blocks(ddl_comm *comm, const int64_t *counts, ddl_dtype dtype,
                                    ddl__share **blocks);

/* Return a digest of the counts of all ranks. */
uint16_t ddl__digest_of_counts(const int64_t *counts, int size, uint16_t seed);

/* ---- api_device.c ---- */

/* Submit a call with buffers on a GPU. The caller keeps ownership of the call. */
ddl_status ddl__submit_to_device(ddl_comm *comm, const ddl__call *call, void *stream,
                                 ddl_work **work);

/* Check a call with buffers on a GPU that is added to a group. */
ddl_status ddl__check_for_device(ddl_comm *comm, const ddl__call *call);

/* Submit a group with buffers on a GPU. */
ddl_status ddl__submit_group_to_device(ddl_group *group, const ddl__call *whole, void *stream,
                                       ddl_work **work);

#endif
