/* SPDX-License-Identifier: Apache-2.0 */
/* Devices of the stand-in for libcuda.so.1, and their primary contexts. Each thread has a stack of
 * contexts, whose top is current. */
#include <stdio.h>
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
    CUresult result = standin_enter(__func__);
    if (result != CUDA_SUCCESS)
        return result;
    *count = standin_settings()->devices;
    return standin_leave(CUDA_SUCCESS);
}

CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    CUresult result = standin_enter(__func__);
    if (result != CUDA_SUCCESS)
        return result;
    if (!is_device(ordinal))
        return standin_leave(CUDA_ERROR_INVALID_DEVICE);
    *device = ordinal;
    return standin_leave(CUDA_SUCCESS);
}

CUresult cuDeviceGetName(char *name, int length, CUdevice device)
{
    CUresult result = standin_enter(__func__);
    if (result != CUDA_SUCCESS)
        return result;
    if (!is_device(device))
        return standin_leave(CUDA_ERROR_INVALID_DEVICE);
    if (!name || length < 1)
        return standin_leave(CUDA_ERROR_INVALID_VALUE);
    snprintf(name, (size_t)length, "CUDA stand-in %d (no GPU)", device);
    return standin_leave(CUDA_SUCCESS);
}

static CUresult get_uuid(const char *function, CUuuid *uuid, CUdevice device)
{
    CUresult result = standin_enter(function);
    if (result != CUDA_SUCCESS)
        return result;
    if (!is_device(device))
        return standin_leave(CUDA_ERROR_INVALID_DEVICE);
    memset(uuid, 0, sizeof *uuid);
    memcpy(uuid->bytes, "CUDA stand-in", 13);
    uuid->bytes[15] = (char)device;
    return standin_leave(CUDA_SUCCESS);
}

CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device)
{
    return get_uuid(__func__, uuid, device);
}

CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device)
{
    return get_uuid(__func__, uuid, device);
}

/* Return the value of an attribute; 0 if it has no value here. */
static int attribute_value(int attribute, CUdevice device)
{
    const settings *set = standin_settings();
    switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK: return 1024;
    case CU_DEVICE_ATTRIBUTE_WARP_SIZE: return 32;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: return 4;
    case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID: return device + 1;
    case CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT: return 2;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: return 9;
    case CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY:
    case CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS:
    case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
    case CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM:
    case CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED: return 1;
    case CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_MEM_OPS_V1:
    case CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR_V1:
    case CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR: return !set->no_wait_value;
    default: return 0;
    }
}

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
    CUresult result = standin_enter(__func__);
    if (result != CUDA_SUCCESS)
        return result;
    int number = (int)attribute;
    if (!is_device(device))
        return standin_leave(CUDA_ERROR_INVALID_DEVICE);
    if (!value || number < 1 || number > STANDIN_DEVICE_ATTRIBUTES)
        return standin_leave(CUDA_ERROR_INVALID_VALUE);
    *value = attribute_value(number, device);
    return standin_leave(CUDA_SUCCESS);
}

/* ------------------------------------------------------------------------------------- contexts */

CUresult cuDevicePrimaryCtxRetain(CUcontext *handle, CUdevice device)
{
    CUresult result = standin_enter(__func__);
    if (result != CUDA_SUCCESS)
        return result;
    if (!is_device(device))
        return standin_leave(CUDA_ERROR_INVALID_DEVICE);
    standin_contexts[device].retained++;
    *handle = (CUcontext)&standin_contexts[device];
    return standin_leave(CUDA_SUCCESS);
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
    CUresult result = standin_enter(__func__);
    if (result != CUDA_SUCCESS)
        return result;
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
    CUresult result = standin_enter(__func__);
    if (result != CUDA_SUCCESS)
        return result;
    *handle = (CUcontext)standin_current();
    return standin_leave(CUDA_SUCCESS);
}

/* Replace the top of the stack. NULL removes it. */
CUresult cuCtxSetCurrent(CUcontext handle)
{
    CUresult result = standin_enter(__func__);
    if (result != CUDA_SUCCESS)
        return result;
    context *c = handle ? standin_context_of(handle, &result) : NULL;
    if (handle && !c)
        return standin_leave(result);
    if (depth)
        depth--;
    return standin_leave(c ? push(c) : CUDA_SUCCESS);
}

CUresult cuCtxPushCurrent_v2(CUcontext handle)
{
    CUresult result = standin_enter(__func__);
    if (result != CUDA_SUCCESS)
        return result;
    context *c = standin_context_of(handle, &result);
    return standin_leave(c ? push(c) : result);
}

CUresult cuCtxPopCurrent_v2(CUcontext *handle)
{
    CUresult result = standin_enter(__func__);
    if (result != CUDA_SUCCESS)
        return result;
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
    CUresult result = standin_enter_context(__func__, &current);
    if (result != CUDA_SUCCESS)
        return result;
    *device = current->device;
    return standin_leave(CUDA_SUCCESS);
}

CUresult cuCtxSynchronize(void)
{
    context *current;
    CUresult result = standin_enter_context(__func__, &current);
    if (result != CUDA_SUCCESS)
        return result;
    return standin_leave(standin_drain(current, true) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY);
}
