/* SPDX-License-Identifier: Apache-2.0 */
/* The names of errors. The texts are not the real driver's: each names the stand-in. */
#include "standin.h"

typedef struct error {
    CUresult value;
    const char *name, *text;
} error;

#define ERROR(value, text)                                                                         \
    {                                                                                              \
        value, #value, text " (CUDA stand-in)"                                                     \
    }
static const error errors[] = {
    ERROR(CUDA_SUCCESS, "success"),
    ERROR(CUDA_ERROR_INVALID_VALUE, "a value is invalid"),
    ERROR(CUDA_ERROR_OUT_OF_MEMORY, "no memory"),
    ERROR(CUDA_ERROR_NOT_INITIALIZED, "cuInit was not called in this process"),
    ERROR(CUDA_ERROR_NO_DEVICE, "there is no device"),
    ERROR(CUDA_ERROR_INVALID_DEVICE, "there is no such device"),
    ERROR(CUDA_ERROR_INVALID_CONTEXT, "no context is current, or the context is invalid"),
    ERROR(CUDA_ERROR_OPERATING_SYSTEM, "the operating system refused it"),
    ERROR(CUDA_ERROR_INVALID_HANDLE, "the handle is invalid"),
    ERROR(CUDA_ERROR_NOT_READY, "it is not complete yet"),
    ERROR(CUDA_ERROR_CONTEXT_IS_DESTROYED, "the context was released"),
    ERROR(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, "some of the memory is registered already"),
    ERROR(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, "the memory is not registered"),
    ERROR(CUDA_ERROR_NOT_PERMITTED, "a host function must not call CUDA"),
    ERROR(CUDA_ERROR_NOT_SUPPORTED, "it is not supported"),
};

/* Constant, so usable without the lock and in every process. */
static const error *find_error(CUresult value)
{
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (errors[i].value == value)
            return &errors[i];
    return NULL;
}

CUresult cuGetErrorName(CUresult value, const char **name)
{
    const error *e = find_error(value);
    *name = e ? e->name : NULL;
    return e ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetErrorString(CUresult value, const char **text)
{
    const error *e = find_error(value);
    *text = e ? e->text : NULL;
    return e ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
