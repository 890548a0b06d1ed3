/* SPDX-License-Identifier: Apache-2.0 */
/* matrix_values.h - the operands of ranks and the expected result of their reduction, computed by
 * plain loops in the widest types. Values repeat after PERIOD elements, so one period is enough. */
#ifndef DDL_TESTS_MATRIX_VALUES_H
#define DDL_TESTS_MATRIX_VALUES_H

#include <math.h>

#include "check.h"
#include "ddl/ddl.h"

enum { PERIOD = 1009, ELEMENT_MAX = 16 }; /* a prime: no segment or block has its length */

typedef enum values {
    ANY,   /* any bytes, to be moved */
    EXACT, /* every order of reduction gives the same: it rounds at most once, for two ranks */
    ROUGH  /* the last bits depend on the order */
} values;

typedef enum family { BOOLS, SIGNED, UNSIGNED, FLOATS, COMPLEX } family;

/* For floats: the bits of the mantissa, the exponents of normal numbers, and the limit up to which
 * eight integers have an exact sum. */
typedef struct type {
    const char *name;
    ddl_dtype dtype;
    size_t size;
    family family;
    int mantissa, lowest, highest;
    int64_t summable;
} type;

static const type types[] = {
    {"bool", DDL_BOOL, 1, BOOLS, 0, 0, 0, 0},
    {"i8", DDL_I8, 1, SIGNED, 0, 0, 0, 0},
    {"u8", DDL_U8, 1, UNSIGNED, 0, 0, 0, 0},
    {"i16", DDL_I16, 2, SIGNED, 0, 0, 0, 0},
    {"u16", DDL_U16, 2, UNSIGNED, 0, 0, 0, 0},
    {"i32", DDL_I32, 4, SIGNED, 0, 0, 0, 0},
    {"u32", DDL_U32, 4, UNSIGNED, 0, 0, 0, 0},
    {"i64", DDL_I64, 8, SIGNED, 0, 0, 0, 0},
    {"u64", DDL_U64, 8, UNSIGNED, 0, 0, 0, 0},
    {"f16", DDL_F16, 2, FLOATS, 10, -14, 15, 128},
    {"bf16", DDL_BF16, 2, FLOATS, 7, -126, 127, 16},
    {"f32", DDL_F32, 4, FLOATS, 23, -126, 127, 1 << 20},
    {"f64", DDL_F64, 8, FLOATS, 52, -1022, 1023, (int64_t)1 << 49},
    {"f8e4m3", DDL_F8_E4M3, 1, FLOATS, 3, -6, 8, 2},
    {"f8e5m2", DDL_F8_E5M2, 1, FLOATS, 2, -14, 15, 1},
    {"c64", DDL_C64, 8, COMPLEX, 23, -126, 127, 1 << 20},
    {"c128", DDL_C128, 16, COMPLEX, 52, -1022, 1023, (int64_t)1 << 49},
};
enum { TYPES = sizeof types / sizeof *types };

/* An element in the widest type: integers sign-extended in `u`, floats in `re`. */
typedef struct number {
    uint64_t u;
    double re, im;
} number;

static bool reducible(const type *t, ddl_op op)
{
    switch (t->family) {
    case BOOLS: return op != DDL_AVERAGE;
    case FLOATS: return op <= DDL_PRODUCT;
    case COMPLEX: return op <= DDL_AVERAGE;
    case SIGNED:
    case UNSIGNED: break;
    }
    return true;
}

