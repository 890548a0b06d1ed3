#include "base/dtype.h"

static const struct {
    const char *name;
    size_t size;
} dtypes[] = {
    [DDL_I8] = {"i8", 1},   [DDL_U8] = {"u8", 1},   [DDL_I32] = {"i32", 4},
    [DDL_I64] = {"i64", 8}, [DDL_F16] = {"f16", 2}, [DDL_BF16] = {"bf16", 2},
    [DDL_F32] = {"f32", 4}, [DDL_F64] = {"f64", 8},
};

enum { DTYPES = sizeof dtypes / sizeof *dtypes };

size_t ddl__dtype_size(unsigned dtype)
{
    return dtype < DTYPES ? dtypes[dtype].size : 0;
}

const char *ddl__dtype_name(unsigned dtype)
{
    return dtype < DTYPES && dtypes[dtype].name ? dtypes[dtype].name : "?";
}
