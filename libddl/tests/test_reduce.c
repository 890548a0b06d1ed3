/* test_reduce.c - every kernel of every instruction set that this CPU runs, to the bit, against a
 * scalar reference in double and int64_t; so all of them equal each other, too. */
#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "check.h"
#include "reduce/reduce.h"

/* The portable conversions, to be tested by themselves. */
#define ISA   test
#define WIDTH 16
#include "reduce/kernels.h"
#ifdef __SSE2__
#include <xmmintrin.h>
#endif

static const ddl_dtype dtypes[] = {DDL_I8,  DDL_U8,   DDL_I32, DDL_I64,
                                   DDL_F16, DDL_BF16, DDL_F32, DDL_F64};
static const char *const dtype_names[] = {
    [DDL_I8] = "i8",   [DDL_U8] = "u8",     [DDL_I32] = "i32", [DDL_I64] = "i64",
    [DDL_F16] = "f16", [DDL_BF16] = "bf16", [DDL_F32] = "f32", [DDL_F64] = "f64"};
static const size_t sizes[] = {[DDL_I8] = 1,  [DDL_U8] = 1,   [DDL_I32] = 4, [DDL_I64] = 8,
                               [DDL_F16] = 2, [DDL_BF16] = 2, [DDL_F32] = 4, [DDL_F64] = 8};

enum { MAX_OPERANDS = 7, MAX_COUNT = 4099, MAX_BYTES = MAX_COUNT * 8, CANARY = 0x5a };
#define EACH(i, array) (size_t i = 0; i < sizeof(array) / sizeof(array)[0]; i++)

static const ddl__kernels *sets[4];
static size_t n_sets;

static uint64_t random_bits(void)
{
    static uint64_t state = 0x9e3779b97f4a7c15;
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state * 0x2545f4914f6cdd1d;
}

/* --------------------------------------------------------------------------------- reference */

/* Half precision formats: bits of the fraction, least exponent of a normal number. */
typedef struct format {
    int fraction, least;
} format;
static const format f16_format = {10, -14}, bf16_format = {7, -126};

static double half_decode(format f, uint16_t bits)
{
    int exponent = (bits & 0x7fff) >> f.fraction, fraction = bits & ((1 << f.fraction) - 1);
    int special = 0x7fff >> f.fraction;
    double value = exponent == special ? (fraction ? NAN : INFINITY)
                   : exponent == 0
                       ? ldexp(fraction, f.least - f.fraction)
                       : ldexp(fraction + (1 << f.fraction), exponent - 1 + f.least - f.fraction);
    return bits & 0x8000 ? -value : value;
}

static uint16_t half_encode(format f, double value)
{
    int sign = signbit(value) ? 0x8000 : 0;
    int infinity = (0x7fff >> f.fraction) << f.fraction;
    double size = fabs(value);
    if (isnan(value) || isinf(value))
        return (uint16_t)(sign | infinity | !!isnan(value));
    int exponent;
    frexp(size, &exponent);
    exponent = size == 0 || exponent - 1 < f.least ? f.least : exponent - 1;
    /* rint rounds to even; a carry out of the fraction goes to the exponent as it should. */
    double units = rint(ldexp(size, f.fraction - exponent));
    double bits = units + ldexp(exponent - f.least, f.fraction);
    return (uint16_t)(sign | (bits < infinity ? (int)bits : infinity));
}

static bool is_float(ddl_dtype dtype)
{
    return dtype >= DDL_F16;
}

static double float_decode(ddl_dtype dtype, const void *at)
{
    uint16_t half;
    float single;
    double value;
    if (dtype == DDL_F64)
        return memcpy(&value, at, 8), value;
    if (dtype == DDL_F32)
        return memcpy(&single, at, 4), single;
    memcpy(&half, at, 2);
    return half_decode(dtype == DDL_F16 ? f16_format : bf16_format, half);
}

static void float_encode(ddl_dtype dtype, double value, void *at)
{
    float single = (float)value;
    if (dtype == DDL_F64) {
        memcpy(at, &value, 8);
    } else if (dtype == DDL_F32) {
        memcpy(at, &single, 4);
    } else {
        uint16_t half = half_encode(dtype == DDL_F16 ? f16_format : bf16_format, value);
        memcpy(at, &half, 2);
    }
}

/* One operation on floats, rounded to what is computed in. From double to float that is as good as
 * one rounding: 53 bits are more than twice 24. */
