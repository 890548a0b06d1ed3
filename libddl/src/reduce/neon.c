/* SPDX-License-Identifier: Apache-2.0 */
/* neon.c - kernels for arm64. Its non-temporal copy is a plain copy. */
#include <arm_neon.h>

#define ISA           neon
#define WIDTH         16
#define F16_WIDEN(h)  ((f32_lanes)vcvt_f32_f16((float16x4_t)(h)))
#define F16_NARROW(f) ((half_lanes)vcvt_f16_f32((float32x4_t)(f)))

#include "reduce/kernels.h"
