/* SPDX-License-Identifier: Apache-2.0 */
/* test_fold.c - the additions of an ordered sum, run by every instruction set, against the same
 * additions over whole buffers, one after the other; and ddl__add. */
#include "base/dtype.h"
#include "fp_modes.h"
#include "plan/order.h"

enum { WORKERS = 13, MEMBERS = 4, MAX_COUNT = 2500, MAX_BYTES = MAX_COUNT * 16, CANARY = 0x5a };

static const ddl__kernels *sets[4];
static size_t n_sets;

static char inputs[WORKERS][MAX_BYTES]; /* by part, one behind another */

static bool is_half(ddl_dtype dtype)
{
    return dtype == DDL_F16 || dtype == DDL_BF16;
}

static ddl_dtype sums_of(ddl_dtype dtype)
{
    return is_half(dtype) ? DDL_F32 : dtype;
}

static void add(ddl_dtype dtype, void *to, const void *a, const void *b, size_t count)
{
    const void *const both[] = {a, b};
    sets[0]->reduce[dtype][DDL_SUM](to, both, 2, count, 1);
}

/* ------------------------------------------------------------------------------------ expected */

typedef struct shape {
    ddl_dtype dtype;
    size_t count;
    int64_t divisor;
    bool widened;
} shape;

static size_t result_size(shape s)
{
    return types[s.widened ? sums_of(s.dtype) : s.dtype].size;
}

static void finish(shape s, char *to, const char *sum)
{
    static char divided[MAX_BYTES];
    const ddl_dtype sums = sums_of(s.dtype);
    const void *const one = sum;
    memcpy(divided, sum, s.count * types[sums].size);
    if (s.divisor != 1)
        sets[0]->reduce[sums][DDL_AVERAGE](divided, &one, 1, s.count, s.divisor);
    if (!is_half(s.dtype) || s.widened) {
        memcpy(to, divided, s.count * types[sums].size);
        return;
    }
    for (size_t i = 0; i < s.count; i++)
        float_encode(s.dtype, float_decode(DDL_F32, divided + i * 4), to + i * 2);
}

/* Compute the results of the program, over whole buffers. */
static void expect(const ddl__fold *fold, shape s, char *to)
{
    static char stack[WORKERS][MAX_BYTES];
    const ddl_dtype sums = sums_of(s.dtype);
    int n = 0;
    for (int i = 0; i < fold->n; i++) {
        if (fold->items[i] == DDL__FOLD_ADD) {
            n--;
            add(sums, stack[n - 1], stack[n - 1], stack[n], s.count);
        } else if (fold->items[i] == DDL__FOLD_PAIRS) {
            n -= 3;
            add(sums, stack[n - 1], stack[n - 1], stack[n], s.count);
            add(sums, stack[n + 1], stack[n + 1], stack[n + 2], s.count);
            add(sums, stack[n - 1], stack[n - 1], stack[n + 1], s.count);
        } else if (fold->items[i] == DDL__FOLD_STORE) {
            finish(s, to, stack[--n]);
            to += s.count * result_size(s);
        } else {
            memcpy(stack[n++], inputs[fold->items[i]], s.count * types[sums].size);
        }
    }
}

/* ---------------------------------------------------------------------------------------- cases */

/* Operands, result and copy start anywhere; nothing is written behind the results. */
static void check_one(const ddl__kernels *kernels, const ddl__fold *fold, shape s)
{
    static char expected[WORKERS * MAX_BYTES];
    static _Alignas(64) char got[WORKERS * MAX_BYTES + 128], copy[WORKERS * MAX_BYTES + 128];
    static char moved[WORKERS][MAX_BYTES + 64];
    static unsigned turn;
    const size_t bytes = (size_t)fold->results * s.count * result_size(s);
    const bool copied = ++turn % 3, nontemporal = turn % 3 == 2;
    char *to = got + random_bits() % 64, *also = copy + random_bits() % 64;
    const void *operands[WORKERS];
    for (int i = 0; i < fold->operands; i++) {
        char *at = moved[i] + random_bits() % 64;
        operands[i] = memcpy(at, inputs[i], s.count * types[sums_of(s.dtype)].size);
    }
    memset(to, CANARY, bytes + 64);
    memset(also, CANARY, bytes + 64);
    expect(fold, s, expected);
    ddl__folding folding = {.kernels = kernels,
                            .fold = fold,
                            .dtype = s.dtype,
                            .op = DDL_AVERAGE,
                            .wide = true,
                            .widened = s.widened,
                            .divisor = s.divisor,
                            .nontemporal = nontemporal};
    ddl__fold_run(&folding, to, copied ? also : NULL, operands, s.count);
    CHECK(!memcmp(to, expected, bytes), "%s %s, %d operands, count %zu, divisor %d, widened %d",
          kernels->name, types[s.dtype].name, fold->operands, s.count, (int)s.divisor, s.widened);
    CHECK(!copied || !memcmp(also, expected, bytes), "%s: the copy", types[s.dtype].name);
    for (int i = 0; i < 64; i++)
        CHECK(to[bytes + (size_t)i] == CANARY && also[(copied ? bytes : 0) + (size_t)i] == CANARY,
              "%s: written behind the results", types[s.dtype].name);
}

