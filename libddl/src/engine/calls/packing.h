/* SPDX-License-Identifier: Apache-2.0 */
/* packing.h - conversion of f32 to a wire format and back, in the caller's memory. */
#ifndef DDL_ENGINE_CALLS_PACKING_H
#define DDL_ENGINE_CALLS_PACKING_H

#include "ddl/ddl.h"

/* Return the bytes of `count` packed elements. */
size_t ddl__packing_size(size_t count, ddl_wire wire);

/* Convert `count` elements, with the same bits in every floating-point mode of the caller. */
void ddl__packing_pack(void *packed, const float *values, size_t count, ddl_wire wire);
void ddl__packing_unpack(float *values, const void *packed, size_t count, ddl_wire wire);

#endif
