/* submit.h - the checks that all operations have in common, and the way into the engine. */
#ifndef DDL_API_SUBMIT_H
#define DDL_API_SUBMIT_H

#include "comm/comm.h"

typedef struct ddl__buffers {
    const void *send;
    void *recv;
    int64_t send_blocks, recv_blocks; /* of count elements each */
} ddl__buffers;

/* Check the call, its buffers and its options, then submit it. */
ddl_status ddl__submit(ddl_comm *comm, ddl__call call, ddl__buffers buffers,
                       const ddl_options *options, ddl_work **work);

/* The pieces of it. The caller's options with their defaults, checked. */
ddl_status ddl__take_options(ddl_options *own, const ddl_options *options, ddl_work *const *work);
void ddl__apply_options(ddl__call *call, const ddl_options *own, int64_t limit_ms);

/* Give a checked call to the engine, or to the group of its options. */
ddl_status ddl__submit_call(ddl_comm *comm, ddl__call *call, const ddl_options *own,
                            ddl_work **work);

#endif
