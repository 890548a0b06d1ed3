/* SPDX-License-Identifier: Apache-2.0 */
/* test_fp_mode.c - between entering and leaving the library's floating-point mode, the kernels of
 * every instruction set compute the same bits whatever the calling thread's mode is; afterwards the
 * thread has its own mode again. */
#include "fp_modes.h"

enum { COUNT = 1003, BYTES = COUNT * 16, OPERANDS = 3 };

static const ddl__fp_mode modes[] = {MODE_FLUSH, MODE_UP, MODE_FLUSH_UP};
enum { MODES = sizeof modes / sizeof *modes };

static char data[OPERANDS][BYTES];

/* The results of one dtype: its reductions, then its scaling. */
enum { RESULTS = DDL_PRODUCT + 1 };
typedef char results[RESULTS][BYTES];

static void compute(const ddl__kernels *kernels, ddl_dtype dtype, results to)
{
    const void *const operands[] = {data[0], data[1], data[2]};
    for (ddl_op op = DDL_SUM; op <= DDL_PRODUCT; op++)
        if (supported(dtype, op))
            ddl__reduce(kernels, dtype, op, to[op], NULL, false, operands, OPERANDS, COUNT, 3);
    kernels->scale[dtype](to[0], data[0], COUNT, 1 / 3.0);
}

static bool equal(ddl_dtype dtype, results a, results b)
{
    for (ddl_op op = 0; op <= DDL_PRODUCT; op++)
        if ((!op || supported(dtype, op)) && memcmp(a[op], b[op], COUNT * types[dtype].size) != 0)
            return false;
    return true;
}

static void check_set(const ddl__kernels *kernels, ddl_dtype dtype)
{
    static results expected, got;
    compute(kernels, dtype, expected);
    for (int m = 0; m < MODES; m++) {
        ddl__fp_set(modes[m]);
        ddl__fp_mode before = ddl__fp_read(), caller = ddl__fp_enter();
        compute(kernels, dtype, got);
        ddl__fp_leave(caller);
        ddl__fp_mode after = ddl__fp_read();
        ddl__fp_set(DDL__FP_STANDARD);
        CHECK(equal(dtype, expected, got), "%s %s in mode %d", kernels->name, types[dtype].name, m);
        CHECK(((before ^ after) & (ddl__fp_mode)DDL__FP_CONTROL) == 0, "mode %d became %llx", m,
              (unsigned long long)after);
        CHECK((before & ~after) == 0, "flags were cleared: %llx, then %llx",
              (unsigned long long)before, (unsigned long long)after);
    }
}

/* Check that the modes change results; otherwise this test would prove nothing. */
static void check_that_modes_matter(const ddl__kernels *kernels)
{
    static results expected, got;
    compute(kernels, DDL_F32, expected);
    for (int m = 0; m < MODES; m++) {
        ddl__fp_set(modes[m]);
        compute(kernels, DDL_F32, got);
        ddl__fp_set(DDL__FP_STANDARD);
        CHECK(!equal(DDL_F32, expected, got), "%s: mode %d is as good as none", kernels->name, m);
    }
}

int main(void)
{
    const ddl__kernels *sets[4];
    const size_t n_sets = instruction_sets(sets);
    if (!HAS_MODES)
        return 77;
    CHECK(ddl__fp_is_standard(ddl__fp_read()), "a process begins in it");
    for (ddl_dtype dtype = DDL_BOOL; dtype <= DDL_C128; dtype++) {
        if (!is_float(dtype))
            continue;
        for (size_t k = 0; k < OPERANDS; k++)
            fill_mixed(dtype, data[k], COUNT);
        for (size_t i = 0; i < n_sets; i++) {
            check_set(sets[i], dtype);
            if (dtype == DDL_F32)
                check_that_modes_matter(sets[i]);
        }
    }
    for (size_t i = 0; i < n_sets; i++)
        printf("%s%s", i ? ", " : "", sets[i]->name);
    puts(": the same bits in every mode");
}
