/* SPDX-License-Identifier: Apache-2.0 */
/* nvrtc.h - the compiler of CUDA's kernels, opened at run time: a program that uses a GPU often has
 * it, as PyTorch and JAX do. */
#ifndef DDL_DEVICE_NVRTC_H
#define DDL_DEVICE_NVRTC_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

typedef struct ddl__nvrtc_program ddl__nvrtc_program;

/* X(function, symbol, parameters): each returns an int, 0 for success. */
#define DDL__NVRTC_FUNCTIONS(X)                                                                    \
    X(create, nvrtcCreateProgram,                                                                  \
      (ddl__nvrtc_program * *program, const char *text, const char *name, int n_headers,           \
       const char *const *headers, const char *const *header_names))                               \
    X(destroy, nvrtcDestroyProgram, (ddl__nvrtc_program * *program))                               \
    X(compile, nvrtcCompileProgram,                                                                \
      (ddl__nvrtc_program * program, int n, const char *const *options))                           \
    X(image_size, nvrtcGetCUBINSize, (ddl__nvrtc_program * program, size_t * bytes))               \
    X(image, nvrtcGetCUBIN, (ddl__nvrtc_program * program, char *image))                           \
    X(ptx_size, nvrtcGetPTXSize, (ddl__nvrtc_program * program, size_t * bytes))                   \
    X(ptx, nvrtcGetPTX, (ddl__nvrtc_program * program, char *image))                               \
    X(log_size, nvrtcGetProgramLogSize, (ddl__nvrtc_program * program, size_t * bytes))            \
    X(log, nvrtcGetProgramLog, (ddl__nvrtc_program * program, char *text))                         \
    X(count_archs, nvrtcGetNumSupportedArchs, (int *n))                                            \
    X(archs, nvrtcGetSupportedArchs, (int *archs))

#define DDL__NVRTC_POINTER(function, symbol, parameters) int(*function) parameters;
typedef struct ddl__nvrtc {
    void *library;
    int arch;      /* for which it compiles: the GPU's, as 90 for 9.0, ... */
    bool is_exact; /* ... or the latest earlier one that it knows */
    DDL__NVRTC_FUNCTIONS(DDL__NVRTC_POINTER)
} ddl__nvrtc;
#undef DDL__NVRTC_POINTER

/* What it compiles: kernel_texts.c. */
extern const char ddl__text_of_reduce_cu[], ddl__text_of_reduction_h[];

/* Open it for GPUs of this arch, and a driver of this CUDA version, as 12040 for 12.4: it takes
 * nothing of a later major one. DDL_EUNSUPPORTED if there is none, or one that is too old. */
ddl_status ddl__nvrtc_open(ddl__nvrtc *nvrtc, int arch, int version);

/* Compile reduce.cu with these macros into an image for cuModuleLoadData, on the heap. */
ddl_status ddl__nvrtc_compile(const ddl__nvrtc *nvrtc, const char *const *macros, int n,
                              char **image);

#endif
