/* SPDX-License-Identifier: Apache-2.0 */
/* operations.h - what the communicators of the stand-in do in a stream. */
#ifndef NCCL_STANDIN_OPERATIONS_H
#define NCCL_STANDIN_OPERATIONS_H

#include "world.h"

typedef enum kind { ALL_REDUCE, REDUCE, REDUCE_SCATTER, ALL_GATHER, BROADCAST, EXCHANGE } kind;

/* A message of an exchange. */
typedef struct message {
    CUdeviceptr address; /* 0: none */
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
    message *to, *from; /* by rank: of an exchange */
} operation;

struct ncclComm {
    world *world;
    int rank, size;
    uint64_t step; /* of the thread that runs the operations, one after the other */
    atomic_bool aborted;
    atomic_uint queued; /* operations that have not ended */
    /* Of the thread that calls: a communicator is not called by two threads at once, but for the
     * end. */
    operation *late, **last; /* to be queued when the caller asks how far they are */
    unsigned polls;
    bool is_finalized;
    struct ncclComm *next_aborted;
};

size_t dtype_bytes(ncclDataType_t dtype);

/* Run it in the stream's thread; it is freed. */
void operation_run(void *argument, int device);
void operation_free(operation *o);

#endif
