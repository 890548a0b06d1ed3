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

/* Of each dtype: the type that is computed in, its unsigned twin where sums and products wrap, one
 * in which quotients are exact enough, and the size in memory. */
#define TYPE(t, element, wrapping, quotient, size)                                                 \
    typedef element t##_element;                                                                   \
    typedef quotient t##_quotient;                                                                 \
    typedef element t##_lanes __attribute__((vector_size(WIDTH)));                                 \
    typedef wrapping t##_wrapping __attribute__((vector_size(WIDTH)));                             \
    enum { t##_size = size, t##_n = WIDTH / sizeof(element), t##_step = t##_n * t##_size };
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

#ifndef F16_WIDEN
#define F16_WIDEN  f16_widen
#define F16_NARROW f16_narrow

/* Both below 2^31; signed comparisons are the cheaper ones. */
INLINE i32_lanes below(u32_lanes magnitude, int32_t bound)
{
    return (i32_lanes)magnitude < bound;
}

/* Exact also where the calling thread flushes subnormals to zero: none occurs as an f32. */
INLINE f32_lanes f16_widen(half_lanes half)
{
    u32_lanes bits = __builtin_convertvector(half, u32_lanes);
    u32_lanes magnitude = (bits & 0x7fff) << 13;
    u32_lanes normal = magnitude + (112 << 23);
    u32_lanes special = magnitude + (224 << 23);
    u32_lanes tiny = (u32_lanes)((f32_lanes)(magnitude + (113 << 23)) - 0x1p-14f);
    u32_lanes wide = SELECT(below(magnitude, 1 << 23), tiny, normal);
    wide = SELECT(below(magnitude, 31 << 23), wide, special);
    return (f32_lanes)(wide | (bits & 0x8000) << 16);
}

INLINE half_lanes f16_narrow(f32_lanes f)
{
    u32_lanes bits = (u32_lanes)f;
    u32_lanes magnitude = bits & 0x7fffffff;
    u32_lanes normal = (magnitude - (112 << 23) + 0xfff + (magnitude >> 13 & 1)) >> 13;
    u32_lanes special = 0x7c00 | ((u32_lanes)(f != f) & (0x200 | (magnitude >> 13 & 0x3ff)));
    /* 0.5's neighbours are as far from it as subnormal halves from each other: adding rounds. */
    u32_lanes tiny = (u32_lanes)((f32_lanes)magnitude + 0.5f) - (126 << 23);
    u32_lanes half = SELECT(below(magnitude, 113 << 23), tiny, normal);
    half = SELECT(below(magnitude, 143 << 23), half, special);
    return __builtin_convertvector(half | (bits >> 16 & 0x8000), half_lanes);
}
#endif

INLINE f32_lanes bf16_widen(half_lanes half)
{
    return (f32_lanes)(__builtin_convertvector(half, u32_lanes) << 16);
}

INLINE half_lanes bf16_narrow(f32_lanes f)
{
    u32_lanes bits = (u32_lanes)f;
    u32_lanes rounded = bits + 0x7fff + (bits >> 16 & 1);
    u32_lanes quiet = bits | 1 << 22;
    return __builtin_convertvector(SELECT(f != f, quiet, rounded) >> 16, half_lanes);
}

/* -------------------------------------------------------------------------- loads and stores */

/* The lanes beyond `bytes` are zero when loaded, and not stored. */
#define MEMORY(t, format, WIDEN, NARROW)                                                           \
    INLINE t##_lanes t##_load(const char *from, size_t bytes)                                      \
    {                                                                                              \
        format v = {0};                                                                            \
        memcpy(&v, from, bytes);                                                                   \
        return WIDEN(v);                                                                           \
    }                                                                                              \
    INLINE void t##_store(char *to, t##_lanes lanes, size_t bytes)                                 \
    {                                                                                              \
        format v = NARROW(lanes);                                                                  \
        memcpy(to, &v, bytes);                                                                     \
    }
MEMORY(i8, i8_lanes, , )
MEMORY(u8, u8_lanes, , )
MEMORY(i32, i32_lanes, , )
MEMORY(i64, i64_lanes, , )
MEMORY(f16, half_lanes, F16_WIDEN, F16_NARROW)
MEMORY(bf16, half_lanes, bf16_widen, bf16_narrow)
MEMORY(f32, f32_lanes, , )
MEMORY(f64, f64_lanes, , )

/* ----------------------------------------------------------------------------------- kernels */

#define SUM(t, a, b)     ((t##_lanes)((t##_wrapping)(a) + (t##_wrapping)(b)))
#define PRODUCT(t, a, b) ((t##_lanes)((t##_wrapping)(a) * (t##_wrapping)(b)))
#define MIN(t, a, b)     SELECT(((a) < (b)) | ((a) != (a)), a, b)
#define MAX(t, a, b)     SELECT(((a) > (b)) | ((a) != (a)), a, b)

#define KEEP(t, v, divisor)   (v)
#define SCALE(t, v, divisor)  ((v) * (1 / (t##_quotient)(divisor)))
#define DIVIDE(t, v, divisor) t##_divide(v, divisor)

#define KERNEL(t, name, COMBINE, FINISH)                                                           \
    INLINE void t##_##name##_at(size_t at, size_t bytes, char *dst, const void *const *operands,   \
                                size_t n, int64_t divisor)                                         \
    {                                                                                              \
        t##_lanes v = t##_load((const char *)operands[0] + at, bytes);                             \
        for (size_t k = 1; k < n; k++) {                                                           \
            t##_lanes next = t##_load((const char *)operands[k] + at, bytes);                      \
            v = COMBINE(t, v, next);                                                               \
        }                                                                                          \
        (void)divisor;                                                                             \
        t##_store(dst + at, FINISH(t, v, divisor), bytes);                                         \
    }                                                                                              \
    static void t##_##name(void *dst, const void *const *operands, size_t n, size_t count,         \
                           int64_t divisor)                                                        \
    {                                                                                              \
        size_t at = 0, bytes = count * t##_size;                                                   \
        if (n == 2) {                                                                              \
            const void *const two[] = {operands[0], operands[1]};                                  \
            for (; at + t##_step <= bytes; at += t##_step)                                         \
                t##_##name##_at(at, t##_step, dst, two, 2, divisor);                               \
        }                                                                                          \
        for (; at + t##_step <= bytes; at += t##_step)                                             \
            t##_##name##_at(at, t##_step, dst, operands, n, divisor);                              \
        if (at < bytes)                                                                            \
            t##_##name##_at(at, bytes - at, dst, operands, n, divisor);                            \
    }

/* Dividing by a power of two is multiplying by its inverse, to the bit, and much faster. */
#define FLOATS(t)                                                                                  \
    INLINE t##_lanes t##_divide(t##_lanes v, int64_t divisor)                                      \
    {                                                                                              \
        return v / (t##_element)divisor;                                                           \
    }                                                                                              \
    KERNELS(t)                                                                                     \
    KERNEL(t, scaled, SUM, SCALE)                                                                  \
    static void t##_average(void *dst, const void *const *operands, size_t n, size_t count,        \
                            int64_t divisor)                                                       \
    {                                                                                              \
        (divisor & (divisor - 1) ? t##_divided : t##_scaled)(dst, operands, n, count, divisor);    \
    }
#define INTEGERS(t)                                                                                \
    INLINE t##_lanes t##_divide(t##_lanes v, int64_t divisor)                                      \
    {                                                                                              \
        for (int lane = 0; lane < t##_n; lane++)                                                   \
            v[lane] = (t##_element)((t##_quotient)v[lane] / (t##_quotient)divisor);                \
        return v;                                                                                  \
    }                                                                                              \
    KERNELS(t)                                                                                     \
    static void t##_average(void *dst, const void *const *operands, size_t n, size_t count,        \
                            int64_t divisor)                                                       \
    {                                                                                              \
        (divisor == 1 ? t##_sum : t##_divided)(dst, operands, n, count, divisor);                  \
    }
#define KERNELS(t)                                                                                 \
    KERNEL(t, sum, SUM, KEEP)                                                                      \
    KERNEL(t, divided, SUM, DIVIDE)                                                                \
    KERNEL(t, min, MIN, KEEP)                                                                      \
    KERNEL(t, max, MAX, KEEP)                                                                      \
    KERNEL(t, product, PRODUCT, KEEP)
INTEGERS(i8)
INTEGERS(u8)
INTEGERS(i32)
INTEGERS(i64)
FLOATS(f16)
FLOATS(bf16)
FLOATS(f32)
FLOATS(f64)

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
