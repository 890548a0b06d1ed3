/* fp_mode.h - the floating-point mode of the library's own arithmetic: IEEE 754, rounding to
 * nearest, subnormals kept, no traps.
 *
 * A thread's mode is the caller's to choose: PyTorch's set_flush_denormal and the threads of
 * TensorFlow and XLA flush subnormals to zero, -ffast-math does it for a whole program, and new
 * threads inherit it. Ranks of different modes would compute different bits, and could choose
 * different plans by their costs. So who computes, enters first and leaves behind. To read the mode
 * costs a few cycles; it is written only where it differs.
 *
 * Leaving gives back exactly the caller's mode. The exception flags that the arithmetic has raised
 * stay raised, as behind any other function of C. They tell little: another thread, or another
 * rank, may have computed.
 */
#ifndef DDL_BASE_FP_MODE_H
#define DDL_BASE_FP_MODE_H

#include <stdint.h>

/* The registers of both CPUs; on others the mode stays the caller's. The library computes in
 * `standard`; `control` are the bits that matter. Memory is clobbered so that no arithmetic on what
 * is loaded or stored moves out of what lies between entering and leaving. */
#if defined(__x86_64__)

typedef uint32_t ddl__fp_mode; /* MXCSR: flush, round, mask; below them the exception flags */
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

typedef uint64_t ddl__fp_mode; /* FPCR, which has no flags; 0 is the standard's default */
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

/* Set the calling thread's control bits, and nothing else, to those of `mode`. */
static inline void ddl__fp_set(ddl__fp_mode mode)
{
    ddl__fp_write((ddl__fp_read() & ~(ddl__fp_mode)DDL__FP_CONTROL) |
                  (mode & (ddl__fp_mode)DDL__FP_CONTROL));
}

static inline int ddl__fp_is_standard(ddl__fp_mode mode)
{
    return (mode & (ddl__fp_mode)DDL__FP_CONTROL) == (ddl__fp_mode)DDL__FP_STANDARD;
}

/* Compute in the standard mode from here on, on this thread. Returns the caller's. */
static inline ddl__fp_mode ddl__fp_enter(void)
{
    ddl__fp_mode caller = ddl__fp_read();
    if (!ddl__fp_is_standard(caller))
        ddl__fp_set(DDL__FP_STANDARD);
    return caller;
}

/* On the same thread, with what entering returned. */
static inline void ddl__fp_leave(ddl__fp_mode caller)
{
    if (!ddl__fp_is_standard(caller))
        ddl__fp_set(caller);
}

#endif
