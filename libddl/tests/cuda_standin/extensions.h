/* SPDX-License-Identifier: Apache-2.0 */
/* extensions.h - functions of the stand-in for libcuda.so.1 for the stand-in for libnccl.so.2
 * (nccl/). */
#ifndef CUDA_STANDIN_EXTENSIONS_H
#define CUDA_STANDIN_EXTENSIONS_H

#include <stdbool.h>
#include <stddef.h>

#include "cuda_abi.h"

#pragma GCC visibility push(default)

/* Queue a function as a kernel: it runs in the stream's thread, and may wait for other devices. */
CUresult standin_launch(CUstream stream, void (*run)(void *argument, int device), void *argument);

/* Bytes of a device's memory, until standin_part_drop. */
typedef struct standin_part {
    unsigned char *at;
    size_t bytes;
    void *memory;
} standin_part;

/* Return the first piece of the bytes, which may be in several pieces. Aborts if the device must
 * not access them. */
standin_part standin_part_take(CUdeviceptr address, size_t bytes, int device, bool writes,
                               const char *user);
void standin_part_drop(standin_part *part);

#pragma GCC visibility pop

#endif
