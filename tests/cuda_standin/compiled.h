/* SPDX-License-Identifier: Apache-2.0 */
/* compiled.h - the images that the stand-in for NVRTC makes, and the one for libcuda.so.1 loads:
 * this header, and the bytes of a shared library behind it. */
#ifndef CUDA_STANDIN_COMPILED_H
#define CUDA_STANDIN_COMPILED_H

#include <stddef.h>

#define COMPILED_MARK "ddl standin compiled"

typedef struct compiled_header {
    char mark[sizeof COMPILED_MARK];
    size_t bytes;
} compiled_header;

#endif
