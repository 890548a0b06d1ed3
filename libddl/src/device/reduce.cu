/* SPDX-License-Identifier: Apache-2.0 */
/* reduce.cu - reduces the operands of several ranks on a GPU, element by element, in the order of
 * the operands; one operand is copied. NVRTC compiles it when a reduction is first wanted, with the
 * macros DTYPE_<dtype> and OP_<op>, and ORDERED for ordered sums. A launch has a row of blocks for
 * each part of a table, which is filled in after the launch was queued.
 *
 * It computes as reduce/kernels.h and reduce/convert.h do, so the bits are the same, but for those
 * of NaN. It is C as well as CUDA C++: the stand-in for the driver compiles it with a C compiler. */
#include "reduction.h"

/* Ordered sums do not use all of these functions. */
#define INLINE static __attribute__((unused)) __device__ __forceinline__

/* ------------------------------------------------------------------ elements, and their values */

#if defined(DTYPE_f32)
typedef float element, value;
#elif defined(DTYPE_f64)
typedef double element, value;
#elif defined(DTYPE_f16)
#define SMALL_FLOAT(name) name(unsigned short, 16, 10, 0x7c00, 0x47800000)
#define SPECIAL(bits, is_nan) (0x7c00u | ((is_nan) ? 0x200u | ((bits) >> 13 & 0x3ff) : 0u))
#elif defined(DTYPE_f8e5m2)
#define SMALL_FLOAT(name) name(unsigned char, 8, 2, 0x7c, 0x47800000)
#define SPECIAL(bits, is_nan) (0x7cu | ((is_nan) ? 3u : 0u))
#elif defined(DTYPE_f8e4m3)
#define SMALL_FLOAT(name) name(unsigned char, 8, 3, 0x7f, 0x43f00000)
#define SPECIAL(bits, is_nan) 0x7fu
#elif defined(DTYPE_bf16)
typedef unsigned short element;
typedef float value;
#elif defined(DTYPE_i8)
#define INTEGER(name) name(signed char, unsigned, float)
#elif defined(DTYPE_u8)
#define INTEGER(name) name(unsigned char, unsigned, float)
#elif defined(DTYPE_i16)
#define INTEGER(name) name(short, unsigned, float)
#elif defined(DTYPE_u16)
#define INTEGER(name) name(unsigned short, unsigned, float)
#elif defined(DTYPE_i32)
#define INTEGER(name) name(int, unsigned, double)
#elif defined(DTYPE_u32)
#define INTEGER(name) name(unsigned, unsigned, double)
#elif defined(DTYPE_i64)
#define INTEGER(name) name(long long, unsigned long long, long long)
#else /* u64 */
#define INTEGER(name) name(unsigned long long, unsigned long long, unsigned long long)
#endif

#if defined(SMALL_FLOAT) || defined(DTYPE_bf16)

typedef union {
    float number;
    unsigned bits;
} word;

INLINE unsigned bits_of(float number)
{
    word w;
    w.number = number;
    return w.bits;
}

INLINE float number_of(unsigned bits)
{
    word w;
    w.bits = bits;
    return w.number;
}

#endif

#if defined(SMALL_FLOAT)

/* A format of so many bits, of which `fraction` are the fraction. Magnitudes from `special` on are
 * infinity and NaN; as f32 bits, those from `limit` on become it. */
#define TYPES(type, size, fraction, special, limit)                                                \
    typedef type element;                                                                          \
    typedef float value;                                                                           \
    enum {                                                                                         \
        BITS = size,                                                                               \
        FRACTION = fraction,                                                                       \
        FIRST_SPECIAL = special,                                                                   \
        LIMIT = limit,                                                                             \
        DROP = 23 - fraction,                                   /* bits that f32 has more */       \
        LEAST = (129 - (1 << (size - fraction - 2))) * (1 << 23) /* its smallest normal number */  \
    };
SMALL_FLOAT(TYPES)

INLINE value load(element e)
{
    unsigned magnitude = e & ((1u << (BITS - 1)) - 1), moved = magnitude << DROP;
    unsigned wide = moved + (LEAST - (1u << 23));
    if (magnitude < 1u << FRACTION)
        wide = bits_of(number_of(moved + LEAST) - number_of(LEAST));
    if (magnitude >= FIRST_SPECIAL)
        wide |= 0x7f800000;
    return number_of(wide | (e & 1u << (BITS - 1)) << (32 - BITS));
}

INLINE element store(value v)
{
    const unsigned coarse = LEAST + ((unsigned)DROP << 23);
    unsigned bits = bits_of(v), magnitude = bits & 0x7fffffff;
    unsigned small = magnitude - (LEAST - (1u << 23)) + ((1u << (DROP - 1)) - 1);
    small = (small + (magnitude >> DROP & 1)) >> DROP;
    if (magnitude < LEAST)
        small = bits_of(number_of(magnitude) + number_of(coarse)) - coarse;
    if (magnitude >= LIMIT)
        small = SPECIAL(bits, v != v);
    return (element)(small | (bits >> (32 - BITS) & 1u << (BITS - 1)));
}

#elif defined(DTYPE_bf16)

INLINE value load(element e)
{
    return number_of((unsigned)e << 16);
}

