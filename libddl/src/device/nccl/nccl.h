/* SPDX-License-Identifier: Apache-2.0 */
/* nccl.h - NCCL, NVIDIA's library of collectives for GPUs, opened at run time. The GPU builds of
 * packages such as PyTorch and JAX include it. The symbols, values and types below are the same as
 * in NCCL's binary interface. */
#ifndef DDL_DEVICE_NCCL_NCCL_H
#define DDL_DEVICE_NCCL_NCCL_H

#include <stdbool.h>
#include <stddef.h>

#include "device/core/cuda_driver.h"

typedef struct ncclComm ddl__nccl_comm;

typedef struct ddl__nccl_id {
    char bytes[128];
} ddl__nccl_id;

/* The layout of NCCL 2.14, which `version` declares. Later versions append fields, and fill them in
 * themselves. */
typedef struct ddl__nccl_config {
    size_t size;
    unsigned magic, version;
    int blocking;
} ddl__nccl_config;

enum {
    DDL__NCCL_SUCCESS = 0,
    DDL__NCCL_IN_PROGRESS = 7,
    /* The oldest version that is used. Earlier versions also have communicators whose calls do not
     * block, but they keep pending work in the calling thread, and connect ranks within a call. */
    DDL__NCCL_OLDEST = 22700,
    DDL__NCCL_CONFIG = 21400,
    DDL__NCCL_MAGIC = (int)0xcafebeef
};

typedef enum ddl__nccl_dtype {
    DDL__NCCL_I8,
    DDL__NCCL_U8,
    DDL__NCCL_I32,
    DDL__NCCL_U32,
    DDL__NCCL_I64,
    DDL__NCCL_U64,
    DDL__NCCL_F16,
    DDL__NCCL_F32,
    DDL__NCCL_F64,
    DDL__NCCL_BF16,
    DDL__NCCL_NO_DTYPE = -1
} ddl__nccl_dtype;

typedef enum ddl__nccl_op {
    DDL__NCCL_SUM,
    DDL__NCCL_PRODUCT,
    DDL__NCCL_MAX,
    DDL__NCCL_MIN,
    DDL__NCCL_AVERAGE,
    DDL__NCCL_NO_OP = -1
} ddl__nccl_op;

/* X(type of the result, function, symbol, parameters): a result of type int is 0 for success. */
#define DDL__NCCL_FUNCTIONS(X)                                                                     \
    X(int, version, ncclGetVersion, (int *version))                                                \
    X(int, new_id, ncclGetUniqueId, (ddl__nccl_id * id))                                           \
    X(int, create, ncclCommInitRankConfig,                                                         \
      (ddl__nccl_comm * *comm, int size, ddl__nccl_id id, int rank, ddl__nccl_config *config))     \
    X(int, state, ncclCommGetAsyncError, (ddl__nccl_comm * comm, int *state))                      \
    X(int, finalize, ncclCommFinalize, (ddl__nccl_comm * comm))                                    \
    X(int, destroy, ncclCommDestroy, (ddl__nccl_comm * comm))                                      \
    X(int, abort, ncclCommAbort, (ddl__nccl_comm * comm))                                          \
    X(const char *, error_text, ncclGetErrorString, (int result))                                  \
    X(const char *, last_error, ncclGetLastError, (ddl__nccl_comm * comm))                         \
    X(int, all_reduce, ncclAllReduce,                                                              \
      (const void *send, void *recv, size_t count, ddl__nccl_dtype dtype, ddl__nccl_op op,         \
       ddl__nccl_comm *comm, ddl__cuda_stream stream))                                             \
    X(int, reduce, ncclReduce,                                                                     \
      (const void *send, void *recv, size_t count, ddl__nccl_dtype dtype, ddl__nccl_op op,         \
       int root, ddl__nccl_comm *comm, ddl__cuda_stream stream))                                   \
    X(int, reduce_scatter, ncclReduceScatter,                                                      \
      (const void *send, void *recv, size_t count, ddl__nccl_dtype dtype, ddl__nccl_op op,         \
       ddl__nccl_comm *comm, ddl__cuda_stream stream))                                             \
    X(int, all_gather, ncclAllGather,                                                              \
      (const void *send, void *recv, size_t count, ddl__nccl_dtype dtype, ddl__nccl_comm *comm,    \
       ddl__cuda_stream stream))                                                                   \
    X(int, broadcast, ncclBroadcast,                                                               \
      (const void *send, void *recv, size_t count, ddl__nccl_dtype dtype, int root,                \
       ddl__nccl_comm *comm, ddl__cuda_stream stream))                                             \
    X(int, send, ncclSend,                                                                         \
      (const void *send, size_t count, ddl__nccl_dtype dtype, int peer, ddl__nccl_comm *comm,      \
       ddl__cuda_stream stream))                                                                   \
    X(int, receive, ncclRecv,                                                                      \
      (void *recv, size_t count, ddl__nccl_dtype dtype, int peer, ddl__nccl_comm *comm,            \
       ddl__cuda_stream stream))                                                                   \
    X(int, group_start, ncclGroupStart, (void))                                                    \
    X(int, group_end, ncclGroupEnd, (void))

#define DDL__NCCL_POINTER(type, function, symbol, parameters) type(*function) parameters;
typedef struct ddl__nccl {
    int number; /* its version: 22703 for 2.27.3 */
    DDL__NCCL_FUNCTIONS(DDL__NCCL_POINTER)
} ddl__nccl;
#undef DDL__NCCL_POINTER

/* Open NCCL. Return DDL_EUNSUPPORTED if there is none, or if it is too old. */
ddl_status ddl__nccl_open(ddl__nccl *nccl);

/* ddl__nccl_dtype_of returns the NCCL dtype that has the same size and gives the same sums.
 * ddl__nccl_op_of returns NCCL's op for this number of ranks. If there is none, they return
 * DDL__NCCL_NO_DTYPE and DDL__NCCL_NO_OP. */
ddl__nccl_dtype ddl__nccl_dtype_of(ddl_dtype dtype);
ddl__nccl_op ddl__nccl_op_of(ddl_dtype dtype, ddl_op op, int ranks);

/* ---- nccl_end.c ---- */

/* The way to end a communicator: abort it, which ends its kernels at once, or destroy it. A
 * separate thread does this, because NCCL may wait without a limit for the other ranks of the host
 * and for the program's streams. */
typedef enum ddl__nccl_ending { DDL__NCCL_ABORTS, DDL__NCCL_DESTROYS } ddl__nccl_ending;

/* End a communicator that is no longer used. Return true if it has ended by the time `limit`, which
 * may be in the past. */
bool ddl__nccl_end(const ddl__nccl *library, ddl__nccl_comm *comm, ddl__nccl_ending how,
                   int64_t limit);

#endif
