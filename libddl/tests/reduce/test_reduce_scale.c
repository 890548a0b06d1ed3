/* SPDX-License-Identifier: Apache-2.0 */
/* test_reduce_scale.c - the scale kernels of every instruction set, to the bit. */
#include "reduce_reference.h"

enum { COUNT = 3001, BYTES = COUNT * 16, OFFSETS = 3 };

static const double factors[] = {1,    -1,       0.5, 1 / 3.0, 3,      0x1p-20,
                                 1e30, INFINITY, NAN, 0,       1e-310, 1 + 0x1p-30};
enum { FACTORS = sizeof factors / sizeof *factors };

static void reference_scale(ddl_dtype dtype, char *dst, const char *src, size_t count,
                            double factor)
{
    if (types[dtype].kind == COMPLEX) {
        reference_scale(types[dtype].part, dst, src, 2 * count, factor);
        return;
    }
    for (size_t at = 0; at < count * types[dtype].size; at += types[dtype].size) {
        double value = float_decode(dtype, src + at) * computed(dtype, factor);
        float_encode(dtype, computed(dtype, value), dst + at);
    }
}

static void check(const ddl__kernels *kernels, ddl_dtype dtype, const char *data, double factor,
                  size_t count)
{
    static char from[BYTES + OFFSETS], to[BYTES + OFFSETS + 1], expected[BYTES];
    const size_t bytes = count * types[dtype].size;
    char *src = from + random_bits() % OFFSETS, *dst = to + random_bits() % OFFSETS;
    memcpy(src, data, bytes);
    memset(to, 0x5a, sizeof to);
    reference_scale(dtype, expected, src, count, factor);
    kernels->scale[dtype](dst, src, count, factor);
    size_t at = difference(dtype, dst, expected, count);
    CHECK(at == count && dst[bytes] == 0x5a && !memcmp(src, data, bytes),
          "%s %s times %g: element %zu of %zu", kernels->name, types[dtype].name, factor, at,
          count);
    kernels->scale[dtype](src, src, count, factor); /* in place */
    at = difference(dtype, src, expected, count);
    CHECK(at == count, "%s %s times %g in place: element %zu of %zu", kernels->name,
          types[dtype].name, factor, at, count);
}

int main(void)
{
    static const size_t counts[] = {0, 1, 5, 64, 333, 1025, COUNT};
    static char data[BYTES];
    const ddl__kernels *sets[4];
    const size_t n_sets = instruction_sets(sets);
    for (ddl_dtype dtype = DDL_BOOL; dtype <= DDL_C128; dtype++) {
        if (types[dtype].kind != REAL && types[dtype].kind != COMPLEX)
            continue;
        for (size_t i = 0; i < BYTES; i += 8) { /* any bits, and numbers */
            uint64_t bits = random_bits();
            memcpy(data + i, &bits, 8);
            if (i % 16 && types[dtype].size <= 8 && types[dtype].kind == REAL)
                float_encode(dtype, (double)(int64_t)bits * 0x1p-60, data + i);
        }
        for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
            for (int f = 0; f < FACTORS; f++)
                for (size_t i = 0; i < n_sets; i++)
                    check(sets[i], dtype, data, factors[f], counts[c]);
    }
}
