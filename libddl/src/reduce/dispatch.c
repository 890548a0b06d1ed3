/* SPDX-License-Identifier: Apache-2.0 */
/* dispatch.c - chooses the kernels for this CPU, and runs them. */
#include <stdatomic.h>
#include <string.h>

#include "base/dtype.h"
#include "reduce/reduce.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

extern const ddl__kernels ddl__kernels_portable, ddl__kernels_avx2, ddl__kernels_avx512,
    ddl__kernels_neon;

static bool always(void)
{
    return true;
}

#if defined(__x86_64__)
static bool has_avx512(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}

static bool has_avx2(void)
{
    /* Some compilers with __builtin_cpu_supports do not know "f16c". */
    unsigned a, b, c = 0, d;
    return __builtin_cpu_supports("avx2") && __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}
#endif

/* The sets of kernels, the best first. */
static const struct {
    const ddl__kernels *kernels;
    bool (*runs)(void);
} sets[] = {
#if defined(__x86_64__)
    {&ddl__kernels_avx512, has_avx512},
    {&ddl__kernels_avx2, has_avx2},
#elif defined(__aarch64__)
    {&ddl__kernels_neon, always},
#endif
    {&ddl__kernels_portable, always},
};

const ddl__kernels *ddl__kernels_named(const char *name)
{
    for (size_t i = 0; i < sizeof sets / sizeof sets[0]; i++)
        if (!strcmp(sets[i].kernels->name, name) && sets[i].runs())
            return sets[i].kernels;
    return NULL;
}

const ddl__kernels *ddl__kernels_best(void)
{
    /* Threads that find `best` empty at the same time store the same pointer, to constant data. */
    static _Atomic(const ddl__kernels *) best;
    const ddl__kernels *kernels = atomic_load_explicit(&best, memory_order_relaxed);
    for (size_t i = 0; !kernels; i++) {
        if (sets[i].runs()) {
            kernels = sets[i].kernels;
            atomic_store_explicit(&best, kernels, memory_order_relaxed);
        }
    }
    return kernels;
}

void ddl__reduce(const ddl__kernels *kernels, ddl_dtype dtype, ddl_op op, void *dst, void *copy,
                 bool nontemporal, const void *const *operands, size_t n, size_t count,
                 int64_t divisor)
{
    ddl__reduce_fn *reduce = kernels->reduce[dtype][op];
    if (!copy) {
        reduce(dst, operands, n, count, divisor);
        return;
    }
    /* Blocks end at a cache line of the copy, so that non-temporal stores write whole lines. */
    enum { BLOCK = 8192, LINE = 64 };
    const size_t size = ddl__dtype_size(dtype);
    const void *block[n];
    memcpy(block, operands, n * sizeof *block);
    char *to = dst, *also = copy;
    while (count) {
        size_t length = (BLOCK - (uintptr_t)also % LINE) / size;
        length = length < count ? length : count;
        reduce(to, block, n, length, divisor);
        if (nontemporal)
            kernels->copy_nontemporal(also, to, length * size);
        else
            kernels->copy(also, to, length * size);
        for (size_t k = 0; k < n; k++)
            block[k] = (const char *)block[k] + length * size;
        to += length * size;
        also += length * size;
        count -= length;
    }
}
