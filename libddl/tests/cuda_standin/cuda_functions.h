/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_functions.h - the functions of the CUDA driver that the stand-in for libcuda.so.1 exports.
 * The list CUDA_FUNCTIONS(X) calls X(base name, symbol, the first CUDA version that has it). */
#ifndef CUDA_STANDIN_CUDA_FUNCTIONS_H
#define CUDA_STANDIN_CUDA_FUNCTIONS_H

#include "cuda_abi.h"

#pragma GCC visibility push(default)

CUresult cuInit(unsigned flags);
CUresult cuDriverGetVersion(int *version);
CUresult cuGetErrorName(CUresult error, const char **name);
CUresult cuGetErrorString(CUresult error, const char **text);
CUresult cuGetProcAddress_v2(const char *name, void **function, int version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult *status);

CUresult cuDeviceGetCount(int *count);
CUresult cuDeviceGet(CUdevice *device, int ordinal);
CUresult cuDeviceGetName(char *name, int length, CUdevice device);
CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device);
CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device);
CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device);
CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device);
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device);
CUresult cuCtxGetCurrent(CUcontext *context);
CUresult cuCtxSetCurrent(CUcontext context);
CUresult cuCtxPushCurrent_v2(CUcontext context);
CUresult cuCtxPopCurrent_v2(CUcontext *context);
CUresult cuCtxGetDevice(CUdevice *device);
CUresult cuCtxSynchronize(void);

CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t bytes);
CUresult cuMemFree_v2(CUdeviceptr address);
CUresult cuMemHostAlloc(void **pointer, size_t bytes, unsigned flags);
CUresult cuMemFreeHost(void *pointer);
CUresult cuMemHostRegister_v2(void *pointer, size_t bytes, unsigned flags);
CUresult cuMemHostUnregister(void *pointer);
CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *address, void *pointer, unsigned flags);
CUresult cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr pointer);
CUresult cuPointerGetAttributes(unsigned count, CUpointer_attribute *attributes, void **data,
                                CUdeviceptr pointer);

CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t bytes);
CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream);
CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t bytes);
CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t bytes);
CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t bytes, CUstream stream);
CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t bytes, CUstream stream);
CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream);
CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t count, CUstream stream);
CUresult cuMemsetD32Async(CUdeviceptr to, unsigned value, size_t count, CUstream stream);

CUresult cuStreamCreate(CUstream *stream, unsigned flags);
CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned flags, int priority);
CUresult cuStreamDestroy_v2(CUstream stream);
CUresult cuStreamSynchronize(CUstream stream);
CUresult cuStreamQuery(CUstream stream);
CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags);
CUresult cuStreamWaitValue32_v2(CUstream stream, CUdeviceptr address, cuuint32_t value,
                                unsigned flags);
CUresult cuStreamWriteValue32_v2(CUstream stream, CUdeviceptr address, cuuint32_t value,
                                 unsigned flags);
CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status);
CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode);
CUresult cuStreamGetCtx(CUstream stream, CUcontext *context);
CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void *data);

CUresult cuEventCreate(CUevent *event, unsigned flags);
CUresult cuEventDestroy_v2(CUevent event);
CUresult cuEventRecord(CUevent event, CUstream stream);
CUresult cuEventQuery(CUevent event);
CUresult cuEventSynchronize(CUevent event);

CUresult cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *prop,
                                       CUmemAllocationGranularity_flags option);
CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes,
                     const CUmemAllocationProp *prop, unsigned long long flags);
CUresult cuMemRelease(CUmemGenericAllocationHandle handle);
CUresult cuMemAddressReserve(CUdeviceptr *address, size_t bytes, size_t alignment, CUdeviceptr hint,
                             unsigned long long flags);
CUresult cuMemAddressFree(CUdeviceptr address, size_t bytes);
CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset,
                  CUmemGenericAllocationHandle handle, unsigned long long flags);
CUresult cuMemUnmap(CUdeviceptr address, size_t bytes);
CUresult cuMemSetAccess(CUdeviceptr address, size_t bytes, const CUmemAccessDesc *access,
                        size_t count);

/* Functions of the stand-in only: the number of launched host functions, and of calls that
 * DDL_STANDIN_FAIL has made fail. */
unsigned long long standin_host_functions(void);
unsigned long long standin_failures(void);

#pragma GCC visibility pop