static double float_step(ddl_dtype dtype, ddl_op op, double a, double b)
{
    double result = op == DDL_MIN       ? (a < b || isnan(a) ? a : b)
                    : op == DDL_MAX     ? (a > b || isnan(a) ? a : b)
                    : op == DDL_PRODUCT ? a * b
                                        : a + b;
    return dtype == DDL_F64 ? result : (double)(float)result;
}

/* Sign- or zero-extend what fits the dtype. */
static int64_t wrap(ddl_dtype dtype, uint64_t value)
{
    unsigned shift = 64 - 8 * (unsigned)sizes[dtype];
    return dtype == DDL_U8 ? (int64_t)(value & 0xff) : (int64_t)(value << shift) >> shift;
}

static int64_t integer_step(ddl_dtype dtype, ddl_op op, int64_t a, int64_t b)
{
    return op == DDL_MIN       ? (a < b ? a : b)
           : op == DDL_MAX     ? (a > b ? a : b)
           : op == DDL_PRODUCT ? wrap(dtype, (uint64_t)a * (uint64_t)b)
                               : wrap(dtype, (uint64_t)a + (uint64_t)b);
}

static int64_t integer_decode(ddl_dtype dtype, const void *at)
{
    uint64_t value = 0;
    memcpy(&value, at, sizes[dtype]); /* little endian */
    return wrap(dtype, value);
}

static void reference(ddl_dtype dtype, ddl_op op, char *dst, char *const *operands, size_t n,
                      size_t count, int64_t divisor)
{
    for (size_t at = 0; at < count * sizes[dtype]; at += sizes[dtype]) {
        if (is_float(dtype)) {
            double value = float_decode(dtype, operands[0] + at);
            for (size_t k = 1; k < n; k++)
                value = float_step(dtype, op, value, float_decode(dtype, operands[k] + at));
            if (op == DDL_AVERAGE)
                value = dtype == DDL_F64 ? value / (double)divisor
                                         : (double)(float)(value / (float)divisor);
            float_encode(dtype, value, dst + at);
        } else {
            int64_t value = integer_decode(dtype, operands[0] + at);
            for (size_t k = 1; k < n; k++)
                value = integer_step(dtype, op, value, integer_decode(dtype, operands[k] + at));
            if (op == DDL_AVERAGE)
                value /= divisor;
            memcpy(dst + at, &value, sizes[dtype]);
        }
    }
}

/* Index of the first element that differs, or count. Any NaN equals any other. */
static size_t difference(ddl_dtype dtype, const char *a, const char *b, size_t count)
{
    const size_t size = sizes[dtype];
    if (!memcmp(a, b, count * size))
        return count;
    for (size_t i = 0; i < count; i++, a += size, b += size)
        if (memcmp(a, b, size) &&
            !(is_float(dtype) && isnan(float_decode(dtype, a)) && isnan(float_decode(dtype, b))))
            return i;
    return count;
}

/* ------------------------------------------------------------------------------------ matrix */

static void fill(ddl_dtype dtype, char *data)
{
    static const double specials[] = {0.0,       -0.0,     1,         -1,        INFINITY,
                                      -INFINITY, NAN,      65504,     -65504,    0x1p-24,
                                      0x1p-25,   0x1p-126, 0x1p-149,  0x1p-133,  FLT_MAX,
                                      -FLT_MAX,  0x1p-14,  0x1p-1022, 0x1p-1074, DBL_MAX};
    static const uint64_t integers[] = {0,          1,         2,          0x7f,
                                        0x80,       0xff,      INT32_MAX,  1ull << 31,
                                        UINT32_MAX, INT64_MAX, 1ull << 63, UINT64_MAX};
    for (size_t i = 0; i < MAX_COUNT; i++) {
        char *at = data + i * sizes[dtype];
        uint64_t bits = random_bits(), choice = bits >> 60;
        if (choice < 6) /* any bits */
            memcpy(at, &bits, sizes[dtype]);
        else if (is_float(dtype) && choice < 14) /* numbers near each other */
            float_encode(dtype, (double)(int64_t)bits * 0x1p-61, at);
        else if (is_float(dtype))
            float_encode(dtype, specials[bits % (sizeof specials / sizeof *specials)], at);
        else
            memcpy(at, &integers[bits % (sizeof integers / sizeof *integers)], sizes[dtype]);
    }
}

/* `bytes` bytes that end where malloc's block ends, for ASan, and begin anywhere. */
typedef struct buffer {
    char *block, *data;
} buffer;