INLINE element store(value v)
{
    unsigned bits = bits_of(v);
    bits = v != v ? bits | 1u << 22 : bits + 0x7fff + (bits >> 16 & 1);
    return (element)(bits >> 16);
}

#else

#if defined(INTEGER)
/* Sums and products wrap in the second type, and the third is that of quotients. */
#define TYPES(type, wrapping_type, quotient_type)                                                  \
    typedef type element, value;                                                                   \
    typedef wrapping_type wrapping;                                                                \
    typedef quotient_type quotient;
INTEGER(TYPES)
#endif

INLINE value load(element e)
{
    return e;
}

INLINE element store(value v)
{
    return v;
}

#endif

/* --------------------------------------------------------------------------------- operations */

#ifdef INTEGER
#define WRAP(a) ((wrapping)(a))
#else
#define WRAP(a) (a)
#endif

INLINE value combine(value a, value b)
{
#if defined(OP_min)
    return a < b || a != a ? a : b;
#elif defined(OP_max)
    return a > b || a != a ? a : b;
#elif defined(OP_product)
    return (value)(WRAP(a) * WRAP(b));
#elif defined(OP_bit_and)
    return (value)(a & b);
#elif defined(OP_bit_or)
    return (value)(a | b);
#elif defined(OP_bit_xor)
    return (value)(a ^ b);
#elif defined(OP_all)
    return (value)(a && b);
#elif defined(OP_any)
    return (value)(a || b);
#elif defined(OP_odd)
    return (value)(!a != !b);
#else /* sum and average */
    return (value)(WRAP(a) + WRAP(b));
#endif
}

INLINE value finish(value v, long long divisor)
{
#if defined(OP_average) && defined(INTEGER)
    return (value)((quotient)v / (quotient)divisor);
#elif defined(OP_average)
    return v / (value)divisor;
#elif defined(OP_all) || defined(OP_any) || defined(OP_odd)
    return (value)(v != 0);
#else
    return v;
#endif
}

/* Each product is rounded to an element. */
INLINE element scaled(element e, double factor)
{
#ifndef INTEGER
    if (factor != 0)
        return store(load(e) * (value)factor);
#endif
    return e;
}

/* ------------------------------------------------------------------------------------- kernel */

typedef unsigned long long u64;

enum { LANES = DDL__PACK_BYTES / sizeof(element) };

typedef struct __align__(16) {
    element lane[LANES];
} pack;

#ifdef ORDERED

/* The operands are parts, which have the type of values, and are added as the program says. */
INLINE void reduce_one(const ddl__reduction *r, u64 i)
{
    value stack[DDL__REDUCTION_DEPTH];
    unsigned top = 0; /* how many there are */
    for (unsigned k = 0; k < r->n_in; k++) {
        stack[top++] = ((const value *)r->in[k])[i];
        for (unsigned a = 0; a < r->additions[k]; a++) {
            value right = stack[top - 1], left = stack[top - 2];
            if (r->pairs[k] >> a & 1) {
                right = combine(left, right);
                left = combine(stack[top - 4], stack[top - 3]);
                top -= 2;
            }
            stack[--top - 1] = combine(left, right);
        }
    }
    element result = store(finish(stack[0], r->divisor));
    for (unsigned k = 0; k < r->n_out; k++)
        ((element *)r->out[k])[i] = result;
}

#else

INLINE void reduce_pack(const ddl__reduction *r, u64 i)
{
    value v[LANES];
    pack result;
    for (unsigned k = 0; k < r->n_in; k++) {
        pack next = ((const pack *)r->in[k])[i];
#pragma unroll
        for (int l = 0; l < LANES; l++) {
            value x = load(scaled(next.lane[l], r->before[k]));
            v[l] = k ? combine(v[l], x) : x;
        }
    }
#pragma unroll
    for (int l = 0; l < LANES; l++)
        result.lane[l] = store(finish(v[l], r->divisor));
    for (unsigned k = 0; k < r->n_out; k++) {
        pack own = result;
#pragma unroll
        for (int l = 0; l < LANES; l++)
            own.lane[l] = scaled(own.lane[l], r->after[k]);
        ((pack *)r->out[k])[i] = own;
    }
}

INLINE void reduce_one(const ddl__reduction *r, u64 i)
{
    value v = load(scaled(((const element *)r->in[0])[i], r->before[0]));
    for (unsigned k = 1; k < r->n_in; k++)
        v = combine(v, load(scaled(((const element *)r->in[k])[i], r->before[k])));
    element result = store(finish(v, r->divisor));
    for (unsigned k = 0; k < r->n_out; k++)
        ((element *)r->out[k])[i] = scaled(result, r->after[k]);
}

#endif

#ifdef __cplusplus
extern "C"
#endif
__global__ void ddl_reduce(const ddl__reduction *__restrict__ parts)
{
    const ddl__reduction *r = &parts[blockIdx.y];
    u64 first = blockIdx.x * (u64)blockDim.x + threadIdx.x, step = (u64)gridDim.x * blockDim.x;
#ifndef ORDERED
    for (u64 i = first; i < r->packs; i += step)
        reduce_pack(r, i);
#endif
    for (u64 i = r->packs * LANES + first; i < r->count; i += step)
        reduce_one(r, i);
}