#define CUDA_FUNCTIONS(X)                                                                          \
    X(cuInit, cuInit, 2000)                                                                        \
    X(cuDriverGetVersion, cuDriverGetVersion, 2020)                                                \
    X(cuGetErrorName, cuGetErrorName, 6000)                                                        \
    X(cuGetErrorString, cuGetErrorString, 6000)                                                    \
    X(cuGetProcAddress, cuGetProcAddress_v2, 12000)                                                \
    X(cuDeviceGetCount, cuDeviceGetCount, 2000)                                                    \
    X(cuDeviceGet, cuDeviceGet, 2000)                                                              \
    X(cuDeviceGetName, cuDeviceGetName, 2000)                                                      \
    X(cuDeviceGetUuid, cuDeviceGetUuid, 9020)                                                      \
    X(cuDeviceGetUuid, cuDeviceGetUuid_v2, 11040)                                                  \
    X(cuDeviceGetAttribute, cuDeviceGetAttribute, 2000)                                            \
    X(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, 7000)                                    \
    X(cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2, 11000)                              \
    X(cuCtxGetCurrent, cuCtxGetCurrent, 4000)                                                      \
    X(cuCtxSetCurrent, cuCtxSetCurrent, 4000)                                                      \
    X(cuCtxPushCurrent, cuCtxPushCurrent_v2, 4000)                                                 \
    X(cuCtxPopCurrent, cuCtxPopCurrent_v2, 4000)                                                   \
    X(cuCtxGetDevice, cuCtxGetDevice, 2000)                                                        \
    X(cuCtxSynchronize, cuCtxSynchronize, 2000)                                                    \
    X(cuMemAlloc, cuMemAlloc_v2, 3020)                                                             \
    X(cuMemFree, cuMemFree_v2, 3020)                                                               \
    X(cuMemHostAlloc, cuMemHostAlloc, 2020)                                                        \
    X(cuMemFreeHost, cuMemFreeHost, 2000)                                                          \
    X(cuMemHostRegister, cuMemHostRegister_v2, 6050)                                               \
    X(cuMemHostUnregister, cuMemHostUnregister, 4000)                                              \
    X(cuMemHostGetDevicePointer, cuMemHostGetDevicePointer_v2, 3020)                               \
    X(cuPointerGetAttribute, cuPointerGetAttribute, 4000)                                          \
    X(cuPointerGetAttributes, cuPointerGetAttributes, 7000)                                        \
    X(cuMemcpy, cuMemcpy, 4000)                                                                    \
    X(cuMemcpyAsync, cuMemcpyAsync, 4000)                                                          \
    X(cuMemcpyDtoH, cuMemcpyDtoH_v2, 3020)                                                         \
    X(cuMemcpyHtoD, cuMemcpyHtoD_v2, 3020)                                                         \
    X(cuMemcpyDtoHAsync, cuMemcpyDtoHAsync_v2, 3020)                                               \
    X(cuMemcpyHtoDAsync, cuMemcpyHtoDAsync_v2, 3020)                                               \
    X(cuMemcpyDtoDAsync, cuMemcpyDtoDAsync_v2, 3020)                                               \
    X(cuMemsetD8Async, cuMemsetD8Async, 3020)                                                      \
    X(cuMemsetD32Async, cuMemsetD32Async, 3020)                                                    \
    X(cuStreamCreate, cuStreamCreate, 2000)                                                        \
    X(cuStreamCreateWithPriority, cuStreamCreateWithPriority, 5050)                                \
    X(cuStreamDestroy, cuStreamDestroy_v2, 4000)                                                   \
    X(cuStreamSynchronize, cuStreamSynchronize, 2000)                                              \
    X(cuStreamQuery, cuStreamQuery, 2000)                                                          \
    X(cuStreamWaitEvent, cuStreamWaitEvent, 3020)                                                  \
    X(cuStreamWaitValue32, cuStreamWaitValue32_v2, 11070)                                          \
    X(cuStreamWriteValue32, cuStreamWriteValue32_v2, 11070)                                        \
    X(cuStreamIsCapturing, cuStreamIsCapturing, 10000)                                             \
    X(cuThreadExchangeStreamCaptureMode, cuThreadExchangeStreamCaptureMode, 10010)                 \
    X(cuStreamGetCtx, cuStreamGetCtx, 9020)                                                        \
    X(cuLaunchHostFunc, cuLaunchHostFunc, 10000)                                                   \
    X(cuEventCreate, cuEventCreate, 2000)                                                          \
    X(cuEventDestroy, cuEventDestroy_v2, 4000)                                                     \
    X(cuEventRecord, cuEventRecord, 2000)                                                          \
    X(cuEventQuery, cuEventQuery, 2000)                                                            \
    X(cuEventSynchronize, cuEventSynchronize, 2000)                                                \
    X(cuMemGetAllocationGranularity, cuMemGetAllocationGranularity, 10020)                         \
    X(cuMemCreate, cuMemCreate, 10020)                                                             \
    X(cuMemRelease, cuMemRelease, 10020)                                                           \
    X(cuMemAddressReserve, cuMemAddressReserve, 10020)                                             \
    X(cuMemAddressFree, cuMemAddressFree, 10020)                                                   \
    X(cuMemMap, cuMemMap, 10020)                                                                   \
    X(cuMemUnmap, cuMemUnmap, 10020)                                                               \
    X(cuMemSetAccess, cuMemSetAccess, 10020)

#endif
