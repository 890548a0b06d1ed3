/* SPDX-License-Identifier: Apache-2.0 */
/* Devices of the stand-in for libcuda.so.1, and their primary contexts. Each thread has a stack of
 * contexts, whose top is current. */
#include <string.h>

#include "standin.h"

enum { STACK_MAX = 32 };

static _Thread_local context *stack[STACK_MAX];
static _Thread_local int depth;

static bool is_device(CUdevice device)
{
    return device >= 0 && device < standin_settings()->devices;
}

CUresult cuDeviceGetCount(int *count)
{
    STANDIN_ENTER();
    *count = standin_settings()->devices;
    return standin_leave(CUDA_SUCCESS);
}

CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    STANDIN_ENTER();
    if (!is_device(ordinal))
        return standin_leave(CUDA_ERROR_INVALID_DEVICE);
    *device = ordinal;
    return standin_leave(CUDA_SUCCESS);
}

CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device)
{
    STANDIN_ENTER();
    if (!is_device(device))
        return standin_leave(CUDA_ERROR_INVALID_DEVICE);
    memset(uuid, 0, sizeof *uuid);
    memcpy(uuid->bytes, "CUDA stand-in", 13);
    uuid->bytes[15] = (char)device;
    return standin_leave(CUDA_SUCCESS);
}

/* ------------------------------------------------------------------------------------- contexts */

CUresult cuDevicePrimaryCtxRetain(CUcontext *handle, CUdevice device)
{
    STANDIN_ENTER();
    if (!is_device(device))
        return standin_leave(CUDA_ERROR_INVALID_DEVICE);
    standin_contexts[device].retained++;
    *handle = (CUcontext)&standin_contexts[device];
    return standin_leave(CUDA_SUCCESS);
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
    STANDIN_ENTER();
    if (!is_device(device))
        return standin_leave(CUDA_ERROR_INVALID_DEVICE);
    if (!standin_contexts[device].retained)
        return standin_leave(CUDA_ERROR_INVALID_CONTEXT);
    standin_contexts[device].retained--;
    return standin_leave(CUDA_SUCCESS);
}

context *standin_current(void)
{
    return depth ? stack[depth - 1] : NULL;
}

context *standin_context_of(CUcontext handle, CUresult *reason)
{
    for (int i = 0; i < standin_settings()->devices; i++) {
        context *c = &standin_contexts[i];
        if ((CUcontext)c != handle)
            continue;
        *reason = c->retained ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
        return c->retained ? c : NULL;
    }
    *reason = CUDA_ERROR_INVALID_CONTEXT;
    return NULL;
}

static CUresult push(context *c)
{
    if (depth == STACK_MAX)
        return CUDA_ERROR_OUT_OF_MEMORY;
    stack[depth++] = c;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext *handle)
{
    STANDIN_ENTER();
    *handle = (CUcontext)standin_current();
    return standin_leave(CUDA_SUCCESS);
}

/* Replace the top of the stack. NULL removes it. */
CUresult cuCtxSetCurrent(CUcontext handle)
{
    CUresult result = CUDA_SUCCESS;
    STANDIN_ENTER();
    context *c = handle ? standin_context_of(handle, &result) : NULL;
    if (handle && !c)
        return standin_leave(result);
    if (depth)
        depth--;
    return standin_leave(c ? push(c) : CUDA_SUCCESS);
}

CUresult cuCtxPushCurrent_v2(CUcontext handle)
{
    CUresult result = CUDA_SUCCESS;
    STANDIN_ENTER();
    context *c = standin_context_of(handle, &result);
    return standin_leave(c ? push(c) : result);
}

CUresult cuCtxPopCurrent_v2(CUcontext *handle)
{
    STANDIN_ENTER();
    if (!depth)
        return standin_leave(CUDA_ERROR_INVALID_CONTEXT);
    depth--;
    if (handle)
        *handle = (CUcontext)stack[depth];
    return standin_leave(CUDA_SUCCESS);
}

CUresult cuCtxGetDevice(CUdevice *device)
{
    context *current;
    STANDIN_ENTER_CONTEXT(&current);
    *device = current->device;
    return standin_leave(CUDA_SUCCESS);
}
