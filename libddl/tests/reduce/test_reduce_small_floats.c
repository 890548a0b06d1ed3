/* SPDX-License-Identifier: Apache-2.0 */
/* test_reduce_small_floats.c - conversions of fp8, f16 and bf16: the portable ones directly, over
 * all values, and those of every instruction set through its kernels. */
#include "reduce_reference.h"

/* Include the portable conversions to test them directly. */
#define ISA   test
#define WIDTH 16
#include "reduce/kernels.h"
#ifdef __SSE2__
#include <xmmintrin.h>
#endif

static const ddl__kernels *sets[4];
static size_t n_sets;

static const ddl_dtype small[] = {DDL_F8_E4M3, DDL_F8_E5M2, DDL_F16, DDL_BF16};
enum { SMALL = sizeof small / sizeof *small };

static uint32_t numbers_of(ddl_dtype dtype)
{
    return 1u << types[dtype].format.bits;
}

static float widened(ddl_dtype dtype, uint32_t bits)
{
    const u32_lanes v = {bits};
    return dtype == DDL_F8_E4M3   ? e4m3_widen(v)[0]
           : dtype == DDL_F8_E5M2 ? e5m2_widen(v)[0]
           : dtype == DDL_F16     ? f16_widen(v)[0]
                                  : ((f32_lanes)(v << 16))[0];
}

static uint32_t narrowed(ddl_dtype dtype, float f)
{
    const f32_lanes v = {f};
    return dtype == DDL_F8_E4M3   ? e4m3_narrow(v)[0]
           : dtype == DDL_F8_E5M2 ? e5m2_narrow(v)[0]
           : dtype == DDL_F16     ? f16_narrow(v)[0]
                                  : bf16_round(v)[0] >> 16;
}

static void test_values(void)
{
    static const struct {
        ddl_dtype dtype;
        uint32_t bits;
        double value;
    } known[] = {
        {DDL_F8_E4M3, 0x01, 0x1p-9},   {DDL_F8_E4M3, 0x08, 0x1p-6},   {DDL_F8_E4M3, 0x38, 1},
        {DDL_F8_E4M3, 0x7e, 448},      {DDL_F8_E4M3, 0xfe, -448},     {DDL_F8_E4M3, 0x7f, NAN},
        {DDL_F8_E5M2, 0x01, 0x1p-16},  {DDL_F8_E5M2, 0x04, 0x1p-14},  {DDL_F8_E5M2, 0x3c, 1},
        {DDL_F8_E5M2, 0x7b, 57344},    {DDL_F8_E5M2, 0x7c, INFINITY}, {DDL_F8_E5M2, 0x7d, NAN},
        {DDL_F8_E5M2, 0xfc, -INFINITY}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        double value = (double)widened(known[i].dtype, known[i].bits), expected = known[i].value;
        CHECK(value == expected || (isnan(value) && isnan(expected)), "%s %x is %g, not %g",
              types[known[i].dtype].name, known[i].bits, value, expected);
    }
    CHECK(narrowed(DDL_F8_E4M3, 464.0f) == 0x7e, "half way to 480 is even");
    CHECK(narrowed(DDL_F8_E4M3, -464.1f) == 0xff, "beyond it is NaN");
    CHECK(narrowed(DDL_F8_E4M3, INFINITY) == 0x7f, "infinity is NaN");
    CHECK(narrowed(DDL_F8_E5M2, 61439.0f) == 0x7b, "below half way to 65536");
    CHECK(narrowed(DDL_F8_E5M2, 61440.0f) == 0x7c, "half way is even, infinity");
}

static void test_widen(void)
{
    for (int t = 0; t < SMALL; t++)
        for (uint32_t bits = 0; bits < numbers_of(small[t]); bits++) {
            float value = widened(small[t], bits), expected;
            expected = (float)small_decode(types[small[t]].format, bits);
            CHECK(difference(DDL_F32, &value, &expected, 1), "%s %x is %a, not %a",
                  types[small[t]].name, bits, (double)expected, (double)value);
        }
}

