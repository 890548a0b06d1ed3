/* SPDX-License-Identifier: Apache-2.0 */
/* reduce.h - element-wise reductions over any number of operands, and copies.
 *
 * PURE: no I/O, no clock, no threads, no getenv. All instruction sets give the same bits.
 */
#ifndef DDL_REDUCE_REDUCE_H
#define DDL_REDUCE_REDUCE_H

#include <stdbool.h>
#include <stddef.h>

#include "base/fold.h"
#include "ddl/ddl.h"

/* Type of a reduction: dst[i] = op(operands[0][i], operands[1][i], ...) in this order, for i <
 * count and n >= 1 operands. fp8, f16 and bf16 are rounded once, at the end. dst may equal an
 * operand but not overlap it otherwise. DDL_AVERAGE reduces like DDL_SUM and divides by `divisor`,
 * before the last rounding (floats) or truncating (integers). Other ops ignore the divisor; 1 means
 * no division. No alignment is needed. */
typedef void ddl__reduce_fn(void *dst, const void *const *operands, size_t n, size_t count,
                            int64_t divisor);

/* dst[i] = src[i] * factor, rounded once. Computed in f64 for f64 and c128, otherwise in f32 with
 * the factor rounded to f32 first. dst may equal src but not overlap it otherwise. No alignment is
 * needed. */
typedef void ddl__scale_fn(void *dst, const void *src, size_t count, double factor);

/* dst[i] = src[i], rounded to nearest even. No alignment is needed. */
typedef void ddl__narrow_fn(void *dst, const float *src, size_t count);

/* The elements of a block that share a scale in the wire formats of integers (pack.h). */
enum { DDL__PACK_BLOCK = 128, DDL__PACK_SPECIAL = 255 /* the scale of a block with an infinity */ };

/* Pack `count` elements into a span of ddl__packed_bytes, and unpack them. Spans of whole blocks
 * can be packed and unpacked one after the other. No alignment is needed. */
typedef void ddl__pack_fn(void *span, const float *src, size_t count);
typedef void ddl__unpack_fn(float *dst, const void *span, size_t count);

/* Return the bytes of `count` packed elements of `bits` bits. */
static inline size_t ddl__packed_bytes(size_t count, unsigned bits)
{
    size_t rest = count % DDL__PACK_BLOCK, half = DDL__PACK_BLOCK / 2;
    if (bits == 16)
        return 2 * count;
    size_t last = bits == 8 || rest < half ? rest : half;
    return count / DDL__PACK_BLOCK * (1 + DDL__PACK_BLOCK * bits / 8) + (rest ? 1 + last : 0);
}

/* The type of the copy functions: a plain copy, and a copy whose stores bypass the caches, followed
 * by a store fence. Use them for more than some hundred bytes. memcpy is not used because it may be
 * `rep movsb`, which is up to twice as slow on memory that cores share. */
typedef void ddl__copy_fn(void *dst, const void *src, size_t bytes);

enum { DDL__LINES = 256 };

/* The kernels of one instruction set. */
typedef struct ddl__kernels {
    const char *name; /* "portable", "avx2", "avx512", "neon" */
    /* Indexed by the values of the ABI. NULL if ddl__reduces (base/dtype.h) is false. */
    ddl__reduce_fn *reduce[18][12];
    /* NULL for integers and bool. */
    ddl__scale_fn *scale[18];
    /* (a + b) + (c + d) of four operands, for the dtypes of ordered sums, else NULL. */
    ddl__reduce_fn *pairs[18];
    /* Conversion from f32 to f16 and bf16, else NULL. */
    ddl__narrow_fn *narrow[18];
    /* Indexed by ddl_wire; NULL for DDL_WIRE_F32. */
    ddl__pack_fn *pack[5];
    ddl__unpack_fn *unpack[5];
    ddl__copy_fn *copy, *copy_nontemporal;
    /* Copies of a multiple of DDL__LINES bytes, plain and non-temporal. The non-temporal one needs
     * a destination aligned to a cache line, and a later copy_nontemporal, possibly of zero bytes,
     * for the fence. */
    ddl__copy_fn *copy_lines, *copy_nontemporal_lines;
} ddl__kernels;

/* Return the best kernels for this CPU. Thread-safe, and cheap after the first call. */
const ddl__kernels *ddl__kernels_best(void);

/* Return the kernels with this name, or NULL if this build or CPU has none. Tests use this to
 * compare instruction sets. */
const ddl__kernels *ddl__kernels_named(const char *name);

/* Run kernels->reduce; then, unless `copy` is NULL, copy[i] = dst[i], with non-temporal stores if
 * requested. Works block by block, so that the copy reads the result from the nearest cache. */
void ddl__reduce(const ddl__kernels *kernels, ddl_dtype dtype, ddl_op op, void *dst, void *copy,
                 bool nontemporal, const void *const *operands, size_t n, size_t count,
                 int64_t divisor);

/* The parameters of running a fold. */
typedef struct ddl__folding {
    const ddl__kernels *kernels;
    const ddl__fold *fold;
    /* dtype of the results; operands have the same dtype. If `wide`, operands of f16 and bf16 are
     * f32 */
    ddl_dtype dtype;
    ddl_op op;
    bool wide;
    bool widened;     /* if `wide`, the results of f16 and bf16 are f32, too */
    int64_t divisor;  /* divisor of an average; 1: no division */
    bool nontemporal; /* store the copy non-temporally */
} ddl__folding;

/* Run a fold: each addition is the op on two operands, rounded to the dtype of the operands. Result
 * k is `count` elements at dst, after the previous results, and the same at `copy` unless that is
 * NULL. operands[i] has `count` elements of operand i. Works block by block, in the nearest
 * cache. */
void ddl__fold_run(const ddl__folding *folding, void *dst, void *copy, const void *const *operands,
                   size_t count);

/* dst[i] = left[i] + right[i]. dst may be equal to left or right, but must not overlap them
 * otherwise. A long result bypasses the caches, unless it replaces an operand. */
void ddl__add(const ddl__kernels *kernels, ddl_dtype dtype, void *dst, const void *left,
              const void *right, size_t count);

#endif
