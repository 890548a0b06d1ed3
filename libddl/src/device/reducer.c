/* SPDX-License-Identifier: Apache-2.0 */
#include "device/reducer.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/dtype.h"
#include "device/images.h"

enum {
    THREADS = 256,           /* of a block */
    BLOCKS_PER_PROCESSOR = 8 /* at least as many threads as one runs at a time */
};

typedef ddl__kernel kernel;

struct ddl__kernel {
    kernel *next;
    const char *dtype, *op;
    bool ordered;
    size_t element; /* bytes */
    ddl__cuda_module module;
    ddl__cuda_function function;
};

struct ddl__reducer {
    ddl__nvrtc nvrtc;
    int64_t blocks_max;
    kernel *kernels;
};

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
static kernel wanted_kernel(ddl_dtype dtype, ddl_op op, bool ordered)
{
    bool is_logical = dtype == DDL_BOOL || op == DDL_LOGICAL_AND || op == DDL_LOGICAL_OR;
    ddl_dtype as = dtype == DDL_BOOL   ? DDL_U8
                   : dtype == DDL_C64  ? DDL_F32
                   : dtype == DDL_C128 ? DDL_F64
                                       : dtype;
    return (kernel){.dtype = ddl__dtype_name(as),
                    .op = is_logical ? logical_op(op) : ddl__op_name(op),
                    .ordered = ordered,
                    .element = ddl__dtype_size(as)};
}

static bool load(const ddl__device *d, const ddl__reducer *r, kernel *k)
{
    char dtype[32], op[32];
    const char *macros[] = {dtype, op, "-DORDERED"};
    snprintf(dtype, sizeof dtype, "-DDTYPE_%s", k->dtype);
    snprintf(op, sizeof op, "-DOP_%s", k->op);
    const char *image = ddl__images_get(d->config.images, &r->nvrtc, macros, k->ordered ? 3 : 2);
    bool good = image && DDL__GOOD(d, module_load, &k->module, image);
    if (good && DDL__GOOD(d, module_function, &k->function, k->module, "ddl_reduce"))
        return true;
    if (good)
        d->cuda.module_unload(k->module);
    return false;
}

const kernel *ddl__reducer_known(const ddl__reducer *r, ddl_dtype dtype, ddl_op op, bool ordered)
{
    const kernel wanted = wanted_kernel(dtype, op, ordered), *k = r->kernels;
    while (k && (k->dtype != wanted.dtype || k->op != wanted.op || k->ordered != ordered))
        k = k->next;
    return k;
}

const kernel *ddl__reducer_find(const ddl__device *d, ddl__reducer *r, ddl_dtype dtype, ddl_op op,
                                bool ordered)
{
    const kernel *known = ddl__reducer_known(r, dtype, op, ordered);
    if (known)
        return known;
    kernel *made = malloc(sizeof *made);
    if (!made) {
        ddl__fail(DDL_ENOMEM, "no memory for the kernels of a GPU");
        return NULL;
    }
    *made = wanted_kernel(dtype, op, ordered);
    if (!load(d, r, made)) {
        free(made);
        return NULL;
    }
    made->next = r->kernels;
    return r->kernels = made;
}

ddl__reducer *ddl__reducer_create(const ddl__device *d)
{
    int major, minor, processors, version;
    ddl__reducer *r = calloc(1, sizeof *r);
    if (!r) {
        ddl__fail(DDL_ENOMEM, "no memory for the kernels of a GPU");
        return NULL;
    }
    if (DDL__GOOD(d, device_attribute, &major, DDL__CUDA_DEVICE_MAJOR, d->number) &&
        DDL__GOOD(d, device_attribute, &minor, DDL__CUDA_DEVICE_MINOR, d->number) &&
        DDL__GOOD(d, device_attribute, &processors, DDL__CUDA_DEVICE_PROCESSORS, d->number) &&
        DDL__GOOD(d, driver_version, &version) &&
        ddl__nvrtc_open(&r->nvrtc, 10 * major + minor, version) == DDL_OK) {
        r->blocks_max = (int64_t)processors * BLOCKS_PER_PROCESSOR;
        if (ddl__reducer_find(d, r, DDL_F32, DDL_SUM, false))
            return r;
    }
    free(r);
    return NULL;
}

/* ------------------------------------------------------------------------------------- launch */

static bool is_aligned(const ddl__reduction *part)
{
    unsigned long long all = 0;
    for (unsigned i = 0; i < part->n_in; i++)
        all |= part->in[i];
    for (unsigned i = 0; i < part->n_out; i++)
        all |= part->out[i];
    return all % DDL__PACK_BYTES == 0;
}

void ddl__reduction_count(ddl__reduction *part, ddl_dtype dtype, int64_t count, bool ordered)
{
    bool is_complex = ddl__dtype_class(dtype) == DDL__COMPLEX;
    size_t bytes = (size_t)count * ddl__dtype_size(dtype);
    part->count = (unsigned long long)count * (is_complex ? 2 : 1);
    part->packs = !ordered && is_aligned(part) ? bytes / DDL__PACK_BYTES : 0;
}

bool ddl__reducer_launch(const ddl__device *d, const ddl__reducer *r, const kernel *k,
                         int64_t count, unsigned parts, ddl__cuda_pointer table,
                         ddl__cuda_stream stream)
{
    int64_t packs = (int64_t)((size_t)count * k->element / DDL__PACK_BYTES) + 1;
    int64_t blocks = count < 0 ? r->blocks_max / parts + 1 : (packs + THREADS - 1) / THREADS;
    void *parameters[] = {&table};
    return DDL__GOOD(d, launch_kernel, k->function,
                     (unsigned)(blocks < r->blocks_max ? blocks : r->blocks_max), parts, 1, THREADS,
                     1, 1, 0, stream, parameters, NULL);
}
