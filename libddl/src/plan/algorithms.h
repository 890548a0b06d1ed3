/* SPDX-License-Identifier: Apache-2.0 */
/* algorithms.h - the table of all algorithms, with one line for each.
 *
 * row(NUMBER, descriptor) gives the next number to an algorithm; its descriptor is
 * ddl__<descriptor> in the file of that name (builder.h has the type). Ranks exchange choices as
 * numbers, so a new row must be the last.
 *
 * more(NUMBER, descriptor) is a second algorithm under the number and name of the row before it. */
#ifndef DDL_PLAN_ALGORITHMS_H
#define DDL_PLAN_ALGORITHMS_H

/* clang-format off */
#define DDL__ALGORITHM_TABLE(row, more) \
    row(LOCAL, local)                   \
    row(DISSEMINATION, dissemination)   \
    row(PAIRWISE, pairwise)             \
    row(ONE_SHOT, one_shot)             \
    row(DIRECT, direct)                 \
    row(HIERARCHICAL, hierarchical)     \
    row(HALVING, halving)               \
    row(TREE, tree)                     \
    more(TREE, tree_blocks)             \
    row(RING, ring)                     \
    row(HOSTS, hosts)                   \
    more(HOSTS, hosts_alltoall)         \
    row(LEADERS, leaders)               \
    row(CHAIN, chain)                   \
    row(ORDERED, ordered)               \
    row(PACKED, packed)
/* clang-format on */

#define DDL__ALGORITHM_NUMBER(number, descriptor) DDL__ALGORITHM_##number,
#define DDL__ALGORITHM_SKIP(number, descriptor)

typedef enum ddl__algorithm {
    DDL__ALGORITHM_NONE,
    DDL__ALGORITHM_TABLE(DDL__ALGORITHM_NUMBER, DDL__ALGORITHM_SKIP) DDL__ALGORITHMS
} ddl__algorithm;

#endif
