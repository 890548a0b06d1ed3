/* SPDX-License-Identifier: Apache-2.0 */
/* reduce_reference.h - the expected results of the kernels: every dtype x op by scalars, in double
 * and in integers of 128 bits; and the instruction sets that this CPU runs. */
#ifndef DDL_TESTS_REDUCE_REFERENCE_H
#define DDL_TESTS_REDUCE_REFERENCE_H

#include <math.h>

#include "check.h"
#include "reduce/reduce.h"

/* A floating-point format: total bits and bits of the fraction; least exponent of a normal number;
 * whether the greatest exponent has numbers, too, and only all ones are NaN. */
typedef struct format {
    int bits, fraction, least;
    bool no_infinity;
} format;

typedef enum kind { TRUTH, SIGNED, UNSIGNED, REAL, COMPLEX } kind;

typedef struct traits {
    const char *name;
    size_t size;
    kind kind;
    format format;  /* format of a real number */
    ddl_dtype part; /* part of a complex number */
} traits;

enum { DTYPES = 18, OPS = 11 };
static const traits types[DTYPES] = {
    [DDL_BOOL] = {"bool", 1, TRUTH, {0}, 0},
    [DDL_I8] = {"i8", 1, SIGNED, {0}, 0},
    [DDL_U8] = {"u8", 1, UNSIGNED, {0}, 0},
    [DDL_I16] = {"i16", 2, SIGNED, {0}, 0},
    [DDL_U16] = {"u16", 2, UNSIGNED, {0}, 0},
    [DDL_I32] = {"i32", 4, SIGNED, {0}, 0},
    [DDL_U32] = {"u32", 4, UNSIGNED, {0}, 0},
    [DDL_I64] = {"i64", 8, SIGNED, {0}, 0},
    [DDL_U64] = {"u64", 8, UNSIGNED, {0}, 0},
    [DDL_F16] = {"f16", 2, REAL, {16, 10, -14, false}, 0},
    [DDL_BF16] = {"bf16", 2, REAL, {16, 7, -126, false}, 0},
    [DDL_F32] = {"f32", 4, REAL, {32, 23, -126, false}, 0},
    [DDL_F64] = {"f64", 8, REAL, {64, 52, -1022, false}, 0},
    [DDL_F8_E4M3] = {"f8e4m3", 1, REAL, {8, 3, -6, true}, 0},
    [DDL_F8_E5M2] = {"f8e5m2", 1, REAL, {8, 2, -14, false}, 0},
    [DDL_C64] = {"c64", 8, COMPLEX, {0}, DDL_F32},
    [DDL_C128] = {"c128", 16, COMPLEX, {0}, DDL_F64},
};

static inline bool supported(ddl_dtype dtype, ddl_op op)
{
    return types[dtype].kind == TRUTH     ? op != DDL_AVERAGE
           : types[dtype].kind == REAL    ? op <= DDL_PRODUCT
           : types[dtype].kind == COMPLEX ? op <= DDL_AVERAGE
                                          : true;
}

static inline uint64_t random_bits(void)
{
    static uint64_t state = 0x9e3779b97f4a7c15;
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state * 0x2545f4914f6cdd1d;
}

/* Store the sets from the least to the best. Return their number. */
static inline size_t instruction_sets(const ddl__kernels *sets[4])
{
    static const char *const names[] = {"portable", "avx2", "avx512", "neon"};
    size_t n = 0;
    for (size_t i = 0; i < 4; i++)
        if ((sets[n] = ddl__kernels_named(names[i])))
            CHECK(!strcmp(sets[n++]->name, names[i]), "%s", names[i]);
    CHECK(n && !strcmp(sets[0]->name, "portable"), "runs anywhere");
    return n;
}

/* ------------------------------------------------------------------------------------ floats */

static inline double small_decode(format f, uint32_t bits)
{
    int ones = (1 << (f.bits - 1)) - 1, size = (int)bits & ones;
    int exponent = size >> f.fraction, fraction = size & ((1 << f.fraction) - 1);
    double value = exponent == 0
                       ? ldexp(fraction, f.least - f.fraction)
                       : ldexp(fraction + (1 << f.fraction), exponent - 1 + f.least - f.fraction);
    if (f.no_infinity ? size == ones : exponent == ones >> f.fraction)
        value = fraction ? NAN : INFINITY;
    return bits >> (f.bits - 1) & 1 ? -value : value;
}

static inline uint32_t small_encode(format f, double value)
{
    int ones = (1 << (f.bits - 1)) - 1, sign = signbit(value) ? ones + 1 : 0;
    int top = f.no_infinity ? ones : ones >> f.fraction << f.fraction;
    double size = fabs(value);
    if (isnan(value) || isinf(value))
        return (uint32_t)(sign | (isnan(value) ? ones : top));
    int exponent;
    frexp(size, &exponent);
    exponent = size == 0 || exponent - 1 < f.least ? f.least : exponent - 1;
    /* rint rounds to even; a carry out of the fraction increments the exponent correctly. */
    double units = rint(ldexp(size, f.fraction - exponent));
    double bits = units + ldexp(exponent - f.least, f.fraction);
    return (uint32_t)(sign | (bits < top ? (int)bits : top));
}

static inline double float_decode(ddl_dtype dtype, const void *at)
{
    uint32_t bits = 0;
    float single;
    double value;
    if (dtype == DDL_F64)
        return memcpy(&value, at, 8), value;
    if (dtype == DDL_F32)
        return memcpy(&single, at, 4), single;
    memcpy(&bits, at, types[dtype].size); /* little endian */
    return small_decode(types[dtype].format, bits);
}

