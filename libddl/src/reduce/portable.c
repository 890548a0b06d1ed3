/* SPDX-License-Identifier: Apache-2.0 */
/* portable.c - kernels for any CPU, and the baseline of x86-64 (SSE2). */
#define ISA   portable
#define WIDTH 16

#ifdef __SSE2__
#include <emmintrin.h>
#define STORE_NT(to, v) _mm_stream_si128((__m128i *)(to), (__m128i)(v))
#define FENCE()         _mm_sfence()
#endif

#include "reduce/kernels.h"
