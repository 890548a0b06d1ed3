/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/calls/packing.h"

#include <string.h>

#include "base/dtype.h"
#include "base/fp_mode.h"
#include "reduce/reduce.h"

size_t ddl__packing_size(size_t count, ddl_wire wire)
{
    return wire == DDL_WIRE_F32 ? 4 * count : ddl__packed_bytes(count, ddl__wire_bits(wire));
}

void ddl__packing_pack(void *packed, const float *values, size_t count, ddl_wire wire)
{
    if (wire == DDL_WIRE_F32) {
        memcpy(packed, values, count * sizeof *values);
        return;
    }
    ddl__fp_mode caller = ddl__fp_enter();
    ddl__kernels_best()->pack[wire](packed, values, count);
    ddl__fp_leave(caller);
}

void ddl__packing_unpack(float *values, const void *packed, size_t count, ddl_wire wire)
{
    if (wire == DDL_WIRE_F32) {
        memcpy(values, packed, count * sizeof *values);
        return;
    }
    ddl__fp_mode caller = ddl__fp_enter();
    ddl__kernels_best()->unpack[wire](values, packed, count);
    ddl__fp_leave(caller);
}
