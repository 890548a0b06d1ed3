/* SPDX-License-Identifier: Apache-2.0 */
/* The attributes of pointers. */
#include "standin.h"

enum { NO_DEVICE = -2 }; /* the ordinal of memory that belongs to no device */

static bool is_host(const range *r)
{
    return r->kind == HOST_ALLOCATED || r->kind == HOST_REGISTERED;
}

/* Store the attribute. Return false if this memory does not have it, or if it is unknown here.
 * Without a range, use the attribute of memory that CUDA does not know. */
static bool write_attribute(void *data, CUpointer_attribute attribute, const range *r,
                            CUdeviceptr pointer)
{
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
        *(CUcontext *)data = r ? (CUcontext)r->context : NULL; /* NULL for mappings, too */
        return true;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        *(unsigned *)data = !r ? 0 : is_host(r) ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
        return true;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: *(CUdeviceptr *)data = r ? pointer : 0; return true;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        *(void **)data = r && is_host(r) ? (void *)(uintptr_t)pointer : NULL;
        return !r || is_host(r);
    case CU_POINTER_ATTRIBUTE_BUFFER_ID: *(unsigned long long *)data = r ? r->id : 0; return true;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED: *(unsigned *)data = 0; return true;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: *(int *)data = r ? r->device : NO_DEVICE; return true;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
        *(CUdeviceptr *)data = r ? r->start : 0;
        return true;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE: *(size_t *)data = r ? r->bytes : 0; return true;
    case CU_POINTER_ATTRIBUTE_MAPPED: *(unsigned *)data = r != NULL; return true;
    default: return false;
    }
}

CUresult cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr pointer)
{
    CUresult result = standin_enter(__func__);
    if (result != CUDA_SUCCESS)
        return result;
    const range *r = standin_range_at((uintptr_t)pointer);
    if (!data || !r || !write_attribute(data, attribute, r, pointer))
        return standin_leave(CUDA_ERROR_INVALID_VALUE);
    return standin_leave(CUDA_SUCCESS);
}

/* Unlike the function above, this accepts pointers that CUDA does not know. An attribute that this
 * memory does not have becomes NULL. */
CUresult cuPointerGetAttributes(unsigned count, CUpointer_attribute *attributes, void **data,
                                CUdeviceptr pointer)
{
    CUresult result = standin_enter(__func__);
    if (result != CUDA_SUCCESS)
        return result;
    if (!count || !attributes || !data)
        return standin_leave(CUDA_ERROR_INVALID_VALUE);
    const range *r = standin_range_at((uintptr_t)pointer);
    for (unsigned i = 0; i < count; i++)
        if (!write_attribute(data[i], attributes[i], r, pointer) &&
            attributes[i] != CU_POINTER_ATTRIBUTE_HOST_POINTER)
            return standin_leave(CUDA_ERROR_INVALID_VALUE);
    return standin_leave(CUDA_SUCCESS);
}
