/* SPDX-License-Identifier: Apache-2.0 */
/* The exported functions for wire formats in the caller's memory. */
#include "api/api_operations.h"
#include "api/check_object.h"
#include "engine/calls/packing.h"

/* Check the arguments of a conversion of `count` elements between two memories. */
static ddl_status check_packing(const void *values, const void *packed, int64_t count,
                                ddl_wire wire)
{
    if (wire < DDL_WIRE_F32 || wire > DDL_WIRE_BF16)
        return ddl__fail(DDL_EINVAL, "wire is %d; must be a value of ddl_wire", (int)wire);
    if (count < 0 || count > DDL__COUNT_MAX)
        return ddl__fail(DDL_EINVAL, "count is %lld; must be from 0 to %lld", (long long)count,
                         (long long)DDL__COUNT_MAX);
    if (count && (!values || !packed))
        return ddl__fail(DDL_EINVAL, "%s is NULL, but count is %lld", values ? "packed" : "values",
                         (long long)count);
    size_t of_values = (size_t)count * sizeof(float);
    size_t of_packed = ddl__packing_size((size_t)count, wire);
    uintptr_t v = (uintptr_t)values, p = (uintptr_t)packed;
    if (count && v < p + of_packed && p < v + of_values)
        return ddl__fail(DDL_EINVAL,
                         "values and packed overlap: %zu bytes at %p, and %zu at %p; must be "
                         "disjoint",
                         of_values, values, of_packed, packed);
    return DDL_OK;
}

size_t ddl_packed_size(int64_t count, ddl_wire wire)
{
    if (count < 0 || count > DDL__COUNT_MAX || wire < DDL_WIRE_F32 || wire > DDL_WIRE_BF16)
        return 0;
    return ddl__packing_size((size_t)count, wire);
}

ddl_status ddl_pack(void *packed, const float *values, int64_t count, ddl_wire wire)
{
    ddl_status status = check_packing(values, packed, count, wire);
    if (status == DDL_OK && count)
        ddl__packing_pack(packed, values, (size_t)count, wire);
    return status;
}

ddl_status ddl_unpack(float *values, const void *packed, int64_t count, ddl_wire wire)
{
    ddl_status status = check_packing(values, packed, count, wire);
    if (status == DDL_OK && count)
        ddl__packing_unpack(values, packed, (size_t)count, wire);
    return status;
}
