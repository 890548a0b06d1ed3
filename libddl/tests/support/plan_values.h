/* SPDX-License-Identifier: Apache-2.0 */
/* plan_values.h - the values that simulated ranks reduce: hashes, and an operator on them that
 * neither commutes nor associates. */
#ifndef DDL_TESTS_PLAN_VALUES_H
#define DDL_TESTS_PLAN_VALUES_H

#include "check.h"
#include "plan/order.h"

static uint64_t random_state = 1;

static uint64_t random_below(uint64_t limit)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (random_state >> 11) % limit;
}

static uint64_t scramble(uint64_t x)
{
    x = (x ^ (x >> 31)) * 0x7fb5d329728ea185u;
    return (x ^ (x >> 27)) * 0x81dadef4bc2dd44du;
}

static uint64_t input(int rank, int64_t i)
{
    return scramble(((uint64_t)rank << 40) + (uint64_t)i + 1);
}

static uint64_t combine(uint64_t a, uint64_t b)
{
    return (a << 13 | a >> 51) * 0x9e3779b97f4a7c15u + b;
}

/* Return the sum over logical workers in the order of the tree, of word i of their operands. */
static inline uint64_t tree_sum(int first, int size, int64_t i)
{
    int half = 1;
    if (size == 1)
        return input(first, i);
    while (2 * half < size)
        half *= 2;
    return combine(tree_sum(first, half, i), tree_sum(first + half, size - half, i));
}

/* Return what remains of the `wide` words of a sum. */
static inline uint64_t narrowed(const uint64_t *words, int wide)
{
    return scramble(wide == 1 ? words[0] : words[0] ^ (words[1] << 7 | words[1] >> 57));
}

/* Run a fold over word i of all operands; the results are `stride` words apart. */
static inline void fold_word(const ddl__fold *fold, const uint64_t *const *operands, int64_t i,
                             uint64_t *results, int64_t stride)
{
    uint64_t stack[DDL__FOLD_DEPTH];
    int n = 0;
    for (int at = 0; at < fold->n; at++) {
        int item = fold->items[at];
        if (item >= 0) {
            stack[n++] = operands[item][i];
        } else if (item == DDL__FOLD_ADD) {
            n--;
            stack[n - 1] = combine(stack[n - 1], stack[n]);
        } else if (item == DDL__FOLD_PAIRS) {
            n -= 3;
            stack[n - 1] =
                combine(combine(stack[n - 1], stack[n]), combine(stack[n + 1], stack[n + 2]));
        } else {
            results[i] = stack[--n];
            results += stride;
        }
    }
}

#endif
