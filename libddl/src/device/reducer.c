/* SPDX-License-Identifier: Apache-2.0 */
#include "device/reducer.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/dtype.h"

enum {
    THREADS = 256,           /* of a block */
    BLOCKS_PER_PROCESSOR = 8 /* which is as many threads as one runs at a time */
};

typedef struct kernel {
    struct kernel *next;
    const char *dtype, *op;
    bool is_scaled;
    ddl__cuda_module module;
    ddl__cuda_function function;
} kernel;

struct ddl__reducer {
    ddl__nvrtc nvrtc;
    int64_t blocks_max;
    kernel *kernels;
};

ddl__reducer *ddl__reducer_create(const ddl__device *d)
{
    int major, minor, processors;
    ddl__reducer *r = calloc(1, sizeof *r);
    if (!r) {
        ddl__fail(DDL_ENOMEM, "no memory for the kernels of a GPU");
        return NULL;
    }
    if (DDL__GOOD(d, device_attribute, &major, DDL__CUDA_DEVICE_MAJOR, d->number) &&
        DDL__GOOD(d, device_attribute, &minor, DDL__CUDA_DEVICE_MINOR, d->number) &&
        DDL__GOOD(d, device_attribute, &processors, DDL__CUDA_DEVICE_PROCESSORS, d->number) &&
        ddl__nvrtc_open(&r->nvrtc, 10 * major + minor) == DDL_OK) {
        r->blocks_max = (int64_t)processors * BLOCKS_PER_PROCESSOR;
        return r;
    }
    free(r);
    return NULL;
}

void ddl__reducer_destroy(const ddl__device *d, ddl__reducer *r)
{
    if (!r)
        return;
    for (kernel *k; (k = r->kernels);) {
        r->kernels = k->next;
        d->cuda.module_unload(k->module);
        free(k);
    }
    free(r);
}

/* ------------------------------------------------------------------------------------ kernels */

/* Of logical values, all ops are one of three. */
static const char *logical_op(ddl_op op)
{
    switch (op) {
    case DDL_SUM:
    case DDL_AVERAGE:
    case DDL_MAX:
    case DDL_BIT_OR:
    case DDL_LOGICAL_OR: return "any";
    case DDL_MIN:
    case DDL_PRODUCT:
    case DDL_BIT_AND:
    case DDL_LOGICAL_AND: return "all";
    case DDL_BIT_XOR: break;
    }
    return "odd";
}

/* The kernel of this reduction; complex numbers are pairs of floats. */
static kernel wanted_kernel(ddl_dtype dtype, ddl_op op)
{
    bool is_logical = dtype == DDL_BOOL || op == DDL_LOGICAL_AND || op == DDL_LOGICAL_OR;
    ddl_dtype as = dtype == DDL_BOOL   ? DDL_U8
                   : dtype == DDL_C64  ? DDL_F32
                   : dtype == DDL_C128 ? DDL_F64
                                       : dtype;
    return (kernel){.dtype = ddl__dtype_name(as),
                    .op = is_logical ? logical_op(op) : ddl__op_name(op)};
}

static bool compile(const ddl__device *d, const ddl__reducer *r, kernel *k)
{
    char dtype[32], op[32], *image;
    const char *macros[] = {dtype, op, "-DSCALED"};
    snprintf(dtype, sizeof dtype, "-DDTYPE_%s", k->dtype);
    snprintf(op, sizeof op, "-DOP_%s", k->op);
    if (ddl__nvrtc_compile(&r->nvrtc, macros, k->is_scaled ? 3 : 2, &image) != DDL_OK)
        return false;
    bool good = DDL__GOOD(d, module_load, &k->module, image);
    free(image);
    if (good && DDL__GOOD(d, module_function, &k->function, k->module, "ddl_reduce"))
        return true;
    if (good)
        d->cuda.module_unload(k->module);
    return false;
}

static const kernel *find_kernel(const ddl__device *d, ddl__reducer *r, const kernel *wanted)
{
    for (const kernel *k = r->kernels; k; k = k->next)
        if (k->dtype == wanted->dtype && k->op == wanted->op && k->is_scaled == wanted->is_scaled)
            return k;
    kernel *made = malloc(sizeof *made);
    if (!made) {
        ddl__fail(DDL_ENOMEM, "no memory for the kernels of a GPU");
        return NULL;
    }
    *made = *wanted;
    if (!compile(d, r, made)) {
        free(made);
        return NULL;
    }
    made->next = r->kernels;
    return r->kernels = made;
}

/* ------------------------------------------------------------------------------------- launch */

static bool is_scaled(const ddl__reduction *reduction)
{
    for (unsigned i = 0; i < reduction->n_in; i++)
        if (reduction->before[i] != 0)
            return true;
    for (unsigned i = 0; i < reduction->n_out; i++)
        if (reduction->after[i] != 0)
            return true;
    return false;
}

static bool is_aligned(const ddl__reduction *reduction)
{
    unsigned long long all = 0;
    for (unsigned i = 0; i < reduction->n_in; i++)
        all |= reduction->in[i];
    for (unsigned i = 0; i < reduction->n_out; i++)
        all |= reduction->out[i];
    return all % DDL__PACK_BYTES == 0;
}

bool ddl__reducer_run(const ddl__device *d, ddl__reducer *r, ddl_dtype dtype, ddl_op op,
                      int64_t count, ddl__reduction *reduction, ddl__cuda_stream stream)
{
    kernel wanted = wanted_kernel(dtype, op);
    wanted.is_scaled = is_scaled(reduction);
    const kernel *k = find_kernel(d, r, &wanted);
    if (!k)
        return false;
    bool is_complex = ddl__dtype_class(dtype) == DDL__COMPLEX;
    size_t element = ddl__dtype_size(dtype) / (is_complex ? 2 : 1);
    reduction->count = (unsigned long long)count * (is_complex ? 2 : 1);
    reduction->packs = is_aligned(reduction) ? reduction->count * element / DDL__PACK_BYTES : 0;
    int64_t threads = (int64_t)(reduction->packs ? reduction->packs : reduction->count);
    int64_t blocks = (threads + THREADS - 1) / THREADS;
    void *parameters[] = {reduction};
    return DDL__GOOD(d, launch_kernel, k->function,
                     (unsigned)(blocks < r->blocks_max ? blocks : r->blocks_max), 1, 1, THREADS, 1,
                     1, 0, stream, parameters, NULL);
}
