/* kernels.h - all kernels of one instruction set, in the compiler's generic vectors.
 *
 * Included once by each instruction set's file, which is compiled with its flags and defines
 *   ISA                           its name; the table is ddl__kernels_<ISA>
 *   WIDTH                         bytes of a vector register
 *   F16_WIDEN(h), F16_NARROW(f)   optional: conversions between half_lanes and f32_lanes
 *   STREAM(to, v), FENCE()        optional: store u8_lanes past the caches at an aligned address;
 *                                 order such stores before the later ones
 * The arithmetic is one source, compiled without contraction: IEEE 754 then gives the same bits.
 *
 * A kernel passes once over the elements: it loads a vector from each operand, combines them in
 * registers and stores the result, which may thus replace an operand. Every access to memory is a
 * memcpy; all but those of the last, partial vector have a constant size and are one instruction.
 */
#include <string.h>

#include "reduce/reduce.h"

#define INLINE static inline __attribute__((always_inline))

/* Of each dtype: the type that is computed in; that of sums and products, where integers wrap; that
 * of quotients; the size in memory. An integer's quotient in a type twice as exact never rounds up
 * to the next integer, so that it truncates right, and divides many lanes at once. */
#define TYPE(t, element, wrapping, quotient, size)                                                 \
    typedef element t##_element;                                                                   \
    typedef quotient t##_quotient;                                                                 \
    typedef element t##_lanes __attribute__((vector_size(WIDTH)));                                 \
    typedef wrapping t##_wrapping __attribute__((vector_size(WIDTH)));                             \
    enum { t##_size = size };
TYPE(i8, int8_t, uint8_t, float, 1)
TYPE(u8, uint8_t, uint8_t, float, 1)
TYPE(i32, int32_t, uint32_t, double, 4)
TYPE(i64, int64_t, uint64_t, int64_t, 8)
TYPE(f16, float, float, float, 2)
TYPE(bf16, float, float, float, 2)
TYPE(f32, float, float, float, 4)
TYPE(f64, double, double, double, 8)
typedef uint32_t u32_lanes __attribute__((vector_size(WIDTH)));
typedef uint16_t half_lanes __attribute__((vector_size(WIDTH / 2)));

/* mask ? a : b, lane by lane. */
#define SELECT(mask, a, b)                                                                         \
    ((__typeof__(a))(((__typeof__(mask))(a) & (mask)) | ((__typeof__(mask))(b) & ~(mask))))

/* ------------------------------------------------------------------------------- conversions */

/* For magnitudes below 2^31: signed comparisons are the cheaper ones. */
INLINE i32_lanes below(u32_lanes magnitude, int32_t bound)
{
    return (i32_lanes)magnitude < bound;
}

/* Exact also where the calling thread flushes subnormals to zero: none occurs as an f32. */
INLINE f32_lanes f16_widen(u32_lanes half)
{
    u32_lanes magnitude = (half & 0x7fff) << 13;
    u32_lanes normal = magnitude + (112 << 23);
    u32_lanes special = magnitude + (224 << 23);
    u32_lanes tiny = (u32_lanes)((f32_lanes)(magnitude + (113 << 23)) - 0x1p-14f);
    u32_lanes wide = SELECT(below(magnitude, 1 << 23), tiny, normal);
    wide = SELECT(below(magnitude, 31 << 23), wide, special);
    return (f32_lanes)(wide | (half & 0x8000) << 16);
}

INLINE u32_lanes f16_narrow(f32_lanes f)
{
    u32_lanes magnitude = (u32_lanes)f & 0x7fffffff;
    u32_lanes normal = (magnitude - (112 << 23) + 0xfff + (magnitude >> 13 & 1)) >> 13;
    u32_lanes special = 0x7c00 | ((u32_lanes)(f != f) & (0x200 | (magnitude >> 13 & 0x3ff)));
    /* 0.5's neighbours are as far from it as subnormal halves from each other: adding rounds. */
    u32_lanes tiny = (u32_lanes)((f32_lanes)magnitude + 0.5f) - (126 << 23);
    u32_lanes half = SELECT(below(magnitude, 113 << 23), tiny, normal);
    half = SELECT(below(magnitude, 143 << 23), half, special);
    return half | ((u32_lanes)f >> 16 & 0x8000);
}

/* The bfloat16 is the result's upper half. */
INLINE u32_lanes bf16_round(f32_lanes f)
{
    u32_lanes bits = (u32_lanes)f;
    u32_lanes rounded = bits + 0x7fff + (bits >> 16 & 1);
    u32_lanes quiet = bits | 1 << 22;
    return SELECT(f != f, quiet, rounded);
}

/* -------------------------------------------------------------------------- loads and stores */

/* A kernel's unit of work is t_block, which takes t_step bytes of memory. The elements beyond
 * `bytes` are zero when loaded, and not stored. */
#define MEMORY(t, format, block, WIDEN, NARROW)                                                    \
    typedef block t##_block;                                                                       \
    enum { t##_step = sizeof(format) };                                                            \
    INLINE block t##_load(const char *from, size_t bytes)                                          \
    {                                                                                              \
        format memory = {0};                                                                       \
        memcpy(&memory, from, bytes);                                                              \
        return WIDEN(memory);                                                                      \
    }                                                                                              \
    INLINE void t##_store(char *to, block v, size_t bytes)                                         \
    {                                                                                              \
        format memory = NARROW(v);                                                                 \
        memcpy(to, &memory, bytes);                                                                \
    }

/* Halves that no instruction converts: the even and the odd ones apart, so that none has to move to
 * another lane. */
typedef struct pair {
    f32_lanes even, odd;
} pair;
#define BF16_WIDEN(m)      ((pair){(f32_lanes)((m) << 16), (f32_lanes)(0xffff0000 & (m))})
#define BF16_NARROW(v)     (bf16_round((v).even) >> 16 | (bf16_round((v).odd) & 0xffff0000))
#define F16_PAIR_WIDEN(m)  ((pair){f16_widen(0xffff & (m)), f16_widen((m) >> 16)})
#define F16_PAIR_NARROW(v) (f16_narrow((v).even) | f16_narrow((v).odd) << 16)

MEMORY(i8, i8_lanes, i8_lanes, , )
MEMORY(u8, u8_lanes, u8_lanes, , )
MEMORY(i32, i32_lanes, i32_lanes, , )
MEMORY(i64, i64_lanes, i64_lanes, , )
#ifdef F16_WIDEN
MEMORY(f16, half_lanes, f32_lanes, F16_WIDEN, F16_NARROW)
#define F16_SHAPE ONE
#else
MEMORY(f16, u32_lanes, pair, F16_PAIR_WIDEN, F16_PAIR_NARROW)
#define F16_SHAPE TWO
#endif
MEMORY(bf16, u32_lanes, pair, BF16_WIDEN, BF16_NARROW)
MEMORY(f32, f32_lanes, f32_lanes, , )
MEMORY(f64, f64_lanes, f64_lanes, , )

/* ----------------------------------------------------------------------------------- kernels */

#define SUM(t, a, b)     ((t##_lanes)((t##_wrapping)(a) + (t##_wrapping)(b)))
#define PRODUCT(t, a, b) ((t##_lanes)((t##_wrapping)(a) * (t##_wrapping)(b)))
#define MIN(t, a, b)     SELECT(((a) < (b)) | ((a) != (a)), a, b)
#define MAX(t, a, b)     SELECT(((a) > (b)) | ((a) != (a)), a, b)

#define KEEP(t, v, divisor)   (v)
#define SCALE(t, v, divisor)  ((v) * (1 / (t##_quotient)(divisor)))
#define DIVIDE(t, v, divisor) t##_divide(v, divisor)

/* The same on blocks of either shape. */
#define COMBINE_ONE(t, OP, a, b) OP(t, a, b)
#define COMBINE_TWO(t, OP, a, b) ((pair){OP(t, (a).even, (b).even), OP(t, (a).odd, (b).odd)})
#define FINISH_ONE(t, OP, v, d)  OP(t, v, d)
#define FINISH_TWO(t, OP, v, d)  ((pair){OP(t, (v).even, d), OP(t, (v).odd, d)})

#define KERNEL(t, shape, name, OP, LAST)                                                           \
    INLINE void t##_##name##_at(size_t at, size_t bytes, char *dst, const void *const *operands,   \
                                size_t n, int64_t divisor)                                         \
    {                                                                                              \
        t##_block v = t##_load((const char *)operands[0] + at, bytes);                             \
        for (size_t k = 1; k < n; k++) {                                                           \
            t##_block next = t##_load((const char *)operands[k] + at, bytes);                      \
            v = COMBINE_##shape(t, OP, v, next);                                                   \
        }                                                                                          \
        (void)divisor;                                                                             \
        t##_store(dst + at, FINISH_##shape(t, LAST, v, divisor), bytes);                           \
    }                                                                                              \
    static void t##_##name(void *dst, const void *const *operands, size_t n, size_t count,         \
                           int64_t divisor)                                                        \
    {                                                                                              \
        const size_t bytes = count * t##_size, step = t##_step;                                    \
        size_t at = 0;                                                                             \
        if (n == 2) {                                                                              \
            const void *const two[] = {operands[0], operands[1]};                                  \
            for (; at + step <= bytes; at += step)                                                 \
                t##_##name##_at(at, step, dst, two, 2, divisor);                                   \
        }                                                                                          \
        for (; at + step <= bytes; at += step)                                                     \
            t##_##name##_at(at, step, dst, operands, n, divisor);                                  \
        if (at < bytes)                                                                            \
            t##_##name##_at(at, bytes - at, dst, operands, n, divisor);                            \
    }

