/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_driver.h - the CUDA driver, opened at run time: a build needs no toolkit, and nothing
 * changes on machines without a driver. Names, values and types are the same as in the driver's
 * binary interface. */
#ifndef DDL_DEVICE_CORE_CUDA_DRIVER_H
#define DDL_DEVICE_CORE_CUDA_DRIVER_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef int ddl__cuda_result; /* CUresult */
typedef int ddl__cuda_device;
typedef unsigned long long ddl__cuda_pointer; /* CUdeviceptr */
typedef struct CUctx_st *ddl__cuda_context;
typedef struct CUstream_st *ddl__cuda_stream;
typedef struct CUevent_st *ddl__cuda_event;

typedef struct ddl__cuda_uuid {
    unsigned char bytes[16];
} ddl__cuda_uuid;

enum {
    DDL__CUDA_SUCCESS = 0,
    DDL__CUDA_NOT_READY = 600,

    DDL__CUDA_POINTER_MEMORY_TYPE = 2, /* CU_POINTER_ATTRIBUTE_... */
    DDL__CUDA_POINTER_DEVICE_ORDINAL = 9,
    DDL__CUDA_MEMORY_DEVICE = 2,

    DDL__CUDA_HOST_PORTABLE = 1, /* for cuMemHostAlloc and cuMemHostRegister */
    DDL__CUDA_HOST_DEVICEMAP = 2,
    DDL__CUDA_STREAM_NON_BLOCKING = 1,
    DDL__CUDA_STREAM_PER_THREAD = 2, /* the highest handle of a default stream */
    DDL__CUDA_EVENT_DISABLE_TIMING = 2,
    DDL__CUDA_WAIT_VALUE_GEQ = 0,
    DDL__CUDA_CAPTURE_RELAXED = 2
};

/* X(function, symbol, parameters): each returns a ddl__cuda_result. */
#define DDL__CUDA_FUNCTIONS(X)                                                                     \
    X(init, cuInit, (unsigned flags))                                                              \
    X(error_name, cuGetErrorName, (ddl__cuda_result error, const char **name))                     \
    X(error_text, cuGetErrorString, (ddl__cuda_result error, const char **text))                   \
    X(device_get, cuDeviceGet, (ddl__cuda_device * device, int ordinal))                           \
    X(device_uuid, cuDeviceGetUuid_v2, (ddl__cuda_uuid * uuid, ddl__cuda_device device))           \
    X(context_retain, cuDevicePrimaryCtxRetain,                                                    \
      (ddl__cuda_context * context, ddl__cuda_device device))                                      \
    X(context_release, cuDevicePrimaryCtxRelease_v2, (ddl__cuda_device device))                    \
    X(context_push, cuCtxPushCurrent_v2, (ddl__cuda_context context))                              \
    X(context_pop, cuCtxPopCurrent_v2, (ddl__cuda_context * context))                              \
    X(context_current, cuCtxGetCurrent, (ddl__cuda_context * context))                             \
    X(context_device, cuCtxGetDevice, (ddl__cuda_device * device))                                 \
    X(pointer_attribute, cuPointerGetAttribute,                                                    \
      (void *value, int attribute, ddl__cuda_pointer pointer))                                     \
    X(memory_alloc, cuMemAlloc_v2, (ddl__cuda_pointer * pointer, size_t bytes))                    \
    X(memory_free, cuMemFree_v2, (ddl__cuda_pointer pointer))                                      \
    X(host_alloc, cuMemHostAlloc, (void **pointer, size_t bytes, unsigned flags))                  \
    X(host_free, cuMemFreeHost, (void *pointer))                                                   \
    X(host_register, cuMemHostRegister_v2, (void *pointer, size_t bytes, unsigned flags))          \
    X(host_unregister, cuMemHostUnregister, (void *pointer))                                       \
    X(host_device_pointer, cuMemHostGetDevicePointer_v2,                                           \
      (ddl__cuda_pointer * device, void *pointer, unsigned flags))                                 \
    X(copy_to_host, cuMemcpyDtoHAsync_v2,                                                          \
      (void *to, ddl__cuda_pointer from, size_t bytes, ddl__cuda_stream stream))                   \
    X(copy_to_device, cuMemcpyHtoDAsync_v2,                                                        \
      (ddl__cuda_pointer to, const void *from, size_t bytes, ddl__cuda_stream stream))             \
    X(copy_within_device, cuMemcpyDtoDAsync_v2,                                                    \
      (ddl__cuda_pointer to, ddl__cuda_pointer from, size_t bytes, ddl__cuda_stream stream))       \
    X(stream_create, cuStreamCreate, (ddl__cuda_stream * stream, unsigned flags))                  \
    X(stream_destroy, cuStreamDestroy_v2, (ddl__cuda_stream stream))                               \
    X(stream_query, cuStreamQuery, (ddl__cuda_stream stream))                                      \
    X(stream_context, cuStreamGetCtx, (ddl__cuda_stream stream, ddl__cuda_context * context))      \
    X(stream_is_capturing, cuStreamIsCapturing, (ddl__cuda_stream stream, int *capturing))         \
    X(stream_wait_event, cuStreamWaitEvent,                                                        \
      (ddl__cuda_stream stream, ddl__cuda_event event, unsigned flags))                            \
    X(stream_wait_value, cuStreamWaitValue32_v2,                                                   \
      (ddl__cuda_stream stream, ddl__cuda_pointer word, uint32_t value, unsigned flags))           \
    X(capture_mode, cuThreadExchangeStreamCaptureMode, (int *mode))                                \
    X(launch_host, cuLaunchHostFunc,                                                               \
      (ddl__cuda_stream stream, void (*function)(void *argument), void *argument))                 \
    X(event_create, cuEventCreate, (ddl__cuda_event * event, unsigned flags))                      \
    X(event_destroy, cuEventDestroy_v2, (ddl__cuda_event event))                                   \
    X(event_record, cuEventRecord, (ddl__cuda_event event, ddl__cuda_stream stream))

#define DDL__CUDA_POINTER(function, symbol, parameters) ddl__cuda_result(*function) parameters;
typedef struct ddl__cuda {
    void *library;
    DDL__CUDA_FUNCTIONS(DDL__CUDA_POINTER)
} ddl__cuda;
#undef DDL__CUDA_POINTER

/* Open the driver and initialise it. Return DDL_EUNSUPPORTED if there is none, or if it is too
 * old. */
ddl_status ddl__cuda_open(ddl__cuda *cuda);

/* Return "cuEventRecord" for "event_record". */
const char *ddl__cuda_symbol(const char *function);

/* Write a text such as "CUDA_ERROR_OUT_OF_MEMORY: out of memory". */
void ddl__cuda_describe(const ddl__cuda *cuda, ddl__cuda_result error, char *text, size_t size);

#endif
