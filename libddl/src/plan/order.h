/* SPDX-License-Identifier: Apache-2.0 */
/* order.h - the order in which the operands of logical workers are added, whichever members pass
 * them.
 *
 * The sum over n workers is the sum over the first m plus the sum over the others, where m is the
 * largest power of two below n. These sums form a binary tree. A member can compute the sums of the
 * tree whose workers all belong to it. The member's parts are the largest of these sums. */
#ifndef DDL_PLAN_ORDER_H
#define DDL_PLAN_ORDER_H

#include "base/fold.h"

/* The sum over `size` workers from worker `first` on. */
typedef struct ddl__order_part {
    int first, size;
} ddl__order_part;

/* The owners of the workers: members[v] passes the operand of worker v; -1: no member does. */
typedef struct ddl__order {
    int workers;
    const int *members;
} ddl__order;

/* Store up to `capacity` parts of a member in `parts`, in ascending order. Return their number. */
int ddl__order_parts(const ddl__order *order, int member, ddl__order_part *parts, int capacity);

/* Return the number of parts of all members together. */
int ddl__order_count(const ddl__order *order);

/* Return the additions that combine the parts of all members from the parts of members 0 to n - 1.
 * Each of these members passes at least one worker; member i's parts are span i of the operands.
 * Return NULL if out of memory. The caller frees it with free. */
ddl__fold *ddl__order_fold(const ddl__order *order, int n);

/* Return the additions that keep n operands of one span unchanged, one after another. */
ddl__fold *ddl__order_pack(int n);

#endif