static inline void float_encode(ddl_dtype dtype, double value, void *at)
{
    float single = (float)value;
    if (dtype == DDL_F64) {
        memcpy(at, &value, 8);
    } else if (dtype == DDL_F32) {
        memcpy(at, &single, 4);
    } else {
        uint32_t bits = small_encode(types[dtype].format, value);
        memcpy(at, &bits, types[dtype].size);
    }
}

/* Return the value rounded to the type of the computation. From double to float that is as good as
 * one rounding: 53 bits are more than twice 24. */
static inline double computed(ddl_dtype dtype, double value)
{
    return dtype == DDL_F64 ? value : (double)(float)value;
}

static inline double float_step(ddl_dtype dtype, ddl_op op, double a, double b)
{
    return computed(dtype, op == DDL_MIN       ? (a < b || isnan(a) ? a : b)
                           : op == DDL_MAX     ? (a > b || isnan(a) ? a : b)
                           : op == DDL_PRODUCT ? a * b
                                               : a + b);
}

/* ---------------------------------------------------------------------------------- integers */

typedef __int128 integer;

/* Sign- or zero-extend the bits of the dtype. */
static inline integer wrap(ddl_dtype dtype, uint64_t bits)
{
    unsigned shift = 64 - 8 * (unsigned)types[dtype].size;
    return types[dtype].kind == SIGNED ? (integer)((int64_t)(bits << shift) >> shift)
                                       : (integer)(bits << shift >> shift);
}

static inline integer integer_decode(ddl_dtype dtype, const void *at)
{
    uint64_t bits = 0;
    memcpy(&bits, at, types[dtype].size); /* little endian */
    return types[dtype].kind == TRUTH ? bits != 0 : wrap(dtype, bits);
}

static inline integer integer_step(ddl_dtype dtype, ddl_op op, integer a, integer b)
{
    switch (op) {
    case DDL_SUM:
    case DDL_AVERAGE: return wrap(dtype, (uint64_t)a + (uint64_t)b);
    case DDL_MIN: return a < b ? a : b;
    case DDL_MAX: return a > b ? a : b;
    case DDL_PRODUCT: return wrap(dtype, (uint64_t)a * (uint64_t)b);
    case DDL_BIT_AND: return a & b;
    case DDL_BIT_OR: return a | b;
    case DDL_BIT_XOR: return a ^ b;
    case DDL_LOGICAL_AND: return a && b;
    case DDL_LOGICAL_OR: return a || b;
    }
    abort();
}

/* Implement the truth table of ddl_op. */
static inline integer truth_step(ddl_op op, integer a, integer b)
{
    bool any = op == DDL_SUM || op == DDL_MAX || op == DDL_BIT_OR || op == DDL_LOGICAL_OR;
    return op == DDL_BIT_XOR ? a != b : any ? a || b : a && b;
}

/* ----------------------------------------------------------------------------------- elements */

static inline void float_element(ddl_dtype dtype, ddl_op op, size_t at, char *dst,
                                 char *const *operands, size_t n, int64_t divisor)
{
    double value = float_decode(dtype, operands[0] + at);
    for (size_t k = 1; k < n; k++)
        value = float_step(dtype, op, value, float_decode(dtype, operands[k] + at));
    if (op == DDL_AVERAGE)
        value = computed(dtype, value / computed(dtype, (double)divisor));
    float_encode(dtype, value, dst + at);
}

static inline void integer_element(ddl_dtype dtype, ddl_op op, size_t at, char *dst,
                                   char *const *operands, size_t n, int64_t divisor)
{
    integer value = integer_decode(dtype, operands[0] + at);
    for (size_t k = 1; k < n; k++) {
        integer next = integer_decode(dtype, operands[k] + at);
        value = types[dtype].kind == TRUTH ? truth_step(op, value, next)
                                           : integer_step(dtype, op, value, next);
    }
    if (op == DDL_AVERAGE)
        value /= divisor;
    if (op == DDL_LOGICAL_AND || op == DDL_LOGICAL_OR)
        value = value != 0;
    memcpy(dst + at, &value, types[dtype].size);
}

static inline void reference(ddl_dtype dtype, ddl_op op, char *dst, char *const *operands, size_t n,
                             size_t count, int64_t divisor)
{
    if (types[dtype].kind == COMPLEX) {
        reference(types[dtype].part, op, dst, operands, n, 2 * count, divisor);
        return;
    }
    for (size_t at = 0; at < count * types[dtype].size; at += types[dtype].size)
        (types[dtype].kind == REAL ? float_element : integer_element)(dtype, op, at, dst, operands,
                                                                      n, divisor);
}

/* Return the index of the first element that differs, or count. Any NaN equals any other. */
static inline size_t difference(ddl_dtype dtype, const void *a, const void *b, size_t count)
{
    const size_t size = types[dtype].size;
    if (!memcmp(a, b, count * size))
        return count;
    if (types[dtype].kind == COMPLEX)
        return difference(types[dtype].part, a, b, 2 * count) / 2;
    for (size_t i = 0; i < count; i++) {
        const char *x = (const char *)a + i * size, *y = (const char *)b + i * size;
        if (memcmp(x, y, size) && !(types[dtype].kind == REAL && isnan(float_decode(dtype, x)) &&
                                    isnan(float_decode(dtype, y))))
            return i;
    }
    return count;
}

#endif
