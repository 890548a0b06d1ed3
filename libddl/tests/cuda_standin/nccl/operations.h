/* SPDX-License-Identifier: Apache-2.0 */
/* operations.h - the operations that the stand-in's communicators run in a stream. */
#ifndef NCCL_STANDIN_OPERATIONS_H
#define NCCL_STANDIN_OPERATIONS_H

#include "world.h"

typedef enum kind { ALL_REDUCE, REDUCE, REDUCE_SCATTER, ALL_GATHER, BROADCAST, EXCHANGE } kind;

/* A message of an exchange. */
typedef struct message {
    CUdeviceptr address; /* 0: no message */
    size_t bytes;
} message;

typedef struct operation {
    struct operation *next;
    struct ncclComm *comm;
    kind kind;
    ncclDataType_t dtype;
    ncclRedOp_t op;
    int root;
    size_t count;
    CUdeviceptr send, recv;
    CUstream stream;
    message *to, *from; /* of an exchange, by rank */
} operation;

struct ncclComm {
    world *world;
    int rank, size;
    uint64_t step; /* used by the thread that runs the operations one after the other */
    atomic_bool aborted;
    atomic_uint queued; /* operations that have not ended */
    /* Used by the calling thread: except for its end, a communicator is not called by two threads
     * at once. */
    operation *late, **last; /* to be queued when the caller polls */
    unsigned polls;
    bool is_finalized;
    struct ncclComm *next_aborted;
};

size_t dtype_bytes(ncclDataType_t dtype);

/* Run the operation in the stream's thread, and free it. */
void operation_run(void *argument, int device);
void operation_free(operation *o);

#endif