static void check_fold(const ddl__fold *fold)
{
    static const size_t counts[] = {0, 1, 7, 64, 511, 513, MAX_COUNT};
    for (ddl_dtype dtype = DDL_I8; dtype <= DDL_C128; dtype++) {
        if (types[dtype].size == 0 || dtype == DDL_F8_E4M3 || dtype == DDL_F8_E5M2)
            continue;
        for (int i = 0; i < WORKERS; i++)
            if (is_float(dtype))
                fill_mixed(sums_of(dtype), inputs[i], MAX_COUNT);
            else
                for (size_t j = 0; j < MAX_BYTES; j++)
                    inputs[i][j] = (char)random_bits();
        for (size_t set = 0; set < n_sets; set++)
            for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
                for (int64_t divisor = 1; divisor <= WORKERS; divisor += 6) {
                    check_one(sets[set], fold, (shape){dtype, counts[c], divisor, false});
                    if (is_half(dtype) && divisor == 1)
                        check_one(sets[set], fold, (shape){dtype, counts[c], divisor, true});
                }
    }
}

static void check_owners(int workers, int members, bool leaves_out)
{
    int of[WORKERS];
    for (int v = 0; v < workers; v++)
        of[v] = v < members ? v : (int)(random_bits() % (uint64_t)members);
    if (leaves_out)
        of[workers - 1] = -1;
    ddl__order order = {workers, of};
    ddl__fold *fold = ddl__order_fold(&order, members);
    check_fold(fold);
    free(fold);
}

/* The kernels of half types round like the reference in all cases. */
static void check_narrowing(void)
{
    static const uint32_t patterns[] = {0,          0x80000000, 0x33000000, 0x33000001, 0x387fe000,
                                        0x387ff000, 0x477fefff, 0x477ff000, 0x7f7fffff, 0x7f800000,
                                        0xff800000, 0x00000001, 0x3f808000, 0x3f818000, 0x3f801000};
    enum { PATTERNS = sizeof patterns / sizeof *patterns };
    float from[PATTERNS];
    uint16_t got[PATTERNS], want = 0;
    memcpy(from, patterns, sizeof from);
    for (size_t set = 0; set < n_sets; set++)
        for (ddl_dtype dtype = DDL_F16; dtype <= DDL_BF16; dtype++) {
            sets[set]->narrow[dtype](got, from, PATTERNS);
            for (int i = 0; i < PATTERNS; i++) {
                float_encode(dtype, (double)from[i], (char *)&want);
                CHECK(got[i] == want, "%s %s of %08x is %04x, not %04x", sets[set]->name,
                      types[dtype].name, patterns[i], got[i], want);
            }
            const float nan = NAN;
            sets[set]->narrow[dtype](got, &nan, 1);
            CHECK(isnan(float_decode(dtype, got)), "NaN became %04x", got[0]);
        }
}

/* Add short and long buffers, in place and bypassing the caches. */
static void check_add(void)
{
    enum { LONG = (33 << 20) / 4 + 5 };
    float *left = malloc((LONG + 1) * sizeof *left), *right = malloc((LONG + 1) * sizeof *left);
    float *sum = malloc((LONG + 1) * sizeof *left);
    CHECK(left && right && sum, "out of memory");
    for (int i = 0; i <= LONG; i++) {
        left[i] = (float)(i % 1001) / 3;
        right[i] = (float)(i % 77) / 7;
        sum[i] = -1;
    }
    const int counts[] = {0, 1, 1000, LONG - 1};
    for (int c = 0; c < 4; c++) {
        ddl__add(sets[n_sets - 1], DDL_F32, sum + 1, left + 1, right + 1, (size_t)counts[c]);
        for (int i = 1; i <= counts[c]; i++)
            CHECK(sum[i] == left[i] + right[i], "element %d of %d", i, counts[c]);
        CHECK(sum[0] == -1 && (c == 3 || sum[counts[c] + 1] == -1), "written beside");
    }
    ddl__add(sets[n_sets - 1], DDL_F32, left, left, right, LONG - 1);
    ddl__add(sets[n_sets - 1], DDL_F32, right, sum, right, 0);
    for (int i = 1; i < LONG - 1; i++)
        CHECK(left[i] == sum[i], "in place, element %d", i);
    free(left);
    free(right);
    free(sum);
}

int main(void)
{
    n_sets = instruction_sets(sets);
    check_owners(1, 1, false);
    check_owners(2, 2, false);
    check_owners(4, 4, false);
    check_owners(WORKERS, MEMBERS, false);
    check_owners(WORKERS, MEMBERS, true);
    ddl__fold *pack = ddl__order_pack(3);
    check_fold(pack);
    free(pack);
    check_narrowing();
    check_add();
}
