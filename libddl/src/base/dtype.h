/* SPDX-License-Identifier: Apache-2.0 */
/* dtype.h - element types and reductions: their names, the sizes of types, and the reductions that
 * each type supports. */
#ifndef DDL_BASE_DTYPE_H
#define DDL_BASE_DTYPE_H

#include <stdbool.h>
#include <stddef.h>

#include "ddl/ddl.h"

/* Classes of types that support the same reductions. */
typedef enum ddl__class {
    DDL__NO_CLASS, /* unknown dtypes */
    DDL__TRUTH,    /* bool */
    DDL__INTEGER,
    DDL__FLOAT, /* fp8 included */
    DDL__COMPLEX
} ddl__class;
ddl__class ddl__dtype_class(unsigned dtype);

/* Return the bytes of one element; 0 for an unknown dtype. */
size_t ddl__dtype_size(unsigned dtype);
enum { DDL__ELEMENT_MAX = 16 }; /* bytes of the longest element */

/* Return true if additions of this type are computed in f32, so that sums have to be rounded to the
 * type. */
bool ddl__dtype_rounds(unsigned dtype);

/* Return a name such as "f32"; "?" for an unknown dtype. */
const char *ddl__dtype_name(unsigned dtype);

/* Return a name such as "sum"; "?" for an unknown op. */
const char *ddl__op_name(unsigned op);

/* Return a name such as "int8"; "f32" for 0, "?" for an unknown wire format. */
const char *ddl__wire_name(unsigned wire);

/* Return the bits of a packed element; 0 if the format packs nothing, or is unknown. */
static inline unsigned ddl__wire_bits(unsigned wire)
{
    return wire == DDL_WIRE_BF16 ? 16 : wire == DDL_WIRE_INT8 ? 8 : wire == DDL_WIRE_INT4 ? 4 : 0;
}

/* Return true if the op is defined for the type; false if not, or if either is unknown. */
bool ddl__reduces(unsigned dtype, unsigned op);

#endif
