/* SPDX-License-Identifier: Apache-2.0 */
/* nccl_abi.h - the part of NCCL's binary interface that the stand-in supports: version 2.14 and
 * later. */
#ifndef NCCL_STANDIN_ABI_H
#define NCCL_STANDIN_ABI_H

#include <stddef.h>

#include "../cuda_abi.h"

enum { NCCL_UNIQUE_ID_BYTES = 128, NCCL_VERSION_CODE = 22703, NCCL_MAGIC = (int)0xcafebeef };

typedef struct ncclComm *ncclComm_t;
typedef struct ncclUniqueId {
    char internal[NCCL_UNIQUE_ID_BYTES];
} ncclUniqueId;

typedef enum ncclResult_t {
    ncclSuccess,
    ncclUnhandledCudaError,
    ncclSystemError,
    ncclInternalError,
    ncclInvalidArgument,
    ncclInvalidUsage,
    ncclRemoteError,
    ncclInProgress
} ncclResult_t;

typedef enum ncclRedOp_t { ncclSum, ncclProd, ncclMax, ncclMin, ncclAvg, ncclNumOps } ncclRedOp_t;

typedef enum ncclDataType_t {
    ncclInt8,
    ncclUint8,
    ncclInt32,
    ncclUint32,
    ncclInt64,
    ncclUint64,
    ncclFloat16,
    ncclFloat32,
    ncclFloat64,
    ncclBfloat16,
    ncclNumTypes
} ncclDataType_t;

/* As in version 2.14; later versions append fields. */
typedef struct ncclConfig_t {
    size_t size;
    unsigned magic, version;
    int blocking;
} ncclConfig_t;

#pragma GCC visibility push(default)

ncclResult_t ncclGetVersion(int *version);
ncclResult_t ncclGetUniqueId(ncclUniqueId *id);
ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t *config);
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *state);
ncclResult_t ncclCommFinalize(ncclComm_t comm);
ncclResult_t ncclCommDestroy(ncclComm_t comm);
ncclResult_t ncclCommAbort(ncclComm_t comm);
const char *ncclGetErrorString(ncclResult_t result);
const char *ncclGetLastError(ncclComm_t comm);

ncclResult_t ncclAllReduce(const void *send, void *recv, size_t count, ncclDataType_t dtype,
                           ncclRedOp_t op, ncclComm_t comm, CUstream stream);
ncclResult_t ncclReduce(const void *send, void *recv, size_t count, ncclDataType_t dtype,
                        ncclRedOp_t op, int root, ncclComm_t comm, CUstream stream);
ncclResult_t ncclReduceScatter(const void *send, void *recv, size_t count, ncclDataType_t dtype,
                               ncclRedOp_t op, ncclComm_t comm, CUstream stream);
ncclResult_t ncclAllGather(const void *send, void *recv, size_t count, ncclDataType_t dtype,
                           ncclComm_t comm, CUstream stream);
ncclResult_t ncclBroadcast(const void *send, void *recv, size_t count, ncclDataType_t dtype,
                           int root, ncclComm_t comm, CUstream stream);
ncclResult_t ncclSend(const void *send, size_t count, ncclDataType_t dtype, int peer,
                      ncclComm_t comm, CUstream stream);
ncclResult_t ncclRecv(void *recv, size_t count, ncclDataType_t dtype, int peer, ncclComm_t comm,
                      CUstream stream);
ncclResult_t ncclGroupStart(void);
ncclResult_t ncclGroupEnd(void);

/* Function of the stand-in only: the number of operations that this process has queued; a group
 * counts as one. */
unsigned long long standin_nccl_operations(void);

#pragma GCC visibility pop

#endif
