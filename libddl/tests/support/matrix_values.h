/* SPDX-License-Identifier: Apache-2.0 */
/* matrix_values.h - the operands of ranks and the expected result of their reduction. Values repeat
 * after PERIOD elements, so one period is enough. */
#ifndef DDL_TESTS_MATRIX_VALUES_H
#define DDL_TESTS_MATRIX_VALUES_H

#include "reduce_reference.h"

enum { PERIOD = 1009, ELEMENT_MAX = 16 }; /* a prime: no segment or block has its length */

typedef enum values {
    ANY,   /* any bytes, to be moved */
    EXACT, /* every order of reduction gives the same: it rounds at most once, for two ranks */
    ROUGH  /* the last bits depend on the order */
} values;

static uint64_t mixed(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

/* Return the floating-point type of the element or its parts. */
static ddl_dtype part_of(ddl_dtype dtype)
{
    return types[dtype].kind == COMPLEX ? types[dtype].part : dtype;
}

static double drawn_float(format f, ddl_op op, values how, int size, uint64_t random)
{
    /* Up to this limit eight integers have an exact sum. */
    int64_t summable = f.fraction > 3 ? (int64_t)1 << (f.fraction - 3) : 1;
    int64_t most = size == 2 ? (int64_t)2 << f.fraction : summable;
    uint64_t fraction = random % ((uint64_t)1 << f.fraction), high = random >> 54;
    double sign = random >> 63 ? -1 : 1;
    double whole = 1 + ldexp((double)fraction, -f.fraction);
    if (how == ROUGH)
        return op == DDL_PRODUCT ? sign * whole * (high & 1 ? 1 : 0.5) : sign * whole;
    if (op == DDL_PRODUCT)
        return sign * ldexp(1, (int)(high % 3) - 1);
    if (op == DDL_SUM || op == DDL_AVERAGE)
        return (double)((int64_t)(random % (2 * (uint64_t)most + 1)) - most);
    return sign * ldexp(whole, f.least + (int)(high % (unsigned)(1 - 2 * f.least)));
}

/* Write element i of rank r, of `size` ranks. */
static void draw(ddl_dtype dtype, ddl_op op, values how, int size, int r, int i, char *at)
{
    ddl_dtype part = part_of(dtype);
    uint64_t seed = ((uint64_t)dtype << 8 | (uint64_t)op) << 32;
    uint64_t random = mixed(seed | (uint64_t)r << 16 | (uint64_t)i);
    if (types[dtype].kind == TRUTH) /* often false, and true in many ways */
        random = random & 256 ? random & 255 : 0;
    if (types[dtype].kind < REAL)
        memcpy(at, &random, types[dtype].size);
    else
        for (size_t k = 0; k < types[dtype].size; k += types[part].size, random = mixed(random))
            float_encode(part, drawn_float(types[part].format, op, how, size, random), at + k);
}

/* One period of every rank's elements and of their reduction. */
typedef struct patterns {
    ddl_dtype dtype;
    ddl_op op;
    values how;
    int size;
    unsigned char of[16][PERIOD * ELEMENT_MAX], reduced[PERIOD * ELEMENT_MAX];
} patterns;

static void make_patterns(patterns *p, ddl_dtype dtype, ddl_op op, values how, int size)
{
    if (p->dtype == dtype && p->op == op && p->how == how && p->size == size)
        return;
    p->dtype = dtype, p->op = op, p->how = how, p->size = size;
    char *operands[16];
    int bytes = (int)types[dtype].size;
    for (int r = 0; r < size; r++) {
        operands[r] = (char *)p->of[r];
        for (int i = 0; i < PERIOD && how != ANY; i++)
            draw(dtype, op, how, size, r, i, operands[r] + i * bytes);
        for (int i = 0; i < PERIOD * bytes && how == ANY; i++)
            p->of[r][i] = (unsigned char)mixed((uint64_t)r << 32 | (uint64_t)i);
    }
    if (how != ANY)
        reference(dtype, op, (char *)p->reduced, operands, (size_t)size, PERIOD, size);
}

#endif
