/* SPDX-License-Identifier: Apache-2.0 */
/* extensions.h - functions of the stand-in for libcuda.so.1 for the stand-in for libnccl.so.2
 * (nccl/). */
#ifndef CUDA_STANDIN_EXTENSIONS_H
#define CUDA_STANDIN_EXTENSIONS_H

#include <stdbool.h>

#include "cuda_abi.h"

#pragma GCC visibility push(default)

/* Queue a function as a kernel: it runs in the stream's thread, and may wait for other devices. */
CUresult standin_launch(CUstream stream, void (*run)(void *argument, int device), void *argument);

/* Addresses that the program has got, or registered. */
typedef struct range range;

/* Without the lock: set `at` to where the stand-in can access these bytes until standin_unuse.
 * Aborts if the device must not access them, which a real device reports as an illegal address. */
range *standin_use(uintptr_t address, size_t bytes, int device, bool writes, const char *user,
                   unsigned char **at);
void standin_unuse(range *r);

#pragma GCC visibility pop

#endif
