/* SPDX-License-Identifier: Apache-2.0 */
/* pack.h - wire formats of f32: bf16, and blocks of DDL__PACK_BLOCK integers with a common scale.
 *
 * Part of kernels.h. A packed block consists of one byte, the exponent of its scale as in an f32,
 * followed by an integer for each element. An integer has 8 bits, or 4 bits; in the latter case two
 * elements that are half a block apart share a byte. The scale is the smallest power of two with
 * which no integer exceeds the limit, 127 or 7, so packing an unpacked block gives the same bytes.
 * Scaling is exact, and rounding is to nearest even; elements near the greatest f32 are rounded
 * down, not to infinity. A block with an infinity or a NaN has the scale 255. Such a block keeps
 * only its infinities and NaNs; its other elements become 0. */

enum { LANES_OF_F32 = WIDTH / 4 };

/* Return the exponent of the scale of a block, whose greatest magnitude has these bits. */
INLINE uint8_t scale_of(uint32_t greatest, int bits)
{
    /* the limits are 1.984375 * 2^6 and 1.75 * 2^2 */
    const int exponent = bits == 8 ? 6 : 2;
    const uint32_t fraction = bits == 8 ? 0x7e0000 : 0x600000;
    int scale = (int)(greatest >> 23) - exponent + ((greatest & 0x7fffff) > fraction);
    return greatest >= 0x7f800000 ? DDL__PACK_SPECIAL : (uint8_t)(scale < 1 ? 1 : scale);
}

INLINE float power(uint32_t exponent)
{
    float result;
    exponent <<= 23;
    memcpy(&result, &exponent, sizeof result);
    return result;
}

/* Return the bits of the greatest magnitude of a block. */
INLINE uint32_t greatest_of(const float *block)
{
    i32_lanes most = {0};
    for (int i = 0; i < DDL__PACK_BLOCK; i += LANES_OF_F32) {
        i32_lanes magnitude = (i32_lanes)f32_load((const char *)(block + i)) & 0x7fffffff;
        most = SELECT(magnitude > most, magnitude, most);
    }
    int32_t greatest = 0;
    for (int i = 0; i < LANES_OF_F32; i++)
        greatest = most[i] > greatest ? most[i] : greatest;
    return (uint32_t)greatest;
}

static SHARED void pack_special(int8_t *to, const float *block, int limit)
{
    for (int i = 0; i < DDL__PACK_BLOCK; i++)
        to[i] = (int8_t)(block[i] != block[i]       ? -limit - 1
                         : block[i] - block[i] == 0 ? 0
                         : block[i] > 0             ? limit
                                                    : -limit);
}

static SHARED void unpack_special(float *to, const int8_t *integers, int limit)
{
    for (int i = 0; i < DDL__PACK_BLOCK; i++)
        to[i] = integers[i] < -limit    ? __builtin_nanf("")
                : integers[i] == limit  ? __builtin_inff()
                : integers[i] == -limit ? -__builtin_inff()
                                        : 0;
}

INLINE void write_integers(int8_t *restrict to, const float *restrict block, uint8_t scale)
{
    const float inverse = power(254 - scale);
    const float rounder = 12582912; /* 1.5 * 2^23: adding it rounds to an integer, because the sum
                                       has no bits for fractions */
    for (int i = 0; i < DDL__PACK_BLOCK; i++) {
        float rounded = block[i] * inverse + rounder;
        int32_t lane;
        memcpy(&lane, &rounded, sizeof lane);
        to[i] = (int8_t)(lane - 0x4b400000);
    }
}

/* Pack a block whose greatest element would be rounded up to infinity: limit the elements to the
 * greatest that can be unpacked. */
static SHARED uint8_t pack_huge(int8_t *to, const float *block, uint8_t scale, int limit)
{
    float limited[DDL__PACK_BLOCK];
    const float most = (float)limit * power(scale);
    for (int i = 0; i < DDL__PACK_BLOCK; i++)
        limited[i] = block[i] > most ? most : block[i] < -most ? -most : block[i];
    write_integers(to, limited, scale);
    return scale;
}

/* Write the integers of a block as bytes, and return its scale. */
INLINE uint8_t pack_bytes(int8_t *restrict to, const float *restrict block, int bits)
{
    const int limit = bits == 8 ? 127 : 7;
    const uint8_t highest = bits == 8 ? 248 : 252;
    uint8_t scale = scale_of(greatest_of(block), bits);
    if (scale == DDL__PACK_SPECIAL)
        pack_special(to, block, limit);
    else if (scale > highest)
        return pack_huge(to, block, highest, limit);
    else
        write_integers(to, block, scale);
    return scale;
}

