/* SPDX-License-Identifier: Apache-2.0 */
/* fold.h - additions in a given order, as data: a postfix program over a stack. plan/order.h
 * creates it, reduce/fold.c runs it. */
#ifndef DDL_BASE_FOLD_H
#define DDL_BASE_FOLD_H

#include <stdint.h>

/* An item of a program is the number of an operand to push, or one of these operations. */
enum {
    DDL__FOLD_ADD = -1,   /* replace the top two, a below b, by a + b */
    DDL__FOLD_PAIRS = -2, /* replace the top four, a below b, c and d, by (a + b) + (c + d) */
    DDL__FOLD_STORE = -3  /* pop the next result */
};

/* The maximum number of logical workers, and the depth of the stack that their sum needs: 3 for
 * every 2 levels of the tree. */
enum { DDL__WORKERS_MAX = 4096, DDL__FOLD_DEPTH = 19 };

/* The operands come in spans: span i has the operands from first[i] up to first[i + 1]. Each
 * operand is pushed once. */
typedef struct ddl__fold {
    int n; /* number of items */
    int spans, operands, results;
    int depth;       /* depth of the stack; at most DDL__FOLD_DEPTH */
    uint16_t *first; /* spans + 1 entries */
    int16_t items[];
} ddl__fold;

#endif
