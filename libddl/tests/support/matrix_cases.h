/* SPDX-License-Identifier: Apache-2.0 */
/* matrix_cases.h - the parameters of the matrix, the valid combinations, and the choice of some of
 * these: all, a covering array over all pairs of values, or a sample. */
#ifndef DDL_TESTS_MATRIX_CASES_H
#define DDL_TESTS_MATRIX_CASES_H

#include "matrix_values.h"

typedef enum parameter { RANKS, OPERATION, DTYPE, OP, COUNT, PLACE, MODE, PARAMETERS } parameter;

enum { VALUES_MAX = 18 };
enum { PAIRS_MAX = PARAMETERS * VALUES_MAX * PARAMETERS * VALUES_MAX };

/* Names of values; NULL ends each list. The names of OPERATION and DTYPE come from their tables. */
static const char *value_names[PARAMETERS][VALUES_MAX] = {
    [RANKS] = {"1", "2", "3", "4", "5", "8"},
    [OP] = {"none", "sum", "average", "min", "max", "product", "bit_and", "bit_or", "bit_xor",
            "logical_and", "logical_or"},
    [COUNT] = {"0", "1", "p-1", "p", "1000", "100003", "1048579"},
    [PLACE] = {"out", "in"},
    [MODE] = {"blocking", "async", "grouped"},
};
static const char *parameter_names[PARAMETERS] = {"ranks", "operation", "dtype", "op",
                                                  "count", "place",     "mode"};
static const int rank_counts[] = {1, 2, 3, 4, 5, 8};
enum { BLOCKING, ASYNC, GROUPED };
/* The largest count is for few ranks and short elements. */
enum { LARGE = 100003, LARGEST = 1048579, LARGEST_RANKS = 4, LARGEST_ELEMENT = 4 };

/* The indices of the values of one combination. */
typedef struct combination {
    unsigned char v[PARAMETERS];
    bool chosen;
} combination;

typedef struct cases {
    combination *all;
    size_t n;
} cases;

/* True if a combination that fits the table of operations exists; defined by test_matrix.c. */
static bool sensible(const combination *c);

static int ranks_of(const combination *c)
{
    return rank_counts[c->v[RANKS]];
}

static int64_t count_of(const combination *c)
{
    const int64_t counts[] = {0, 1, ranks_of(c) - 1, ranks_of(c), 1000, LARGE, LARGEST};
    return counts[c->v[COUNT]];
}

/* Return true if p - 1 or p repeats a value that is already there. */
static bool repeated(const combination *c)
{
    return (c->v[COUNT] == 2 || c->v[COUNT] == 3) && count_of(c) < 2;
}

static int values_of(parameter p)
{
    int n = 0;
    while (n < VALUES_MAX && value_names[p][n])
        n++;
    return n;
}

/* Return all cases in the order of the parameters, the first one slowest. */
static cases every_case(void)
{
    size_t room = 1;
    for (int p = 0; p < PARAMETERS; p++)
        room *= (size_t)values_of((parameter)p);
    cases found = {malloc(room * sizeof *found.all), 0};
    CHECK(found.all, "no memory");
    combination c = {0};
    for (size_t k = 0; k < room; k++) {
        size_t rest = k;
        for (int p = PARAMETERS; p-- > 0; rest /= (size_t)values_of((parameter)p))
            c.v[p] = (unsigned char)(rest % (size_t)values_of((parameter)p));
        if (!repeated(&c) && sensible(&c))
            found.all[found.n++] = c;
    }
    return found;
}

static size_t pair_index(const combination *c, int p, int q)
{
    return ((size_t)(p * VALUES_MAX + c->v[p]) * PARAMETERS + (size_t)q) * VALUES_MAX + c->v[q];
}

static int new_pairs(const combination *c, const bool *covered)
{
    int n = 0;
    for (int p = 0; p < PARAMETERS; p++)
        for (int q = p + 1; q < PARAMETERS; q++)
            n += !covered[pair_index(c, p, q)];
    return n;
}

/* Choose greedily: of the shuffled cases first those that cover many new pairs, last those with
 * one. */
static void choose_pairwise(cases *all)
{
    bool *covered = calloc(PAIRS_MAX, sizeof *covered);
    size_t *order = malloc(all->n * sizeof *order);
    CHECK(covered && order, "no memory");
    for (size_t k = 0; k < all->n; k++) {
        size_t other = mixed(k) % (k + 1);
        order[k] = order[other];
        order[other] = k;
    }
    for (int wanted = PARAMETERS * (PARAMETERS - 1) / 2; wanted > 0; wanted--)
        for (size_t k = 0; k < all->n; k++) {
            combination *c = &all->all[order[k]];
            if (new_pairs(c, covered) < wanted)
                continue;
            c->chosen = true;
            for (int p = 0; p < PARAMETERS; p++)
                for (int q = p + 1; q < PARAMETERS; q++)
                    covered[pair_index(c, p, q)] = true;
        }
    free(covered);
    free(order);
}

/* Choose every step-th case; a step of 1 chooses all. */
static void choose_each(cases *all, size_t step)
{
    for (size_t k = 0; k < all->n; k += step)
        all->all[k].chosen = true;
}

/* Drop cases that do not match the filter "parameter=value". Return false if it is not a filter. */
static bool filtered(cases *all, const char *filter)
{
    for (int p = 0; p < PARAMETERS; p++) {
        size_t length = strlen(parameter_names[p]);
        if (strncmp(filter, parameter_names[p], length) || filter[length] != '=')
            continue;
        for (int v = 0; v < values_of((parameter)p); v++) {
            if (strcmp(filter + length + 1, value_names[p][v]))
                continue;
            for (size_t k = 0; k < all->n; k++)
                all->all[k].chosen &= all->all[k].v[p] == v;
            return true;
        }
    }
    return false;
}

/* Keep each n-th of the chosen cases, starting with the i-th. */
static void keep_shard(cases *all, size_t i, size_t n)
{
    size_t seen = 0;
    for (size_t k = 0; k < all->n; k++)
        if (all->all[k].chosen)
            all->all[k].chosen = seen++ % n == i;
}

/* Return the filters that choose only this case. */
static const char *described(const combination *c, char text[256])
{
    int n = 0;
    for (int p = 0; p < PARAMETERS; p++)
        n += snprintf(text + n, 256 - (size_t)n, " %s=%s", parameter_names[p],
                      value_names[p][c->v[p]]);
    return text;
}

#endif
