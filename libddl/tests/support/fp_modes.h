/* SPDX-License-Identifier: Apache-2.0 */
/* fp_modes.h - floating-point modes other than the library's, and numbers whose sums depend on
 * them. */
#ifndef DDL_TESTS_FP_MODES_H
#define DDL_TESTS_FP_MODES_H

#include "base/fp_mode.h"
#include "reduce_reference.h"

/* Modes: flushing subnormals, of operands (x86) and results; rounding up; both. */
#if defined(__x86_64__)
enum { MODE_FLUSH = 0x9fc0, MODE_UP = 0x5f80, MODE_FLUSH_UP = 0xdfc0, HAS_MODES = 1 };
#elif defined(__aarch64__)
enum { MODE_FLUSH = 1 << 24, MODE_UP = 1 << 22, MODE_FLUSH_UP = 5 << 22, HAS_MODES = 1 };
#else
enum { MODE_FLUSH, MODE_UP, MODE_FLUSH_UP, HAS_MODES = 0 };
#endif

/* Fill in numbers of both signs with all bits of the fraction in use, of which half are
 * subnormal. */
static inline void fill_mixed(ddl_dtype dtype, char *data, size_t count)
{
    const traits *t = &types[dtype];
    if (t->kind == COMPLEX) {
        fill_mixed(t->part, data, 2 * count);
        return;
    }
    for (size_t i = 0; i < count; i++) {
        double fraction = (double)(random_bits() >> 11) * 0x1p-53 + (random_bits() % 3 ? 0 : 1);
        int exponent = i % 2 ? (int)(random_bits() % 4) : t->format.least;
        double value = ldexp(fraction, exponent);
        float_encode(dtype, random_bits() % 4 ? value : -value, data + i * t->size);
    }
}

static inline bool is_float(ddl_dtype dtype)
{
    return types[dtype].kind == REAL || types[dtype].kind == COMPLEX;
}

#endif
