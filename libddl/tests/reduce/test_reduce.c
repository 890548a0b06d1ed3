/* SPDX-License-Identifier: Apache-2.0 */
/* test_reduce.c - every kernel of every instruction set that this CPU runs, compared bit for bit
 * with a scalar reference, and therefore with each other. */
#include <float.h>

#include "base/dtype.h"
#include "reduce_reference.h"

enum { MAX_OPERANDS = 5, MAX_COUNT = 4099, MAX_BYTES = MAX_COUNT * 16, CANARY = 0x5a };
#define LENGTH(array) (sizeof(array) / sizeof(array)[0])

static const ddl__kernels *sets[4];
static size_t n_sets;

/* ------------------------------------------------------------------------------------ matrix */

static void fill_float(ddl_dtype dtype, uint64_t bits, char *at)
{
    static const double specials[] = {
        0.0,      -0.0,    1,       -1,       INFINITY, -INFINITY, NAN,     65504,     -65504,
        0x1p-24,  0x1p-25, 0x1p-9,  0x1p-16,  448,      -448,      57344,   0x1p-126,  0x1p-149,
        0x1p-133, FLT_MAX, 0x1p-14, -FLT_MAX, 0x1p-6,   0x1p-1022, DBL_MAX, 0x1p-1074,
    };
    if (bits >> 63) /* numbers near each other */
        float_encode(dtype, (double)(int64_t)(bits << 1) * 0x1p-61, at);
    else
        float_encode(dtype, specials[bits % LENGTH(specials)], at);
}

static void fill_integer(ddl_dtype dtype, uint64_t bits, char *at)
{
    static const uint64_t ends[] = {0,          1,         2,          0x7f,       0x80,
                                    0xff,       INT16_MAX, 1ull << 15, UINT16_MAX, INT32_MAX,
                                    1ull << 31, INT64_MAX, UINT32_MAX, 1ull << 63, UINT64_MAX};
    uint64_t end = ends[bits % LENGTH(ends)];
    if (types[dtype].kind == TRUTH)
        end = bits >> 40 & 0x100 ? 0 : end; /* true and false as often */
    memcpy(at, &end, types[dtype].size);
}

static void fill(ddl_dtype dtype, char *data, size_t count)
{
    if (types[dtype].kind == COMPLEX) {
        fill(types[dtype].part, data, 2 * count);
        return;
    }
    for (size_t i = 0; i < count; i++) {
        char *at = data + i * types[dtype].size;
        uint64_t bits = random_bits();
        if (random_bits() % 5 < 2) /* any bits */
            memcpy(at, &bits, types[dtype].size);
        else
            (types[dtype].kind == REAL ? fill_float : fill_integer)(dtype, bits, at);
    }
}

/* A buffer of `bytes` bytes that end where malloc's block ends, for ASan, and start anywhere. */
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
    const bool copied = ++turn % 3, nontemporal = turn % 3 == 2;
    const size_t bytes = s.count * types[s.dtype].size;
    buffer operands[MAX_OPERANDS + 1], copy = buffer_create(bytes, NULL);
    const void *pointers[MAX_OPERANDS];
    for (size_t k = 0; k < s.n; k++) {
        operands[k] = buffer_create(bytes, data[k]);
        pointers[k] = operands[k].data;
    }
    operands[s.n] = buffer_create(bytes, NULL);
    char *dst = operands[alias].data;
    ddl__reduce(kernels, s.dtype, s.op, dst, copied ? copy.data : NULL, nontemporal, pointers, s.n,
                s.count, s.divisor);

#define CASE "%s %s op %d, %d operands, dst %d, count %d, divisor %d, element %d"
#define ARGUMENTS(element)                                                                         \
    kernels->name, types[s.dtype].name, (int)s.op, (int)s.n, (int)alias, (int)s.count,             \
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

/* Run all counts and all positions of dst, on every instruction set. */
static void run_all(shape s, char *const *operands)
{
    static const size_t counts[] = {0, 1, 7, 15, 64, 1000, MAX_COUNT};
    static char expected[MAX_BYTES];
    reference(s.dtype, s.op, expected, operands, s.n, MAX_COUNT, s.divisor);
    for (size_t c = 0; c < LENGTH(counts); c++)
        for (size_t alias = 0; alias <= s.n; alias++)
            for (size_t i = 0; i < n_sets; i++) {
                s.count = counts[c];
                run(sets[i], s, alias, operands, expected);
            }
}

