/* SPDX-License-Identifier: Apache-2.0 */
/* chunks.h - how an operation on device buffers is cut into operations on host memory, equally on
 * all ranks. An operation on even blocks has many: each is the same range of elements of every
 * block. Operations on uneven blocks and ordered sums have one. */
#ifndef DDL_DEVICE_CORE_CHUNKS_H
#define DDL_DEVICE_CORE_CHUNKS_H

#include "engine/calls/work.h"

/* Even blocks that are copied between the caller's buffer and the chunk's memory: `n` from `device`
 * on in the buffer, from `host` on in the memory; all but number `except` of these (-1: none). */
typedef struct ddl__copied {
    int n, device, host, except;
} ddl__copied;

typedef struct ddl__chunks {
    const ddl__call *call;
    int64_t n; /* how many; at least 1 */
    int size;  /* of the comm */
    size_t element;
    bool by_nccl;  /* it does not pass through host memory alone; set by the caller, like: */
    int64_t rest;  /* elements of the program's call behind `call` */
    bool is_whole; /* the one chunk has the layout of the caller's buffers */

    /* is_whole: the parts of the buffers that are used, in elements; in one range if both are one
     * buffer. Of uneven blocks those that are copied. */
    ddl__share sent, received;
    bool is_one_range;
    const ddl__share *blocks_in, *blocks_out;
    int n_in, n_out;

    /* Otherwise: */
    int64_t elements; /* of a block, in each chunk but the last */
    int blocks;       /* that the chunk's memory holds */
    int recv_block;   /* with which its receive buffer begins; 0: in place */
    ddl__copied in, out;
    const ddl__call *const *packed; /* all-reduces that `call` is made of, in one chunk */
    int n_packed;                   /* 0: it is not */
} ddl__chunks;

/* How to run the call, in chunks of up to so many bytes. The call outlives this. False: one element
 * of each block takes more. */
bool ddl__chunks_of(const ddl__call *call, int rank, int size, size_t bytes, ddl__chunks *chunks);

/* The elements of a block in chunk k of even blocks. */
int64_t ddl__chunk_count(const ddl__chunks *chunks, int64_t k);

/* The bytes of memory that chunk k wants. */
size_t ddl__chunk_bytes(const ddl__chunks *chunks, int64_t k);

/* Make the operation of chunk k, in this memory. It has nothing of the caller's, and its bundle is
 * to be freed when it has ended. False when out of memory. */
bool ddl__chunk_call(const ddl__chunks *chunks, int64_t k, unsigned char *memory, ddl__call *made);

/* What is copied between `device` and `host`. False: do not go on. */
typedef bool ddl__chunk_copy_fn(void *context, const void *device, void *host, size_t bytes);

/* Copy the chunk's operands from the device, or its results to the device. */
bool ddl__chunk_copy_in(const ddl__chunks *chunks, int64_t k, unsigned char *memory,
                        ddl__chunk_copy_fn *copy, void *context);
bool ddl__chunk_copy_out(const ddl__chunks *chunks, int64_t k, unsigned char *memory,
                         ddl__chunk_copy_fn *copy, void *context);

#endif