static buffer buffer_create(size_t bytes, const char *content)
{
    const size_t place = random_bits() >> 32;
    const size_t offset = 16 + (place & 1 ? place / 2 % 128 : place / 2 % 8 * 16);
    buffer b = {.block = malloc(offset + bytes)};
    CHECK(b.block, "out of memory");
    b.data = b.block + offset;
    memset(b.block, CANARY, offset + bytes);
    if (content)
        memcpy(b.data, content, bytes);
    return b;
}

static void buffer_destroy(buffer b)
{
    for (const char *c = b.block; c < b.data; c++)
        CHECK(*c == CANARY, "written %d bytes before the start", (int)(b.data - c));
    free(b.block);
}

typedef struct shape {
    ddl_dtype dtype;
    ddl_op op;
    size_t n, count;
    int64_t divisor;
} shape;

/* alias: the operand that is also dst; n for none. */
static void run(const ddl__kernels *kernels, shape s, size_t alias, char *const *data,
                const char *expected)
{
    static unsigned turn;
    const bool copied = ++turn % 3, streamed = turn % 3 == 2;
    const size_t bytes = s.count * sizes[s.dtype];
    buffer operands[MAX_OPERANDS + 1], copy = buffer_create(bytes, NULL);
    const void *pointers[MAX_OPERANDS];
    for (size_t k = 0; k < s.n; k++) {
        operands[k] = buffer_create(bytes, data[k]);
        pointers[k] = operands[k].data;
    }
    operands[s.n] = buffer_create(bytes, NULL);
    char *dst = operands[alias].data;
    ddl__reduce(kernels, s.dtype, s.op, dst, copied ? copy.data : NULL, streamed, pointers, s.n,
                s.count, s.divisor);

#define CASE "%s %s op %d, %d operands, dst %d, count %d, divisor %d, element %d"
#define ARGUMENTS(element)                                                                         \
    kernels->name, dtype_names[s.dtype], (int)s.op, (int)s.n, (int)alias, (int)s.count,            \
        (int)s.divisor, (int)element
    size_t i = difference(s.dtype, dst, expected, s.count);
    CHECK(i == s.count, CASE, ARGUMENTS(i));
    CHECK(!copied || !memcmp(copy.data, dst, bytes), CASE ": copy", ARGUMENTS(0));
    for (size_t k = 0; k < s.n; k++)
        CHECK(k == alias || !memcmp(operands[k].data, data[k], bytes), CASE ": operand written",
              ARGUMENTS(k));
    for (size_t k = 0; k <= s.n; k++)
        buffer_destroy(operands[k]);
    buffer_destroy(copy);
}

static void test_matrix(void)
{
    static const size_t numbers[] = {1, 2, 3, 4, 7};
    static const size_t counts[] = {0, 1, 7, 15, 64, 1000, MAX_COUNT};
    static const int64_t divisors[] = {1, 2, 3, 200, 5000000000};
    static char data[MAX_OPERANDS][MAX_BYTES], expected[MAX_BYTES];
    char *operands[MAX_OPERANDS];
    for (size_t k = 0; k < MAX_OPERANDS; k++)
        operands[k] = data[k];
    for
        EACH(t, dtypes)
        {
            for (size_t k = 0; k < MAX_OPERANDS; k++)
                fill(dtypes[t], data[k]);
            for (ddl_op op = DDL_SUM; op <= DDL_PRODUCT; op++)
            for
                EACH(d, divisors)
                for
                    EACH(n, numbers)
                    {
                        shape s = {dtypes[t], op, numbers[n], MAX_COUNT, divisors[d]};
                        if (op != DDL_AVERAGE && d) /* ignored by them */
                            continue;
                        reference(s.dtype, op, expected, operands, s.n, s.count, s.divisor);
                    for
                        EACH(c, counts)
                    for (size_t alias = 0; alias <= s.n; alias++)
                        for (size_t i = 0; i < n_sets; i++) {
                            s.count = counts[c];
                            run(sets[i], s, alias, operands, expected);
                        }
                    }
        }
}

/* ------------------------------------------------------------------------------- conversions */

static void test_f16_decode(void)
{
    for (uint32_t bits = 0; bits <= 0xffff; bits++) {
        f32_lanes lanes = f16_widen((u32_lanes){bits});
        float expected = (float)half_decode(f16_format, (uint16_t)bits);
        CHECK(difference(DDL_F32, (char *)&lanes, (char *)&expected, 1), "f16 %x is %g", bits,
              (double)expected);
    }
}

static void check_half(ddl_dtype dtype, float value, uint16_t half)
{
    uint16_t expected;
    float_encode(dtype, value, &expected);
    CHECK(difference(dtype, (char *)&half, (char *)&expected, 1), "%s of %a is %04x, not %04x",
          dtype_names[dtype], (double)value, expected, half);
}

