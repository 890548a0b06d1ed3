/* SPDX-License-Identifier: Apache-2.0 */
/* fold.c - additions in the order of a program: block by block, with a stack of blocks that stays
 * in the nearest cache. Operands are read in place, and the last addition of a result stores it at
 * its destination, so two operands cost as much as a plain reduction of two. */
#include <stdint.h>

#include "base/dtype.h"
#include "reduce/reduce.h"

enum {
    BLOCK = 4096,    /* bytes of a block of sums */
    LONG = 32 << 20, /* bytes of a result that no cache will keep */
    STAGED = 8192
};

/* The state of one block of all operands. */
typedef struct block_sums {
    const ddl__folding *folding;
    const void *const *operands;
    ddl__reduce_fn *add, *pairs, *finish;
    bool divides;
    size_t at, length; /* in elements */
    size_t size;       /* bytes of an element of a sum */
    size_t result_size;
    ddl__narrow_fn *narrow; /* converts sums to results; NULL if the sums are the results */
    const void *values[DDL__FOLD_DEPTH];
    int n;
    char (*stack)[BLOCK];
} block_sums;

/* Replace the top `n` sums of the stack by their sum. */
static void block_add(block_sums *b, ddl__reduce_fn *add, int n, void *to)
{
    b->n -= n - 1;
    add(to, &b->values[b->n - 1], (size_t)n, b->length, b->folding->divisor);
    b->values[b->n - 1] = to;
}

/* Replace the top four sums of the stack by two: the sum of each pair. */
static void block_add_pairs(block_sums *b)
{
    const void *right[] = {b->values[b->n - 2], b->values[b->n - 1]};
    b->add(b->stack[b->n - 2], right, 2, b->length, 1);
    const void *sum = b->stack[b->n - 2];
    b->n -= 2;
    block_add(b, b->add, 2, b->stack[b->n - 2]);
    b->values[b->n++] = sum;
}

/* Store the sum that is left on the stack, unless it is already at its destination. A sum there is
 * already divided. */
static void block_store(block_sums *b, char *to, char *copy)
{
    const ddl__folding *f = b->folding;
    const void *value = b->values[--b->n];
    const size_t bytes = b->length * b->result_size;
    if (b->narrow) {
        if (b->divides)
            b->finish(b->stack[b->n], &value, 1, b->length, f->divisor);
        b->narrow(to, b->divides ? (const void *)b->stack[b->n] : value, b->length);
    } else if (value != to && b->divides) {
        b->finish(to, &value, 1, b->length, f->divisor);
    } else if (value != to) {
        f->kernels->copy(to, value, bytes);
    }
    if (copy)
        (f->nontemporal ? f->kernels->copy_nontemporal : f->kernels->copy)(copy, to, bytes);
}

static void block_run(block_sums *b, char *dst, char *copy, size_t stride)
{
    const ddl__fold *fold = b->folding->fold;
    for (int i = 0; i < fold->n; i++) {
        const int item = fold->items[i];
        if (item >= 0) {
            b->values[b->n++] = (const char *)b->operands[item] + b->at * b->size;
        } else if (item == DDL__FOLD_STORE) {
            block_store(b, dst, copy);
            dst += stride;
            copy += copy ? stride : 0;
        } else {
            const bool last = fold->items[i + 1] == DDL__FOLD_STORE && !b->narrow;
            const bool pairs = item == DDL__FOLD_PAIRS && b->pairs && !(last && b->divides);
            if (item == DDL__FOLD_PAIRS && !pairs)
                block_add_pairs(b);
            const int n = pairs ? 4 : 2;
            block_add(b,
                      pairs  ? b->pairs
                      : last ? b->finish
                             : b->add,
                      n, last ? dst : b->stack[b->n - n]);
        }
    }
}

void ddl__fold_run(const ddl__folding *folding, void *dst, void *copy, const void *const *operands,
                   size_t count)
{
    const bool half = folding->wide && (folding->dtype == DDL_F16 || folding->dtype == DDL_BF16);
    const bool divides = folding->op == DDL_AVERAGE && folding->divisor != 1;
    const ddl_dtype sums = half ? DDL_F32 : folding->dtype;
    const ddl_op op = folding->op == DDL_AVERAGE ? DDL_SUM : folding->op;
    const ddl__kernels *kernels = folding->kernels;
    _Alignas(64) char stack[DDL__FOLD_DEPTH][BLOCK];
    block_sums b = {.folding = folding,
                    .operands = operands,
                    .add = kernels->reduce[sums][op],
                    .pairs = op == DDL_SUM ? kernels->pairs[sums] : NULL,
                    .finish = kernels->reduce[sums][divides ? DDL_AVERAGE : op],
                    .divides = divides,
                    .size = ddl__dtype_size(sums),
                    .narrow = half && !folding->widened ? kernels->narrow[folding->dtype] : NULL,
                    .stack = stack};
    b.result_size = b.narrow ? ddl__dtype_size(folding->dtype) : b.size;
    /* Blocks end at a cache line of the copy, so that non-temporal stores write whole lines. */
    for (; b.at < count; b.at += b.length) {
        char *to = (char *)dst + b.at * b.result_size;
        char *also = copy ? (char *)copy + b.at * b.result_size : NULL;
        b.length = (BLOCK / b.size * b.result_size - (uintptr_t)also % 64) / b.result_size;
        b.length = b.length < count - b.at ? b.length : count - b.at;
        block_run(&b, to, also, count * b.result_size);
    }
}

void ddl__add(const ddl__kernels *kernels, ddl_dtype dtype, void *dst, const void *left,
              const void *right, size_t count)
{
    const size_t size = ddl__dtype_size(dtype);
    const void *both[] = {left, right};
    ddl__reduce_fn *add = kernels->reduce[dtype][DDL_SUM];
    if (dst == left || dst == right || count * size < LONG) {
        add(dst, both, 2, count, 1);
        return;
    }
    _Alignas(64) char staged[STAGED];
    char *to = dst;
    while (count) {
        size_t length = (STAGED - (uintptr_t)to % 64) / size;
        length = length < count ? length : count;
        add(staged, both, 2, length, 1);
        kernels->copy_nontemporal(to, staged, length * size);
        for (int k = 0; k < 2; k++)
            both[k] = (const char *)both[k] + length * size;
        to += length * size;
        count -= length;
    }
}
