/* SPDX-License-Identifier: Apache-2.0 */
/* test_standin.h - declarations that the tests of the stand-in for libcuda.so.1 share. Each case
 * runs in a separate process with its own settings, because the stand-in reads them once. */
#ifndef CUDA_STANDIN_TEST_STANDIN_H
#define CUDA_STANDIN_TEST_STANDIN_H

#include <stdbool.h>
#include <stdint.h>
#include <unistd.h>

#include "check.h"
#include "cuda_functions.h"
#include "edges.h" /* STANDIN_TSAN */

/* The call returns this result. */
#define CU_IS(expected, call)                                                                      \
    do {                                                                                           \
        CUresult result_ = (call);                                                                 \
        CHECK(result_ == (expected), "%s gives %d, not %s", #call, (int)result_, #expected);       \
    } while (0)
#define CU(call) CU_IS(CUDA_SUCCESS, call)

enum { WORDS = 1024, BYTES = WORDS * 4 };

/* Call cuInit, and make device 0's context current. */
void start_driver(void);

CUdeviceptr device_words(void);
uint32_t *pinned_words(uint32_t value);
CUstream new_stream(unsigned flags);
CUevent new_event(void);
/* Return the device address of pinned memory. */
CUdeviceptr address_of(const void *pinned);
void fill_words(CUdeviceptr to, uint32_t value, CUstream stream);
void check_words(const uint32_t *words, uint32_t value, const char *what);
/* Check device memory by a synchronous copy. */
void check_device_words(CUdeviceptr from, uint32_t value, const char *what);
/* Check that the stream is not done after a while. */
void check_pending(CUstream stream, const char *what);

typedef struct test_case {
    const char *name;
    void (*run)(void);
    const char *settings[4];
    bool races; /* the program passes, but ThreadSanitizer must report it */
} test_case;

extern const test_case memory_cases[], mapping_cases[], stream_cases[], item_cases[], race_cases[];

#endif
