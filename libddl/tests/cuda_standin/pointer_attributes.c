/* SPDX-License-Identifier: Apache-2.0 */
/* The attributes of pointers. */
#include "standin.h"

/* Memory that CUDA does not know has no attributes. */
CUresult cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr pointer)
{
    STANDIN_ENTER();
    const range *r = standin_range_at((uintptr_t)pointer);
    if (!data || !r)
        return standin_leave(CUDA_ERROR_INVALID_VALUE);
    bool is_host = r->kind == HOST_ALLOCATED || r->kind == HOST_REGISTERED;
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        *(unsigned *)data = is_host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
        break;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: *(int *)data = r->device; break;
    default: return standin_leave(CUDA_ERROR_INVALID_VALUE);
    }
    return standin_leave(CUDA_SUCCESS);
}