static void test_matrix(void)
{
    static const int64_t divisors[] = {1, 2, 3, 200, 5000000000};
    static char data[MAX_OPERANDS][MAX_BYTES];
    char *operands[MAX_OPERANDS];
    for (ddl_dtype dtype = DDL_BOOL; dtype <= DDL_C128; dtype++) {
        for (size_t k = 0; k < MAX_OPERANDS; k++)
            fill(dtype, operands[k] = data[k], MAX_COUNT);
        for (ddl_op op = DDL_SUM; op <= DDL_LOGICAL_OR; op++)
            for (size_t n = 1; supported(dtype, op) && n <= MAX_OPERANDS; n++)
                for (size_t d = 0; d < (op == DDL_AVERAGE ? LENGTH(divisors) : 1); d++)
                    run_all((shape){dtype, op, n, 0, divisors[d]}, operands);
    }
}

/* ----------------------------------------------------------------------------------- corners */

/* A NaN in any operand and any lane is the result of min and max. */
static void test_nan(void)
{
    enum { COUNT = 37, N = 3 };
    for (ddl_dtype dtype = DDL_BOOL; dtype <= DDL_C128; dtype++)
        for (size_t i = 0; types[dtype].kind == REAL && i < n_sets * N * COUNT; i++) {
            const ddl__kernels *kernels = sets[i % n_sets];
            size_t with = i / n_sets % N, lane = i / n_sets / N, size = types[dtype].size;
            char data[N][COUNT * 8], result[COUNT * 8];
            const void *operands[N] = {data[0], data[1], data[2]};
            for (size_t k = 0; k < N; k++)
                for (size_t j = 0; j < COUNT; j++)
                    float_encode(dtype, k == with && j == lane ? NAN : (double)k - 1,
                                 data[k] + j * size);
            for (ddl_op op = DDL_MIN; op <= DDL_MAX; op++) {
                kernels->reduce[dtype][op](result, operands, N, COUNT, 1);
                for (size_t j = 0; j < COUNT; j++) {
                    double got = float_decode(dtype, result + j * size);
                    CHECK(j == lane ? isnan(got) : got == (op == DDL_MIN ? -1 : 1),
                          "%s %s op %d, NaN in %zu: element %zu of %zu is %g", kernels->name,
                          types[dtype].name, (int)op, with, j, lane, got);
                }
            }
        }
}

/* Average the greatest integers, whose quotient would be rounded up in too small a type. */
static void test_average(void)
{
    enum { COUNT = 64 };
    for (ddl_dtype dtype = DDL_I8; dtype <= DDL_U64; dtype++)
        for (int64_t divisor = 1; divisor < 2000; divisor++) {
            char data[COUNT * 8], expected[COUNT * 8], result[COUNT * 8];
            char *operands[] = {data};
            const uint64_t greatest = UINT64_MAX >> (types[dtype].kind == SIGNED);
            const size_t size = types[dtype].size;
            for (size_t i = 0; i < COUNT; i++) { /* around multiples of the divisor */
                uint64_t value = greatest >> (64 - 8 * size);
                value = (value - value % (uint64_t)divisor) - i / 2;
                value = i % 2 ? 0 - value : value;
                memcpy(data + i * size, &value, size);
            }
            reference(dtype, DDL_AVERAGE, expected, operands, 1, COUNT, divisor);
            for (size_t i = 0; i < n_sets; i++) {
                sets[i]->reduce[dtype][DDL_AVERAGE](result, (const void *const *)operands, 1, COUNT,
                                                    divisor);
                size_t at = difference(dtype, result, expected, COUNT);
                CHECK(at == COUNT, "%s %s: element %zu by %d", sets[i]->name, types[dtype].name, at,
                      (int)divisor);
            }
        }
}