#define KERNELS(t, shape)                                                                          \
    KERNEL(t, shape, sum, SUM, KEEP)                                                               \
    KERNEL(t, shape, divided, SUM, DIVIDE)                                                         \
    KERNEL(t, shape, min, MIN, KEEP)                                                               \
    KERNEL(t, shape, max, MAX, KEEP)                                                               \
    KERNEL(t, shape, product, PRODUCT, KEEP)

#define INTEGERS(t)                                                                                \
    INLINE t##_lanes t##_divide(t##_lanes v, int64_t divisor)                                      \
    {                                                                                              \
        for (size_t lane = 0; lane < sizeof v / sizeof v[0]; lane++)                               \
            v[lane] = (t##_element)((t##_quotient)v[lane] / (t##_quotient)divisor);                \
        return v;                                                                                  \
    }                                                                                              \
    KERNELS(t, ONE)                                                                                \
    static void t##_average(void *dst, const void *const *operands, size_t n, size_t count,        \
                            int64_t divisor)                                                       \
    {                                                                                              \
        (divisor == 1 ? t##_sum : t##_divided)(dst, operands, n, count, divisor);                  \
    }

/* Dividing by a power of two is multiplying by its inverse, to the bit, and much faster. */
#define FLOATS(t, shape)                                                                           \
    INLINE t##_lanes t##_divide(t##_lanes v, int64_t divisor)                                      \
    {                                                                                              \
        return v / (t##_element)divisor;                                                           \
    }                                                                                              \
    KERNELS(t, shape)                                                                              \
    KERNEL(t, shape, scaled, SUM, SCALE)                                                           \
    static void t##_average(void *dst, const void *const *operands, size_t n, size_t count,        \
                            int64_t divisor)                                                       \
    {                                                                                              \
        (divisor & (divisor - 1) ? t##_divided : t##_scaled)(dst, operands, n, count, divisor);    \
    }

INTEGERS(i8)
INTEGERS(u8)
INTEGERS(i32)
INTEGERS(i64)
FLOATS(f16, F16_SHAPE)
FLOATS(bf16, TWO)
FLOATS(f32, ONE)
FLOATS(f64, ONE)

/* ------------------------------------------------------------------------------------ stream */

static void stream(void *dst, const void *src, size_t bytes)
{
#ifdef STREAM
    char *to = dst;
    const char *from = src;
    size_t at = -(uintptr_t)to % 64; /* to the start of a cache line */
    at = at < bytes ? at : bytes;
    memcpy(to, from, at);
    for (; at + WIDTH <= bytes; at += WIDTH)
        STREAM(to + at, u8_load(from + at, WIDTH));
    memcpy(to + at, from + at, bytes - at);
    FENCE();
#else
    memcpy(dst, src, bytes);
#endif
}

/* ------------------------------------------------------------------------------------- table */

#define ROW(t)                                                                                     \
    {                                                                                              \
        [DDL_SUM] = t##_sum, [DDL_AVERAGE] = t##_average, [DDL_MIN] = t##_min,                     \
        [DDL_MAX] = t##_max, [DDL_PRODUCT] = t##_product                                           \
    }
#define PASTE(a, b)     a##b
#define TABLE(isa)      PASTE(ddl__kernels_, isa)
#define STRING(s)       #s
#define TABLE_NAME(isa) STRING(isa)

const ddl__kernels TABLE(ISA) = {.name = TABLE_NAME(ISA),
                                 .reduce = {[DDL_I8] = ROW(i8),
                                            [DDL_U8] = ROW(u8),
                                            [DDL_I32] = ROW(i32),
                                            [DDL_I64] = ROW(i64),
                                            [DDL_F16] = ROW(f16),
                                            [DDL_BF16] = ROW(bf16),
                                            [DDL_F32] = ROW(f32),
                                            [DDL_F64] = ROW(f64)},
                                 .stream = stream};
