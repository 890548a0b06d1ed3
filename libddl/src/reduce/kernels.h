/* SPDX-License-Identifier: Apache-2.0 */
/* kernels.h - all kernels of one instruction set, in the generic vectors of the compiler.
 *
 * Included once by the file of each instruction set, which is compiled with its flags and defines
 *   ISA                           its name; the table is ddl__kernels_<ISA>
 *   WIDTH                         bytes of a vector register
 *   F16_WIDEN(h), F16_NARROW(f)   optional: conversions between half_lanes and f32_lanes
 *   LOAD_PART(from, bytes), STORE_PART(to, v, bytes)
 *                                 optional: the first bytes, fewer than WIDTH, of u8_lanes
 *   STORE_NT(to, v), FENCE()      optional: a non-temporal store of u8_lanes to an aligned address;
 *   a fence between such stores and later ones
 * The arithmetic is one source, compiled without contraction, so IEEE 754 gives the same bits.
 *
 * A kernel makes one pass over the elements: it loads a vector from each operand, combines them in
 * registers and stores the result, which may replace an operand. Every memory access is a memcpy of
 * constant size, which compiles to one instruction. A remainder that does not fill a vector is
 * copied to whole vectors and processed there (partial). Shared code keeps the kernels small:
 * signed and unsigned integers share additions and products, integers of all widths share bit
 * operations, complex numbers are pairs of floats, and small floats without a conversion
 * instruction use the kernels of f32 (blocks.h). */
#include <string.h>

#include "reduce/convert.h"
#include "reduce/reduce.h"

/* A function that many kernels share. The compiler must not clone it for some of them. */
#if __has_attribute(noclone)
#define SHARED __attribute__((noinline, noclone))
#else
#define SHARED __attribute__((noinline))
#endif

/* -------------------------------------------------------------------------- loads and stores */

