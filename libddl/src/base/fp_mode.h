/* SPDX-License-Identifier: Apache-2.0 */
/* fp_mode.h - the floating-point mode of the library's own arithmetic: IEEE 754, rounding to
 * nearest, subnormals kept, no traps.
 *
 * A calling thread may have another mode: PyTorch's set_flush_denormal and the threads of
 * TensorFlow and XLA flush subnormals to zero, -ffast-math does this for a whole program, and new
 * threads inherit the mode. Ranks in different modes would compute different bits, and could choose
 * different plans by their costs. Code that computes therefore calls ddl__fp_enter before and
 * ddl__fp_leave after. Reading the mode takes a few cycles. It is written only if it differs.
 *
 * ddl__fp_leave restores exactly the caller's mode. Exception flags that the arithmetic has raised
 * stay raised, as after any other C function. But the caller cannot rely on them, because another
 * thread or rank may have done the arithmetic. */
#ifndef DDL_BASE_FP_MODE_H
#define DDL_BASE_FP_MODE_H

#include <stdint.h>

/* The mode registers of x86-64 and arm64; on other CPUs the caller's mode stays. DDL__FP_CONTROL
 * has the control bits, and DDL__FP_STANDARD is the library's mode. The asm statements clobber
 * memory, so that the compiler moves no arithmetic on loaded or stored values across ddl__fp_enter
 * or ddl__fp_leave. */
#if defined(__x86_64__)

typedef uint32_t ddl__fp_mode; /* MXCSR: control bits, and below them the exception flags */
enum { DDL__FP_CONTROL = 0xffc0, DDL__FP_STANDARD = 0x1f80 };

static inline ddl__fp_mode ddl__fp_read(void)
{
    ddl__fp_mode mode;
    __asm__ volatile("stmxcsr %0" : "=m"(mode) : : "memory");
    return mode;
}

static inline void ddl__fp_write(ddl__fp_mode mode)
{
    __asm__ volatile("ldmxcsr %0" : : "m"(mode) : "memory");
}

#elif defined(__aarch64__)

typedef uint64_t ddl__fp_mode; /* FPCR, which has no flags; 0 is the default of IEEE 754 */
static const uint64_t DDL__FP_CONTROL = UINT64_MAX, DDL__FP_STANDARD = 0;

static inline ddl__fp_mode ddl__fp_read(void)
{
    ddl__fp_mode mode;
    __asm__ volatile("mrs %0, fpcr" : "=r"(mode) : : "memory");
    return mode;
}

static inline void ddl__fp_write(ddl__fp_mode mode)
{
    __asm__ volatile("msr fpcr, %0" : : "r"(mode) : "memory");
}

#else

typedef uint32_t ddl__fp_mode;
enum { DDL__FP_CONTROL = 0, DDL__FP_STANDARD = 0 };

static inline ddl__fp_mode ddl__fp_read(void)
{
    return 0;
}

static inline void ddl__fp_write(ddl__fp_mode mode)
{
    (void)mode;
}

#endif

/* Set the calling thread's control bits as in `mode`; the flags do not change. */
static inline void ddl__fp_set(ddl__fp_mode mode)
{
    ddl__fp_write((ddl__fp_read() & ~(ddl__fp_mode)DDL__FP_CONTROL) |
                  (mode & (ddl__fp_mode)DDL__FP_CONTROL));
}

static inline int ddl__fp_is_standard(ddl__fp_mode mode)
{
    return (mode & (ddl__fp_mode)DDL__FP_CONTROL) == (ddl__fp_mode)DDL__FP_STANDARD;
}

/* Switch this thread to the standard mode. Return the caller's mode. */
static inline ddl__fp_mode ddl__fp_enter(void)
{
    ddl__fp_mode caller = ddl__fp_read();
    if (!ddl__fp_is_standard(caller))
        ddl__fp_set(DDL__FP_STANDARD);
    return caller;
}

/* Restore the mode that ddl__fp_enter returned, on the same thread. */
static inline void ddl__fp_leave(ddl__fp_mode caller)
{
    if (!ddl__fp_is_standard(caller))
        ddl__fp_set(caller);
}

#endif