static void test_copies(void)
{
    static char data[600];
    fill(DDL_U8, data, sizeof data);
    for (size_t i = 0; i < 2 * n_sets; i++)
        for (size_t bytes = 0; bytes < sizeof data; bytes++) {
            const ddl__kernels *kernels = sets[i / 2];
            ddl__copy_fn *copy = i % 2 ? kernels->copy_nontemporal : kernels->copy;
            buffer from = buffer_create(bytes, data), to = buffer_create(bytes, NULL);
            copy(to.data, from.data, bytes);
            CHECK(!memcmp(to.data, data, bytes), "%s %zu: %zu bytes", kernels->name, i % 2, bytes);
            buffer_destroy(from);
            buffer_destroy(to);
        }
}

static void test_copies_of_lines(void)
{
    static char data[4 * DDL__LINES];
    fill(DDL_U8, data, sizeof data);
    for (size_t i = 0; i < 2 * n_sets; i++)
        for (size_t bytes = 0; bytes <= sizeof data; bytes += DDL__LINES) {
            const ddl__kernels *kernels = sets[i / 2];
            char *to = aligned_alloc(64, sizeof data + 64);
            buffer from = buffer_create(bytes, data);
            (i % 2 ? kernels->copy_nontemporal_lines : kernels->copy_lines)(to, from.data, bytes);
            kernels->copy_nontemporal(to, to, 0);
            CHECK(!memcmp(to, data, bytes), "%s %zu: %zu bytes", kernels->name, i % 2, bytes);
            buffer_destroy(from);
            free(to);
        }
}

/* ------------------------------------------------------------------------- names and dispatch */

static void test_dtypes(void)
{
    static const char *const ops[] = {"?",       "sum",         "average",   "min",
                                      "max",     "product",     "bit_and",   "bit_or",
                                      "bit_xor", "logical_and", "logical_or"};
    for (unsigned dtype = 0; dtype < DTYPES + 3; dtype++) {
        const traits *t = dtype && dtype < DTYPES ? &types[dtype] : &(traits){.name = "?"};
        CHECK(!strcmp(ddl__dtype_name(dtype), t->name), "%u is %s", dtype, ddl__dtype_name(dtype));
        CHECK(ddl__dtype_size(dtype) == t->size, "%s has %zu", t->name, ddl__dtype_size(dtype));
        for (unsigned op = 0; op < OPS + 3; op++)
            CHECK(ddl__reduces(dtype, op) ==
                      (t->size && op && op < OPS && supported((ddl_dtype)dtype, (ddl_op)op)),
                  "%s, op %u", t->name, op);
    }
    for (unsigned op = 0; op < OPS + 3; op++)
        CHECK(!strcmp(ddl__op_name(op), ops[op < OPS ? op : 0]), "%u is %s", op, ddl__op_name(op));
    CHECK(!ddl__reduces(~0u, DDL_SUM) && !ddl__reduces(DDL_F32, ~0u), "far from any");
}

static void test_dispatch(void)
{
    CHECK(ddl__kernels_best() == sets[n_sets - 1], "the last is the best");
    CHECK(!ddl__kernels_named("mmx"), "none of that name");
    for (size_t i = 0; i < n_sets; i++)
        for (unsigned dtype = 0; dtype < LENGTH(sets[i]->reduce); dtype++) {
            for (unsigned op = 0; op < LENGTH(sets[i]->reduce[0]); op++)
                CHECK(!sets[i]->reduce[dtype][op] == !ddl__reduces(dtype, op), "%s: %s, op %u",
                      sets[i]->name, ddl__dtype_name(dtype), op);
            CHECK(!sets[i]->scale[dtype] ==
                      !(types[dtype].kind == REAL || types[dtype].kind == COMPLEX),
                  "%s: %s", sets[i]->name, ddl__dtype_name(dtype));
        }
}

int main(void)
{
    n_sets = instruction_sets(sets);
    test_dtypes();
    test_dispatch();
    test_copies();
    test_copies_of_lines();
    test_nan();
    test_average();
    test_matrix();
    for (size_t i = 0; i < n_sets; i++)
        printf("%s%s", i ? ", " : "", sets[i]->name);
    puts(": all equal to the reference");
}
