/* SPDX-License-Identifier: Apache-2.0 */
/* test_reduce_pack.c - the wire formats of every instruction set, compared byte for byte with a
 * scalar reference; the error of a round trip; and that packing what was unpacked changes
 * nothing. */
#include <float.h>

#include "reduce_reference.h"

enum { MOST = 700, ROOM = 2 * MOST, CANARY = 0x5a, HALF = DDL__PACK_BLOCK / 2 };

/* The smallest power of two with which no integer exceeds the limit. */
static double scale_for(double greatest, int limit)
{
    double scale = 0x1p-126;
    while (greatest > limit * scale && 2 * limit * scale <= FLT_MAX)
        scale *= 2;
    return scale;
}

static int integer_of(float x, double scale, int limit)
{
    if (scale == INFINITY)
        return isnan(x) ? -limit - 1 : isfinite(x) ? 0 : x > 0 ? limit : -limit;
    return (int)nearbyint(fmax(-limit, fmin(x / scale, limit)));
}

static float value_of(int code, double scale, int limit)
{
    if (scale == INFINITY)
        return code < -limit ? NAN : code ? (float)code * INFINITY : 0;
    return (float)(code * scale);
}

/* Pack one block of up to DDL__PACK_BLOCK elements, and round them. Return the bytes. */
static size_t pack_block(unsigned char *to, const float *block, float *rounded, size_t n, int bits)
{
    const int limit = bits == 8 ? 127 : 7;
    double greatest = 0;
    for (size_t i = 0; i < n; i++)
        greatest = isfinite(block[i]) ? fmax(greatest, fabs((double)block[i])) : INFINITY;
    double scale = isinf(greatest) ? INFINITY : scale_for(greatest, limit);
    size_t bytes = bits == 8 || n < HALF ? n : HALF;
    memset(to, 0, 1 + bytes);
    to[0] = isinf(scale) ? 255 : (unsigned char)(ilogb(scale) + 127);
    for (size_t i = 0; i < n; i++) {
        int code = integer_of(block[i], scale, limit);
        rounded[i] = value_of(code, scale, limit);
        if (bits == 8)
            to[1 + i] = (unsigned char)code;
        else
            to[1 + i % HALF] |= (unsigned char)((code & 15) << (i < HALF ? 0 : 4));
    }
    return 1 + bytes;
}

static float random_value(double magnitude)
{
    static const float specials[] = {0,         -0.0f,      FLT_MAX, -FLT_MAX, 0x1p-126f,
                                     0x1p-149f, -0x1p-140f, 63.5f,   127,      -7};
    uint64_t bits = random_bits();
    return bits % 50 == 0 ? specials[bits / 50 % 10]
                          : (float)((double)(int64_t)bits * 0x1p-63 * magnitude);
}

static void fill(float *x, size_t n)
{
    static const float wild[] = {NAN, INFINITY, -INFINITY};
    for (size_t i = 0; i < n; i += DDL__PACK_BLOCK) {
        double magnitude = ldexp(1, (int)(random_bits() % 270) - 145);
        for (size_t j = i; j < n && j < i + DDL__PACK_BLOCK; j++)
            x[j] = random_value(magnitude);
        if (random_bits() % 8 == 0)
            x[i] = wild[random_bits() % 3];
    }
}

static void check_equal(const float *got, const float *want, size_t n, const char *what)
{
    for (size_t i = 0; i < n; i++)
        CHECK(got[i] == want[i] || (isnan(got[i]) && isnan(want[i])),
              "%s: element %zu is %g, not %g", what, i, (double)got[i], (double)want[i]);
}

static void check_one(const ddl__kernels *kernels, ddl_wire wire, size_t n, size_t shift)
{
    const int bits = wire == DDL_WIRE_INT8 ? 8 : 4;
    static float x[MOST], rounded[MOST], unpacked[MOST + 4];
    static unsigned char want[ROOM], got[ROOM + 8];
    size_t bytes = 0;
    fill(x, n);
    for (size_t i = 0; i < n; i += DDL__PACK_BLOCK)
        bytes += pack_block(want + bytes, x + i, rounded + i,
                            n - i < DDL__PACK_BLOCK ? n - i : DDL__PACK_BLOCK, bits);
    CHECK(bytes == ddl__packed_bytes(n, (unsigned)bits), "%zu elements: %zu bytes", n, bytes);
    memset(got, CANARY, sizeof got);
    kernels->pack[wire](got + shift, x, n);
    CHECK(!memcmp(got + shift, want, bytes) && got[shift + bytes] == CANARY,
          "%s: %zu elements of %d", kernels->name, n, bits);
    unpacked[shift + n] = CANARY;
    kernels->unpack[wire](unpacked + shift, got + shift, n);
    check_equal(unpacked + shift, rounded, n, kernels->name);
    CHECK(unpacked[shift + n] == CANARY, "%s writes behind %zu elements", kernels->name, n);
    kernels->pack[wire](got, unpacked + shift, n);
    CHECK(!memcmp(got, want, bytes), "%s: %zu elements of %d change when packed again",
          kernels->name, n, bits);
}

/* The format bf16: half a step of rounding at most, and no change when packed again. */
static void check_bf16(const ddl__kernels *kernels, size_t n, size_t shift)
{
    static float x[MOST], unpacked[MOST + 4];
    static unsigned char packed[2 * MOST + 8], again[2 * MOST + 8];
    const size_t bytes = ddl__packed_bytes(n, 16);
    fill(x, n);
    memset(packed, CANARY, sizeof packed);
    kernels->pack[DDL_WIRE_BF16](packed + shift, x, n);
    CHECK(bytes == 2 * n && packed[shift + bytes] == CANARY, "%zu bytes", bytes);
    unpacked[shift + n] = CANARY;
    kernels->unpack[DDL_WIRE_BF16](unpacked + shift, packed + shift, n);
    CHECK(unpacked[shift + n] == CANARY, "%s writes behind %zu elements", kernels->name, n);
    for (size_t i = 0; i < n; i++) {
        float want = x[i], got = unpacked[shift + i];
        bool overflows = isfinite(want) && fabsf(want) > 0x1.fep127f;
        CHECK(!isfinite(want) || overflows
                  ? isnan(want) ? isnan(got)
                    : overflows ? fabsf(got) >= 0x1.fep127f
                                : got == want
                  : fabs((double)got - want) <= fmax(fabs((double)want) / 256, 0x1p-134),
              "%s: %g, not %g", kernels->name, (double)got, (double)want);
    }
    kernels->pack[DDL_WIRE_BF16](again, unpacked + shift, n);
    CHECK(!memcmp(again, packed + shift, bytes), "%s: %zu elements change when packed again",
          kernels->name, n);
}

int main(void)
{
    const ddl__kernels *sets[4];
    size_t n_sets = instruction_sets(sets);
    for (size_t i = 0; i < n_sets; i++)
        for (ddl_wire wire = DDL_WIRE_INT8; wire <= DDL_WIRE_INT4; wire++)
            for (size_t n = 1; n < MOST; n += n < 300 ? 1 : 17)
                for (size_t shift = 0; shift < 4; shift++) {
                    check_one(sets[i], wire, n, shift);
                    check_bf16(sets[i], n, shift);
                }
    printf("%zu instruction sets: all equal to the reference\n", n_sets);
    return 0;
}
