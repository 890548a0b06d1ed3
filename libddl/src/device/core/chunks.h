/* SPDX-License-Identifier: Apache-2.0 */
/* chunks.h - divides an operation on device buffers into operations on host memory. All ranks get
 * the same division. An operation on even blocks has many chunks: each is the same range of
 * elements of every block. An operation on uneven blocks, or an ordered sum, has one chunk. */
#ifndef DDL_DEVICE_CORE_CHUNKS_H
#define DDL_DEVICE_CORE_CHUNKS_H

#include "engine/calls/work.h"

/* `n` consecutive even blocks that are copied between the caller's buffer and the chunk's memory.
 * The first one is block `device` of the buffer and block `host` of the memory. The block of index
 * `except` among the n is not copied (-1: all are). */
typedef struct ddl__copied {
    int n, device, host, except;
} ddl__copied;

typedef struct ddl__chunks {
    const ddl__call *call;
    int64_t n; /* number of chunks; at least 1 */
    int size;  /* size of the comm */
    size_t element;
    bool by_nccl;  /* the call uses NCCL; set by the caller, like `rest` */
    int64_t rest;  /* elements of the program's call that are not in `call` */
    bool is_whole; /* the only chunk has the layout of the caller's buffers */

    /* If is_whole: the used parts of the buffers, in elements, or one range if both are one buffer.
     * With uneven blocks, also the blocks that are copied. */
    ddl__share sent, received;
    bool is_one_range;
    const ddl__share *blocks_in, *blocks_out;
    int n_in, n_out;

    /* If the buffers are cut into several chunks (is_whole is false): */
    int64_t elements; /* elements of a block in each chunk but the last */
    int blocks;       /* number of blocks in the chunk's memory */
    int recv_block;   /* index of the receive buffer's first block in the memory; 0: in place */
    ddl__copied in, out;
    const ddl__call *const *packed; /* all-reduces that are packed in `call`, in one chunk */
    int n_packed;                   /* 0: not packed */
} ddl__chunks;

/* Divide the call into chunks of at most `bytes` bytes. The call must outlive `chunks`. Return
 * false if one element of each block takes more bytes. */
bool ddl__chunks_of(const ddl__call *call, int rank, int size, size_t bytes, ddl__chunks *chunks);

/* Return the number of elements of a block in chunk k of even blocks. */
int64_t ddl__chunk_count(const ddl__chunks *chunks, int64_t k);

/* Return the number of bytes of memory that chunk k needs. */
size_t ddl__chunk_bytes(const ddl__chunks *chunks, int64_t k);

/* Make the operation of chunk k, in this memory. It refers to nothing that the caller owns. Free
 * its bundle when the operation has ended. Return false if out of memory. */
bool ddl__chunk_call(const ddl__chunks *chunks, int64_t k, unsigned char *memory, ddl__call *made);

/* Copies between `device` and `host`. Returns false to stop. */
typedef bool ddl__chunk_copy_fn(void *context, const void *device, void *host, size_t bytes);

/* Copy the chunk's operands from the device, or its results to the device. */
bool ddl__chunk_copy_in(const ddl__chunks *chunks, int64_t k, unsigned char *memory,
                        ddl__chunk_copy_fn *copy, void *context);
bool ddl__chunk_copy_out(const ddl__chunks *chunks, int64_t k, unsigned char *memory,
                         ddl__chunk_copy_fn *copy, void *context);

#endif