INLINE void unpack_bytes(float *restrict to, uint8_t scale, const int8_t *restrict integers,
                         int bits)
{
    if (scale == DDL__PACK_SPECIAL) {
        unpack_special(to, integers, bits == 8 ? 127 : 7);
        return;
    }
    const float factor = power(scale);
    for (int i = 0; i < DDL__PACK_BLOCK; i++)
        to[i] = (float)integers[i] * factor;
}

enum { HALF_BLOCK = DDL__PACK_BLOCK / 2 };

/* Pack a whole block into its bytes of memory. */
INLINE void pack_block(uint8_t *to, const float *block, int bits)
{
    int8_t integers[DDL__PACK_BLOCK];
    if (bits == 8) {
        to[0] = pack_bytes((int8_t *)to + 1, block, bits);
        return;
    }
    to[0] = pack_bytes(integers, block, bits);
    for (int i = 0; i < HALF_BLOCK; i++)
        to[1 + i] = (uint8_t)((integers[i] & 15) | (uint8_t)integers[HALF_BLOCK + i] << 4);
}

INLINE void unpack_block(float *to, const uint8_t *from, int bits)
{
    int8_t integers[DDL__PACK_BLOCK];
    if (bits == 8) {
        unpack_bytes(to, from[0], (const int8_t *)from + 1, bits);
        return;
    }
    for (int i = 0; i < HALF_BLOCK; i++) {
        integers[i] = (int8_t)(((from[1 + i] & 15) ^ 8) - 8);
        integers[HALF_BLOCK + i] = (int8_t)((from[1 + i] >> 4 ^ 8) - 8);
    }
    unpack_bytes(to, from[0], integers, bits);
}

/* The functions of a wire format. Shorter blocks are processed in copies that end with zeros. */
#define PACKED(name, bits)                                                                         \
    static void name##_pack(void *span, const float *src, size_t count)                            \
    {                                                                                              \
        uint8_t *to = span;                                                                        \
        for (; count >= DDL__PACK_BLOCK; count -= DDL__PACK_BLOCK) {                               \
            pack_block(to, src, bits);                                                             \
            src += DDL__PACK_BLOCK;                                                                \
            to += 1 + DDL__PACK_BLOCK * bits / 8;                                                  \
        }                                                                                          \
        if (!count)                                                                                \
            return;                                                                                \
        float block[DDL__PACK_BLOCK] = {0};                                                        \
        uint8_t packed[1 + DDL__PACK_BLOCK * bits / 8];                                            \
        memcpy(block, src, count * sizeof *src);                                                   \
        pack_block(packed, block, bits);                                                           \
        memcpy(to, packed, ddl__packed_bytes(count, bits));                                        \
    }                                                                                              \
    static void name##_unpack(float *dst, const void *span, size_t count)                          \
    {                                                                                              \
        const uint8_t *from = span;                                                                \
        for (; count >= DDL__PACK_BLOCK; count -= DDL__PACK_BLOCK) {                               \
            unpack_block(dst, from, bits);                                                         \
            dst += DDL__PACK_BLOCK;                                                                \
            from += 1 + DDL__PACK_BLOCK * bits / 8;                                                \
        }                                                                                          \
        if (!count)                                                                                \
            return;                                                                                \
        float block[DDL__PACK_BLOCK];                                                              \
        uint8_t packed[1 + DDL__PACK_BLOCK * bits / 8] = {0};                                      \
        memcpy(packed, from, ddl__packed_bytes(count, bits));                                      \
        unpack_block(block, packed, bits);                                                         \
        memcpy(dst, block, count * sizeof *dst);                                                   \
    }

PACKED(int8, 8)
PACKED(int4, 4)

/* Unpack bf16, which has no blocks. bf16_from_f32 packs it. */
static void bf16_unpack(float *restrict dst, const void *span, size_t count)
{
    const char *from = span;
    for (size_t i = 0; i < count; i++) {
        uint16_t upper;
        memcpy(&upper, from + i * sizeof upper, sizeof upper);
        uint32_t bits = (uint32_t)upper << 16;
        memcpy(&dst[i], &bits, sizeof bits);
    }
}
