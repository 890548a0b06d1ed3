/* SPDX-License-Identifier: Apache-2.0 */
/* order.h - the one order in which the operands of logical workers are added, whoever brings them.
 *
 * The sum over n workers is the sum over the first m plus the sum over the others, where m is the
 * largest power of two below n. These sums form a binary tree. A sum of the tree whose workers all
 * belong to one member can be computed there. A member's parts are the largest of these sums. */
#ifndef DDL_PLAN_ORDER_H
#define DDL_PLAN_ORDER_H

#include "base/fold.h"

enum { DDL__WORKERS_MAX = 4096 };

/* The sum over the workers from `first` on, `size` of them. */
typedef struct ddl__order_part {
    int first, size;
} ddl__order_part;

/* Who brings what: members[v] brings the operand of worker v; -1: nobody does. */
typedef struct ddl__order {
    int workers;
    const int *members;
} ddl__order;

/* The parts of a member, ascending: up to `capacity` into `parts`. Returns their number. */
int ddl__order_parts(const ddl__order *order, int member, ddl__order_part *parts, int capacity);

/* The additions that make the parts of all members together from the parts of members 0 to n - 1,
 * each of which brings a worker at least: its parts are span i of the operands. NULL when out of
 * memory; freed with free. */
ddl__fold *ddl__order_fold(const ddl__order *order, int n);

/* The additions that keep n operands of one span as they are: they come behind one another. */
ddl__fold *ddl__order_pack(int n);

#endif
