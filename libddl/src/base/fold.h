/* SPDX-License-Identifier: Apache-2.0 */
/* fold.h - additions in a given order, as data: a postfix program over a stack. plan/order.h makes
 * it, reduce/fold.c runs it. */
#ifndef DDL_BASE_FOLD_H
#define DDL_BASE_FOLD_H

#include <stdint.h>

/* An item of a program: an operand to push, by its number, or one of these. */
enum {
    DDL__FOLD_ADD = -1,   /* replace the two on top, a below b, by a + b */
    DDL__FOLD_PAIRS = -2, /* replace the four on top, a below b, c and d, by (a + b) + (c + d) */
    DDL__FOLD_STORE = -3  /* pop the next result */
};

enum { DDL__FOLD_DEPTH = 19 }; /* of the sum over 4096 workers: three for two levels of the tree */

/* The operands come in spans, of one or several each: span i holds those from first[i] up to
 * first[i + 1]. Each is pushed once. */
typedef struct ddl__fold {
    int n; /* items */
    int spans, operands, results;
    int depth;       /* of the stack; at most DDL__FOLD_DEPTH */
    uint16_t *first; /* spans + 1 */
    int16_t items[];
} ddl__fold;

#endif