static void check_narrow(ddl_dtype dtype, uint32_t bits)
{
    float value;
    memcpy(&value, &bits, 4);
    uint64_t expected = small_encode(types[dtype].format, value), got = narrowed(dtype, value);
    CHECK(difference(dtype, &got, &expected, 1), "%s of %a is %x, not %x", types[dtype].name,
          (double)value, (unsigned)expected, (unsigned)got);
}

/* Narrow f32 values at, before and after every f16 and every midpoint between neighbours, and one
 * value in between. The other formats have fewer digits, so all their numbers and midpoints are
 * among these. */
static void test_narrow(void)
{
    for (uint32_t middle = 0; middle < 0x80000000; middle += 0x1000)
        for (uint32_t i = 0; i < 4; i++) {
            uint64_t random = random_bits();
            uint32_t bits = i < 3 ? middle + i - 1 : middle + (random & 0xfff);
            bits ^= random >> 32 & 0x80000000;
            for (int t = 0; t < SMALL; t++)
                check_narrow(small[t], bits);
        }
    for (int i = 0; i < 1000000; i++)
        check_narrow(small[i % 2], (uint32_t)(random_bits() >> 32));
}

/* Combine all numbers of a format with one other, through the kernels of every instruction set. */
static void check_pairs(ddl_dtype dtype, uint32_t with)
{
    static char all[0x20000], other[0x20000], expected[0x20000], result[0x20000];
    char *operands[] = {all, other};
    const size_t size = types[dtype].size, count = numbers_of(dtype);
    for (uint32_t bits = 0; bits < count; bits++) {
        memcpy(all + bits * size, &bits, size);
        memcpy(other + bits * size, &with, size);
    }
    for (ddl_op op = DDL_SUM; op <= DDL_PRODUCT; op++) {
        reference(dtype, op, expected, operands, 2, count, 3);
        for (size_t i = 0; i < n_sets; i++) {
            sets[i]->reduce[dtype][op](result, (const void *const *)operands, 2, count, 3);
            size_t at = difference(dtype, result, expected, count);
            CHECK(at == count, "%s %s op %d of %zx, %x", sets[i]->name, types[dtype].name, (int)op,
                  at, with);
        }
    }
}

static void test_pairs(void)
{
    static const uint16_t f16s[] = {0x0001, 0x0203, 0x03ff, 0x0400, 0x1401, 0x2c03, 0x3555,
                                    0x3bff, 0x3c01, 0x4c00, 0x4bff, 0x7bff, 0x8001, 0xb800,
                                    0xbc03, 0xcbff, 0xfbff, 0x7c00, 0xfe00};
    for (size_t i = 0; i < sizeof f16s / sizeof *f16s; i++)
        check_pairs(DDL_F16, f16s[i]);
    for (uint32_t with = 0; with < 256; with++) {
        check_pairs(DDL_F8_E4M3, with);
        check_pairs(DDL_F8_E5M2, with);
    }
}

int main(void)
{
    n_sets = instruction_sets(sets);
    test_values();
    test_widen();
#ifdef __SSE2__
    _mm_setcsr(_mm_getcsr() | 0x8040);  /* flush subnormals to zero, as frameworks may */
    for (int t = 0; t < SMALL - 1; t++) /* a bf16 has f32's subnormals */
        for (uint32_t bits = 0; bits < numbers_of(small[t]); bits++) {
            float value = widened(small[t], bits);
            uint64_t back = narrowed(small[t], value), same = bits;
            CHECK(difference(small[t], &back, &same, 1), "%s %x", types[small[t]].name, bits);
        }
    test_pairs();
    _mm_setcsr(_mm_getcsr() & ~0x8040u);
#endif
    test_narrow();
    test_pairs();
}