static uint64_t mixed(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

/* Return `u` truncated to t's width, then extended again. */
static uint64_t wrapped(const type *t, uint64_t u)
{
    unsigned spare = 64 - 8 * (unsigned)t->size;
    return t->family == SIGNED ? (uint64_t)((int64_t)(u << spare) >> spare) : u << spare >> spare;
}

static double drawn_float(const type *t, ddl_op op, values kind, int size, uint64_t random)
{
    int64_t most = size == 2 ? (int64_t)2 << t->mantissa : t->summable;
    uint64_t fraction = random % ((uint64_t)1 << t->mantissa), high = random >> 54;
    double sign = random >> 63 ? -1 : 1;
    double whole = 1 + ldexp((double)fraction, -t->mantissa);
    if (kind == ROUGH)
        return op == DDL_PRODUCT ? sign * whole * (high & 1 ? 1 : 0.5) : sign * whole;
    if (op == DDL_PRODUCT)
        return sign * ldexp(1, (int)(high % 3) - 1);
    if (op == DDL_SUM || op == DDL_AVERAGE)
        return (double)((int64_t)(random % (2 * (uint64_t)most + 1)) - most);
    return sign * ldexp(whole, t->lowest + (int)(high % (unsigned)(t->highest - t->lowest)));
}

/* Return element i of rank r, of `size` ranks. */
static number drawn(const type *t, ddl_op op, values kind, int size, int r, int i)
{
    uint64_t seed = ((uint64_t)t->dtype << 8 | (uint64_t)op) << 32;
    uint64_t random = mixed(seed | (uint64_t)r << 16 | (uint64_t)i);
    number n = {.u = random};
    if (t->family == BOOLS) /* often false, and true in many ways */
        n.u = random & 256 ? random & 255 : 0;
    else if (t->family < FLOATS)
        n.u = wrapped(t, random);
    else
        n.re = drawn_float(t, op, kind, size, random);
    if (t->family == COMPLEX)
        n.im = drawn_float(t, op, kind, size, mixed(random));
    return n;
}

/* Return the nearest float of this format, ties to even, for values in its range. */
static uint32_t encoded(const type *t, double value)
{
    int e = 0;
    if (value == 0)
        return 0;
    frexp(value, &e);
    e = e - 1 < t->lowest ? t->lowest : e - 1;
    uint32_t digits = (uint32_t)rint(ldexp(fabs(value), t->mantissa - e)); /* ties to even */
    uint32_t bits = ((uint32_t)(e - t->lowest) << t->mantissa) + digits;
    return bits | (value < 0 ? 1u << (8 * t->size - 1) : 0);
}

static double decoded(const type *t, uint32_t bits)
{
    uint32_t magnitude = bits & ~(1u << (8 * t->size - 1));
    uint32_t hidden = 1u << t->mantissa, e = magnitude >> t->mantissa, digits = magnitude % hidden;
    double value = e ? ldexp(digits + hidden, t->lowest + (int)e - 1 - t->mantissa)
                     : ldexp(digits, t->lowest - t->mantissa);
    return bits == magnitude ? value : -value;
}

static void stored(const type *t, number n, void *at)
{
    uint32_t bits;
    float f[2] = {(float)n.re, (float)n.im};
    double d[2] = {n.re, n.im};
    if (t->family < FLOATS) {
        memcpy(at, &n.u, t->size); /* little-endian, as libddl is */
    } else if (t->size * (t->family == FLOATS ? 2 : 1) == 8) {
        memcpy(at, f, t->size);
    } else if (t->size >= 8) {
        memcpy(at, d, t->size);
    } else {
        bits = encoded(t, n.re);
        memcpy(at, &bits, t->size);
    }
}

static number loaded(const type *t, const void *at)
{
    number n = {0};
    float f[2] = {0};
    double d[2] = {0};
    uint32_t bits = 0;
    if (t->size * (t->family == FLOATS ? 2 : 1) == 8) {
        memcpy(f, at, t->size);
        n.re = (double)f[0], n.im = (double)f[1];
    } else if (t->size >= 8) {
        memcpy(d, at, t->size);
        n.re = d[0], n.im = d[1];
    } else {
        memcpy(&bits, at, t->size);
        n.re = decoded(t, bits);
    }
    return n;
}

static number combined_bools(ddl_op op, number a, number b)
{
    bool x = a.u, y = b.u;
    switch (op) {
    case DDL_PRODUCT:
    case DDL_MIN:
    case DDL_BIT_AND:
    case DDL_LOGICAL_AND: return (number){.u = x && y};
    case DDL_BIT_XOR: return (number){.u = x != y};
    case DDL_SUM:
    case DDL_MAX:
    case DDL_BIT_OR:
    case DDL_LOGICAL_OR:
    case DDL_AVERAGE: break;
    }
    return (number){.u = x || y};
}

static number combined_integers(const type *t, ddl_op op, number a, number b)
{
    bool less = t->family == SIGNED ? (int64_t)a.u < (int64_t)b.u : a.u < b.u;
    switch (op) {
    case DDL_SUM:
    case DDL_AVERAGE: a.u += b.u; break;
    case DDL_PRODUCT: a.u *= b.u; break;
    case DDL_MIN: a.u = less ? a.u : b.u; break;
    case DDL_MAX: a.u = less ? b.u : a.u; break;
    case DDL_BIT_AND: a.u &= b.u; break;
    case DDL_BIT_OR: a.u |= b.u; break;
    case DDL_BIT_XOR: a.u ^= b.u; break;
    case DDL_LOGICAL_AND: a.u = a.u && b.u; break;
    case DDL_LOGICAL_OR: a.u = a.u || b.u; break;
    }
    return a;
}

static number combined_floats(ddl_op op, number a, number b)
{
    if (op == DDL_PRODUCT)
        a.re *= b.re;
    else if (op == DDL_MIN || op == DDL_MAX)
        a.re = (op == DDL_MIN) == (a.re < b.re) ? a.re : b.re;
    else
        a.re += b.re, a.im += b.im;
    return a;
}

/* Divide a sum. All floats below 64 bits accumulate, hence divide, in f32. */
static double divided(const type *t, double sum, int size)
{
    return t->mantissa == 52 ? sum / size : (double)((float)sum / (float)size);
}

/* Return the reduction of `size` elements. */
static number combined(const type *t, ddl_op op, const number *n, int size)
{
    number all = n[0];
    if (t->family == BOOLS || op == DDL_LOGICAL_AND || op == DDL_LOGICAL_OR)
        all.u = all.u != 0;
    for (int r = 1; r < size; r++)
        all = t->family == BOOLS   ? combined_bools(op, all, n[r])
              : t->family < FLOATS ? combined_integers(t, op, all, n[r])
                                   : combined_floats(op, all, n[r]);
    if (t->family < FLOATS)
        all.u = wrapped(t, all.u);
    if (op != DDL_AVERAGE)
        return all;
    if (t->family == SIGNED)
        all.u = (uint64_t)((int64_t)all.u / size);
    else if (t->family == UNSIGNED)
        all.u /= (uint64_t)size;
    all.re = divided(t, all.re, size);
    all.im = divided(t, all.im, size);
    return all;
}

/* One period of every rank's elements and of their reduction. */
typedef struct patterns {
    const type *t;
    ddl_op op;
    values kind;
    int size;
    unsigned char of[16][PERIOD * ELEMENT_MAX], reduced[PERIOD * ELEMENT_MAX];
} patterns;

static void make_patterns(patterns *p, const type *t, ddl_op op, values kind, int size)
{
    if (p->t == t && p->op == op && p->kind == kind && p->size == size)
        return;
    p->t = t, p->op = op, p->kind = kind, p->size = size;
    for (int i = 0; i < PERIOD; i++) {
        number n[16];
        for (int r = 0; r < size; r++) {
            n[r] = drawn(t, op, kind, size, r, i);
            stored(t, n[r], p->of[r] + (size_t)i * t->size);
        }
        if (kind != ANY)
            stored(t, combined(t, op, n, size), p->reduced + (size_t)i * t->size);
    }
    for (int r = 0; r < size && kind == ANY; r++)
        for (int i = 0; i < PERIOD * (int)t->size; i++)
            p->of[r][i] = (unsigned char)mixed((uint64_t)r << 32 | (uint64_t)i);
}

#endif
