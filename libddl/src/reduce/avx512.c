/* SPDX-License-Identifier: Apache-2.0 */
/* avx512.c - kernels for x86-64 with AVX-512 F, BW, VL and DQ. */
#include <immintrin.h>

#define ISA           avx512
#define WIDTH         64
#define F16_WIDEN(h)  ((f32_lanes)_mm512_cvtph_ps((__m256i)(h)))
#define F16_NARROW(f) ((half_lanes)_mm512_cvtps_ph((__m512)(f), _MM_FROUND_TO_NEAREST_INT))
#define FIRST(bytes)  (((__mmask64)1 << (bytes)) - 1)
#define LOAD_PART(from, bytes)                                                                     \
    ((u8_lanes)_mm512_maskz_loadu_epi8(FIRST(bytes), (const void *)(from)))
#define STORE_PART(to, v, bytes) _mm512_mask_storeu_epi8((void *)(to), FIRST(bytes), (__m512i)(v))
#define STORE_NT(to, v)          _mm512_stream_si512((__m512i *)(to), (__m512i)(v))
#define FENCE()                  _mm_sfence()

#include "reduce/kernels.h"
