/* SPDX-License-Identifier: Apache-2.0 */
/* pause.h - the CPU's hint for a spin loop. */
#ifndef DDL_BASE_PAUSE_H
#define DDL_BASE_PAUSE_H

static inline void ddl__pause(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb");
#endif
}

#endif