/* A kernel works in units of t_block, which takes t_step bytes of memory. */
#define MEMORY(t, format, block, WIDEN, NARROW)                                                    \
    typedef block t##_block;                                                                       \
    enum { t##_step = sizeof(format) };                                                            \
    INLINE block t##_load(const char *from)                                                        \
    {                                                                                              \
        format memory;                                                                             \
        memcpy(&memory, from, sizeof memory);                                                      \
        return WIDEN(memory);                                                                      \
    }                                                                                              \
    INLINE void t##_store(char *to, block v)                                                       \
    {                                                                                              \
        format memory = NARROW(v);                                                                 \
        memcpy(to, &memory, sizeof memory);                                                        \
    }

/* The even and the odd elements of a block are in separate vectors, so that no element has to
 * change its lane. */
typedef struct pair {
    f32_lanes even, odd;
} pair;
#define BF16_WIDEN(m)  ((pair){(f32_lanes)((m) << 16), (f32_lanes)(0xffff0000 & (m))})
#define BF16_NARROW(v) (bf16_round((v).even) >> 16 | (bf16_round((v).odd) & 0xffff0000))

MEMORY(i8, i8_lanes, i8_lanes, , )
MEMORY(u8, u8_lanes, u8_lanes, , )
MEMORY(i16, i16_lanes, i16_lanes, , )
MEMORY(u16, u16_lanes, u16_lanes, , )
MEMORY(i32, i32_lanes, i32_lanes, , )
MEMORY(u32, u32_lanes, u32_lanes, , )
MEMORY(i64, i64_lanes, i64_lanes, , )
MEMORY(u64, u64_lanes, u64_lanes, , )
#ifdef F16_WIDEN
MEMORY(f16, half_lanes, f32_lanes, F16_WIDEN, F16_NARROW)
#endif
MEMORY(bf16, u32_lanes, pair, BF16_WIDEN, BF16_NARROW)
MEMORY(f32, f32_lanes, f32_lanes, , )
MEMORY(f64, f64_lanes, f64_lanes, , )

/* ----------------------------------------------------------------------------------- kernels */

#ifndef LOAD_PART
INLINE u8_lanes load_part(const char *from, size_t bytes)
{
    u8_lanes v = {0};
    memcpy(&v, from, bytes);
    return v;
}
#define LOAD_PART(from, bytes)   load_part(from, bytes)
#define STORE_PART(to, v, bytes) memcpy(to, &(v), bytes)
#endif

/* Reduce the bytes after the last whole WIDTH with the same kernel, which reduces `elements`
 * elements at once. */
static SHARED void partial(void *dst, const void *const *operands, size_t n, size_t bytes,
                           int64_t divisor, ddl__reduce_fn *kernel, size_t elements)
{
    const size_t rest = bytes % WIDTH, whole = bytes - rest;
    u8_lanes copies[n];
    const void *pointers[n];
    for (size_t k = 0; k < n; k++) {
        copies[k] = LOAD_PART((const char *)operands[k] + whole, rest);
        pointers[k] = &copies[k];
    }
    kernel(copies, pointers, n, elements, divisor);
    STORE_PART((char *)dst + whole, copies[0], rest);
}

#define SUM(t, a, b)     ((t##_lanes)((t##_wrapping)(a) + (t##_wrapping)(b)))
#define PRODUCT(t, a, b) ((t##_lanes)((t##_wrapping)(a) * (t##_wrapping)(b)))
#define MIN(t, a, b)     SELECT(((a) < (b)) | ((a) != (a)), a, b)
#define MAX(t, a, b)     SELECT(((a) > (b)) | ((a) != (a)), a, b)
#define AND(t, a, b)     ((a) & (b))
#define OR(t, a, b)      ((a) | (b))
#define XOR(t, a, b)     ((a) ^ (b))
/* Logical ops give zero or any nonzero value, which TRUTH then converts to 0 or 1. */
#define BOTH(t, a, b) ((a) & (t##_lanes)((b) != 0))
#define ODD(t, a, b)  ((t##_lanes)(((a) != 0) ^ ((b) != 0)))

#define KEEP(t, v, divisor)   (v)
#define SCALE(t, v, divisor)  ((v) * (1 / (t##_quotient)(divisor)))
#define DIVIDE(t, v, divisor) t##_divide(v, divisor)
#define TRUTH(t, v, divisor)  ((t##_lanes)((v) != 0) & 1)
#define TIMES(t, v, factor)   ((v) * (factor))

/* Apply an operation to blocks of either shape. */
#define COMBINE_ONE(t, OP, a, b) OP(t, a, b)
#define COMBINE_TWO(t, OP, a, b) ((pair){OP(t, (a).even, (b).even), OP(t, (a).odd, (b).odd)})
#define FINISH_ONE(t, OP, v, d)  OP(t, v, d)
#define FINISH_TWO(t, OP, v, d)  ((pair){OP(t, (v).even, d), OP(t, (v).odd, d)})

#define KERNEL(t, shape, name, OP, LAST)                                                           \
    INLINE void t##_##name##_at(size_t at, char *dst, const void *const *operands, size_t n,       \
                                int64_t divisor)                                                   \
    {                                                                                              \
        t##_block v = t##_load((const char *)operands[0] + at);                                    \
        for (size_t k = 1; k < n; k++) {                                                           \
            t##_block next = t##_load((const char *)operands[k] + at);                             \
            v = COMBINE_##shape(t, OP, v, next);                                                   \
        }                                                                                          \
        (void)divisor;                                                                             \
        t##_store(dst + at, FINISH_##shape(t, LAST, v, divisor));                                  \
    }                                                                                              \
    static void t##_##name(void *dst, const void *const *operands, size_t n, size_t count,         \
                           int64_t divisor)                                                        \
    {                                                                                              \
        const size_t bytes = count * t##_size, whole = bytes - bytes % WIDTH;                      \
        size_t at = 0;                                                                             \
        if (n == 2) {                                                                              \
            const void *const two[] = {operands[0], operands[1]};                                  \
            for (; at < whole; at += t##_step)                                                     \
                t##_##name##_at(at, dst, two, 2, divisor);                                         \
        }                                                                                          \
        for (; at < whole; at += t##_step)                                                         \
            t##_##name##_at(at, dst, operands, n, divisor);                                        \
        if (at < bytes)                                                                            \
            partial(dst, operands, n, bytes, divisor, t##_##name, WIDTH / t##_size);               \
    }

/* Define a kernel that equals a kernel of another dtype. */
#define SAME(t, name, as, as_name)                                                                 \
    static void t##_##name(void *dst, const void *const *operands, size_t n, size_t count,         \
                           int64_t divisor)                                                        \
    {                                                                                              \
        as##_##as_name(dst, operands, n, t##_size / as##_size * count, divisor);                   \
    }

/* Kernels that differ for signed and unsigned types. u is the unsigned type of t's width. */
#define ORDERED(t, u)                                                                              \
    INLINE t##_lanes t##_divide(t##_lanes v, int64_t divisor)                                      \
    {                                                                                              \
        for (size_t lane = 0; lane < sizeof v / sizeof v[0]; lane++)                               \
            v[lane] = (t##_element)((t##_quotient)v[lane] / (t##_quotient)divisor);                \
        return v;                                                                                  \
    }                                                                                              \
    KERNEL(t, ONE, divided, SUM, DIVIDE)                                                           \
    KERNEL(t, ONE, min, MIN, KEEP)                                                                 \
    KERNEL(t, ONE, max, MAX, KEEP)                                                                 \
    static void t##_average(void *dst, const void *const *operands, size_t n, size_t count,        \
                            int64_t divisor)                                                       \
    {                                                                                              \
        (divisor == 1 ? u##_sum : t##_divided)(dst, operands, n, count, divisor);                  \
    }

#define INTEGERS(i, u)                                                                             \
    KERNEL(u, ONE, sum, SUM, KEEP)                                                                 \
    KERNEL(u, ONE, product, PRODUCT, KEEP)                                                         \
    KERNEL(u, ONE, logical_and, BOTH, TRUTH)                                                       \
    KERNEL(u, ONE, logical_or, OR, TRUTH)                                                          \
    ORDERED(i, u)                                                                                  \
    ORDERED(u, u)

#define BITS(u)                                                                                    \
    SAME(u, bit_and, u8, bit_and)                                                                  \
    SAME(u, bit_or, u8, bit_or)                                                                    \
    SAME(u, bit_xor, u8, bit_xor)

#define SCALED(t, shape)                                                                           \
    INLINE void t##_scale_at(char *dst, const char *src, t##_element factor)                       \
    {                                                                                              \
        t##_store(dst, FINISH_##shape(t, TIMES, t##_load(src), factor));                           \
    }                                                                                              \
    static void t##_scale(void *dst, const void *src, size_t count, double factor)                 \
    {                                                                                              \
        const size_t bytes = count * t##_size;                                                     \
        const t##_element own = (t##_element)factor;                                               \
        size_t at = 0;                                                                             \
        for (; at + t##_step <= bytes; at += t##_step)                                             \
            t##_scale_at((char *)dst + at, (const char *)src + at, own);                           \
        char rest[t##_step] = {0};                                                                 \
        memcpy(rest, (const char *)src + at, bytes - at);                                          \
        t##_scale_at(rest, rest, own);                                                             \
        memcpy((char *)dst + at, rest, bytes - at);                                                \
    }

/* Multiplying by the inverse of a power of two equals dividing by it, bit for bit, and is
 * faster. */
#define FLOATS(t, shape)                                                                           \
    INLINE t##_lanes t##_divide(t##_lanes v, int64_t divisor)                                      \
    {                                                                                              \
        return v / (t##_element)divisor;                                                           \
    }                                                                                              \
    KERNEL(t, shape, sum, SUM, KEEP)                                                               \
    KERNEL(t, shape, divided, SUM, DIVIDE)                                                         \
    KERNEL(t, shape, inverse, SUM, SCALE)                                                          \
    KERNEL(t, shape, min, MIN, KEEP)                                                               \
    KERNEL(t, shape, max, MAX, KEEP)                                                               \
    KERNEL(t, shape, product, PRODUCT, KEEP)                                                       \
    static void t##_average(void *dst, const void *const *operands, size_t n, size_t count,        \
                            int64_t divisor)                                                       \
    {                                                                                              \
        (divisor & (divisor - 1) ? t##_divided : t##_inverse)(dst, operands, n, count, divisor);   \
    }                                                                                              \
    SCALED(t, shape)

#define COMPLEX(t, part)                                                                           \
    enum { t##_size = 2 * part##_size };                                                           \
    SAME(t, sum, part, sum)                                                                        \
    SAME(t, average, part, average)                                                                \
    static void t##_scale(void *dst, const void *src, size_t count, double factor)                 \
    {                                                                                              \
        part##_scale(dst, src, 2 * count, factor);                                                 \
    }

INTEGERS(i8, u8)
INTEGERS(i16, u16)
INTEGERS(i32, u32)
INTEGERS(i64, u64)
KERNEL(u8, ONE, bit_and, AND, KEEP)
KERNEL(u8, ONE, bit_or, OR, KEEP)
KERNEL(u8, ONE, bit_xor, XOR, KEEP)
BITS(u16)
BITS(u32)
BITS(u64)
KERNEL(u8, ONE, odd, ODD, TRUTH) /* xor of bools; the other ops of bools are logical ones */
FLOATS(bf16, TWO)
FLOATS(f32, ONE)
FLOATS(f64, ONE)
COMPLEX(c64, f32)
COMPLEX(c128, f64)

#include "reduce/blocks.h"

SMALL_FLOAT(e4m3, 8)
SMALL_FLOAT(e5m2, 8)
#ifdef F16_WIDEN
FLOATS(f16, ONE)
#else
SMALL_FLOAT(f16, 16)
#endif

/* ------------------------------------------------------------------------------------ pairs */

/* Integers use the sum of four instead: it is the same in any order. */
#define PAIRS(t)                                                                                   \
    static void t##_pairs(void *dst, const void *const *operands, size_t n, size_t count,          \
                          int64_t divisor)                                                         \
    {                                                                                              \
        const size_t bytes = count * t##_size, whole = bytes - bytes % WIDTH;                      \
        const char *a = operands[0], *b = operands[1], *c = operands[2], *d = operands[3];         \
        for (size_t at = 0; at < whole; at += WIDTH)                                               \
            t##_store((char *)dst + at, (t##_load(a + at) + t##_load(b + at)) +                    \
                                            (t##_load(c + at) + t##_load(d + at)));                \
        if (whole < bytes)                                                                         \
            partial(dst, operands, n, bytes, divisor, t##_pairs, WIDTH / t##_size);                \
    }

PAIRS(f32)
PAIRS(f64)
SAME(c64, pairs, f32, pairs)
SAME(c128, pairs, f64, pairs)

/* ----------------------------------------------------------------------------------- halves */

#ifdef F16_NARROW
#define F16_HALVES(f) F16_NARROW(f)
#else
#define F16_HALVES(f) __builtin_convertvector(f16_narrow(f), half_lanes)
#endif
#define BF16_HALVES(f) __builtin_convertvector(bf16_round(f) >> 16, half_lanes)

#define NARROWED(t, HALVES)                                                                        \
    static void t##_from_f32(void *dst, const float *src, size_t count)                            \
    {                                                                                              \
        enum { LANES = WIDTH / f32_size };                                                         \
        char *to = dst;                                                                            \
        size_t at = 0;                                                                             \
        for (; at < count - count % LANES; at += LANES) {                                          \
            const half_lanes halves = HALVES(f32_load((const char *)(src + at)));                  \
            memcpy(to + at * t##_size, &halves, sizeof halves);                                    \
        }                                                                                          \
        float rest[LANES] = {0};                                                                   \
        memcpy(rest, src + at, (count - at) * f32_size);                                           \
        const half_lanes halves = HALVES(f32_load((const char *)rest));                            \
        memcpy(to + at * t##_size, &halves, (count - at) * t##_size);                              \
    }

NARROWED(f16, F16_HALVES)
NARROWED(bf16, BF16_HALVES)

#include "reduce/pack.h"

/* ------------------------------------------------------------------------------------ copies */

/* Copy four vectors at a time. All loads come first, so that no compiler turns the copy into a call
 * of memcpy. */
#define COPIES(name, STORE, DONE)                                                                  \
    INLINE void name##_four(char *to, const char *from)                                            \
    {                                                                                              \
        const u8_lanes a = u8_load(from), b = u8_load(from + WIDTH);                               \
        const u8_lanes c = u8_load(from + 2 * WIDTH), d = u8_load(from + 3 * WIDTH);               \
        STORE(to, a);                                                                              \
        STORE(to + WIDTH, b);                                                                      \
        STORE(to + 2 * WIDTH, c);                                                                  \
        STORE(to + 3 * WIDTH, d);                                                                  \
    }                                                                                              \
    static void name##_lines(void *dst, const void *src, size_t bytes)                             \
    {                                                                                              \
        for (size_t at = 0; at < bytes; at += 4 * WIDTH)                                           \
            name##_four((char *)dst + at, (const char *)src + at);                                 \
    }                                                                                              \
    static void name(void *dst, const void *src, size_t bytes)                                     \
    {                                                                                              \
        char *to = dst;                                                                            \
        const char *from = src;                                                                    \
        size_t at = -(uintptr_t)to % 64; /* to the start of a cache line */                        \
        at = at < bytes ? at : bytes;                                                              \
        memcpy(to, from, at);                                                                      \
        for (; at + 4 * WIDTH <= bytes; at += 4 * WIDTH)                                           \
            name##_four(to + at, from + at);                                                       \
        memcpy(to + at, from + at, bytes - at);                                                    \
        DONE;                                                                                      \
    }

#ifndef STORE_NT
#define STORE_NT u8_store
#define FENCE()  (void)0
#endif

COPIES(copy, u8_store, (void)0)
COPIES(copy_nontemporal, STORE_NT, FENCE())

/* ------------------------------------------------------------------------------------- table */

#define PASTE(a, b)     a##b
#define TABLE(isa)      PASTE(ddl__kernels_, isa)
#define STRING(s)       #s
#define TABLE_NAME(isa) STRING(isa)

#define INTEGER_ROW(t, u)                                                                          \
    {                                                                                              \
        [DDL_SUM] = u##_sum, [DDL_AVERAGE] = t##_average, [DDL_MIN] = t##_min,                     \
        [DDL_MAX] = t##_max, [DDL_PRODUCT] = u##_product, [DDL_BIT_AND] = u##_bit_and,             \
        [DDL_BIT_OR] = u##_bit_or, [DDL_BIT_XOR] = u##_bit_xor,                                    \
        [DDL_LOGICAL_AND] = u##_logical_and, [DDL_LOGICAL_OR] = u##_logical_or                     \
    }
#define FLOAT_ROW(t)                                                                               \
    {                                                                                              \
        [DDL_SUM] = t##_sum, [DDL_AVERAGE] = t##_average, [DDL_MIN] = t##_min,                     \
        [DDL_MAX] = t##_max, [DDL_PRODUCT] = t##_product                                           \
    }
#define COMPLEX_ROW(t)                                                                             \
    {                                                                                              \
        [DDL_SUM] = t##_sum, [DDL_AVERAGE] = t##_average                                           \
    }

const ddl__kernels TABLE(ISA) = {
    .name = TABLE_NAME(ISA),
    .reduce = {[DDL_BOOL] = {[DDL_SUM] = u8_logical_or,
                             [DDL_MIN] = u8_logical_and,
                             [DDL_MAX] = u8_logical_or,
                             [DDL_PRODUCT] = u8_logical_and,
                             [DDL_BIT_AND] = u8_logical_and,
                             [DDL_BIT_OR] = u8_logical_or,
                             [DDL_BIT_XOR] = u8_odd,
                             [DDL_LOGICAL_AND] = u8_logical_and,
                             [DDL_LOGICAL_OR] = u8_logical_or},
               [DDL_I8] = INTEGER_ROW(i8, u8),
               [DDL_U8] = INTEGER_ROW(u8, u8),
               [DDL_I16] = INTEGER_ROW(i16, u16),
               [DDL_U16] = INTEGER_ROW(u16, u16),
               [DDL_I32] = INTEGER_ROW(i32, u32),
               [DDL_U32] = INTEGER_ROW(u32, u32),
               [DDL_I64] = INTEGER_ROW(i64, u64),
               [DDL_U64] = INTEGER_ROW(u64, u64),
               [DDL_F16] = FLOAT_ROW(f16),
               [DDL_BF16] = FLOAT_ROW(bf16),
               [DDL_F32] = FLOAT_ROW(f32),
               [DDL_F64] = FLOAT_ROW(f64),
               [DDL_F8_E4M3] = FLOAT_ROW(e4m3),
               [DDL_F8_E5M2] = FLOAT_ROW(e5m2),
               [DDL_C64] = COMPLEX_ROW(c64),
               [DDL_C128] = COMPLEX_ROW(c128)},
    .scale = {[DDL_F16] = f16_scale,
              [DDL_BF16] = bf16_scale,
              [DDL_F32] = f32_scale,
              [DDL_F64] = f64_scale,
              [DDL_F8_E4M3] = e4m3_scale,
              [DDL_F8_E5M2] = e5m2_scale,
              [DDL_C64] = c64_scale,
              [DDL_C128] = c128_scale},
    .pairs = {[DDL_I8] = u8_sum,
              [DDL_U8] = u8_sum,
              [DDL_I16] = u16_sum,
              [DDL_U16] = u16_sum,
              [DDL_I32] = u32_sum,
              [DDL_U32] = u32_sum,
              [DDL_I64] = u64_sum,
              [DDL_U64] = u64_sum,
              [DDL_F32] = f32_pairs,
              [DDL_F64] = f64_pairs,
              [DDL_C64] = c64_pairs,
              [DDL_C128] = c128_pairs},
    .narrow = {[DDL_F16] = f16_from_f32, [DDL_BF16] = bf16_from_f32},
    .pack =
        {[DDL_WIRE_INT8] = int8_pack, [DDL_WIRE_INT4] = int4_pack, [DDL_WIRE_BF16] = bf16_from_f32},
    .unpack = {[DDL_WIRE_INT8] = int8_unpack,
               [DDL_WIRE_INT4] = int4_unpack,
               [DDL_WIRE_BF16] = bf16_unpack},
    .copy = copy,
    .copy_nontemporal = copy_nontemporal,
    .copy_lines = copy_lines,
    .copy_nontemporal_lines = copy_nontemporal_lines};
