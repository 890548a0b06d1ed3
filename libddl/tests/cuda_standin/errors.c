/* SPDX-License-Identifier: Apache-2.0 */
/* The names of errors. The texts are not the real driver's: each names the stand-in. */
#include "standin.h"

typedef struct error {
    CUresult value;
    const char *name, *text;
} error;

static const error errors[] = {
    {CUDA_SUCCESS, "CUDA_SUCCESS", "success (CUDA stand-in)"},
    {CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "a value is invalid (CUDA stand-in)"},
    {CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "no memory (CUDA stand-in)"},
    {CUDA_ERROR_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED",
     "cuInit was not called in this process (CUDA stand-in)"},
    {CUDA_ERROR_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "there is no device (CUDA stand-in)"},
    {CUDA_ERROR_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE",
     "there is no such device (CUDA stand-in)"},
    {CUDA_ERROR_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT",
     "no context is current, or the context is invalid (CUDA stand-in)"},
    {CUDA_ERROR_OPERATING_SYSTEM, "CUDA_ERROR_OPERATING_SYSTEM",
     "the operating system refused it (CUDA stand-in)"},
    {CUDA_ERROR_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE",
     "the handle is invalid (CUDA stand-in)"},
    {CUDA_ERROR_NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "there is nothing of this name (CUDA stand-in)"},
    {CUDA_ERROR_NOT_READY, "CUDA_ERROR_NOT_READY", "it is not complete yet (CUDA stand-in)"},
    {CUDA_ERROR_CONTEXT_IS_DESTROYED, "CUDA_ERROR_CONTEXT_IS_DESTROYED",
     "the context was released (CUDA stand-in)"},
    {CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
     "some of the memory is registered already (CUDA stand-in)"},
    {CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED",
     "the memory is not registered (CUDA stand-in)"},
    {CUDA_ERROR_NOT_PERMITTED, "CUDA_ERROR_NOT_PERMITTED",
     "a host function must not call CUDA (CUDA stand-in)"},
    {CUDA_ERROR_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "it is not supported (CUDA stand-in)"},
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
