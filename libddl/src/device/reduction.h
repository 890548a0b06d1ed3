/* SPDX-License-Identifier: Apache-2.0 */
/* reduction.h - what the kernel of reduce.cu gets. It is compiled into the library, and at run time
 * into the kernel, where there are no other headers. */
#ifndef DDL_DEVICE_REDUCTION_H
#define DDL_DEVICE_REDUCTION_H

enum {
    DDL__REDUCTION_MAX = 64,  /* operands, and results */
    DDL__PACK_BYTES = 16,     /* that a thread loads at once */
    DDL__REDUCTION_DEPTH = 19 /* of the stack */
};

typedef struct ddl__reduction {
    unsigned long long count; /* elements; 0: nothing is done */
    unsigned long long packs; /* how many packs of them all addresses allow, from the start */
    long long divisor;        /* of an average */
    unsigned n_in, n_out;
    unsigned long long in[DDL__REDUCTION_MAX], out[DDL__REDUCTION_MAX]; /* addresses */
    double before[DDL__REDUCTION_MAX], after[DDL__REDUCTION_MAX];       /* factors; 0: none */
    /* Of an ordered sum: so many additions when operand k is on the stack, bit i of `pairs` telling
     * whether addition i is that of the four on top (base/fold.h). */
    unsigned short additions[DDL__REDUCTION_MAX], pairs[DDL__REDUCTION_MAX];
} ddl__reduction;

#endif
