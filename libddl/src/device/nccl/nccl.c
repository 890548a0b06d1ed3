/* SPDX-License-Identifier: Apache-2.0 */
#include "device/nccl/nccl.h"

#include <dlfcn.h>
#include <string.h>

#include "base/dtype.h"

#define ENTRY(type, function, symbol, parameters) {#symbol, offsetof(ddl__nccl, function)},
static const struct {
    const char *symbol;
    size_t place;
} functions[] = {DDL__NCCL_FUNCTIONS(ENTRY)};
#undef ENTRY

/* Open the NCCL that a package has already loaded into this process, or else the system's NCCL. It
 * is never closed, because it has threads. */
static void *open_library(void)
{
    int flags = RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE;
    void *library = dlopen("libnccl.so.2", flags | RTLD_NOLOAD);
    return library ? library : dlopen("libnccl.so.2", flags);
}

ddl_status ddl__nccl_open(ddl__nccl *nccl)
{
    void *library = open_library();
    if (!library)
        return ddl__fail(
            DDL_EUNSUPPORTED,
            "cannot load NCCL (libnccl.so.2): install it, and add its folder to LD_LIBRARY_PATH");
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        void *found = dlsym(library, functions[i].symbol);
        if (!found)
            return ddl__fail(DDL_EUNSUPPORTED, "NCCL has no %s: install version 2.27 or later",
                             functions[i].symbol);
        memcpy((char *)nccl + functions[i].place, &found, sizeof found);
    }
    if (nccl->version(&nccl->number) != DDL__NCCL_SUCCESS || nccl->number < DDL__NCCL_OLDEST)
        return ddl__fail(DDL_EUNSUPPORTED, "the version of NCCL is %d; must be at least %d (2.27)",
                         nccl->number, DDL__NCCL_OLDEST);
    return DDL_OK;
}

ddl__nccl_dtype ddl__nccl_dtype_of(ddl_dtype dtype)
{
    static const struct {
        ddl_dtype ours;
        ddl__nccl_dtype its;
    } pairs[] = {{DDL_F32, DDL__NCCL_F32},   {DDL_F64, DDL__NCCL_F64}, {DDL_F16, DDL__NCCL_F16},
                 {DDL_BF16, DDL__NCCL_BF16}, {DDL_I8, DDL__NCCL_I8},   {DDL_U8, DDL__NCCL_U8},
                 {DDL_I32, DDL__NCCL_I32},   {DDL_U32, DDL__NCCL_U32}, {DDL_I64, DDL__NCCL_I64},
                 {DDL_U64, DDL__NCCL_U64}};
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        if (pairs[i].ours == dtype)
            return pairs[i].its;
    return DDL__NCCL_NO_DTYPE;
}

/* Return true if NCCL's average is accurate enough. NCCL divides and rounds each operand before it
 * adds them. For floats of less than 32 bits, that is exact enough only if it halves them. */
static bool averages(ddl_dtype dtype, int ranks)
{
    bool is_short = ddl__dtype_size(dtype) < sizeof(float);
    return ddl__dtype_class(dtype) == DDL__FLOAT && (!is_short || (ranks & (ranks - 1)) == 0);
}

/* Return NCCL's op. Minimum and maximum of floats are not supported: NCCL ignores NaN. */
ddl__nccl_op ddl__nccl_op_of(ddl_dtype dtype, ddl_op op, int ranks)
{
    bool is_float = ddl__dtype_class(dtype) == DDL__FLOAT;
    switch (op) {
    case DDL_SUM: return DDL__NCCL_SUM;
    case DDL_PRODUCT: return DDL__NCCL_PRODUCT;
    case DDL_AVERAGE: return averages(dtype, ranks) ? DDL__NCCL_AVERAGE : DDL__NCCL_NO_OP;
    case DDL_MAX: return is_float ? DDL__NCCL_NO_OP : DDL__NCCL_MAX;
    case DDL_MIN: return is_float ? DDL__NCCL_NO_OP : DDL__NCCL_MIN;
    case DDL_BIT_AND:
    case DDL_BIT_OR:
    case DDL_BIT_XOR:
    case DDL_LOGICAL_AND:
    case DDL_LOGICAL_OR: break;
    }
    return DDL__NCCL_NO_OP;
}