/* f32 at, before and after every half way between neighbours, and one in between. */
static void test_encode(void)
{
    for (uint32_t middle = 0; middle < 0x80000000; middle += 0x1000)
        for (uint32_t i = 0; i < 4; i++) {
            uint64_t random = random_bits();
            uint32_t bits = i < 3 ? middle + i - 1 : middle + (random & 0xfff);
            bits ^= random >> 32 & 0x80000000;
            float value;
            memcpy(&value, &bits, 4);
            check_half(DDL_F16, value, (uint16_t)f16_narrow((f32_lanes){value})[0]);
            check_half(DDL_BF16, value, (uint16_t)(bf16_round((f32_lanes){value})[0] >> 16));
        }
}

/* Every f16 with some others, through the kernels of every instruction set. */
static void test_f16_all(void)
{
    static uint16_t all[0x10000], other[0x10000], expected[0x10000], result[0x10000];
    static const uint16_t others[] = {0x0001, 0x0203, 0x03ff, 0x0400, 0x1401, 0x2c03, 0x3555,
                                      0x3bff, 0x3c01, 0x4c00, 0x4bff, 0x7bff, 0x8001, 0xb800,
                                      0xbc03, 0xcbff, 0xfbff, 0x7c00, 0xfe00};
    char *operands[] = {(char *)all, (char *)other};
    for
        EACH(i, others)
    for (ddl_op op = DDL_SUM; op <= DDL_PRODUCT; op++) {
        for (uint32_t bits = 0; bits <= 0xffff; bits++) {
            all[bits] = (uint16_t)bits;
            other[bits] = others[i];
        }
        reference(DDL_F16, op, (char *)expected, operands, 2, 0x10000, 3);
        for (size_t set = 0; set < n_sets; set++) {
            sets[set]->reduce[DDL_F16][op](result, (const void *const *)operands, 2, 0x10000, 3);
            size_t at = difference(DDL_F16, (char *)result, (char *)expected, 0x10000);
            CHECK(at == 0x10000, "%s op %d on %zx, %x is %x, not %x", sets[set]->name, op, at,
                  others[i], result[at], expected[at]);
        }
    }
}

/* -------------------------------------------------------------------------- copies, dispatch */

static void test_stream(void)
{
    static char data[MAX_BYTES];
    fill(DDL_U8, data);
    for (size_t i = 0; i < n_sets; i++)
        for (size_t bytes = 0; bytes < 600; bytes++) {
            buffer from = buffer_create(bytes, data), to = buffer_create(bytes, NULL);
            sets[i]->stream(to.data, from.data, bytes);
            CHECK(!memcmp(to.data, data, bytes), "%s: %zu bytes", sets[i]->name, bytes);
            buffer_destroy(from);
            buffer_destroy(to);
        }
}

static void test_dispatch(void)
{
    static const char *const names[] = {"portable", "avx2", "avx512", "neon"};
    for
        EACH(i, names)
    if ((sets[n_sets] = ddl__kernels_named(names[i])))
        CHECK(!strcmp(sets[n_sets++]->name, names[i]), "%s", names[i]);
    CHECK(n_sets && !strcmp(sets[0]->name, "portable"), "runs anywhere");
    CHECK(ddl__kernels_best() == sets[n_sets - 1], "the last is the best");
    CHECK(!ddl__kernels_named("mmx"), "none of that name");
    for (size_t i = 0; i < n_sets; i++)
        for (int dtype = 0; dtype < 16; dtype++)
            for (int op = 0; op < 8; op++) {
                bool known = dtype <= DDL_F64 && sizes[dtype] && op >= DDL_SUM && op <= DDL_PRODUCT;
                CHECK(!sets[i]->reduce[dtype][op] == !known, "%s: %d, %d", sets[i]->name, dtype,
                      op);
            }
}

int main(void)
{
    test_dispatch();
    test_f16_decode();
#ifdef __SSE2__
    _mm_setcsr(_mm_getcsr() | 0x8040); /* flush subnormals to zero, as frameworks may */
    test_f16_decode();
    _mm_setcsr(_mm_getcsr() & ~0x8040u);
#endif
    test_encode();
    test_f16_all();
    test_stream();
    test_matrix();
    for (size_t i = 0; i < n_sets; i++)
        printf("%s%s", i ? ", " : "", sets[i]->name);
    puts(": all equal to the reference");
    return 0;
}
