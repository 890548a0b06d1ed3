/* SPDX-License-Identifier: Apache-2.0 */
/* avx2.c - kernels for x86-64 with AVX2 and F16C. */
#include <immintrin.h>

#define ISA             avx2
#define WIDTH           32
#define F16_WIDEN(h)    ((f32_lanes)_mm256_cvtph_ps((__m128i)(h)))
#define F16_NARROW(f)   ((half_lanes)_mm256_cvtps_ph((__m256)(f), _MM_FROUND_TO_NEAREST_INT))
#define STORE_NT(to, v) _mm256_stream_si256((__m256i *)(to), (__m256i)(v))
#define FENCE()         _mm_sfence()

#include "reduce/kernels.h"
