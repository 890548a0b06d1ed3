/* submit.h - the checks that all operations have in common, and the way into the engine. */
#ifndef DDL_API_SUBMIT_H
#define DDL_API_SUBMIT_H

#include "comm/comm.h"

typedef struct ddl__buffers {
    const void *send;
    void *recv;
    int64_t send_blocks, recv_blocks; /* of count elements each */
} ddl__buffers;

/* The parts of the checks: of an element type and its number; of the options, which are copied to
 * *own and told to the call. */
ddl_status ddl__check_elements(const ddl_comm *comm, const ddl__call *call);
ddl_status ddl__take_options(const ddl_comm *comm, const ddl_options *options, bool blocks,
                             ddl_options *own, ddl__call *call);

/* Check the call, its buffers and its options, then submit it. */
ddl_status ddl__submit(ddl_comm *comm, ddl__call call, ddl__buffers buffers,
                       const ddl_options *options, ddl_work **work);

#endif
