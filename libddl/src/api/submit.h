/* submit.h - the checks that all operations have in common, and the way into the engine. */
#ifndef DDL_API_SUBMIT_H
#define DDL_API_SUBMIT_H

#include "comm/comm.h"

/* What the caller gave. A buffer of no elements is ignored. Where there are elements to send, send
 * NULL means that they lie in recv. */
typedef struct ddl__buffers {
    const void *send;
    void *recv;
    int64_t send_blocks, recv_blocks; /* of count elements each; ignored with call.blocks */
} ddl__buffers;

/* Counts that a signature can hold, and bytes that one buffer may have: all later sums of offsets
 * stay within 64 bits. */
static const int64_t DDL__COUNT_MAX = ((int64_t)1 << 48) - 1, DDL__BYTES_MAX = (int64_t)1 << 60;

/* The root's send buffer of a scatter; where its own block stays if recv is NULL. */
static inline void ddl__scatter_from(ddl__buffers *buffers, const void *send)
{
    buffers->send = send;
    if (!buffers->recv || !send) /* NULL must not mean that the blocks lie in recv */
        buffers->recv = (void *)(uintptr_t)send;
}

/* Check the call, its buffers and its options, then submit it. Takes call->blocks in any case; they
 * are checked already. */
ddl_status ddl__submit(ddl_comm *comm, ddl__call *call, const ddl__buffers *buffers,
                       const ddl_options *options, ddl_work **work);

/* The pieces of it. An element type and the number of its elements. */
ddl_status ddl__check_elements(const ddl_comm *comm, const ddl__call *call);

/* The caller's options with their defaults, checked. */
ddl_status ddl__take_options(ddl_options *own, const ddl_options *options, ddl_work *const *work);
void ddl__apply_options(ddl__call *call, const ddl_options *own, int64_t limit_ms);

/* Give a checked call to the engine, or to the group of its options. Takes call->blocks in any
 * case. */
ddl_status ddl__submit_call(ddl_comm *comm, ddl__call *call, const ddl_options *own,
                            ddl_work **work);

#endif
