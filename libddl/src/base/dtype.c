/* SPDX-License-Identifier: Apache-2.0 */
#include "base/dtype.h"

static const struct {
    const char *name;
    size_t size;
    ddl__class class;
} dtypes[] = {
    [DDL_BOOL] = {"bool", 1, DDL__TRUTH},      [DDL_I8] = {"i8", 1, DDL__INTEGER},
    [DDL_U8] = {"u8", 1, DDL__INTEGER},        [DDL_I16] = {"i16", 2, DDL__INTEGER},
    [DDL_U16] = {"u16", 2, DDL__INTEGER},      [DDL_I32] = {"i32", 4, DDL__INTEGER},
    [DDL_U32] = {"u32", 4, DDL__INTEGER},      [DDL_I64] = {"i64", 8, DDL__INTEGER},
    [DDL_U64] = {"u64", 8, DDL__INTEGER},      [DDL_F16] = {"f16", 2, DDL__FLOAT},
    [DDL_BF16] = {"bf16", 2, DDL__FLOAT},      [DDL_F32] = {"f32", 4, DDL__FLOAT},
    [DDL_F64] = {"f64", 8, DDL__FLOAT},        [DDL_F8_E4M3] = {"f8e4m3", 1, DDL__FLOAT},
    [DDL_F8_E5M2] = {"f8e5m2", 1, DDL__FLOAT}, [DDL_C64] = {"c64", 8, DDL__COMPLEX},
    [DDL_C128] = {"c128", 16, DDL__COMPLEX},
};

enum { DTYPES = sizeof dtypes / sizeof *dtypes };

ddl__class ddl__dtype_class(unsigned dtype)
{
    return dtype < DTYPES ? dtypes[dtype].class : DDL__NO_CLASS;
}

size_t ddl__dtype_size(unsigned dtype)
{
    return dtype < DTYPES ? dtypes[dtype].size : 0;
}

bool ddl__dtype_rounds(unsigned dtype)
{
    return ddl__dtype_class(dtype) == DDL__FLOAT && ddl__dtype_size(dtype) < 4;
}

const char *ddl__dtype_name(unsigned dtype)
{
    return dtype < DTYPES && dtypes[dtype].name ? dtypes[dtype].name : "?";
}

const char *ddl__op_name(unsigned op)
{
    static const char *const names[] = {
        [DDL_SUM] = "sum",
        [DDL_AVERAGE] = "average",
        [DDL_MIN] = "min",
        [DDL_MAX] = "max",
        [DDL_PRODUCT] = "product",
        [DDL_BIT_AND] = "bit_and",
        [DDL_BIT_OR] = "bit_or",
        [DDL_BIT_XOR] = "bit_xor",
        [DDL_LOGICAL_AND] = "logical_and",
        [DDL_LOGICAL_OR] = "logical_or",
    };
    return op < sizeof names / sizeof *names && names[op] ? names[op] : "?";
}

const char *ddl__wire_name(unsigned wire)
{
    static const char *const names[] = {
        "f32",
        [DDL_WIRE_F32] = "f32",
        [DDL_WIRE_INT8] = "int8",
        [DDL_WIRE_INT4] = "int4",
        [DDL_WIRE_BF16] = "bf16",
    };
    return wire < sizeof names / sizeof *names ? names[wire] : "?";
}

bool ddl__reduces(unsigned dtype, unsigned op)
{
    if (op < DDL_SUM || op > DDL_LOGICAL_OR)
        return false;
    switch (ddl__dtype_class(dtype)) {
    case DDL__TRUTH: return op != DDL_AVERAGE;
    case DDL__INTEGER: return true;
    case DDL__FLOAT: return op <= DDL_PRODUCT;
    case DDL__COMPLEX: return op <= DDL_AVERAGE;
    case DDL__NO_CLASS: break;
    }
    return false;
}
