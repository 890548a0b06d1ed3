/* SPDX-License-Identifier: Apache-2.0 */
/* convert.h - lanes of every dtype, and conversions of small floats to f32 and back.
 *
 * Part of kernels.h, which explains WIDTH. Conversions round to nearest even. They are exact even
 * if the calling thread flushes subnormals to zero, because no subnormal f32 occurs. */
#include <stdint.h>

#define INLINE static inline __attribute__((always_inline))

/* For each dtype: the type of the computation, the type of sums and products (in which integers
 * wrap), the type of quotients, and the size in memory. A quotient of integers of up to 32 bits is
 * computed in a float type with at least twice the precision. It then never rounds up to the next
 * integer, so truncation gives the correct result, and many lanes are divided at once. */
#define TYPE(t, element, wrapping, quotient, size)                                                 \
    typedef element t##_element;                                                                   \
    typedef quotient t##_quotient;                                                                 \
    typedef element t##_lanes __attribute__((vector_size(WIDTH)));                                 \
    typedef wrapping t##_wrapping __attribute__((vector_size(WIDTH)));                             \
    enum { t##_size = size };
TYPE(i8, int8_t, uint8_t, float, 1)
TYPE(u8, uint8_t, uint8_t, float, 1)
TYPE(i16, int16_t, uint16_t, float, 2)
TYPE(u16, uint16_t, uint16_t, float, 2)
TYPE(i32, int32_t, uint32_t, double, 4)
TYPE(u32, uint32_t, uint32_t, double, 4)
TYPE(i64, int64_t, uint64_t, int64_t, 8)
TYPE(u64, uint64_t, uint64_t, uint64_t, 8)
TYPE(f16, float, float, float, 2)
TYPE(bf16, float, float, float, 2)
TYPE(f32, float, float, float, 4)
TYPE(f64, double, double, double, 8)
typedef uint16_t half_lanes __attribute__((vector_size(WIDTH / 2)));

/* mask ? a : b, lane by lane. */
#define SELECT(mask, a, b)                                                                         \
    ((__typeof__(a))(((__typeof__(mask))(a) & (mask)) | ((__typeof__(mask))(b) & ~(mask))))

/* Compare magnitudes below 2^31: signed comparisons are cheaper. */
INLINE i32_lanes below(u32_lanes magnitude, int32_t bound)
{
    return (i32_lanes)magnitude < bound;
}

/* Properties of a format with `bits` bits, of which `fraction` are the fraction: its smallest
 * normal number as f32 bits, and the number of bits by which its fraction is shorter than that of
 * f32. */
#define LEAST(bits, fraction) (uint32_t)((129 - (1 << ((bits) - (fraction)-2))) << 23)
#define DROP(fraction)        (23 - (fraction))

/* Widen the lowest bits of each lane. Magnitudes of at least `limit` are infinity and NaN. */
INLINE f32_lanes widen(u32_lanes small, int bits, int fraction, int32_t limit)
{
    const uint32_t least = LEAST(bits, fraction);
    u32_lanes magnitude = small & ((1u << (bits - 1)) - 1), moved = magnitude << DROP(fraction);
    u32_lanes normal = moved + (least - (1u << 23));
    u32_lanes tiny = (u32_lanes)((f32_lanes)(moved + least) - (f32_lanes)((u32_lanes){0} + least));
    u32_lanes wide = SELECT(below(magnitude, 1 << fraction), tiny, normal);
    wide |= (u32_lanes)~below(magnitude, limit) & 0x7f800000;
    return (f32_lanes)(wide | (small & 1u << (bits - 1)) << (32 - bits));
}

INLINE f32_lanes f16_widen(u32_lanes half)
{
    return widen(half, 16, 10, 0x7c00);
}

INLINE f32_lanes e5m2_widen(u32_lanes byte)
{
    return widen(byte, 8, 2, 0x7c);
}

INLINE f32_lanes e4m3_widen(u32_lanes byte)
{
    return widen(byte, 8, 3, 0x7f);
}

/* Narrow to the lowest bits of each lane. Magnitudes of at least `limit`, as f32 bits, become
 * `special`. */
INLINE u32_lanes narrow(f32_lanes f, int bits, int fraction, int32_t limit, u32_lanes special)
{
    const uint32_t least = LEAST(bits, fraction), drop = DROP(fraction);
    u32_lanes magnitude = (u32_lanes)f & 0x7fffffff;
    u32_lanes normal = magnitude - (least - (1u << 23)) + ((1u << (drop - 1)) - 1);
    normal = (normal + (magnitude >> drop & 1)) >> drop;
    /* Neighbouring floats at this value are as far apart as subnormals of the narrow format, so
     * adding it rounds to a multiple of them. */
    const u32_lanes coarse = (u32_lanes){0} + least + (drop << 23);
    u32_lanes tiny = (u32_lanes)((f32_lanes)magnitude + (f32_lanes)coarse) - coarse;
    u32_lanes small = SELECT(below(magnitude, (int32_t)least), tiny, normal);
    small = SELECT(below(magnitude, limit), small, special);
    return small | ((u32_lanes)f >> (32 - bits) & 1u << (bits - 1));
}

INLINE u32_lanes f16_narrow(f32_lanes f)
{
    u32_lanes payload = 0x200 | ((u32_lanes)f >> 13 & 0x3ff);
    return narrow(f, 16, 10, 143 << 23, 0x7c00 | ((u32_lanes)(f != f) & payload));
}

INLINE u32_lanes e5m2_narrow(f32_lanes f)
{
    return narrow(f, 8, 2, 143 << 23, 0x7c | ((u32_lanes)(f != f) & 3));
}

/* The limit is 480, which would be the next number after 448, the largest one. */
INLINE u32_lanes e4m3_narrow(f32_lanes f)
{
    return narrow(f, 8, 3, 0x43f00000, (u32_lanes){0} + 0x7f);
}

/* Round to bfloat16, which is the upper half of the result. */
INLINE u32_lanes bf16_round(f32_lanes f)
{
    u32_lanes bits = (u32_lanes)f;
    u32_lanes rounded = bits + 0x7fff + (bits >> 16 & 1);
    u32_lanes quiet = bits | 1 << 22;
    return SELECT(f != f, quiet, rounded);
}
