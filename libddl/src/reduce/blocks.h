/* SPDX-License-Identifier: Apache-2.0 */
/* blocks.h - small floats in blocks: widened to f32 on the stack, reduced by the kernels of f32,
 * and narrowed once.
 *
 * Part of kernels.h, for fp8, and for f16 on CPUs without conversion instructions. One conversion
 * in each direction serves all ops. A vector widens to two or four vectors of f32. Every second or
 * fourth element is put into the same vector, so that no element has to change its lane. The
 * elements of a block in f32 are therefore in another order, and the block is padded with zeros to
 * whole vectors. Neither matters for element-wise work. */
enum { BLOCK = 1024, VECTORS = BLOCK * f32_size / WIDTH }; /* two blocks stay in the L1 cache */

typedef struct small_float {
    void (*widen)(f32_lanes *to, const char *from, size_t bytes);
    void (*narrow)(char *to, const f32_lanes *from, size_t bytes);
    size_t size;
} small_float;

#define UNROLLED _Pragma("GCC unroll 4") /* so that shifts are by constants */

/* Round up to whole vectors. */
static size_t filled(size_t bytes)
{
    return (bytes + WIDTH - 1) / WIDTH * WIDTH;
}

static SHARED void block_reduce(char *dst, const void *const *operands, size_t n, size_t count,
                                int64_t divisor, const small_float *type, ddl__reduce_fn *step,
                                ddl__reduce_fn *last)
{
    f32_lanes result[VECTORS], next[VECTORS];
    const void *const both[] = {result, next};
    const size_t bytes = count * type->size, block = BLOCK * type->size;
    for (size_t at = 0; at < bytes; at += block) {
        const size_t length = bytes - at < block ? bytes - at : block;
        const size_t elements = filled(length) / type->size;
        type->widen(result, (const char *)operands[0] + at, length);
        for (size_t k = 1; k < n; k++) {
            type->widen(next, (const char *)operands[k] + at, length);
            (k + 1 < n ? step : last)(result, both, 2, elements, divisor);
        }
        if (n == 1)
            last(result, both, 1, elements, divisor);
        type->narrow(dst + at, result, length);
    }
}

static SHARED void block_scale(char *dst, const char *src, size_t count, double factor,
                               const small_float *type)
{
    f32_lanes block[VECTORS];
    const size_t bytes = count * type->size, whole = BLOCK * type->size;
    for (size_t at = 0; at < bytes; at += whole) {
        const size_t length = bytes - at < whole ? bytes - at : whole;
        type->widen(block, src + at, length);
        f32_scale(block, block, filled(length) / type->size, factor);
        type->narrow(dst + at, block, length);
    }
}

#define BLOCK_KERNEL(t, name, step, last)                                                          \
    static void t##_##name(void *dst, const void *const *operands, size_t n, size_t count,         \
                           int64_t divisor)                                                        \
    {                                                                                              \
        block_reduce(dst, operands, n, count, divisor, &t, step, last);                            \
    }

/* Define the conversions for elements of `bits` bits, which t_widen and t_narrow keep in the lowest
 * bits of lanes. */
#define SMALL_FLOAT(t, bits)                                                                       \
    static void t##_widen_block(f32_lanes *to, const char *from, size_t bytes)                     \
    {                                                                                              \
        for (size_t at = 0; at < bytes; at += WIDTH) {                                             \
            u32_lanes memory = {0};                                                                \
            if (bytes - at >= WIDTH)                                                               \
                memcpy(&memory, from + at, WIDTH);                                                 \
            else                                                                                   \
                memcpy(&memory, from + at, bytes - at);                                            \
            UNROLLED                                                                               \
            for (int shift = 0; shift < 32; shift += bits) {                                       \
                *to++ = t##_widen(memory >> shift);                                                \
            }                                                                                      \
        }                                                                                          \
    }                                                                                              \
    static void t##_narrow_block(char *to, const f32_lanes *from, size_t bytes)                    \
    {                                                                                              \
        for (size_t at = 0; at < bytes; at += WIDTH) {                                             \
            u32_lanes memory = {0};                                                                \
            UNROLLED                                                                               \
            for (int shift = 0; shift < 32; shift += bits) {                                       \
                memory |= t##_narrow(*from++) << shift;                                            \
            }                                                                                      \
            if (bytes - at >= WIDTH)                                                               \
                memcpy(to + at, &memory, WIDTH);                                                   \
            else                                                                                   \
                memcpy(to + at, &memory, bytes - at);                                              \
        }                                                                                          \
    }                                                                                              \
    static const small_float t = {t##_widen_block, t##_narrow_block, bits / 8};                    \
    BLOCK_KERNEL(t, sum, f32_sum, f32_sum)                                                         \
    BLOCK_KERNEL(t, average, f32_sum, f32_average)                                                 \
    BLOCK_KERNEL(t, min, f32_min, f32_min)                                                         \
    BLOCK_KERNEL(t, max, f32_max, f32_max)                                                         \
    BLOCK_KERNEL(t, product, f32_product, f32_product)                                             \
    static void t##_scale(void *dst, const void *src, size_t count, double factor)                 \
    {                                                                                              \
        block_scale(dst, src, count, factor, &t);                                                  \
    }
